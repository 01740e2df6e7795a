"""Shared parts of the test scripts: they run cases one by one and print one line for each."""

import os
import queue
import re
import subprocess
import threading
import time

from ports import free_port

# For processes whose output is read line by line, or at the end.
PIPES = dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors='replace')


def job_settings(workers, servers=0, **more):
    """Returns the variables of a job's members on loopback, which meet at a free port. Ranks are not among them."""
    return dict(
        TRIB_WORKERS=str(workers),
        TRIB_SERVERS=str(servers),
        TRIB_TOKEN='token of a test',
        TRIB_LISTEN='127.0.0.1',
        TRIB_COORDINATOR='127.0.0.1:%d' % free_port(),
        **more,
    )


def read_until(process, pattern, said=None, seconds=150):
    """Reads the output up to the line that has the pattern, and returns that line. Adds all lines to `said`. A process
    that does not say it in time is killed."""
    said = [] if said is None else said
    limit = threading.Timer(seconds, process.kill)
    limit.start()
    try:
        for line in process.stdout:
            said.append(line)
            if re.search(pattern, line):
                return line
    finally:
        limit.cancel()
    raise AssertionError(
        'the process ended, or was killed after %d s, and did not say "%s": %s'
        % (seconds, pattern, ''.join(said)[-2000:])
    )


def ends_of(processes, seconds=100):
    """Returns each process's exit status and output. Those that have not ended in time are killed, and the text says
    what all of them put out."""
    deadline, ended, late = time.monotonic() + seconds, [], False
    for process in processes:
        try:
            output = process.communicate(timeout=max(0.1, deadline - time.monotonic()))[0]
        except subprocess.TimeoutExpired:
            late = True
            process.kill()
            output = process.communicate()[0]
        ended.append((process.returncode, output))
    assert not late, 'not done within %d s: %s' % (seconds, ' | '.join(output[-400:] for _, output in ended))
    return ended


class Outlet:
    """The lines of a process's output, read as they come: a process whose pipe is full waits, and others with it."""

    def __init__(self, process):
        self.lines = queue.SimpleQueue()
        self.pipe, process.stdout = process.stdout, self
        threading.Thread(target=self.fill, daemon=True).start()

    def fill(self):
        for line in self.pipe:
            self.lines.put(line)
        self.pipe.close()
        self.lines.put(None)

    def __iter__(self):
        return iter(self.lines.get, None)


def run_cases(cases):
    """Runs pairs of (name, function) and returns the script's exit status. An exception is a failure."""
    failed = 0
    for name, case in cases:
        try:
            case()
            print('ok ' + name, flush=True)
        except Exception as problem:
            failed += 1
            text = str(problem) if isinstance(problem, AssertionError) else repr(problem)
            print('not ok %s: %s' % (name, ' | '.join(text.splitlines())[:1500]), flush=True)
    return 1 if failed else 0


def alive(mark):
    """Returns the live processes that have the mark in their environment."""
    found = []
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try:
            if mark.encode() in open('/proc/%s/environ' % pid, 'rb').read():
                found.append(pid)
        except OSError:
            pass
    return found


def comes_true(condition, seconds=20):
    """Waits until the condition is true, and returns whether it was in time."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()

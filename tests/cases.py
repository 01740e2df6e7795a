"""What the test scripts have in common: cases that are run one by one, each with a line of its own."""
import os
import subprocess
import time


def run_cases(cases):
    """Each is (name, function); an exception is a failure. The script's exit status."""
    failed = 0
    for name, case in cases:
        try:
            case()
            print('ok ' + name, flush=True)
        except (AssertionError, subprocess.TimeoutExpired, ValueError, KeyError, OSError) as problem:
            failed += 1
            print('not ok %s: %s' % (name, ' | '.join(str(problem).splitlines())[:1500]), flush=True)
    return 1 if failed else 0


def alive(mark):
    """Processes that have the mark in their environment, but for those that have ended."""
    found = []
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try:
            if mark.encode() in open('/proc/%s/environ' % pid, 'rb').read():
                found.append(pid)
        except OSError:
            pass
    return found


def comes_true(condition, seconds=20):
    """Whether it does by then."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()

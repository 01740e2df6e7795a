"""What the tests of elastic jobs share: a job under `tributary run --elastic` whose workers the test ends, hosts that
are not there (a stand-in for ssh runs everything on this machine), and what is left of a job."""

import collections
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), 'python'))
import python_bed  # noqa: E402
from cases import PIPES, alive  # noqa: E402

TOOL = python_bed.BUILD + '/tributary'
WORKER = HERE + '/elastic_worker.py'
STEP = re.compile(r'^\[(\S+) .*\] step (\d+) rank (\d+) of (\d+) pid (\d+)$')
FOLDER = tempfile.TemporaryDirectory()
_made = 0


def write(name, text):
    """Writes a file that can be run, at once, and returns its path."""
    path = os.path.join(FOLDER.name, name)
    with open(path + '.new', 'w', encoding='ascii') as file:
        file.write(text)
    os.chmod(path + '.new', 0o755)
    os.replace(path + '.new', path)
    return path


# Hosts of any name but `nowhere`, all on this machine: what stands in for ssh refuses that one.
RSH = write('rsh', '#!/bin/sh\n[ "$1" = nowhere ] && { echo "no route to nowhere"; exit 255; }\nshift\nexec "$@"\n')
AWAY = ('--host', '127.0.0.1', '--rsh', RSH)


def open_gate(gate):
    """Lets the workers end, after the epoch that they are in."""
    with open(gate, 'x', encoding='ascii'):
        pass


def all_have_trained(output, count):
    """Asserts that so many workers came to the end, all after the same number of epochs."""
    epochs = re.findall(r'trained (\d+) epochs', output)
    assert len(epochs) == count and len(set(epochs)) == 1, (epochs, output[-2500:])


# The agent of a host that says nothing but output.
AGENT = """#!/bin/sh
echo '{"event": "here"}'
read start; read hello
echo '{"event": "hello", "address": "127.0.0.1"}'
read order
echo '{"event": "output"}'
while read order; do :; done
exit 7
"""


class Job:
    """`tributary run` with options and a program. Its lines are read by a thread; workers() are those that have shown a
    step."""

    def __init__(self, *command, **variables):
        global _made
        _made += 1
        self.mark = 'ELASTIC_TEST=%d-%d' % (os.getpid(), _made)
        name, value = self.mark.split('=')
        self.process = subprocess.Popen(
            [TOOL, 'run', *command], env=python_bed.environment(**{name: value}, **variables), **PIPES
        )
        self.lines, self._steps = [], collections.OrderedDict()  # the last step of each process
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line.rstrip('\n'))
            found = STEP.match(self.lines[-1])
            if found:
                host, step, rank, size, pid = found.group(1), *map(int, found.groups()[1:])
                self._steps[pid] = (step, rank, size, host)

    def text(self):
        return '\n'.join(self.lines)

    def steps(self):
        """Returns step, rank, size and host of each process that lives, by its number."""
        return {pid: steps for pid, steps in self._steps.copy().items() if os.path.exists('/proc/%d' % pid)}

    def comes_to(self, condition, what, seconds=60):
        """Waits until a condition on steps() is true."""
        deadline = time.monotonic() + seconds
        while not condition(self.steps()):
            assert self.process.poll() is None, 'the job ended before %s: %s' % (what, self.text()[-2500:])
            assert time.monotonic() < deadline, '%s did not come to be: %s' % (what, self.text()[-2500:])
            time.sleep(0.02)

    def has_size(self, size, seconds=60):
        """Waits until so many workers have shown a step of a job of that size."""
        self.comes_to(
            lambda steps: sum(each[2] == size for each in steps.values()) == size, '%d workers' % size, seconds
        )

    def kill(self, pid):
        os.kill(pid, signal.SIGKILL)

    def end(self, status=0, seconds=60):
        """Waits for the end, and asserts the exit status and that nothing is left. Returns the output."""
        try:
            got = self.process.wait(seconds)
        finally:
            self.stop()
        self._thread.join(5)
        assert got == status, (got, self.text()[-2500:])
        deadline = time.monotonic() + 10
        while alive(self.mark) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not alive(self.mark), 'processes are left: %s' % alive(self.mark)
        return self.text()

    def stop(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

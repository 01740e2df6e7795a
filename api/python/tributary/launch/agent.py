"""Starts, watches and ends the workers of one host for `tributary run`. It runs by itself on that host, with no other
module of the package, and speaks JSON lines: orders on its standard input, events on its standard output.

The input is its lifeline: when it ends, the launcher or the way to it is gone, and all workers are ended. Should this
process be killed, the kernel ends its workers."""

import asyncio
import ctypes
import json
import os
import random
import signal
import socket
import sys
import time

_SUBREAPER, _DEATH_SIGNAL = 36, 1  # of prctl(2)
_KILL_SECONDS = 3  # between SIGTERM and SIGKILL
_GONE_SECONDS = 10  # after SIGKILL: a process that waits in the kernel, as for a dead disk, does not end
_CHUNK = 1 << 16
_IGNORED = signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE  # the end of the input says when to end
_libc = ctypes.CDLL(None)


def _say(**event):
    sys.stdout.write(json.dumps(event) + '\n')
    sys.stdout.flush()


def _address_towards(other):
    """Returns the address from which this host reaches another. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((other, 9))
        return probe.getsockname()[0]


def _free_port(address):
    """Returns a port outside the range from which the kernel assigns ports, so that nobody gets it before it is
    used."""
    for port in random.sample(range(10000, 32000), 1000):
        with socket.socket() as probe:
            try:
                probe.bind((address, port))
                return port
            except OSError:
                pass
    raise OSError('no free port on %s' % address)


def _state_and_parent(pid):
    with open('/proc/%s/stat' % pid, encoding='utf-8', errors='replace') as file:
        state, parent = file.read().rpartition(')')[2].split()[:2]
    return state, int(parent)


def _is_stopped(pid):
    try:
        return _state_and_parent(pid)[0] == 'T'
    except OSError:
        return False


def _descendants():
    """Returns this process's live descendants. Their parents may have ended: this process has adopted them."""
    parents = {}
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try:
            state, parent = _state_and_parent(pid)
        except OSError:
            continue
        if state not in 'ZX':
            parents[int(pid)] = parent
    found = {os.getpid()}
    while True:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        if not more:
            return found - {os.getpid()}
        found |= more


def _signal_all(pids, number):
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            pass


def _hint_at(program, folder):
    """Returns what to do about a program that could not be started, as far as its file tells."""
    if program.endswith('.py') and os.path.isfile(os.path.join(folder, program)):
        return '; put python3 before the script'
    return ''


class Agent:
    def __init__(self):
        self.workers = {}
        self.address = None

    async def take_orders(self):
        reader = asyncio.StreamReader(limit=1 << 26)
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.dup(0), 'rb', buffering=0)
        )
        while True:
            line = await reader.readline()
            if not line:
                return
            order = json.loads(line)
            await getattr(self, 'do_' + order.pop('do'))(**order)

    async def do_hello(self, towards):
        self.address = _address_towards(towards)
        _say(event='hello', address=self.address)

    async def do_port(self):
        _say(event='port', port=_free_port(self.address))

    async def do_start(self, worker, argv, environment, folder):
        parent = os.getpid()

        def prepare():
            for number in _IGNORED:
                signal.signal(number, signal.SIG_DFL)
            _libc.prctl(_DEATH_SIGNAL, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(127)

        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                env=dict(os.environ, **environment),
                cwd=folder if os.path.isdir(folder) else None,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
                preexec_fn=prepare,
            )
        except OSError as problem:
            text = 'tributary run: %s: %s%s\n' % (argv[0], problem.strerror, _hint_at(argv[0], folder))
            _say(event='output', worker=worker, stream=2, text=text)
            _say(event='ended', worker=worker, status=127)
            return
        self.workers[worker] = process
        asyncio.ensure_future(self.watch(worker, process))

    async def do_signal(self, worker, number):
        process = self.workers.get(worker)
        if process is not None:
            try:
                os.killpg(process.pid, number)
            except OSError:
                pass

    async def do_stopped(self):
        _say(event='stopped', workers=[worker for worker, each in self.workers.items() if _is_stopped(each.pid)])

    async def watch(self, worker, process):
        streams = [
            asyncio.ensure_future(self.relay(worker, 1, process.stdout)),
            asyncio.ensure_future(self.relay(worker, 2, process.stderr)),
        ]
        status = await process.wait()
        try:
            os.killpg(process.pid, signal.SIGKILL)  # what it has left behind would hold its outputs open
        except OSError:
            pass
        await asyncio.wait(streams, timeout=2)
        del self.workers[worker]
        _say(event='ended', worker=worker, status=status)

    async def relay(self, worker, number, stream):
        """Passes on whole lines, or long parts of longer ones."""
        rest = b''
        while True:
            data = await stream.read(_CHUNK)
            lines = rest + data
            cut = len(lines) if not data or len(lines) > _CHUNK else lines.rfind(b'\n') + 1
            if cut:
                _say(event='output', worker=worker, stream=number, text=lines[:cut].decode('utf-8', 'surrogateescape'))
            rest = lines[cut:]
            if not data:
                return


def _end_all():
    """Ends all descendants, with time to end by themselves. Processes that start meanwhile are found by the next
    look. Only children report their end to this process, so the end of others is seen in /proc alone."""
    deadline = time.monotonic() + _KILL_SECONDS
    _signal_all(_descendants(), signal.SIGTERM)
    while _descendants() and time.monotonic() < deadline:
        time.sleep(0.05)
    deadline = time.monotonic() + _GONE_SECONDS
    while _descendants() and time.monotonic() < deadline:
        _signal_all(_descendants(), signal.SIGKILL)
        time.sleep(0.05)
    for pid in sorted(_descendants()):
        sys.stderr.write(
            'tributary run: process %d on %s has not ended %d s after SIGKILL: see its state in /proc\n'
            % (pid, socket.gethostname(), _GONE_SECONDS)
        )


def main():
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    _libc.prctl(_SUBREAPER, 1)
    _say(event='here')
    try:
        asyncio.run(Agent().take_orders())
    finally:
        _end_all()


if __name__ == '__main__':
    main()

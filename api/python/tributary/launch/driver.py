"""One job over several hosts: what all ways to run it share. fixed.py runs one with so many workers from begin to end,
elastic.py one whose workers come and go."""

import asyncio
import os
import secrets
import signal
import socket
import sys
import time

from hosts import is_this_machine
from link import HostLost, Link

GRACE_SECONDS = 10  # time of the other workers after a failure or a signal, to end by themselves
SERVERS_SECONDS = 1  # time of the servers after the last worker
_LINE_MAX = 1 << 24  # a longer line is cut: a program that never ends its line must not fill memory
# Variables of this machine or login that mean nothing elsewhere.
_LOCAL_VARIABLES = (
    'HOME',
    'HOSTNAME',
    'LOGNAME',
    'MAIL',
    'OLDPWD',
    'PWD',
    'SHELL',
    'SHLVL',
    'TERM',
    'TMPDIR',
    'USER',
    '_',
)
_LOCAL_PREFIXES = ('DBUS_', 'DISPLAY', 'SSH_', 'XAUTHORITY', 'XDG_')


def say(text):
    """Prints a line of the launcher's own."""
    print('tributary run: ' + text, file=sys.stderr, flush=True)


class Fatal(Exception):
    """The job cannot go on; the text says why."""


class Worker:
    """One process of the job, a server, too."""

    def __init__(self, number, link, slot):
        self.number, self.link, self.slot = number, link, slot
        self.rank = None  # in the present attempt
        self.is_server = False
        self.has_worked = False  # it has come to a commit
        self.is_unwanted = False  # its end is no failure
        self.pressed_at = None  # when it was ended because it was late
        self.stopped_at = None  # when it was first seen to be stopped
        self.unfinished = {}  # by stream, the line whose end has not come
        self.started_at = time.monotonic()

    def is_overdue(self, seconds):
        """True if it was ended so long ago because it was late, and is still there."""
        return self.pressed_at is not None and time.monotonic() > self.pressed_at + seconds

    def __str__(self):
        what = 'worker %d' % self.number if self.rank is None else 'rank %d' % self.rank
        return '%s %s' % (self.link.name, 'server %d' % self.rank if self.is_server else what)


class Driver:
    """Links to hosts, workers on them, their output, and the end of all."""

    def __init__(self, options):
        self.options, self.token = options, secrets.token_hex(24)
        self.name = 'run-%d-%s' % (os.getpid(), secrets.token_hex(4))
        self.links, self.workers = {}, {}
        self.status, self.signal, self.deadline = 0, 0, None
        self.address = None
        self._next_number, self._wake = 0, asyncio.Event()

    # To be made by the two kinds of job.

    async def begin(self):
        """Starts what runs from the beginning."""
        raise NotImplementedError

    async def step(self):
        """Does what events since the last step call for. Returns False when the job is over."""
        raise NotImplementedError

    def note_end(self, worker, status):
        """A worker has ended with an exit status, or below 0 by a signal of that number."""
        raise NotImplementedError

    def note_stopped(self, link, numbers):
        """A host that was asked says which of its workers are stopped."""

    # The life of the launcher.

    async def run(self):
        """Runs the job and returns the exit status."""
        loop = asyncio.get_running_loop()
        for number in signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                loop.add_signal_handler(number, self._take_signal, number)
        try:
            await self.begin()
            while await self.step() and not self._is_overdue():
                try:
                    await asyncio.wait_for(self._wake.wait(), 0.1)
                except asyncio.TimeoutError:
                    pass
                self._wake.clear()
        except Fatal as problem:
            say(str(problem))
            self.status = self.status or 1
        finally:
            await asyncio.gather(*(link.close() for link in self.links.values()))
        return 128 + self.signal if self.signal else self.status

    def end_soon(self, seconds=GRACE_SECONDS):
        """Gives the processes time to end by themselves. All are ended after it."""
        if self.deadline is None:
            self.deadline = time.monotonic() + seconds

    def _is_overdue(self):
        if self.deadline is None or time.monotonic() < self.deadline:
            return False
        left = [str(worker) for worker in self.workers.values() if not worker.is_server]
        if left:
            say('ending what is still there: ' + ', '.join(left[:8]))
        return True

    def _take_signal(self, number):
        if self.signal:
            self.deadline = time.monotonic()
        else:
            self.signal = number
            self.end_soon()
            for worker in self.workers.values():
                if not worker.is_server:
                    worker.link.order(do='signal', worker=worker.number, number=number)
        self._wake.set()

    # Hosts.

    def choose_address(self, hosts):
        """Decides where the hosts reach this machine."""
        remote = [host.name for host in hosts if not is_this_machine(host.name)]
        if self.options.address is not None or not remote:
            self.address = self.options.address or '127.0.0.1'
            return
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((remote[0], 9))
                self.address = probe.getsockname()[0]
        except OSError as problem:
            raise Fatal(
                'host %s: %s; --host ADDRESS says at which address of this machine the others reach it'
                % (remote[0], problem)
            ) from None

    async def open_link(self, name):
        """Makes the way to a host. Raises HostLost, with the host's name."""
        is_here = is_this_machine(name) and not self.options.rsh
        command = [] if is_here else (self.options.rsh or 'ssh -o BatchMode=yes').split()
        link = self.links[name] = Link(name, command, self._take_event)
        try:
            await link.open(self.address)
        except HostLost as problem:
            del self.links[name]
            await link.close()
            raise HostLost('host %s cannot be used: %s' % (name, problem)) from None
        if not is_here and not self.options.rsh and link.address.startswith('127.'):
            del self.links[name]
            await link.close()
            raise HostLost(
                'host %s cannot reach %s: give --host an address that all hosts reach' % (name, self.address)
            )
        return link

    # Workers.

    def start(self, link, slot, argv, variables):
        """Starts a process on a host and returns its Worker."""
        worker = Worker(self._next_number, link, slot)
        self._next_number += 1
        self.workers[worker.number] = worker
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in _LOCAL_VARIABLES and not name.startswith(_LOCAL_PREFIXES)
        }
        for name in 'TRIB_ROLE', 'TRIB_EXTERNAL_COORDINATOR', 'TRIB_TOKEN_FILE':
            environment.pop(name, None)
        environment.update(
            TRIB_TOKEN=self.token, TRIB_JOB=self.name, TRIB_LISTEN=link.address, TRIB_LOCAL_RANK=str(slot), **variables
        )
        link.order(do='start', worker=worker.number, argv=argv, environment=environment, folder=os.getcwd())
        return worker

    def kill(self, worker, number=signal.SIGKILL):
        """Ends a worker whose end is no failure then."""
        worker.is_unwanted = True
        worker.link.order(do='signal', worker=worker.number, number=number)

    def is_asked(self, status):
        """True if that end is what a signal to the launcher asked for."""
        return self.signal != 0 and status in (-self.signal, 128 + self.signal)

    def report(self, worker, status, more=''):
        """Says how a worker failed."""
        how = 'was ended by signal %d (%s)' % (-status, signal.strsignal(-status)) if status < 0 else None
        say('%s %s' % (worker, (how or 'ended with status %d' % status) + more))

    def _take_event(self, link, event):
        kind, worker = event['event'], self.workers.get(event.get('worker'))
        if kind == 'output' and worker is not None:
            self._print(worker, event['stream'], event['text'])
        elif kind == 'ended' and worker is not None:
            self._end(worker, event['status'])
        elif kind == 'stopped':
            self.note_stopped(link, event['workers'])
        elif kind == 'lost' and self.links.get(link.name) is link:
            lost = [worker for worker in self.workers.values() if worker.link is link]
            if lost and not self.signal:
                say('host %s is lost: %s' % (link.name, event['text']))
            for worker in lost:
                self._end(worker, -signal.SIGKILL)
        self._wake.set()

    def _end(self, worker, status):
        del self.workers[worker.number]
        for stream in list(worker.unfinished):
            self._print(worker, stream, '\n')
        self.note_end(worker, status)

    def _print(self, worker, stream, text):
        """Prints lines with the worker's name in front. The rest waits for its end, as other workers print
        meanwhile."""
        to = sys.stdout if stream == 1 else sys.stderr
        *lines, rest = (worker.unfinished.pop(stream, '') + text).split('\n')
        if len(rest) >= _LINE_MAX:
            lines.append(rest)
        elif rest:
            worker.unfinished[stream] = rest
        data = ''.join('[%s] %s\n' % (worker, line) for line in lines)
        try:
            to.buffer.write(data.encode('utf-8', 'surrogateescape'))
            to.flush()
        except OSError:
            if not self.signal:  # nobody reads the output any more
                self._take_signal(signal.SIGPIPE)

"""The hosts of a job: lists, files and discovery scripts, and what is remembered of hosts on which workers fail."""

import asyncio
import collections
import contextlib
import os
import signal
import socket
import time

Listed = collections.namedtuple('Listed', 'name slots')

_WINDOW_SECONDS = 60  # failures of a host are counted over this time
_FIRST_DELAY_SECONDS = 0.2  # before a lost worker is started again; doubled with each that fails before it has joined
_LONGEST_DELAY_SECONDS = 10


class HostsError(ValueError):
    """A list of hosts that cannot be read."""


def parse_host(text):
    """Reads `name`, `name:slots`, `name slots=N`."""
    words = text.replace(' slots=', ':').split()
    name, colon, slots = (words[0] if len(words) == 1 else '').partition(':')
    if not name or name.startswith('-') or (colon and not (slots.isdigit() and 0 < int(slots) <= 4096)):
        raise HostsError('host "%s": must be NAME, NAME:SLOTS or NAME slots=SLOTS' % text)
    return Listed(name, int(slots) if colon else 1)


def parse_hosts(lines):
    """Reads one host from each line; # begins a comment. A host that comes twice is an error."""
    stripped = [line.split('#')[0].strip() for line in lines]
    hosts = [parse_host(line) for line in stripped if line]
    names = [host.name for host in hosts]
    for name in names:
        if names.count(name) > 1:
            raise HostsError('host "%s" is listed twice' % name)
    return hosts


async def discover(script):
    """Runs a discovery script and returns the hosts that it prints."""
    process = await asyncio.create_subprocess_exec(
        script, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    output = None
    try:
        output, _ = await asyncio.wait_for(process.communicate(), 30)
    except asyncio.TimeoutError:
        raise HostsError('it is still running after 30 s') from None
    finally:
        if output is None:  # also where the job ends meanwhile: neither the script nor what it has started stays
            with contextlib.suppress(ProcessLookupError, asyncio.TimeoutError):
                os.killpg(process.pid, signal.SIGKILL)
                await asyncio.wait_for(process.communicate(), 2)
    if process.returncode != 0:
        raise HostsError('it ended with status %d' % process.returncode)
    return parse_hosts(output.decode('utf-8', 'replace').splitlines())


def is_this_machine(name):
    return name in ('localhost', '127.0.0.1', socket.gethostname())


class Record:
    """How often workers of one host have failed lately. One that had trained up to a commit shows that host and program
    work: its end does not count."""

    def __init__(self, most):
        self._most, self._times, self._early, self._last = most, collections.deque(), 0, None

    def note_joined(self):
        """A worker of the host has joined the job: what starts there can work."""
        self._early = 0

    def note_failure(self, had_joined=False, had_worked=False):
        self._early += not had_joined
        self._last = time.monotonic()
        if not had_worked:
            self._times.append(self._last)

    def is_bad(self):
        """True while so many workers have failed within the last minute that none is started there. 0: never."""
        while self._times and self._times[0] < time.monotonic() - _WINDOW_SECONDS:
            self._times.popleft()
        return 0 < self._most <= len(self._times)

    def may_start(self):
        """True if the delay after the last failure is over."""
        delay = min(_FIRST_DELAY_SECONDS * 2**self._early, _LONGEST_DELAY_SECONDS)
        return self._last is None or time.monotonic() >= self._last + delay

"""The launcher's way to a host: an agent there, started through ssh or the like, and its orders and events."""

import asyncio
import contextlib
import json
import os
import shlex
import signal
import sys

_AGENT = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'agent.py')
_START_SECONDS = 60


class HostLost(Exception):
    """The way to a host could not be made, or has ended."""


class Link:
    """One host's agent. `on_event` gets its events, but for the answers that calls wait for."""

    def __init__(self, name, command, on_event):
        self.name, self._command, self._on_event = name, command, on_event
        self._process, self._answers, self._reading = None, asyncio.Queue(), None
        self._heard, self._is_checked = asyncio.Event(), False
        self.address, self.is_lost, self._why = None, False, ''

    async def open(self, towards):
        """Starts the agent. `towards` is an address of the launcher's; the answer is the host's own on that way."""
        # The agent is started by a line on a shell's input: no quoting on the way there, and nothing to see in a list
        # of processes. A shell may read ahead, so orders follow when the agent has answered.
        argv = [*self._command, self.name, 'sh'] if self._command else ['sh']
        try:
            self._process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=1 << 26,
                start_new_session=True,  # Ctrl-C is for the launcher, which passes it on
            )
        except OSError as problem:
            raise HostLost('%s: %s' % (argv[0], problem.strerror)) from None
        self._reading = asyncio.ensure_future(self._read())
        python = os.environ.get('TRIBUTARY_PYTHON', sys.executable)
        self._process.stdin.write(('exec %s -u %s\n' % (shlex.quote(python), shlex.quote(_AGENT))).encode())
        await self._answer('here')
        self.order(do='hello', towards=towards)
        self.address = (await self._answer('hello'))['address']

    async def free_port(self):
        """Returns a port of the host that is free now."""
        self.order(do='port')
        return (await self._answer('port'))['port']

    def order(self, **what):
        """Sends an order. A host that is lost, or given up, gets none."""
        if not self.is_lost and not self._process.stdin.is_closing():
            self._process.stdin.write(json.dumps(what).encode() + b'\n')

    async def check(self, seconds):
        """Asks a host which workers are stopped, and gives it up if it says nothing in time. An answer may wait behind
        much output, so whatever comes counts."""
        if self._is_checked or self.is_lost:
            return
        self._is_checked = True
        self._heard.clear()
        self.order(do='stopped')
        for _ in range(2):  # where the launcher itself has stood still, it reads in the second half what has come
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._heard.wait(), seconds / 2)
        if not self._heard.is_set():
            self._why = ': no answer within %g s' % seconds
            await self.close()
        self._is_checked = False

    async def close(self):
        """Ends all workers of the host, and the agent, which does so itself when its input ends. The way is cut if that
        takes too long."""
        if self._process is None:
            return
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), 10)
        except asyncio.TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        await asyncio.wait([self._reading], timeout=2)

    async def _answer(self, event):
        try:
            answer = await asyncio.wait_for(self._answers.get(), _START_SECONDS)
        except asyncio.TimeoutError:
            raise HostLost('no answer within %d s' % _START_SECONDS) from None
        if answer['event'] != event:
            self._answers.put_nowait(answer)  # others may wait, too
            raise HostLost(answer['text'])
        return answer

    async def _read(self):
        while True:
            line = await self._process.stdout.readline()
            self._heard.set()
            if not line:
                break
            try:
                event = json.loads(line)
            except ValueError:
                # A login script says something, or a shell that cannot start Python.
                self._why = ': ' + line.decode('utf-8', 'replace').strip()
                continue
            if event['event'] in ('here', 'hello', 'port'):
                self._answers.put_nowait(event)
            else:
                self._on_event(self, event)
        status = await self._process.wait()
        self.is_lost = True
        event = {'event': 'lost', 'text': 'the way to it ended with status %d%s' % (status, self._why)}
        self._answers.put_nowait(event)
        self._on_event(self, event)

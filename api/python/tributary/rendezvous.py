"""A worker's place in an elastic job: it asks the launcher, `tributary run --elastic`, for each attempt
(launch/elastic.py)."""

import hashlib
import hmac
import json
import os
import secrets
import select
import socket

from .errors import TributaryError

_CONNECT_SECONDS = 60


class Rendezvous:
    """The connection to the launcher. It is used by the thread that trains, and read when that has a question."""

    def __init__(self, address, worker, token):
        host, _, port = address.rpartition(':')
        self._socket = socket.create_connection((host, int(port)), _CONNECT_SECONDS)
        self._rest, self._attempt, self._void, self._change = b'', 0, 0, None
        self._process, self._has_worked = os.getpid(), False
        self.rank = None  # in the last attempt
        number = secrets.token_hex(16)
        theirs = self._receive()['number']
        self._send(worker=worker, number=number, proof=_proof(token, 'worker', theirs, number))
        if not hmac.compare_digest(self._receive()['proof'], _proof(token, 'launcher', theirs, number)):
            raise TributaryError('%s does not know the token: it is not the launcher of this job' % address)
        self._socket.settimeout(None)

    def next_place(self):
        """Asks for a place in the next attempt, waits for it, and returns it. A worker that has to go ends here."""
        self._send(join=self._attempt)
        self._change = None
        while True:
            message = self._receive()
            if 'leave' in message:
                raise SystemExit(0)
            if 'attempt' in message:
                self._attempt, self.rank = message['attempt'], message['rank']
                return message

    def is_void(self):
        """True if the attempt that is forming cannot come together: a worker of it has ended."""
        self._take_news()
        return self._void == self._attempt

    def tell_ready(self):
        """Tells the launcher that the attempt's engine has formed."""
        self._send(ready=self._attempt)

    def tell_worked(self):
        """Tells the launcher once that this worker has come to a commit: a later loss is not its host's fault."""
        if not self._has_worked:
            self._has_worked = True
            self._send(worked=True)

    def change(self):
        """Returns None, or what the launcher said of changes since the attempt began: {'added': bool, 'removed':
        bool}."""
        self._take_news()
        return self._change

    def _take_news(self):
        while b'\n' in self._rest or select.select([self._socket], [], [], 0)[0]:
            message = self._receive()
            if message.get('changed') == self._attempt:
                self._change = message
            elif 'void' in message:
                self._void = message['void']

    def _send(self, **message):
        self._socket.sendall(json.dumps(message).encode() + b'\n')

    def _receive(self):
        while b'\n' not in self._rest:
            data = self._socket.recv(1 << 16)
            if not data:
                raise TributaryError('the launcher has gone: the job is over')
            self._rest += data
        line, _, self._rest = self._rest.partition(b'\n')
        return json.loads(line)


def _proof(token, side, first, second):
    return hmac.new(token.encode(), ('tributary %s %s %s' % (side, first, second)).encode(), hashlib.sha256).hexdigest()


_mine = None


def mine():
    """Returns the process's rendezvous, or None where the launcher has none. It connects at the first call."""
    global _mine
    address = os.environ.get('TRIBUTARY_RENDEZVOUS')
    if address is None:
        return None
    if _mine is None:
        _mine = Rendezvous(address, int(os.environ['TRIBUTARY_WORKER']), os.environ['TRIB_TOKEN'])
    return _mine

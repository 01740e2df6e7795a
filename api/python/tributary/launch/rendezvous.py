"""Where the workers of an elastic job ask the launcher for their place in the next attempt (its other end:
../rendezvous.py).

Both ends prove that they know the token before anything else is read. Then JSON lines go both ways."""

import asyncio
import hashlib
import hmac
import json
import secrets

_PROOF_SECONDS = 10
# A connection's end, and all that JSON of a stranger's may cause.
_ENDS = OSError, ValueError, LookupError, TypeError, EOFError, ArithmeticError, RecursionError, asyncio.TimeoutError
_STRANGERS_MAX = 256  # connections that have not proved the token; a further one ends the oldest


def proof(token, side, first, second):
    """Returns what shows that a side knows the token, for the numbers that both ends have drawn."""
    return hmac.new(token.encode(), ('tributary %s %s %s' % (side, first, second)).encode(), hashlib.sha256).hexdigest()


class Rendezvous:
    """Listens for workers. on_message(worker, message) gets what they say; a message of None: the connection has
    ended."""

    def __init__(self, token, on_message):
        self._token, self._on_message = token, on_message
        self._writers, self._server = {}, None
        self._strangers = {}  # in the order of their coming

    async def open(self, address):
        """Begins to listen, and returns the port."""
        self._server = await asyncio.start_server(self._serve, address, 0, limit=1 << 16)
        return self._server.sockets[0].getsockname()[1]

    def close(self):
        self._server.close()
        for writer in self._writers.values():
            writer.close()

    def send(self, worker, **message):
        """Tells a worker something. One that is not connected does not hear it."""
        if worker in self._writers:
            self._writers[worker].write(json.dumps(message).encode() + b'\n')

    async def _serve(self, reader, writer):
        worker = None
        self._strangers[writer] = None
        if len(self._strangers) > _STRANGERS_MAX:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.transport.abort()
        try:
            worker = await asyncio.wait_for(self._prove(reader, writer), _PROOF_SECONDS)
            self._strangers.pop(writer, None)
            while worker is not None:
                line = await reader.readline()
                if not line:
                    break
                self._on_message(worker, json.loads(line))
        except _ENDS:
            pass  # a stranger, or a worker that has ended in the middle of a line
        finally:
            self._strangers.pop(writer, None)
            writer.close()
        if worker is not None and self._writers.get(worker) is writer:
            del self._writers[worker]

    async def _prove(self, reader, writer):
        mine = secrets.token_hex(16)
        writer.write(json.dumps({'number': mine}).encode() + b'\n')
        said = json.loads(await reader.readline())
        theirs, worker = str(said['number']), int(said['worker'])
        if not hmac.compare_digest(proof(self._token, 'worker', mine, theirs), str(said['proof'])):
            return None
        writer.write(json.dumps({'proof': proof(self._token, 'launcher', mine, theirs)}).encode() + b'\n')
        self._writers[worker] = writer
        return worker

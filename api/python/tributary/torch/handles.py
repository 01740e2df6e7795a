"""Handles of operations under way, as poll() and synchronize() take them."""

from __future__ import annotations

import threading
from typing import Any

import torch

from ..errors import ArgumentError

# Handles that nobody has waited for yet, by the name that the caller gave.
in_flight = {}

# Operations whose end a stream waits for and no thread yet. Their errors are raised by a later wait, once. Threads take
# them out and put them in at once, each step of which a dict does as a whole.
_unseen = {}


class Handle:
    """One collective, or several that belong together. `finish` makes the result of it, once; without it the result
    is the first operation's."""

    __slots__ = ('operations', 'name', '_finish', '_result', '_is_finished', '_streams', '_lock')

    def __init__(self, operations, finish=None):
        self.operations, self.name, self._finish = operations, None, finish
        self._result, self._is_finished = None, False
        self._streams = ()  # by device: the stream that has waited for the operations, and has made the result
        self._lock = threading.RLock()  # a future's callback may wait while the caller does

    def done(self):
        """True if the operations are complete."""
        return self._is_finished or all(operation.done() for operation, _ in self.operations)

    def wait(self):
        """Waits and returns the result: tensors on GPUs are waited for by the current stream, others by this thread."""
        with self._lock:
            if not self._is_finished:
                raise_unseen()
            return self.take()

    def take(self):
        """Waits and returns the result, and raises no error but those of the handle's own operations."""
        with self._lock:
            if not self._is_finished:
                streams = {}
                for operation, device in self.operations:
                    if device is None:
                        operation.wait()
                    else:
                        stream = torch.cuda.current_stream(device)
                        operation.stream_wait(stream.cuda_stream)
                        if operation.done():
                            _unseen.pop(operation, None)
                            operation.wait()  # the stream hears of no error
                        else:
                            _unseen[operation] = None
                        streams[device] = stream
                self._result = self._finish() if self._finish is not None else self.operations[0][0].wait()
                self._is_finished, self._streams = True, tuple(streams.items())
                self.operations, self._finish = (), None
                if in_flight.get(self.name) is self:
                    del in_flight[self.name]  # its result is the caller's to keep
            for device, stream in self._streams:
                if torch.cuda.current_stream(device) != stream:
                    torch.cuda.current_stream(device).wait_stream(stream)
            return self._result


def raise_unseen():
    """Raises the error of an operation that a stream waited for, if one failed."""
    for operation in list(_unseen):
        if operation.done() and _unseen.pop(operation, 'taken') is None:  # no other thread has taken it
            operation.wait()


def poll(handle: Any) -> bool:
    """True if the operation of a handle is complete: synchronize() would not wait."""
    return _checked(handle).done()


def synchronize(handle: Any) -> Any:
    """Waits until the operation of a handle is complete and returns its output. Raises the operation's error."""
    return _checked(handle).wait()


def _checked(handle):
    if not hasattr(handle, 'wait') or not hasattr(handle, 'done'):
        raise ArgumentError(
            'handle: it must be what a function that ends with _async has returned, and is %r' % (handle,)
        )
    return handle

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
    is the first operation's. operations: pairs of an operation and the GPU whose streams wait for it; None: a thread
    does. device: the GPU on which the result is, if there is one."""

    __slots__ = ('operations', 'device', 'name', '_finish', '_result', '_is_finished', '_streams', '_lock')

    def __init__(self, operations, finish=None, device=None):
        self.operations, self.name, self._finish = operations, None, finish
        for _, place in operations:
            device = device or place
        self.device = device
        self._result, self._is_finished = None, False
        self._streams = ()  # by device: the stream that has waited for the operations, and has made the result
        self._lock = threading.RLock()  # a future's callback may wait while the caller does

    def done(self):
        """True if the operations are complete."""
        return all(operation.done() for operation, _ in self.operations)

    def wait(self):
        """Waits and returns the result: tensors on GPUs are waited for by the current stream, others by this thread."""
        with self._lock:
            if not self._is_finished:
                raise_unseen()
            return self.take()

    def take(self):
        """Waits and returns the result, and raises no error but those of the handle's own operations."""
        with self._lock:
            for operation, place in self.operations:
                if place is None:
                    operation.wait()
                    continue
                if not self._is_finished:
                    operation.stream_wait(torch.cuda.current_stream(place).cuda_stream)
                if operation.done():
                    _unseen.pop(operation, None)
                    operation.wait()  # the stream hears of no error
                elif not self._is_finished:
                    _unseen[operation] = None
            if not self._is_finished:
                self._make_result()
            for device, stream in self._streams:
                if torch.cuda.current_stream(device) != stream:
                    torch.cuda.current_stream(device).wait_stream(stream)
            return self._result

    def _make_result(self):
        self._result = self._finish() if self._finish is not None else self.operations[0][0].wait()
        if self.device is not None:
            devices = {place for _, place in self.operations if place is not None} | {self.device}
            self._streams = tuple((device, torch.cuda.current_stream(device)) for device in devices)
        # What a stream waited for may still fail, and others are over.
        self.operations = tuple(pair for pair in self.operations if pair[1] is not None)
        self._is_finished, self._finish = True, None
        if in_flight.get(self.name) is self:
            del in_flight[self.name]  # its result is the caller's to keep


def raise_unseen(handle=None):
    """Raises the error of an operation that a stream waited for, if one failed, and is none of the handle's. Those of a
    job that this process has left were told when it left, and the next job has nothing to do with them."""
    if not _unseen:
        return
    own = [operation for operation, _ in handle.operations] if handle is not None else ()
    for operation in list(_unseen):
        is_taken = operation.done() and operation not in own and _unseen.pop(operation, 'by another thread') is None
        if is_taken and operation.is_current():
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

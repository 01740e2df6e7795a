"""An operation under way: waits that Ctrl-C interrupts, futures, coroutines, and its result."""

from __future__ import annotations

import collections
import concurrent.futures
import ctypes
import threading
from collections.abc import Callable, Generator
from typing import Any

from . import _abi
from ._library import call, error_of, lib

# A wait returns so often to the interpreter, which then runs handlers of signals, such as Ctrl-C's.
SLICE_NS = 200_000_000

# Errors after which the n-th operation of a tensor may be another call on each worker.
_APART = _abi.TRIB_MISMATCH, _abi.TRIB_TIMEOUT, _abi.TRIB_CANCELLED

Boundary = collections.namedtuple('Boundary', 'epoch number operations step worker_count')


def boundary_of(handle):
    boundary = _abi.trib_boundary(struct_size=ctypes.sizeof(_abi.trib_boundary))
    call(lib.trib_op_boundary, handle, ctypes.byref(boundary))
    return Boundary(*(getattr(boundary, name) for name in Boundary._fields))


def _contributors_of(handle):
    count, capacity = ctypes.c_size_t(0), 16
    while True:
        ranks = (ctypes.c_int32 * capacity)()
        if lib.trib_op_contributors(handle, ranks, capacity, ctypes.byref(count), None) != _abi.TRIB_OK:
            return ()
        if count.value <= capacity:
            return tuple(ranks[: count.value])
        capacity = count.value


class Operation:
    """One operation under way. It keeps the memory that it reads and writes alive until it is complete."""

    __slots__ = (
        *('_engine', '_handle', '_owner', '_value', '_error', '_tensor', '_is_once', '_lock'),
        *('group', 'contributors', 'is_awaited'),
    )

    def __init__(self, engine, handle, owner, value, tensor=None, is_once=False, group=None):
        self._engine, self._handle, self._owner, self._value = engine, handle, owner, value
        self._error, self._tensor = None, tensor
        self._is_once = is_once  # the tensor was declared for this operation alone
        self.group = group if tensor is None else tensor.group  # None: all workers
        self.contributors = ()  # the ranks whose contributions are in the result, when it has succeeded
        self.is_awaited = False  # by a stream, which hears of no error
        self._lock = threading.Lock()

    def is_current(self) -> bool:
        """False once the engine was closed: the operation is of a job that this process has left."""
        return self._engine.is_open()

    def done(self) -> bool:
        """True if the operation is complete, well or not. Never waits."""
        return self._handle is None or lib.trib_op_status(self._handle) != _abi.TRIB_PENDING

    def wait(self, timeout: float | None = None) -> Any:
        """Waits at most `timeout` seconds (None: until the operation's own deadline) and returns the value that belongs
        to the operation, as a rule its output. Raises TimeoutError, or the operation's error."""
        left = None if timeout is None else int(timeout * 1e9)
        while self._handle is not None:
            part = SLICE_NS if left is None else max(0, min(SLICE_NS, left))
            error = _abi.trib_error()
            status = lib.trib_op_wait(self._handle, part, ctypes.byref(error))
            if lib.trib_op_status(self._handle) != _abi.TRIB_PENDING:
                if status == _abi.TRIB_TIMEOUT:  # the wait's own, if the operation has completed just after it
                    status = lib.trib_op_wait(self._handle, 0, ctypes.byref(error))
                self._complete(status, error.text)
            elif left is not None:
                left -= part
                if left <= 0:
                    raise TimeoutError('the operation is not complete after %g s' % timeout)
        if self._error is not None:
            raise self._error
        return self._value

    def _complete(self, status, text):
        with self._lock:
            if self._handle is None:
                return  # another thread was faster
            if status < 0:
                self._error = error_of(status, text)
                if self._tensor is not None and self._is_apart(status):
                    self._tensor.failures.add(status)
            else:
                self.contributors = _contributors_of(self._handle)
            if status >= 0 and callable(self._value):
                self._value = self._value(self._handle)  # takes the result out of the engine's memory
            handle, self._handle = self._handle, None
        self._owner = None
        self._engine._forget(self)
        lib.trib_op_release(handle)
        if self._is_once:
            lib.trib_tensor_release(self._tensor.handle, None)

    def _is_apart(self, status):
        """A tensor for one operation has no next one. Its failures are others' only where all workers are told."""
        return status == _abi.TRIB_MISMATCH or (status in _APART and not self._is_once)

    def stream_wait(self, stream: int) -> None:
        """Lets work that is put on a CUDA stream from now on start when the operation is over (device tensors only).

        Blocks until the GPU has been given the last step of the operation. Where a loss may undo operations, it waits
        for the operation and raises its error: no stream goes on with a result that does not count."""
        handle, self.is_awaited = self._handle, True
        if self._engine.loss_undoes():
            self.wait()
        elif handle is not None:
            try:
                call(lib.trib_op_stream_wait, handle, ctypes.c_void_p(stream))
            except RuntimeError:
                if self._handle is not None:  # else another thread has just completed it
                    raise

    def cancel(self) -> None:
        """Asks that the operation end soon, with TRIB_CANCELLED, on every worker."""
        if self._handle is not None:
            lib.trib_op_cancel(self._handle)

    def future(self) -> concurrent.futures.Future[Any]:
        """Returns a concurrent.futures.Future of the value. A thread of the package completes it."""
        return self._engine._completions.future_of(self)

    def run_apart(self, function: Callable[[], Any], wait: Callable[[], Any] | None = None) -> None:
        """Calls a function on a thread of its own, which the engine's close() waits for. wait: a function that is
        called before, and ends when operations do."""
        self._engine._completions.run_apart(function, wait)

    def __await__(self) -> Generator[Any, None, Any]:
        import asyncio

        return asyncio.wrap_future(self.future()).__await__()

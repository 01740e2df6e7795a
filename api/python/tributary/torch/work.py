"""Works: collectives of a process group under way, as torch.distributed has them."""

import time

import torch.distributed as dist

from .. import _abi
from ..errors import TributaryError
from . import futures
from .handles import raise_unseen


class Work(dist._Work if hasattr(dist, '_Work') else dist.Work):
    """One collective under way."""

    def __init__(self, handle, value, line, is_in_place=False):
        super().__init__()
        self._handle, self._value, self._line, self._is_in_place = handle, value, line, is_in_place
        self._future, self._exception = None, None

    def wait(self, timeout=None):
        # timeout: a timedelta; what is not positive stands for the group's own. Only with one this thread waits for a
        # GPU, as with NCCL; else the stream does.
        seconds = timeout.total_seconds() if timeout else 0
        deadline = time.monotonic() + seconds
        raise_unseen(self._handle)  # others' errors, so that they are not noted as this one's
        try:
            for operation, _ in self._handle.operations if seconds > 0 else ():
                operation.wait(max(deadline - time.monotonic(), 0))
            self._handle.take()
        except TimeoutError as problem:
            # The operation goes on, so that this error is none of its own.
            raise TributaryError(str(problem), _abi.TRIB_TIMEOUT) from problem
        except RuntimeError as problem:
            self._exception = problem
            raise
        return True

    def synchronize(self):
        self.wait()

    def block_current_stream(self):
        if self._handle.device is not None:
            self.wait()
        else:  # the base class has a kernel wait for the host
            super().block_current_stream()

    def is_completed(self):
        if not self._handle.done():
            return False
        raise_unseen(self._handle)
        try:
            self._handle.take()  # makes the result, as the caller may read it without another call
        except RuntimeError as problem:
            self._exception = problem
        return True

    def is_success(self):
        return self.is_completed() and self._exception is None

    def exception(self):
        return self._exception

    def result(self):
        return self._value

    def _outcome(self, _unused):
        raise_unseen(self._handle)
        try:
            self._handle.take()
        except RuntimeError as problem:
            self._exception = problem
            raise
        return self._value

    def get_future(self):
        if self._future is None:
            self._future = futures.future_of(self._handle, self._outcome, self._line, self._is_in_place)
        return self._future

"""What an engine gives its callers: named tensors, and groups of some of a job's workers."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

from . import _abi
from ._library import error_of, initialised, lib
from .buffers import buffer_of
from .errors import ArgumentError, is_failing
from .operation import Operation

SUM, AVG, MIN, MAX = _abi.TRIB_SUM, _abi.TRIB_AVG, _abi.TRIB_MIN, _abi.TRIB_MAX


class Tensor:
    """A named tensor of an engine: type, size and priority are fixed, buffers come with each operation."""

    __slots__ = (
        *('engine', 'name', 'dtype', 'count', 'handle', 'is_device', 'group', 'failures'),
        *('_params', '_fields', '_made', '_error', '_passed'),
    )

    def __init__(self, engine, name, dtype, count, handle, is_device, group):
        self.engine, self.name, self.dtype, self.count = engine, name, dtype, count
        self.handle, self.is_device, self.group = handle, is_device, group
        self.failures = set()  # errors after which workers may be at different calls; tensors may share it
        # Parameters are kept, so that an operation changes no more than it has to: to compare is much faster than to
        # write fields of a structure one by one.
        self._fields = None
        self._params = initialised(_abi.trib_op_params(), lib.trib_op_params_init)
        self._params.tensor = handle
        self._made, self._error = ctypes.c_void_p(), _abi.trib_error()
        self._passed = tuple(ctypes.byref(kept) for kept in (self._params, self._made, self._error))

    def submit(self, *arguments: Any, **keywords: Any) -> Operation:
        """Submits an operation on bare addresses, with the arguments of prepare()."""
        return self.prepare(*arguments, **keywords)()

    def prepare(
        self,
        function: Any,
        source: int | None,
        target: int | None,
        owner: Any,
        value: Any = None,
        reduce: int = SUM,
        root: int = 0,
        stream: int | None = None,
        priority: int | None = None,
        output_bytes: int = 0,
        input_bytes: int = 0,
        flags: int = 0,
        is_once: bool = False,
        prescale: float = 1.0,
        postscale: float = 1.0,
        step: int | None = None,
        timeout_ns: int = 0,
    ) -> Callable[[], Operation]:
        """Returns a function that submits an operation on bare addresses each time that it is called, and returns it.
        `owner` keeps their memory alive. `value` is what wait() returns, or a function that makes it of the
        operation's handle. is_once: the tensor is released when the operation is over. step: a number that is compared
        with the other workers'; a tensor has it in all operations, or in none. timeout_ns: 0: the job's."""
        if root >> 31 not in (0, -1):  # ctypes would cut it off
            raise ArgumentError('%s: root %d is not a rank' % (self.name, root))
        limits = output_bytes, input_bytes, flags, timeout_ns
        fields = source, target, reduce, root, stream, priority, *limits, prescale, postscale
        return functools.partial(self._start, function, fields, owner, value, is_once, step)

    def _start(self, function, fields, owner, value, is_once, step):
        engine = self.engine
        with engine._lock:
            engine._check()
            if fields is not self._fields and fields != self._fields:
                self._write(*fields)
            if step is not None:
                self._params.step = step & 0xFFFFFFFF
            status = function(engine._passed, *self._passed)
            if status < 0:
                raise error_of(status, self._error.text)
            handle = self._made.value
        operation = Operation(engine, handle, owner, value, self, is_once)
        engine._live.add(operation)
        return operation

    def _write(self, *fields):
        params, self._fields = self._params, None  # until all are written: a signal's handler may raise in between
        params.input, params.output, params.reduce, params.root, params.stream, priority = fields[:6]
        params.has_priority, params.priority = priority is not None, priority or 0
        params.output_bytes, params.input_bytes, params.flags, params.timeout_ns = fields[6:10]
        params.prescale, params.postscale = fields[10:]
        self._fields = fields

    def push_pull(
        self, array: Any, output: Any = None, reduce: int = AVG, prescale: float = 1.0, postscale: float = 1.0
    ) -> Operation:
        """Returns the operation that reduces the array over all workers, in place unless there is an output. The
        factors are those of trib_op_params: of floats the sum is multiplied by both and rounded once. 0 is refused, as
        it stands for 1 there."""
        return self.prepare_push_pull(array, output, reduce, prescale, postscale)()

    def prepare_push_pull(
        self, array: Any, output: Any = None, reduce: int = AVG, prescale: float = 1.0, postscale: float = 1.0
    ) -> Callable[[], Operation]:
        """Returns a function that submits this push_pull() each time that it is called, and returns the operation. It
        costs a fraction of push_pull(), as the arrays are looked at once; they must stay where they are."""
        if prescale == 0 or postscale == 0:
            raise ArgumentError('%s: with a factor of 0 all results are 0, and no exchange is needed' % self.name)
        function, factors = lib.trib_push_pull, dict(prescale=prescale, postscale=postscale)
        return self._on_arrays(function, array, output, reduce=reduce, **factors)

    def broadcast(self, array: Any, root: int = 0) -> Operation:
        """Returns the operation that gives the root's array to all workers, in place."""
        return self._on_arrays(lib.trib_broadcast, array, None, root=root)()

    def _on_arrays(self, function, array, output, **fields):
        source = self._checked(buffer_of(array))
        target = source if output is None else self._checked(buffer_of(output))
        if not target.writable:
            raise ArgumentError('%s: the output is read-only' % self.name)
        return self.prepare(
            function,
            source.address,
            target.address,
            (source.owner, target.owner),
            array if output is None else output,
            **fields,
        )

    def _checked(self, buffer):
        if (buffer.dtype, buffer.count, buffer.is_device) != (self.dtype, self.count, self.is_device):
            raise ArgumentError(
                '%s was declared with %d elements of %s; the array has %d of %s'
                % (
                    self.name,
                    self.count,
                    lib.trib_dtype_name(self.dtype).decode(),
                    buffer.count,
                    lib.trib_dtype_name(buffer.dtype).decode(),
                )
            )
        return buffer


class Group:
    """Some of a job's workers, with collectives of their own. It has the interface of an engine as far as bindings use
    it; ranks are places in the group."""

    timeout_ns = 0  # of what bindings submit in it; 0: the job's
    gpu = property(lambda self: self.engine.gpu)

    def __init__(self, engine, handle, name):
        self.engine, self._group, self.name = engine, handle.value, name
        self.rank, self.size = lib.trib_group_rank(handle), lib.trib_group_size(handle)
        self.has_device = engine.has_device
        self.turns, self.known = {}, {}

    def declare(
        self,
        name: str,
        dtype: int,
        count: int,
        priority: int = 0,
        is_device: bool = False,
        codec: str | None = None,
        shape: Sequence[int] = (),
        known: str = '',
        is_numbered: bool = False,
    ) -> Tensor:
        """As Engine.declare, without a quorum; the name is the group's."""
        return self.engine.declare(
            name, dtype, count, priority, is_device, self._group, codec, shape, known=known, is_numbered=is_numbered
        )

    def declare_once(self, name: str, dtype: int, count: int = 0, **keywords: Any) -> Tensor:
        """As Engine.declare_once; the name is the group's."""
        return self.engine.declare_once(name, dtype, count, group=self._group, **keywords)

    def barrier(self) -> None:
        """Waits until all of the group have called it."""
        self.engine.barrier(self._group)

    def close(self) -> None:
        """Waits for what is under way in the group and ends it, as release() does. A program that ends by an exception
        waits for nobody, and gives it up."""
        if is_failing():
            self.give_up()
        self.engine._wait_for(self._operations())
        self.release()

    def release(self) -> None:
        """Ends the group and its tensors; each of its members calls it (trib_group_release). TributaryError
        while operations in it are in flight: nothing has changed."""
        self.engine.release_group(self._group)

    def give_up(self) -> None:
        """Asks that the operations under way in the group end soon, with TRIB_CANCELLED, on all its workers."""
        for operation in self._operations():
            operation.cancel()

    def _operations(self):
        return [operation for operation in list(self.engine._live) if operation.group == self._group]

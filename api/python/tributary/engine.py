"""The engine as Python sees it."""

from __future__ import annotations

import atexit
import collections
import contextlib
import ctypes
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from . import _abi, interrupts
from ._library import call, encoded, error_of, initialised, lib, numbers
from .bootstrap import Exchange, place_of
from .buffers import buffer_of
from .completions import Completions
from .errors import ArgumentError, JobLostError, NotInitializedError, TributaryError, is_failing
from .operation import SLICE_NS, Operation, boundary_of
from .tensor import Group, Tensor

_PLACE = ('rank', 'worker_count')

_logger = logging.getLogger('tributary')
_open_engines = set()
_places_of_parents = set()  # Parents of this process have these places in their jobs.


def _enter_child():
    """A forked child has none of the engines' threads, and a lock may be held there for ever."""
    for engine in _open_engines:
        _places_of_parents.add(engine._place)
        engine._lock, engine._handle = threading.Lock(), None
        engine._refusal = 'the engine belongs to the process that this one was forked from'
    _open_engines.clear()


os.register_at_fork(after_in_child=_enter_child)


def _current_gpu():
    """Returns the GPU that an engine takes on this thread, if PyTorch, whose tensors may be on others, is there to
    tell."""
    torch = sys.modules.get('torch')
    return torch.cuda.current_device() if torch is not None and torch.cuda.is_available() else None


Info = collections.namedtuple('Info', 'rank size server_count summing_count reactors epoch partition_bytes chunk_bytes')


class Engine:
    """A member of a job. Its own threads move the data; the interpreter's lock is not taken on the way.

    The environment describes the job (docs/operating.md); `settings` are fields of trib_config that come instead of it.
    unique_id: the bytes that tributary.unique_id() made on rank 0, the same on all members; comm: a communicator of
    mpi4py's kind, which says rank and size and exchanges the address. With either no address and no token is needed.
    Methods may be called from any thread, but not in a forked child. close() before the interpreter ends: it is
    registered with atexit."""

    name = ''  # a Group has one
    timeout_ns = 0  # of what bindings submit; 0: the job's
    gpu = None  # the index of its device, if that is known

    def __init__(self, comm: Any = None, unique_id: bytes | None = None, **settings: Any):
        # Strings in config point into the environment. Nothing may change it before create has copied them.
        config = initialised(_abi.trib_config(), lib.trib_config_init)
        # A program that says its place needs no launcher that says it.
        config.rank, config.worker_count = (settings.get(name, getattr(config, name)) for name in _PLACE)
        call(lib.trib_config_from_env, ctypes.byref(config))
        kept = []  # encoded strings, alive until the call
        for name, value in settings.items():
            if name not in {field for field, *_ in config._fields_}:
                raise ArgumentError('there is no setting %s' % name)
            kept.append(value.encode() if isinstance(value, str) else value)
            setattr(config, name, kept[-1])
        if unique_id is not None:
            if len(unique_id) != _abi.TRIB_UNIQUE_ID_SIZE:
                raise ArgumentError(
                    'unique_id: %d bytes, and tributary.unique_id() makes %d'
                    % (len(unique_id), _abi.TRIB_UNIQUE_ID_SIZE)
                )
            kept.append(ctypes.create_string_buffer(bytes(unique_id), _abi.TRIB_UNIQUE_ID_SIZE))
            config.unique_id = ctypes.addressof(kept[-1])
        is_of_environment = comm is None and not config.unique_id and config.worker_count > 1
        # What joins a job under way gets a rank that nobody has.
        has_place = is_of_environment and config.rank >= 0
        self._place = (config.coordinator, config.store, config.job, config.rank) if has_place else None
        if has_place and self._place in _places_of_parents:
            raise NotInitializedError(
                'this process was forked from rank %d of the job, and cannot join as the same one: start it with '
                '"spawn", or give it a rank or a job of its own' % config.rank
            )
        exchange = None
        if comm is not None:
            config.rank, config.worker_count = place_of(comm)
            exchange = Exchange(comm)
            config.oob_cb = exchange.callback
        self._handle = ctypes.c_void_p()
        self._lock = threading.Lock()  # no thread may be inside a call when the engine is destroyed
        self._refusal = 'the engine has been closed'  # once there is no handle
        self._tensors, self._live = {}, set()
        self.turns = {}  # how often a binding has used each kind of operation without a name
        self.known = {}  # tensors by what a binding declares them by
        self._completions = Completions()
        self._advances = False  # a call of advance() has not ended yet
        try:
            call(lib.trib_engine_create, ctypes.byref(config), ctypes.byref(self._handle))
        except RuntimeError as problem:
            raise problem from (exchange.problem if exchange is not None else None)
        self._passed = ctypes.c_void_p.from_param(self._handle.value)
        self.rank, self.size = config.rank, config.worker_count
        self.has_device = config.device not in (None, b'', b'none')
        if self.has_device:
            self.gpu = config.device_index if config.device_index >= 0 else _current_gpu()
        self._loss_undoes = None  # not known yet
        _open_engines.add(self)
        atexit.register(self._close_at_exit)
        interrupts.watch(self)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def is_open(self) -> bool:
        """True until close() was called."""
        return self._handle is not None

    def wait_ready(self, is_void: Callable[[], bool] | None = None) -> None:
        """Waits until the job has come together, and raises what kept it from that. is_void: a function that is asked
        now and then; JobLostError when it says that the job cannot come together."""
        while True:
            with self._lock:
                self._check()
                error = _abi.trib_error()
                status = lib.trib_engine_wait_ready(self._handle, SLICE_NS, ctypes.byref(error))
            if status == _abi.TRIB_OK:
                if self.rank < 0:
                    self.membership()  # a worker that has joined a job under way learns its rank
                return
            if status != _abi.TRIB_TIMEOUT:
                raise error_of(status, error.text)
            if is_void is not None and is_void():
                raise JobLostError('a worker has ended before the job had formed', _abi.TRIB_JOIN_FAILED)

    def membership(self) -> Any:
        """Returns the membership as it is now, a trib_membership; a worker that has joined learns its rank so."""
        status, membership = self._read_membership()
        if status < 0:
            raise error_of(status, '')
        self.rank, self.size = membership.rank, membership.worker_count
        return membership

    def advance(self, timeout: float | None = None) -> Any:
        """Goes on in the next membership, with the workers that are left and those that wait to join, and returns it
        (docs/failure.md). It waits until all of them have called it, at most `timeout` seconds: then TributaryError
        with TRIB_TIMEOUT, and the next call waits on. rank and size may be others from then on; tensors stay."""
        deadline = None if timeout is None else time.monotonic() + timeout
        membership = _abi.trib_membership()
        while True:
            if not self._advances:
                with self._lock:
                    self._check()
                    call(lib.trib_membership_advance, self._handle, None, None)
                self._advances = True
            error = _abi.trib_error()
            with self._lock:
                self._check()
                status = lib.trib_membership_wait(self._handle, SLICE_NS, ctypes.byref(membership), ctypes.byref(error))
            self._advances = status == _abi.TRIB_TIMEOUT
            if status == _abi.TRIB_OK:
                self.rank, self.size = membership.rank, membership.worker_count
                return membership
            # Another member may have been lost behind the change, before this thread woke up: the next change follows.
            may_go_on = self._advances or status == _abi.TRIB_EPOCH_CHANGED
            if not may_go_on or (deadline is not None and time.monotonic() >= deadline):
                raise error_of(status, error.text)

    def forget_tensors(self) -> None:
        """Waits for what is under way and releases all tensors: the next ones of their names are as those of a worker
        that comes. Handles of declare() must not be used any more."""
        for operation in list(self._live):
            with contextlib.suppress(Exception):  # who waits for it gets its error
                operation.wait()
        for shapes in self._tensors.values():
            for tensor in shapes.values():
                with self._lock:
                    self._check()
                    call(lib.trib_tensor_release, tensor.handle)
        for kept in (self._tensors, self.known, self.turns):
            kept.clear()

    def has_changed(self) -> bool:
        """True if a worker was lost in a job that goes on: operations fail until advance() is called."""
        status, membership = self._read_membership()
        return status == _abi.TRIB_OK and membership.status == _abi.TRIB_EPOCH_CHANGED

    def _read_membership(self):
        membership = _abi.trib_membership(struct_size=ctypes.sizeof(_abi.trib_membership))
        with self._lock:
            self._check()
            return lib.trib_membership_get(self._handle, ctypes.byref(membership)), membership

    def is_lost(self) -> bool:
        """True if the job has ended because a member was lost or has left."""
        with self._lock:
            self._check()
            status = lib.trib_engine_wait_ready(self._handle, 0, ctypes.byref(_abi.trib_error()))
        return status < 0 and isinstance(error_of(status, ''), JobLostError)

    def close(self) -> None:
        """Completes what is under way, leaves the job and frees the engine. Further calls do nothing."""
        if self._handle is None:
            return
        self.give_up_if_failing()
        self._completions.stop()  # callbacks of futures may submit more
        self._wait_for(list(self._live))
        with self._lock:
            handle, self._handle = self._handle, None
            _open_engines.discard(self)
            if handle is not None:
                lib.trib_engine_destroy(handle)
        atexit.unregister(self._close_at_exit)

    def _wait_for(self, operations):
        for operation in operations:
            try:
                operation.wait()
            except Exception as problem:  # nobody asked for it any more, but for a stream
                if operation.is_awaited and getattr(problem, 'status', 0) != _abi.TRIB_CLOSED:
                    _logger.warning('tributary: a stream went on without the result of an operation: %s', problem)

    def give_up_if_failing(self, is_exit: bool = False) -> None:
        """Ends the operations under way if the program ends by an exception: the other workers may wait for this one,
        so it must not wait for them. They get JobLostError."""
        if is_failing(is_exit):
            self.give_up()

    def give_up(self) -> None:
        """Ends the operations under way, and refuses others, for good; close() is still to be called."""
        with self._lock:
            if self._handle is not None:
                lib.trib_engine_close(self._handle, _abi.trib_closed_cb(), None)

    def _close_at_exit(self):
        self.give_up_if_failing(is_exit=True)
        while self._handle is not None:
            try:
                self.close()
            except KeyboardInterrupt:  # the user does not wait any more
                self.give_up()

    def _check(self):
        """Refuses calls without a handle; the caller holds the lock. A generator that took it, too, would keep it where
        Ctrl-C comes before the generator has returned."""
        if self._handle is None:
            raise NotInitializedError(self._refusal)

    def _submit(self, function, value=None, **fields):
        """Submits an operation that needs no tensor, and returns it."""
        params, handle = initialised(_abi.trib_op_params(), lib.trib_op_params_init), ctypes.c_void_p()
        for field, content in fields.items():
            setattr(params, field, content)
        with self._lock:
            self._check()
            call(function, self._handle, ctypes.byref(params), ctypes.byref(handle))
        operation = Operation(self, handle, None, value, group=fields.get('group'))
        self._live.add(operation)
        return operation

    def _read(self, function, struct):
        """Has the engine fill in a struct, and returns it."""
        struct.struct_size = ctypes.sizeof(struct)
        with self._lock:
            self._check()
            status = function(self._handle, ctypes.byref(struct))
        if status < 0:
            raise error_of(status, '')
        return struct

    def _forget(self, operation):
        self._live.discard(operation)

    def info(self) -> Any:
        """Returns what the engine knows of the job."""
        return self._read(lib.trib_engine_get_info, _abi.trib_engine_info())

    def loss_undoes(self) -> bool:
        """True if the loss of a worker may undo operations that are under way: the coordinator's process has
        TRIB_SURVIVE=workers or continue. Waits until the job has come together, as nobody else knows."""
        if self._loss_undoes is None and self._handle is not None:
            if self.info().epoch == 0:
                self.wait_ready()
            values, count = (_abi.trib_setting_value * 256)(), ctypes.c_size_t()
            with self._lock:
                self._check()
                status = lib.trib_engine_get_settings(self._handle, values, len(values), ctypes.byref(count))
            if status < 0:
                raise error_of(status, '')
            survive = next(value.value for value in values if value.field == b'survive')
            self._loss_undoes = survive in (b'workers', b'continue')
        return bool(self._loss_undoes)

    def stats(self) -> Any:
        """Returns the engine's counters, a trib_stats."""
        return self._read(lib.trib_engine_get_stats, _abi.trib_stats())

    def declare(
        self,
        name: str,
        dtype: int,
        count: int,
        priority: int = 0,
        is_device: bool = False,
        group: int | None = None,
        codec: str | None = None,
        shape: Sequence[int] = (),
        quorum: int = 0,
        known: str = '',
        is_numbered: bool = False,
    ) -> Tensor:
        """Returns the tensor of that name, which is declared at its first use. All workers must declare it alike. A
        name that comes again for another shape gets a tensor of its own, with a number behind the name: workers that
        use names alike number them alike. codec is the text of how its sums travel; None: as the job's setting says.
        Workers whose shapes differ get MismatchError, and the name takes no further shape: they would number it
        differently. () differs from none. quorum is the number of workers without whose contributions its all-reduces
        do not go on; 0: as the job's setting says (TRIB_QUORUM). known: the end of the name, as the program
        knows it; '': all of the name. Workers that use it for names that begin differently get MismatchError, too.
        is_numbered: the operations have numbers (submit's step), and no other name (TRIB_TENSOR_NUMBERED)."""
        shape = tuple(shape) if len(shape) <= _abi.TRIB_TENSOR_DIMS_MAX else ()
        shapes = self._tensors.setdefault((name, group), {})
        key = (dtype, count, is_device, codec, shape, quorum)
        if key not in shapes:
            self.refuse_disputed(name, shapes.values())
            full = '%s#%d' % (name, len(shapes)) if shapes else name
            head, part = name[: -len(known)].encode() if known else b'', encoded(known or name)
            is_named = not is_numbered and encoded(full).startswith(head + part)  # a long name is cut
            shapes[key] = self.declare_once(
                full,
                dtype,
                count,
                priority=priority,
                is_device=is_device,
                group=group,
                codec=codec,
                shape=shape,
                quorum=quorum,
                name_length=len(part) if is_named else 0,
                name_begin=len(head) if is_named else 0,
                is_numbered=is_numbered,
            )
        return shapes[key]

    def refuse_disputed(self, name: str, tensors: Any) -> None:
        """Raises MismatchError if the workers have declared one of a name's tensors differently."""
        for tensor in tensors:
            counts, error = ctypes.c_size_t(), _abi.trib_error()
            with self._lock:
                self._check()
                status = lib.trib_tensor_counts(tensor.handle, None, 0, ctypes.byref(counts), ctypes.byref(error))
            if status == _abi.TRIB_MISMATCH:
                text = 'workers disagreed about "%s" before, so it takes no other shape: take another name (%s)'
                raise error_of(status, (text % (name, error.text.decode(errors='replace'))).encode())

    def declare_once(
        self,
        name: str,
        dtype: int,
        count: int = 0,
        layout: int = _abi.TRIB_WHOLE,
        splits: Sequence[int] | None = None,
        row: int = 1,
        priority: int = 0,
        is_device: bool = False,
        group: int | None = None,
        codec: str | None = None,
        shape: Sequence[int] = (),
        quorum: int = 0,
        name_length: int = 0,
        name_begin: int = 0,
        is_numbered: bool = False,
    ) -> Tensor:
        """Declares a tensor that the caller releases, or an operation of it (is_once). The n-th of a name belongs with
        the n-th of that name on the other workers. name_length, name_begin: as in trib_tensor_desc. is_numbered: as in
        declare()."""
        desc = initialised(_abi.trib_tensor_desc(), lib.trib_tensor_desc_init)
        desc.name, desc.dtype, desc.count, desc.priority, desc.layout, desc.row = (
            encoded(name),
            dtype,
            numbers('Q', [count], '%s: count' % name)[0],
            priority,
            layout,
            row,
        )
        desc.flags = is_device * _abi.TRIB_TENSOR_DEVICE | is_numbered * _abi.TRIB_TENSOR_NUMBERED
        desc.group, desc.quorum = group, quorum
        desc.name_length, desc.name_begin = name_length, name_begin
        if codec is not None:
            desc.codec = codec.encode()
        if shape:
            sizes = (ctypes.c_uint64 * len(shape))(*shape)
            desc.shape, desc.dims = ctypes.addressof(sizes), len(shape)
        if splits is not None:
            listed = numbers('Q', splits, '%s: splits' % name)
            desc.splits, desc.split_count = listed.buffer_info()
        handle = ctypes.c_void_p()
        with self._lock:
            self._check()
            call(lib.trib_tensor_declare, self._handle, ctypes.byref(desc), ctypes.byref(handle))
        return Tensor(self, name, dtype, count, handle, is_device, group)

    def declare_like(self, name: str, array: Any, priority: int = 0) -> Tensor:
        """Declares a tensor of the type and size of an array."""
        buffer = buffer_of(array)
        return self.declare(name, buffer.dtype, buffer.count, priority, buffer.is_device)

    def group(self, name: str, ranks: Sequence[int]) -> Group:
        """Makes a group of workers; each of them calls it, with the same ranks in the same order."""
        desc = initialised(_abi.trib_group_desc(), lib.trib_group_desc_init)
        listed = numbers('i', ranks, 'group %s: ranks' % name)
        desc.name, (desc.ranks, desc.rank_count) = encoded(name), listed.buffer_info()
        handle = ctypes.c_void_p()
        with self._lock:
            self._check()
            call(lib.trib_group_create, self._handle, ctypes.byref(desc), ctypes.byref(handle))
        return Group(self, handle, name)

    def release_group(self, group: int) -> None:
        """As Group.release, which calls it."""
        with self._lock:
            self._check()
            call(lib.trib_group_release, group)
        for key in [key for key in list(self._tensors) if key[1] == group]:  # other threads may declare more
            self._tensors.pop(key, None)

    def barrier(self, group: int | None = None) -> None:
        """Waits until all workers, or all of a group, have called it."""
        self._submit(lib.trib_barrier, group=group).wait()

    def checkpoint(self, step: int = 0, timeout: float | None = None) -> Operation:
        """Returns an operation that completes at a boundary at which a program may save its state (trib_checkpoint): on
        all workers all that was submitted before is over, and was the same. All workers call it, with the number of the
        step that is done. Its value is a Boundary. timeout: seconds; None: the job's."""
        timeout_ns = 0 if timeout is None else max(1, int(timeout * 1e9))
        return self._submit(lib.trib_checkpoint, boundary_of, step=step, timeout_ns=timeout_ns)

    def join(self) -> int:
        """This worker has no more data: waits until all have none, and returns the rank that joined last (trib_join).
        Until then the others' all-reduces go on without it."""
        last = ctypes.c_int32(-1)
        self._submit(lib.trib_join, last, output=ctypes.addressof(last)).wait()
        self.turns.clear()  # workers that joined before have counted less
        return last.value

    def trace_start(self) -> None:
        with self._lock:
            self._check()
            call(lib.trib_trace_start, self._handle, 0)

    def trace_stop(self) -> None:
        with self._lock:
            self._check()
            lib.trib_trace_stop(self._handle)

    def trace_write(self, path: str | os.PathLike[str]) -> None:
        try:
            with self._lock:
                self._check()
                call(lib.trib_trace_write, self._handle, os.fsencode(path))
        except JobLostError as problem:
            if problem.status == _abi.TRIB_SYSTEM:  # the file alone is lost
                lost = TributaryError(str(problem), problem.status)
                lost.status_name = problem.status_name
                raise lost from None
            raise

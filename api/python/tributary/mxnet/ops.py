"""Collectives on MXNet's arrays, in its dependency engine: a call returns at once, and a read of the array waits."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import time
import warnings
from collections.abc import Sequence
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.libinfo import find_lib_path

from .. import job
from .._library import NAME_BYTES, beside, encoded, lib
from ..buffers import DTYPES
from ..codecs import CodecCompressor, codec_of
from ..errors import ArgumentError, TributaryError
from ..process_sets import ProcessSet, global_process_set, resolve
from ..reductions import REDUCTIONS, Average, Sum, reduction_of
from .compression import params_of

MAJOR = int(mx.__version__.split('.')[0])
FREED_S = 60  # for MXNet to free operations that are complete
_counters = {}
_declared = {}  # how tensors of byteps_declare_tensor() are compressed

_native = ctypes.CDLL(beside('libtributary-mxnet.so'))
_native.trib_mxnet_init.argtypes = [ctypes.c_char_p, ctypes.c_int]
_native.trib_mxnet_submit.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int] * 3 + [ctypes.c_bool]
_native.trib_mxnet_wait.argtypes, _native.trib_mxnet_wait.restype = [ctypes.c_int64], ctypes.c_uint64
if _native.trib_mxnet_init(find_lib_path()[0].encode(), MAJOR) != 0:
    raise ImportError('tributary: this MXNet (%s) lacks MXEnginePushAsyncND' % mx.__version__)


def _closing():
    """Waits for what MXNet computes. An error that nobody has read is nobody's."""
    with contextlib.suppress(mx.base.MXNetError):
        (mx.nd if MAJOR == 1 else mx.npx).waitall()
    until = None
    while left := _native.trib_mxnet_wait(200):  # handlers of signals run
        if until is None or job.engine().stats().ops_in_flight:  # these end at their own deadlines
            until = time.monotonic() + FREED_S
        elif time.monotonic() > until:
            warnings.warn(
                'MXNet has not freed %d operations within %g s: the engine is closed without them' % (left, FREED_S),
                stacklevel=2,
            )
            break
    _counters.clear()


job.follow(lambda: None, _closing)
init, shutdown = job.init, job.shutdown


def checked(array, name, is_copied=False):
    """Returns what is a dense array of MXNet's on a processor, and refuses all else. is_copied: the caller reads a copy
    in numpy, which any array has."""
    if not isinstance(array, mx.nd.NDArray):
        raise ArgumentError('%s: it must be an array of MXNet, and is %s' % (name, type(array).__name__))
    if is_copied:
        return array
    if array.stype != 'default':
        raise ArgumentError("%s: it is sparse (%s): pass array.tostype('default')" % (name, array.stype))
    if array.context.device_type != 'cpu':
        raise ArgumentError('%s: arrays on a GPU are not supported: use mx.cpu()' % name)
    return array


def exchange(array, name, reduce=0, root=-1, priority=0, process_set=None, compression=None):
    """Puts an operation on an array, in place, into MXNet's engine, which raises its error where the array is read.
    root: its number in the set."""
    kind = np.dtype(checked(array, name).dtype).name
    if kind not in DTYPES:
        raise ArgumentError('%s: elements of %s cannot be summed' % (name, kind))
    codec = codec_of(compression, array.size * np.dtype(array.dtype).itemsize)
    engine, is_once = resolve(process_set).engine(), isinstance(name, _CountedName)
    declare = engine.declare_once if is_once else engine.declare
    tensor = declare(name, DTYPES[kind], array.size, priority=priority, codec=codec, shape=array.shape)
    if (
        _native.trib_mxnet_submit(job.engine()._handle, tensor.handle, array.handle, reduce, root, priority, is_once)
        != 0
    ):
        if is_once:
            lib.trib_tensor_release(tensor.handle, None)  # refused where MXNet has deleted the operation
        raise TributaryError('%s: MXNet did not take the operation' % name)


class _CountedName(str):
    """The name of one operation, which none has again: its tensor is released when the operation is over."""


def name_of(name, kind, process_set=global_process_set):
    """Returns an operation's name. Operations without one are counted for each set: other workers do not see them."""
    if name is None:
        number = next(_counters.setdefault((kind, process_set.process_set_id), itertools.count()))
        return _CountedName('%s.noname.%d' % (kind, number))
    made = _CountedName if isinstance(name, _CountedName) else str
    return made('%s.%s' % (kind, encoded(name, NAME_BYTES).decode()))


def scale(array, factor):
    """Multiplies an array in place, computed wider and rounded once to the array's type; integers are truncated."""
    if factor != 1.0:
        wide = 'float32' if np.dtype(array.dtype) in (np.float16, np.float32) else 'float64'
        array[:] = (array.astype(wide) * factor).astype(array.dtype)


def allreduce_(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
    op: str | None = None,
) -> Any:
    """Reduces an array over the workers of a set (None: all), in place, and returns it."""
    process_set, reduce = resolve(process_set), REDUCTIONS[reduction_of(op, average)]
    checked(tensor, name or 'allreduce')
    process_set.engine()  # raises on a worker outside the set, before the array changes
    scale(tensor, prescale_factor)
    exchange(tensor, name_of(name, 'allreduce', process_set), reduce, priority=priority, process_set=process_set)
    scale(tensor, postscale_factor)
    return tensor


def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
    op: str | None = None,
) -> Any:
    """Returns the reduction of the arrays of a set's workers (None: all)."""
    copy = checked(tensor, name or 'allreduce').copy()
    return allreduce_(copy, average, name, priority, prescale_factor, postscale_factor, process_set, op)


def grouped_allreduce_(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
    op: str | None = None,
) -> list[Any]:
    """Reduces several arrays, in place, and returns them."""
    process_set = resolve(process_set)
    base = name_of(name, 'grouped', process_set)
    for index, tensor in enumerate(tensors):
        one = type(base)('%s.%d' % (base, index))
        allreduce_(tensor, average, one, priority, prescale_factor, postscale_factor, process_set, op)
    return tensors


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = None,
    op: str | None = None,
) -> list[Any]:
    """Returns the reductions of several arrays."""
    copies = [checked(tensor, name or 'grouped_allreduce').copy() for tensor in tensors]
    return grouped_allreduce_(copies, average, name, priority, prescale_factor, postscale_factor, process_set, op)


def byteps_push_pull(
    tensor: Any, version: int = 0, priority: int = 0, name: str | None = None, is_average: bool = True
) -> None:
    """BytePS's name for allreduce_()."""
    reduce = REDUCTIONS[Average if is_average else Sum]
    exchange(tensor, name_of(name, 'byteps'), reduce, priority=priority, compression=_declared.get(name))


def push_pull(tensor: Any, name: str | None = None, is_average: bool = True) -> Any:
    """Returns the sum or mean of all workers' arrays."""
    copy = checked(tensor, name or 'push_pull').copy()
    byteps_push_pull(copy, name=name, is_average=is_average)
    return copy


def byteps_declare_tensor(name: str, **compression: Any) -> None:
    """Says how byteps_push_pull() sends the tensor of that name: compressor='onebit', ef='vanilla', and so on, as in a
    trainer's compression_params, or BytePS's byteps_compressor_type='onebit', byteps_ef_type='vanilla'. The tensor
    itself is declared at its first operation, which knows its size."""
    if compression:
        _declared[name] = CodecCompressor(params_of(compression))


def broadcast_(
    tensor: Any, root_rank: int, name: str | None = None, priority: int = 0, process_set: ProcessSet | None = None
) -> Any:
    """Replaces an array's elements by the root's and returns it. root_rank: a rank of the job, also in a set."""
    process_set = resolve(process_set)
    root = process_set.root(root_rank)
    exchange(tensor, name_of(name, 'broadcast', process_set), root=root, priority=priority, process_set=process_set)
    return tensor


def broadcast(
    tensor: Any, root_rank: int, name: str | None = None, priority: int = 0, process_set: ProcessSet | None = None
) -> Any:
    """Returns the root's array on every worker."""
    return broadcast_(checked(tensor, name or 'broadcast').copy(), root_rank, name, priority, process_set)

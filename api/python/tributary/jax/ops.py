"""Reductions and broadcasts of JAX's arrays: primitives that XLA's programs call (native/jax.c).

The same program must run on all workers. Names belong to places in a program: where none is given they are counted as
the program is traced, so workers must trace the same functions in the same order."""

from __future__ import annotations

import collections
import ctypes
import itertools
import math
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.interpreters import ad, batching, mlir

from .. import _abi, job
from .._library import beside, encoded, lib
from ..buffers import DTYPES
from ..codecs import CodecCompressor, checked, codec_of
from ..errors import ArgumentError, TributaryError
from ..process_sets import global_process_set
from ..reductions import REDUCTIONS, Average, Max, Min, Product, Sum, reduction_of

_PUSH_PULL, _BROADCAST = 0, 1

_native = ctypes.CDLL(beside('libtributary-jax.so'))
_native.trib_jax_add.argtypes, _native.trib_jax_add.restype = [ctypes.c_void_p, ctypes.c_void_p], ctypes.c_uint64
_native.trib_jax_close.argtypes, _native.trib_jax_close.restype = [ctypes.c_void_p], None
_native.trib_jax_reopen.argtypes = [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p]
_native.trib_jax_reopen.restype = None
_native.trib_jax_calls.argtypes, _native.trib_jax_calls.restype = [ctypes.c_bool], ctypes.c_uint64
_native.trib_jax_failure.argtypes, _native.trib_jax_failure.restype = [ctypes.c_char_p], ctypes.c_bool
jax.ffi.register_ffi_target('tributary', jax.ffi.pycapsule(_native.trib_jax_host), platform='cpu')
jax.ffi.register_ffi_target('tributary_device', jax.ffi.pycapsule(_native.trib_jax_device), platform='CUDA')

_numbers = {}  # what declares a tensor -> its number in the native table
_counters = {}
_traces = weakref.WeakKeyDictionary()  # how often names of gradients were used in a program that is traced
_suspended = {}, {}  # the two as suspend() left them


def _closing():
    """Waits for what XLA computes."""
    for array in jax.live_arrays():
        try:
            array.block_until_ready()
        except Exception:  # its owner sees the error
            pass
    _native.trib_jax_close(job.engine()._handle)
    _numbers.clear()
    _counters.clear()


job.follow(lambda: None, _closing)
init, shutdown = job.init, job.shutdown


def suspend() -> None:
    """Leaves the job; resume() joins it again. Programs that have been compiled can run again then."""
    global _suspended
    kept = dict(_numbers) or _suspended[0], dict(_counters) or _suspended[1]
    job.suspend()
    _suspended = kept


def resume(num_workers: int, num_servers: int, global_rank: int, context: Any = None) -> None:
    """Joins the job again, as job.resume() has it. Names go on to be counted where they were: a worker that was not
    there before traces the same programs from the start."""
    global _suspended
    job.resume(num_workers, num_servers, global_rank, context)
    engine, (numbers, counters) = job.engine(), _suspended
    for (name, dtype, shape, is_device, codec, priority), number in numbers.items():
        tensor = engine.declare(name, dtype, math.prod(shape), priority, is_device, codec=codec, shape=shape)
        _native.trib_jax_reopen(number, engine._handle, tensor.handle)
    _numbers.update(numbers)
    _counters.update(counters)
    _suspended = {}, {}


def _number_of(name, aval, priority, is_device, codec):
    """Returns the number of a tensor in the native table, which is declared when a program is lowered."""
    dtype = DTYPES.get(str(aval.dtype))
    if dtype is None:
        raise ArgumentError('%s: elements of %s cannot be summed' % (name, aval.dtype))
    shape = tuple(aval.shape)
    engine, key = job.engine(), (name, dtype, shape, is_device, codec, priority)
    if key not in _numbers:
        tensor = engine.declare(name, dtype, math.prod(shape), priority, is_device, codec=codec, shape=shape)
        _numbers[key] = _native.trib_jax_add(engine._handle, tensor.handle)
    return _numbers[key]


_exchange = core.Primitive('tributary')
_exchange.def_impl(lambda value, **parameters: jax.jit(lambda x: _exchange.bind(x, **parameters))(value))
_exchange.def_abstract_eval(lambda value, **_parameters: value)


def _lowering(target, is_device):
    def lower(context, value, *, kind, name, op, root, priority, codec):
        (aval,) = context.avals_in
        number = _number_of(name, aval, priority, is_device, codec)
        rule = jax.ffi.ffi_lowering(target, operand_output_aliases={0: 0}, has_side_effect=True)
        return rule(
            context,
            value,
            tensor=np.int64(number),
            kind=np.int64(kind),
            reduce=np.int64(REDUCTIONS.get(op, 0)),
            root=np.int64(root),
        )

    return lower


mlir.register_lowering(_exchange, _lowering('tributary', False), platform='cpu')
mlir.register_lowering(_exchange, _lowering('tributary_device', True), platform='cuda')


def _transpose(cotangent, value, *, kind, name, op, root, priority, codec):
    if op in (Min, Max, Product):
        raise ArgumentError('%s: a minimum, maximum or product over workers has no gradient' % name)
    if kind == _PUSH_PULL:
        return [
            _exchange.bind(
                cotangent, kind=kind, name=name + '.gradient', op=op, root=root, priority=priority, codec=codec
            )
        ]
    total = _exchange.bind(
        cotangent, kind=_PUSH_PULL, name=name + '.gradient', op=Sum, root=-1, priority=priority, codec=codec
    )
    # On the others, too, the result depends on the sum: a program without a use for it would leave it out.
    return [jnp.where(job.rank() == root, total, jnp.zeros_like(total))]


# Sums and broadcasts are linear, so their derivative is the same operation on tangents.
ad.deflinear2(_exchange, lambda cotangent, value, **parameters: _transpose(cotangent, value, **parameters))


def _batch(values, axes, **parameters):
    # An operation on elements: a batch is one larger array.
    return _exchange.bind(values[0], **parameters), axes[0]


batching.primitive_batchers[_exchange] = _batch


def _named(tree, name, kind):
    """Returns pairs of name and leaf of a pytree, and its structure."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    if name is not None:
        encoded(name)  # refuses what is no name
    else:
        name = '%s.%d' % (kind, next(_counters.setdefault(kind, itertools.count())))
    return [(name + jax.tree_util.keystr(path), leaf) for path, leaf in leaves], structure


def unique(name, tree):
    """Returns the name for a tree of gradients, with a number where the program that is traced has used it before: its
    operations may run at the same time."""
    tracer = next((leaf for leaf in jax.tree_util.tree_leaves(tree) if isinstance(leaf, jax.core.Tracer)), None)
    if tracer is None:
        return name
    used = _traces.setdefault(tracer._trace, collections.Counter())
    used[name] += 1
    return name if used[name] == 1 else '%s~%d' % (name, used[name] - 1)


def _apply(tree, name, kind, op, root, prefix, compression=None):
    if compression is not None:
        checked(compression)
    pairs, structure = _named(tree, name, prefix)
    results = []
    for index, (full, leaf) in enumerate(pairs):
        leaf = jnp.asarray(leaf)
        if str(leaf.dtype) not in DTYPES:
            raise ArgumentError('%s: elements of %s cannot be summed' % (full, leaf.dtype))
        codec = codec_of(compression, leaf.size * leaf.dtype.itemsize)
        if not isinstance(leaf, jax.core.Tracer) and leaf.devices().pop().platform == 'cpu':
            results.append(_begin(full, leaf, kind, op, root, -index, codec))
        else:
            results.append(_exchange.bind(leaf, kind=kind, name=full, op=op, root=root, priority=-index, codec=codec))
    return jax.tree_util.tree_unflatten(structure, [result() if callable(result) else result for result in results])


def _begin(name, leaf, kind, op, root, priority, codec):
    """Outside of programs: submits at once, and returns a function that waits and returns the array."""
    memory = np.array(leaf)
    dtype = DTYPES[str(leaf.dtype)]
    tensor = job.engine().declare(name, dtype, memory.size, priority, codec=codec, shape=memory.shape)
    address = memory.__array_interface__['data'][0]
    function = lib.trib_broadcast if kind == _BROADCAST else lib.trib_push_pull
    operation = tensor.submit(
        function, address, address, memory, memory, reduce=REDUCTIONS.get(op, 0), root=max(root, 0)
    )
    return lambda: jnp.asarray(operation.wait())


class Compression:
    """The values of arguments named `compression`."""

    none = None

    @staticmethod
    def codec(codec: Any, min_bytes: int | None = None) -> CodecCompressor:
        """The engine's codec of that text, "onebit,ef=vanilla", or of BytePS's compression_params. Smaller arrays
        travel as they are."""
        return CodecCompressor(codec, min_bytes)


def allreduce(tree: Any, op: str | None = Average, name: str | None = None, compression: Any = None) -> Any:
    """Returns the reduction of all workers' arrays; a pytree gives a pytree. op: Average, Sum, Min, Max or Product.
    Average and Sum can be differentiated; all of them work under jit and vmap."""
    return _apply(tree, name, _PUSH_PULL, reduction_of(op), -1, 'allreduce', compression)


def push_pull(tree: Any, average: bool = True, name: str | None = None) -> Any:
    """BytePS's name for allreduce."""
    return allreduce(tree, Average if average else Sum, name)


def broadcast(tree: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """Returns the root's arrays on every worker; a pytree gives a pytree."""
    return _apply(tree, name, _BROADCAST, None, global_process_set.root(root_rank), 'broadcast')


def check() -> None:
    """Raises the error of an operation on a GPU that has failed. There XLA's stream goes on, as it waits for no thread:
    the next operation raises the error, or this call, after block_until_ready()."""
    text = ctypes.create_string_buffer(_abi.TRIB_ERROR_TEXT_SIZE)
    if _native.trib_jax_failure(text):
        raise TributaryError(text.value.decode(errors='replace'))


def barrier() -> None:
    """Waits until all workers have called it."""
    check()
    job.engine().barrier()


def calls(in_place: bool = False) -> int:
    """How many operations XLA's programs have called for, or how many of those in place."""
    return _native.trib_jax_calls(in_place)

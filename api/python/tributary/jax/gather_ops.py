"""Collectives of JAX's arrays whose results differ from them in the first dimension. They run outside of compiled
programs: how long a result is, the workers say as it is gathered, and XLA must know it before."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _abi
from .._library import encoded, lib
from ..buffers import DTYPES, Buffer
from ..errors import ArgumentError, UnsupportedError
from ..objects import gathered
from ..process_sets import ProcessSet, global_process_set, resolve
from ..reductions import REDUCTIONS, Average, Sum, reduction_of


def _row_count(array, name):
    """Returns how many rows an array has, and refuses what has none that can be sent."""
    encoded(name)  # refuses what is no name
    if isinstance(array, jax.core.Tracer):
        raise UnsupportedError(
            '%s: it does not run in a compiled program: call it outside of jit, grad and vmap' % name
        )
    shape = np.shape(array)
    if not shape:
        raise ArgumentError('%s: an array without dimensions has no rows' % name)
    return shape[0]


def _host(array, name):
    """Returns a copy of an array's elements, and how many an index of the first dimension stands for."""
    _row_count(array, name)
    host = np.array(array, order='C')
    if str(host.dtype) not in DTYPES:
        raise ArgumentError('%s: elements of %s cannot be sent' % (name, host.dtype))
    return host, max(math.prod(host.shape[1:]), 1)


def _buffer(host):
    return Buffer(host.__array_interface__['data'][0], DTYPES[str(host.dtype)], host.size, host, False, True)


def _gathered(array, name, process_set, splits=None):
    """Returns the rows that came from all workers, and how many from each."""
    host, row = _host(array, name)
    trailing, dtype, is_empty = host.shape[1:], host.dtype, 0 in host.shape[1:]
    if is_empty:  # how many there are is all that can be sent of rows without elements
        host = np.array([host.shape[0]] if splits is None else splits, np.int64)
        splits = splits and [1] * len(splits)
    kind = lib.trib_all_gather if splits is None else lib.trib_all_to_all
    elements = None if splits is None else [length * row for length in splits]
    shape = host.shape if splits is None else ()
    content, counts = gathered(process_set.engine(), kind, name, _buffer(host), row, elements, host, shape).wait()
    values = np.frombuffer(content, host.dtype)
    rows = values.tolist() if is_empty else [count // row for count in counts]
    values = np.empty(0, dtype) if is_empty else values
    return jnp.asarray(values.reshape([sum(rows), *trailing])), rows


def allgather(array: Any, name: str | None = None, process_set: ProcessSet | None = global_process_set) -> jax.Array:
    """Returns the arrays of a set's workers, one behind the other along the first dimension, which may differ in
    length."""
    return _gathered(array, name or 'allgather', resolve(process_set))[0]


def alltoall(
    array: Any,
    splits: Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet | None = global_process_set,
) -> Any:
    """Returns what the workers of a set have for this one. splits: how many rows each worker gets, in order of rank;
    then the result is a pair of the output and the rows received. None: equal parts."""
    process_set, name = resolve(process_set), name or 'alltoall'
    size, rows = process_set.size(), _row_count(array, name)
    if splits is None and rows % size:
        raise ArgumentError('%s: %d rows cannot be split evenly among %d workers: give splits' % (name, rows, size))
    lengths = [rows // size] * size if splits is None else [int(length) for length in splits]
    if len(lengths) != size or sum(lengths) > rows or min(lengths) < 0:
        raise ArgumentError('%s: splits %s do not fit %d workers and %d rows' % (name, lengths, size, rows))
    output, received = _gathered(array, name, process_set, lengths)
    return output if splits is None else (output, jnp.asarray(received, jnp.int32))


def reducescatter(
    array: Any,
    op: str | None = Average,
    name: str | None = None,
    process_set: ProcessSet | None = global_process_set,
) -> jax.Array:
    """Returns this worker's part of the reduction along the first dimension; the first workers get the rest's rows."""
    engine, op, name = resolve(process_set).engine(), reduction_of(op), name or 'reducescatter'
    if op not in (Average, Sum):
        raise ArgumentError('%s: op must be Average or Sum' % name)
    host, row = _host(array, name)
    each, more = divmod(host.shape[0], engine.size)
    result = np.empty([each + (engine.rank < more), *host.shape[1:]], host.dtype)
    source, target = _buffer(host), _buffer(result)
    tensor = engine.declare_once(name, target.dtype, target.count, layout=_abi.TRIB_SLICES, row=row, shape=result.shape)
    tensor.submit(
        lib.trib_reduce_scatter,
        source.address,
        target.address,
        (host, result),
        reduce=REDUCTIONS[op],
        input_bytes=host.nbytes,
        is_once=True,
    ).wait()
    return jnp.asarray(result)

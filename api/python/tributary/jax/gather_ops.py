"""Collectives of JAX's arrays whose results differ from them in the first dimension. They run outside of compiled
programs: how long a result is, the workers say as it is gathered, and XLA must know it before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._library import encoded
from ..buffers import DTYPES
from ..errors import ArgumentError, UnsupportedError
from ..process_sets import ProcessSet, global_process_set, resolve
from ..reductions import Average, reduction_of
from ..rows import begin_gather, begin_scatter


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
    """Returns a copy of an array's elements."""
    _row_count(array, name)
    host = np.array(array, order='C')
    if str(host.dtype) not in DTYPES:
        raise ArgumentError('%s: elements of %s cannot be sent' % (name, host.dtype))
    return host


def _gathered(array, name, process_set, splits=None):
    """Returns the rows that came from all workers, and how many from each."""
    values, rows = begin_gather(process_set.engine(), name, _host(array, name), splits)()
    return jnp.asarray(values), rows


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
    engine, name = resolve(process_set).engine(), name or 'reducescatter'
    return jnp.asarray(begin_scatter(engine, name, _host(array, name), reduction_of(op))())

"""Collectives of MXNet's arrays whose results differ from them in the first dimension: allgather, alltoall and
reducescatter, with Horovod's names. MXNet must know an array's shape when it is made, so a call waits for its
result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mxnet as mx
import numpy as np

from ..errors import ArgumentError
from ..process_sets import ProcessSet, global_process_set, resolve
from ..reductions import Average
from ..rows import begin_gather, begin_scatter
from ..shares import lengths_of
from .ops import checked, name_of, scale


def _like(tensor, values):
    """Returns an array of the tensor's kind, on its processor."""
    is_numpy = hasattr(mx, 'np') and isinstance(tensor, mx.np.ndarray)
    return (mx.np if is_numpy else mx.nd).array(values, dtype=values.dtype, ctx=tensor.context)


def _host(tensor, name):
    """Returns a copy of an array's elements."""
    if not checked(tensor, name, is_copied=True).shape:
        raise ArgumentError('%s: an array without dimensions has no rows' % name)
    return np.ascontiguousarray(tensor.asnumpy())


def _begin_gather(tensor, name, process_set, splits=None):
    """Returns a function that waits for the result, and for how many rows came from each worker."""
    begun = begin_gather(process_set.engine(), name, _host(tensor, name), splits)

    def finish():
        values, rows = begun()
        return _like(tensor, values), rows

    return finish


def _begin_scatter(tensor, name, process_set, op, prescale, postscale):
    """Returns a function that waits for the result."""
    if prescale != 1.0:
        tensor = tensor.copy()
        scale(tensor, prescale)
    begun = begin_scatter(process_set.engine(), name, _host(tensor, name), op)

    def finish():
        output = _like(tensor, begun())
        scale(output, postscale)
        return output

    return finish


def allgather(
    tensor: Any, name: str | None = None, priority: int = 0, process_set: ProcessSet | None = global_process_set
) -> Any:
    """Returns the arrays of a set's workers, one behind the other along the first dimension, which may differ in
    length."""
    process_set = resolve(process_set)
    return _begin_gather(tensor, name_of(name, 'allgather', process_set), process_set)()[0]


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet | None = global_process_set,
) -> list[Any]:
    """Returns the gathered arrays of a list."""
    process_set = resolve(process_set)
    base = name_of(name, 'grouped_allgather', process_set)
    begun = [_begin_gather(one, '%s.%d' % (base, index), process_set) for index, one in enumerate(tensors)]
    return [finish()[0] for finish in begun]


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet | None = global_process_set,
) -> Any:
    """Returns what the workers of a set have for this one. splits: how many rows each worker gets, in order of rank;
    then the result is a pair of the output and the rows received. None: equal parts."""
    process_set = resolve(process_set)
    name = name_of(name, 'alltoall', process_set)
    rows = tensor.shape[0] if checked(tensor, name, is_copied=True).shape else 0
    given = splits.asnumpy().reshape(-1) if hasattr(splits, 'asnumpy') else splits
    lengths = lengths_of(name, rows, process_set.engine().size, given)
    output, received = _begin_gather(tensor, name, process_set, lengths)()
    return output if splits is None else (output, _like(tensor, np.array(received, np.int32)))


def reducescatter(
    tensor: Any,
    op: str | None = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet | None = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Returns this worker's part of the reduction along the first dimension; the first workers get the rest's rows."""
    process_set = resolve(process_set)
    name = name_of(name, 'reducescatter', process_set)
    return _begin_scatter(tensor, name, process_set, op, prescale_factor, postscale_factor)()


def grouped_reducescatter(
    tensors: Sequence[Any],
    op: str | None = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet | None = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """Returns this worker's parts of the reductions of several arrays."""
    process_set = resolve(process_set)
    base = name_of(name, 'grouped_reducescatter', process_set)
    factors = op, prescale_factor, postscale_factor
    begun = [_begin_scatter(one, '%s.%d' % (base, index), process_set, *factors) for index, one in enumerate(tensors)]
    return [finish() for finish in begun]

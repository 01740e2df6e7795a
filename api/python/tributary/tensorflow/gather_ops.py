"""Collectives of TensorFlow's tensors whose results differ from them in the first dimension: allgather, alltoall and
reducescatter, with Horovod's names, arguments and gradients. Eager and in tf.function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from .. import _abi, codecs
from ..errors import ArgumentError
from ..process_sets import ProcessSet, by_id, global_process_set, resolve
from ..reductions import REDUCTIONS, Average
from ..shares import summing
from .compression import Compression
from .ops import allreduce, gradient_name, module, name_of, numbers_of, part_of, plain, refuse_xla, scaled, set_number

_ALL_GATHER, _REDUCE_SCATTER, _ALL_TO_ALL = 0, 1, 2


def _gather(tensor, name, kind, process_set, reduce=0, splits=None):
    """Returns the result, and how many rows of it came from each worker."""
    number = set_number(process_set)
    refuse_xla(name)
    if splits is None:
        splits = tf.zeros([0], tf.int64)
    tensor = tf.convert_to_tensor(tensor)
    if tensor.shape.rank == 0:
        raise ArgumentError('%s: a tensor without dimensions has no rows' % name)
    if kind != _REDUCE_SCATTER and tensor.shape.rank is not None and 0 in tensor.shape[1:]:
        return _gather_empty(tensor, name, kind, process_set, splits)
    result, counts = module().tributary_gather(
        value=tensor,
        splits=splits,
        number=numbers_of(name),
        tensor_name=name,
        kind=kind,
        reduce=reduce,
        process_set=number,
    )
    if tensor.shape.rank is not None and not tf.executing_eagerly():
        result.set_shape([None, *tensor.shape[1:]])
        counts.set_shape([process_set.size()])
    return result, counts


def _gather_empty(tensor, name, kind, process_set, splits):
    """How many there are is all that can be sent of rows without elements."""
    size, rows = process_set.size(), tf.shape(tensor, tf.int64)[:1]
    if kind == _ALL_GATHER:
        counts = _gather(rows, name, kind, process_set)[0]
    else:
        lengths = splits if splits.shape[0] != 0 else tf.repeat(rows // size, size)
        counts = _gather(lengths, name, kind, process_set, splits=tf.ones([size], tf.int64))[0]
    return tf.zeros([tf.reduce_sum(counts), *tensor.shape[1:]], tensor.dtype), counts


@tf.RegisterGradient('TributaryGather')
def _gradient(op, gradient, _of_counts):
    numbers = op.inputs[2:]
    return [_gather_gradient(op, gradient, gradient_name(op, numbers)), *[None] * (1 + len(numbers))]


def _gather_gradient(op, gradient, name):
    kind = op.get_attr('kind')
    reduce, process_set = op.get_attr('reduce'), by_id(op.get_attr('process_set'))
    counts = op.outputs[1]
    if kind == _ALL_GATHER:
        mean = allreduce(gradient, op=Average, name=name, process_set=process_set)
        begin = tf.reduce_sum(counts[: process_set.rank()])
        mine = mean[begin : begin + counts[process_set.rank()]]
        return tf.reshape(mine, tf.shape(op.inputs[0]))
    if kind == _ALL_TO_ALL:
        return _gather(gradient, name, _ALL_TO_ALL, process_set, splits=counts)[0]
    if reduce == _abi.TRIB_SUM:
        gradient = gradient * tf.cast(process_set.size(), gradient.dtype)
    return _gather(gradient, name, _ALL_GATHER, process_set)[0]


@plain
def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet | None = global_process_set,
) -> Any:
    """Returns the tensors of a set's workers, one behind the other along the first dimension, which may differ in
    length; differentiable."""
    process_set = resolve(process_set)
    return _gather(tensor, name_of(name, 'allgather', process_set), _ALL_GATHER, process_set)[0]


@plain
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet | None = global_process_set,
) -> list[Any]:
    """Returns the gathered tensors of a list; differentiable."""
    base = name_of(name, 'grouped_allgather', resolve(process_set))
    return [allgather(tensor, part_of(base, index), process_set=process_set) for index, tensor in enumerate(tensors)]


@plain
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet | None = global_process_set,
) -> Any:
    """Returns what the workers of a set have for this one; differentiable. splits: how many rows each worker gets, in
    order of rank; then the result is a pair of the output and the rows received. None: equal parts."""
    process_set = resolve(process_set)
    name = name_of(name, 'alltoall', process_set)
    if splits is None:
        return _gather(tensor, name, _ALL_TO_ALL, process_set)[0]
    splits = tf.convert_to_tensor(splits)
    if not splits.dtype.is_integer or splits.shape.rank not in (1, None):
        raise ArgumentError('%s: splits must be integers in one dimension' % name)
    if splits.shape.rank == 1 and splits.shape[0] not in (process_set.size(), None):
        raise ArgumentError(
            '%s: splits has %d numbers; there are %d workers' % (name, *splits.shape, process_set.size())
        )
    output, counts = _gather(tensor, name, _ALL_TO_ALL, process_set, splits=tf.cast(splits, tf.int64))
    return output, tf.cast(counts, splits.dtype)


@plain
def reducescatter(
    tensor: Any,
    device_dense: str = '',
    compression: Any = Compression.none,
    op: str | None = Average,
    name: str | None = None,
    process_set: ProcessSet | None = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Returns this worker's part of the reduction along the first dimension, the first workers get the rest's rows;
    differentiable."""
    process_set = resolve(process_set)
    name = name_of(name, 'reducescatter', process_set)
    reduce = REDUCTIONS[summing(op, name)]
    if isinstance(tensor, tf.IndexedSlices):
        tensor = tf.convert_to_tensor(tensor)
    tensor = scaled(tf.convert_to_tensor(tensor), prescale_factor)
    compressed, context = codecs.checked(compression).compress(tensor)
    reduced, _ = _gather(compressed, name, _REDUCE_SCATTER, process_set, reduce)
    return scaled(compression.decompress(reduced, context), postscale_factor)


@plain
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = '',
    compression: Any = Compression.none,
    op: str | None = Average,
    process_set: ProcessSet | None = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
) -> list[Any]:
    """Returns this worker's parts of the reductions of several tensors; differentiable."""
    base = name_of(name, 'grouped_reducescatter', resolve(process_set))
    return [
        reducescatter(
            tensor,
            device_dense,
            compression,
            op,
            part_of(base, index),
            process_set,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
        )
        for index, tensor in enumerate(tensors)
    ]

"""BytePS's names for tf.distribute: a MirroredStrategy whose reductions go over the workers of the job, too.

Each worker runs the strategy on devices of its own. ReduceOp.SUM is the sum over the replicas of all workers, and MEAN
their mean. TensorFlow itself counts a worker's own replicas alone, as with BytePS: what it divides by
num_replicas_in_sync, such as Keras's loss, is still a sum over the workers."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from ..reductions import Average, Sum
from ..job import size
from .ops import allreduce, broadcast


class BytepsAllReduce(tf.distribute.ReductionToOneDevice):
    """An all-reduce between devices and workers: a worker's replicas are added on one device, and then the workers'
    sums. num_packs is taken and has no meaning: small tensors travel together anyway."""

    def __init__(self, num_packs: int = 1) -> None:
        super().__init__(accumulation_fn=lambda values: self._reduced(tf.add_n(values)))
        self._place, self._op = 0, Sum

    @property
    def _num_between_graph_workers(self) -> int:
        return max(size(), 2)  # TensorFlow returns the value of one replica as it is if this is 1

    def _reduced(self, value: Any) -> Any:
        # A graph's names are counted when it is traced. Eager calls have the name of their place, or they would need
        # new tensors in each step.
        name = 'strategy.%d' % self._place if tf.executing_eagerly() else None
        return allreduce(value, op=self._op, name=name, priority=-self._place)

    def _reduce(self, place: int, reduce_op: Any, value: Any, destinations: Any, options: Any) -> Any:
        self._place, self._op = place, Average if reduce_op == tf.distribute.ReduceOp.MEAN else Sum
        return super().reduce_implementation(reduce_op, value, destinations, options)

    def reduce_implementation(self, reduce_op: Any, per_replica_value: Any, destinations: Any, options: Any) -> Any:
        return self._reduce(0, reduce_op, per_replica_value, destinations, options)

    def batch_reduce_implementation(self, reduce_op: Any, value_destination_pairs: Any, options: Any) -> list[Any]:
        return [
            self._reduce(place, reduce_op, value, destinations, options)
            for place, (value, destinations) in enumerate(value_destination_pairs)
        ]

    def broadcast_implementation(self, tensor: Any, destinations: Any) -> Any:
        if isinstance(tensor, tf.IndexedSlices):  # TensorFlow adds these without asking
            tensor = self._reduced(tensor)
        return super().broadcast_implementation(tensor, destinations)


BytepsCrossDeviceOps = BytepsAllReduce
_scopes = threading.local()


def _from_root(next_creator: Any, **keywords: Any) -> Any:
    """Makes a variable with rank 0's initial value."""
    with tf.init_scope():
        value = keywords.get('initial_value')
        value = tf.convert_to_tensor(value() if callable(value) else value, keywords.get('dtype'))
        if value.dtype.is_floating or value.dtype.is_integer:
            value = broadcast(value, 0)
    return next_creator(**dict(keywords, initial_value=value))


class MirroredStrategy(tf.distribute.MirroredStrategy):
    """TensorFlow's strategy for the devices of a worker, with reductions over all workers. Variables that are made in
    its scope begin with rank 0's values. devices: as TensorFlow's."""

    def __init__(self, devices: Sequence[str] | None = None, cross_device_ops: Any = None) -> None:
        super().__init__(devices, cross_device_ops or BytepsAllReduce())

    @contextlib.contextmanager
    def scope(self) -> Iterator[Any]:
        is_outer = not getattr(_scopes, 'is_inside', False)
        creators = tf.variable_creator_scope(_from_root) if is_outer else contextlib.nullcontext()
        with super().scope() as strategy, creators:
            _scopes.is_inside = True
            try:
                yield strategy
            finally:
                _scopes.is_inside = not is_outer

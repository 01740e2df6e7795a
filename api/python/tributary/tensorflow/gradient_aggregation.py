"""Gradients of several passes of a graph of TensorFlow 1, which are summed on each worker before they are reduced
(Horovod's module of that name)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ..errors import UnsupportedError
from ..process_sets import ProcessSet, global_process_set, resolve
from ..reductions import passes_of


class LocalGradientAggregationHelper:
    """Sums gradients, and reduces the sums with every backward_passes_per_step-th pass: allreduce_func(gradients,
    variables) does so. optimizer_type and rank are taken and have no meaning: local variables hold the sums, and
    tf.compat.v1.local_variables_initializer() makes them."""

    _OPTIMIZER_TYPE_KERAS = 'optimizer_type_keras'
    _OPTIMIZER_TYPE_LEGACY = 'optimizer_type_legacy'

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Callable[[list[Any], list[Any]], list[Any]],
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        rank: int = 0,
        optimizer_type: str = _OPTIMIZER_TYPE_LEGACY,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
        name: str = '',
    ) -> None:
        self.backward_passes_per_step = passes_of(backward_passes_per_step)
        self.average_aggregated_gradients = average_aggregated_gradients
        self._reduce, self._sparse_as_dense, self._name = allreduce_func, sparse_as_dense, name
        self._process_set, self._scale_local = process_set, scale_local_gradients
        self._local, self._is_due = set(), None

    def register_local_var(self, var: Any) -> None:
        """Leaves the gradients of a variable to each worker."""
        self._local.add(id(var))

    def _dense(self, gradient):
        if isinstance(gradient, tf.IndexedSlices) and not self._sparse_as_dense:
            raise UnsupportedError('backward_passes_per_step: IndexedSlices are not summed: set sparse_as_dense')
        return tf.convert_to_tensor(gradient)

    def _variable(self, name, value):
        return tf.compat.v1.Variable(
            value,
            trainable=False,
            use_resource=True,
            collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
            name='%saggregation_%s' % (self._name, name),
        )

    def _exchanged(self, sums, variables):
        """Returns the reductions of what has been summed, and sets that back."""
        values = [tf.identity(total) for total in sums]
        with tf.control_dependencies(values):
            cleared = [total.assign(tf.zeros_like(value)) for total, value in zip(sums, values)]
        with tf.control_dependencies(cleared):
            values = [tf.identity(value) for value in values]
        is_local = [id(variable) in self._local for variable in variables]
        listed = [pair for pair, alone in zip(zip(values, variables), is_local) if not alone]
        reduced = iter(self._reduce([value for value, _ in listed], [variable for _, variable in listed]))
        alone_factor = 1 / resolve(self._process_set).size() if self._scale_local else 1.0
        factor = 1 / self.backward_passes_per_step if self.average_aggregated_gradients else 1.0
        return [(value * alone_factor if alone else next(reduced)) * factor for value, alone in zip(values, is_local)]

    def compute_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:
        """Returns the reductions with every backward_passes_per_step-th pass, and else the gradients as they are, which
        apply_gradients() does not apply. None stays None."""
        known = [(self._dense(grad), variable) for grad, variable in zip(grads, vars) if grad is not None]
        gradients, variables = [grad for grad, _ in known], [variable for _, variable in known]
        counter = self._variable('passes', 0)
        sums = [self._variable(index, tf.zeros(grad.shape, grad.dtype)) for index, grad in enumerate(gradients)]
        added = [total.assign_add(grad) for total, grad in zip(sums, gradients)]
        with tf.control_dependencies(added):
            passes = counter.assign_add(1)
        self._is_due = tf.equal(passes % self.backward_passes_per_step, 0)
        results = tf.cond(self._is_due, lambda: self._exchanged(sums, variables), lambda: gradients) if known else []
        results = iter(results if isinstance(results, (list, tuple)) else [results])
        return [None if grad is None else next(results) for grad in grads]

    def apply_gradients(self, apply_grads_closure: Callable[[], Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Returns an operation that applies reduced gradients. With other passes it counts the step alone. The
        arguments are those of the optimizer's apply_gradients()."""
        step = kwargs['global_step'] if 'global_step' in kwargs else next(iter(args[1:]), None)
        counters = [step, getattr(optimizer, 'iterations', None)]

        def count():
            counted = [counter.assign_add(1) for counter in counters if counter is not None]
            with tf.control_dependencies(counted):
                return tf.constant(False)

        def apply():
            with tf.control_dependencies([apply_grads_closure()]):
                return tf.constant(True)

        listed = [grad for grad, _ in args[0] if grad is not None]
        with tf.control_dependencies(listed):
            return tf.cond(self._is_due, apply, count).op

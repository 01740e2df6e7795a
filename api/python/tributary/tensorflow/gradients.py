"""Gradients that are reduced over all workers: around a tape, and around an optimizer of Keras."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from .. import codecs
from ..errors import ArgumentError, UnsupportedError
from ..process_sets import ProcessSet, global_process_set, resolve
from ..reductions import Average, Sum, passes_of, reduction_of
from .compression import Compression
from .gradient_aggregation import LocalGradientAggregationHelper
from .ops import allreduce, place_of, plain


@plain
def reduce_gradients(
    gradients: Sequence[Any],
    op: str | None = Average,
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    predivide: float = 1.0,
    prefix: str = 'gradient',
    process_set: ProcessSet | None = global_process_set,
) -> list[Any]:
    """Returns the reductions of gradients; None stays None. First layers go first."""
    process_set, prefix = resolve(process_set), place_of(prefix)
    before, after, wire = (1.0, 1.0, op) if predivide == 1.0 else (1.0 / predivide, predivide / process_set.size(), Sum)

    def reduced(index, gradient):
        if gradient is None:
            return None
        is_sparse = isinstance(gradient, tf.IndexedSlices) and not sparse_as_dense and predivide == 1.0
        return allreduce(
            gradient if is_sparse else tf.convert_to_tensor(gradient),
            op=wire,
            compression=compression,
            name='%s.%d' % (prefix, index),
            prescale_factor=before,
            postscale_factor=after,
            process_set=process_set,
            priority=-index,
        )

    return [reduced(index, gradient) for index, gradient in enumerate(gradients)]


class _Tape:
    """A tape whose gradient() is reduced over the workers of a set; gradients by local sources stay as they are."""

    def __init__(self, tape, options, local=(), scale_local=True):
        self._tape, self._options = tape, options
        self._local, self._scale_local = {id(source) for source in local}, scale_local

    def __getattr__(self, name):
        return getattr(self._tape, name)

    @plain
    def __enter__(self):
        self._tape.__enter__()
        return self

    @plain
    def __exit__(self, *exception):
        return self._tape.__exit__(*exception)

    def register_local_source(self, source):
        """Leaves the gradient by that source as it is on each worker."""
        self._local.add(id(source))

    def _of_local(self, gradient):
        """Horovod's rule: as if the other workers' gradients of it were 0, where an average is wanted."""
        if gradient is None or not self._scale_local or self._options['op'] != Average:
            return gradient
        size = resolve(self._options['process_set']).size()
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(gradient.values / size, gradient.indices, gradient.dense_shape)
        return gradient / size

    @plain
    def gradient(self, target: Any, sources: Any, output_gradients: Any = None, **keywords: Any) -> Any:
        """Returns the gradients by the sources, each reduced over all workers."""
        gradients = self._tape.gradient(target, sources, output_gradients, **keywords)
        is_list = isinstance(gradients, (list, tuple))
        flat = list(gradients) if is_list else tf.nest.flatten(gradients)
        listed = list(sources) if isinstance(sources, (list, tuple)) else tf.nest.flatten(sources)
        local = [id(source) in self._local for source in listed]
        shared = [gradient for gradient, is_local in zip(flat, local) if not is_local]
        reduced = iter(reduce_gradients(shared, **self._options))
        merged = [self._of_local(one) if is_local else next(reduced) for one, is_local in zip(flat, local)]
        return merged if is_list else tf.nest.pack_sequence_as(gradients, merged)


@plain
def DistributedGradientTape(
    gradtape: Any,
    device_dense: str = '',
    device_sparse: str = '',
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: str | None = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet | None = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Returns a tape whose gradient() is reduced over the workers of a set."""
    return PartialDistributedGradientTape(
        gradtape,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        None,
        scale_local_gradients,
    )


@plain
def PartialDistributedGradientTape(
    gradtape: Any,
    device_dense: str = '',
    device_sparse: str = '',
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: str | None = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet | None = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """DistributedGradientTape, but for the variables of local_layers (a layer, or a list of them): their gradients are
    each worker's own."""
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ArgumentError('gradient_predivide_factor: op must be Average')
    op = reduction_of(op)
    resolve(process_set).engine()  # raises on a worker outside the set, before it trains alone
    layers = local_layers if isinstance(local_layers, (list, tuple, set)) else [local_layers] if local_layers else []
    options = dict(
        op=op,
        compression=codecs.checked(compression),
        predivide=gradient_predivide_factor,
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
    )
    local = [variable for layer in layers for variable in layer.trainable_weights]
    return _Tape(gradtape, options, local, scale_local_gradients)


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = '',
    device_sparse: str = '',
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: str | None = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet | None = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Returns an optimizer that reduces gradients over the workers of a set before it applies them. optimizer: one of
    Keras's, or of tf.compat.v1.train, whose compute_gradients() and minimize() reduce them then."""
    passes = passes_of(backward_passes_per_step)
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ArgumentError('gradient_predivide_factor: op must be Average')
    op, compression = reduction_of(op), codecs.checked(compression)
    options = dict(predivide=gradient_predivide_factor, sparse_as_dense=sparse_as_dense, process_set=process_set)

    def reduced(gradients, op=op):
        return reduce_gradients(gradients, op, compression, **options)

    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        reduced = reduced if resolve(process_set).included() else list
        if passes == 1:
            return _distributed_of_graph(optimizer, lambda gradients, variables: reduced(gradients))
        if tf.executing_eagerly():
            raise UnsupportedError('backward_passes_per_step: optimizers of tf.compat.v1.train sum in graphs alone')
        helper = LocalGradientAggregationHelper(
            passes,
            lambda gradients, variables: reduced(gradients),
            sparse_as_dense,
            average_aggregated_gradients,
            process_set=process_set,
            name=name or '',
        )
        return _distributed_of_graph(optimizer, helper.compute_gradients, helper)
    if not hasattr(optimizer, 'get_config'):
        raise UnsupportedError(
            "DistributedOptimizer: %s is neither one of Keras's optimizers nor one of tf.compat.v1.train"
            % type(optimizer).__name__
        )
    from ..keras.optimizer import distributed

    return distributed(optimizer, reduced, passes, 1.0 if average_aggregated_gradients else float(passes))


def _distributed_of_graph(optimizer, reduced, helper=None):
    """Returns an optimizer of TensorFlow 1's whose gradients are reduced where they are computed. A worker outside the
    set keeps its own. helper: sums gradients of several passes."""

    def compute_gradients(self, *arguments, **keywords):
        pairs = super(kind, self).compute_gradients(*arguments, **keywords)
        variables = [variable for _, variable in pairs]
        return list(zip(reduced([gradient for gradient, _ in pairs], variables), variables))

    def apply_gradients(self, grads_and_vars, *arguments, **keywords):
        pairs = list(grads_and_vars)

        def apply():
            return super(kind, self).apply_gradients(pairs, *arguments, **keywords)

        return apply() if helper is None else helper.apply_gradients(apply, self, pairs, *arguments, **keywords)

    contents = {'compute_gradients': compute_gradients, 'apply_gradients': apply_gradients}
    kind = type('Distributed' + type(optimizer).__name__, (type(optimizer),), contents)
    made = kind.__new__(kind)
    made.__dict__.update(optimizer.__dict__, _optimizer=optimizer)  # Horovod's name of what is wrapped
    return made

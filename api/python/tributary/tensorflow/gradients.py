"""Gradients that are reduced over all workers: around a tape, and around an optimizer of Keras."""

import tensorflow as tf

from ..errors import ArgumentError
from ..process_sets import global_process_set, require_global
from .compression import Compression
from ..reductions import Average, Sum
from .ops import allreduce


def reduce_gradients(
    gradients, op=Average, compression=Compression.none, sparse_as_dense=True, predivide=1.0, prefix='gradient'
):
    """Returns the reductions of gradients; None stays None. First layers go first."""
    from .. import job

    before, after, wire = (1.0, 1.0, op) if predivide == 1.0 else (1.0 / predivide, predivide / job.size(), Sum)
    return [
        None
        if gradient is None
        else allreduce(
            gradient,
            op=wire,
            compression=compression,
            name='%s.%d' % (prefix, index),
            prescale_factor=before,
            postscale_factor=after,
            priority=-index,
        )
        for index, gradient in enumerate(gradients)
    ]


class _Tape:
    """A tape whose gradient() is reduced over all workers."""

    def __init__(self, tape, options):
        self._tape, self._options = tape, options

    def __getattr__(self, name):
        return getattr(self._tape, name)

    def __enter__(self):
        self._tape.__enter__()
        return self

    def __exit__(self, *exception):
        return self._tape.__exit__(*exception)

    def gradient(self, target, sources, output_gradients=None, **keywords):
        """Returns the gradients by the sources, each reduced over all workers."""
        gradients = self._tape.gradient(target, sources, output_gradients, **keywords)
        flat = tf.nest.flatten(gradients) if not isinstance(gradients, (list, tuple)) else list(gradients)
        reduced = reduce_gradients(flat, **self._options)
        return tf.nest.pack_sequence_as(gradients, reduced) if not isinstance(gradients, (list, tuple)) else reduced


def DistributedGradientTape(
    gradtape,
    device_dense='',
    device_sparse='',
    compression=Compression.none,
    sparse_as_dense=False,
    op=Average,
    gradient_predivide_factor=1.0,
    num_groups=0,
    groups=None,
    process_set=global_process_set,
    scale_local_gradients=True,
):
    """Returns a tape whose gradient() is reduced over all workers."""
    require_global(process_set)
    return _Tape(gradtape, dict(op=op, compression=compression, predivide=gradient_predivide_factor))


def DistributedOptimizer(
    optimizer,
    name=None,
    use_locking=False,
    device_dense='',
    device_sparse='',
    compression=Compression.none,
    sparse_as_dense=False,
    backward_passes_per_step=1,
    op=Average,
    gradient_predivide_factor=1.0,
    average_aggregated_gradients=False,
    num_groups=0,
    groups=None,
    process_set=global_process_set,
    scale_local_gradients=True,
):
    """Returns a Keras optimizer that reduces gradients over all workers before it applies them."""
    require_global(process_set)
    if backward_passes_per_step != 1:
        raise ArgumentError('backward_passes_per_step: use the optimizer\'s own gradient_accumulation_steps')
    from ..keras.optimizer import distributed

    return distributed(
        optimizer, lambda gradients: reduce_gradients(gradients, op, compression, predivide=gradient_predivide_factor)
    )

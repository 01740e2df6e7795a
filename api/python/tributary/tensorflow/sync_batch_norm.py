"""Batch normalization over the batches of all workers, for Keras 3 on TensorFlow."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from .. import job
from ..errors import UnsupportedError
from ..reductions import Sum
from .ops import allreduce, unique


class SyncBatchNormalization(keras.layers.BatchNormalization):
    """BatchNormalization whose mean and variance in training are those of all workers' batches together. Batches may
    differ in size. In evaluation, and with one worker, it is BatchNormalization."""

    def __init__(self, fused: bool = False, **keywords: Any) -> None:
        if fused:
            raise UnsupportedError('SyncBatchNormalization: fused=True computes one batch alone: use fused=False')
        super().__init__(**keywords)

    def _moments(self, inputs, mask):
        if job.size() == 1:
            return super()._moments(inputs, mask)
        if mask is not None:
            raise UnsupportedError('SyncBatchNormalization: a mask is not supported')
        axes = self._reduction_axes
        local = tf.reduce_sum(inputs, axes)
        rows = tf.cast(tf.size(inputs), inputs.dtype) / tf.cast(tf.size(local), inputs.dtype)
        # Two sums: deviations from a mean that is known do not cancel, as E[x^2] - E[x]^2 does.
        total = allreduce(tf.concat([local, [rows]], 0), op=Sum, name=unique('%s.sum' % self.path))
        mean = total[:-1] / tf.stop_gradient(total[-1])
        shape = [inputs.shape[axis] if axis not in axes else 1 for axis in range(len(inputs.shape))]
        squares = tf.reduce_sum(tf.square(inputs - tf.reshape(mean, shape)), axes)
        variance = allreduce(squares, op=Sum, name=unique('%s.square' % self.path)) / tf.stop_gradient(total[-1])
        return mean, variance

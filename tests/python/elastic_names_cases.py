#!/usr/bin/env python3
"""A worker of a job with TRIB_SURVIVE=workers and TensorFlow, for test_elastic_tensorflow.py. Two workers give one
name two shapes, until a third one has come, which has used the name for none."""

import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
import tensorflow as tf  # noqa: E402

import tributary.elastic  # noqa: E402
import tributary.tensorflow as hvd  # noqa: E402


def total(count):
    return hvd.allreduce(tf.ones([count]), name='two shapes', op=hvd.Sum).numpy().tolist()


@tributary.elastic.run
def train(state):
    size = hvd.size()
    for count in (3, 4) if size == 2 else (4, 3, 4):
        assert total(count) == [size] * count, size
    if size == 2:
        state.admit()


if __name__ == '__main__':
    hvd.init()
    train(tributary.elastic.ObjectState(epoch=0))
    print('rank %d of %d is right' % (hvd.rank(), hvd.size()), flush=True)
    hvd.shutdown()

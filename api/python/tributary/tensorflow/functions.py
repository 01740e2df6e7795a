"""Gives all workers the same variables and objects at the start of training."""

import pickle

import numpy as np
import tensorflow as tf

from .. import job
from .ops import broadcast


def broadcast_variables(variables, root_rank=0, scope='', process_set=None, inplace=False):
    """Gives all workers the root's variables. scope and inplace are taken and have no meaning."""
    for index, variable in enumerate(variables):
        name = getattr(variable, 'path', None) or variable.name
        value = broadcast(tf.convert_to_tensor(variable), root_rank, 'variable.%d.%s' % (index, name))
        variable.assign(value)


def broadcast_object(obj, root_rank=0, session=None, name=None, process_set=None):
    """Returns the root's object on every worker. It must be one that pickle can take."""
    name = name or 'object'
    data = np.frombuffer(pickle.dumps(obj), np.uint8) if job.rank() == root_rank else np.zeros(0, np.uint8)
    length = int(broadcast(tf.constant([data.size], tf.int64), root_rank, name + '.length')[0])
    if job.rank() != root_rank:
        data = np.zeros(length, np.uint8)
    received = broadcast(tf.constant(data), root_rank, '%s.data.%d' % (name, length))
    return pickle.loads(received.numpy().tobytes())

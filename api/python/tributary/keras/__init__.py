"""Tributary for Keras 3, on TensorFlow, JAX or PyTorch, with the names of Horovod and BytePS:

import tributary.keras as hvd
hvd.init()
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam()), loss=...)
model.fit(..., callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
"""

from .. import basics
from ..basics import *
from ..objects import allgather_object, broadcast_object
from . import callbacks, elastic
from .core import (
    Adasum,
    Average,
    Compression,
    DistributedOptimizer,
    PartialDistributedOptimizer,
    Sum,
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    init,
    load_model,
    push_pull,
    reducescatter,
    shutdown,
)

__all__ = [
    'Adasum',
    'Average',
    'Compression',
    'DistributedOptimizer',
    'PartialDistributedOptimizer',
    'Sum',
    'allgather',
    'allgather_object',
    'allreduce',
    'broadcast',
    'broadcast_global_variables',
    'broadcast_object',
    'callbacks',
    'elastic',
    'init',
    'load_model',
    'push_pull',
    'reducescatter',
    'shutdown',
]
__all__ += basics.__all__

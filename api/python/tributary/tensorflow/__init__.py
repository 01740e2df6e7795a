"""Tributary for TensorFlow 2, with the names of Horovod and BytePS:

import tributary.tensorflow as hvd          # or: as bps
hvd.init()
tape = hvd.DistributedGradientTape(tape)
hvd.broadcast_variables(model.variables, root_rank=0)
"""

import sys

from .. import basics
from ..basics import *
from ..reductions import Adasum, Average, Max, Min, Product, Sum
from . import util
from .compression import Compression
from .functions import (
    BroadcastGlobalVariablesHook,
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from .gather_ops import allgather, alltoall, grouped_allgather, grouped_reducescatter, reducescatter
from .gradients import DistributedGradientTape, DistributedOptimizer, PartialDistributedGradientTape
from .ops import (
    allreduce,
    barrier,
    broadcast,
    broadcast_,
    grouped_allreduce,
    init,
    join,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    push_pull,
    rank_op,
    shutdown,
    size_op,
)
from .util import _executing_eagerly

__all__ = [
    'Adasum',
    'Average',
    'BroadcastGlobalVariablesHook',
    'Compression',
    'DistributedGradientTape',
    'DistributedOptimizer',
    'Max',
    'Min',
    'PartialDistributedGradientTape',
    'Product',
    'Sum',
    'allgather',
    'allgather_object',
    'allreduce',
    'alltoall',
    'barrier',
    'broadcast',
    'broadcast_',
    'broadcast_global_variables',
    'broadcast_object',
    'broadcast_object_fn',
    'broadcast_variables',
    'grouped_allgather',
    'grouped_allreduce',
    'grouped_reducescatter',
    'init',
    'join',
    'local_rank_op',
    'local_size_op',
    'process_set_included_op',
    'push_pull',
    'rank_op',
    'reducescatter',
    'shutdown',
    'size_op',
    'util',
]
__all__ += basics.__all__


def __getattr__(name):
    import importlib

    if name in ('elastic', 'keras', 'sync_batch_norm'):  # they import Keras, which takes a while
        return importlib.import_module('%s.%s' % (__name__, name))
    if name == 'mpi_ops':  # a module of Horovod's, whose names are here
        return sys.modules[__name__]
    if name == 'SyncBatchNormalization':
        return importlib.import_module(__name__ + '.sync_batch_norm').SyncBatchNormalization
    raise AttributeError(name)

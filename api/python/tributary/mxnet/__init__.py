"""Tributary for MXNet 1.9 and 2.0, with the names of BytePS and Horovod:

    import tributary.mxnet as bps          # or: as hvd
    bps.init()
    trainer = bps.DistributedTrainer(net.collect_params(), 'sgd', {'learning_rate': 0.1})

Or, in place of an import: gluon.Trainer(..., kvstore=tributary.mxnet.KVStore()).
"""

import sys

from .. import basics
from ..basics import *
from ..objects import allgather_object, broadcast_object
from ..reductions import Adasum, Average, Max, Min, Product, Sum
from .compression import Compression
from .gather_ops import allgather, alltoall, grouped_allgather, grouped_reducescatter, reducescatter
from .ops import (
    allreduce,
    allreduce_,
    broadcast,
    broadcast_,
    byteps_declare_tensor,
    byteps_push_pull,
    grouped_allreduce,
    grouped_allreduce_,
    init,
    push_pull,
    shutdown,
)
from .training import DistributedOptimizer, DistributedTrainer, KVStore, broadcast_parameters

__all__ = [
    'Adasum',
    'Average',
    'Compression',
    'DistributedOptimizer',
    'DistributedTrainer',
    'KVStore',
    'Max',
    'Min',
    'Product',
    'Sum',
    'allgather',
    'allgather_object',
    'allreduce',
    'allreduce_',
    'alltoall',
    'broadcast',
    'broadcast_',
    'broadcast_object',
    'broadcast_parameters',
    'byteps_declare_tensor',
    'byteps_push_pull',
    'grouped_allgather',
    'grouped_allreduce',
    'grouped_allreduce_',
    'grouped_reducescatter',
    'init',
    'push_pull',
    'reducescatter',
    'shutdown',
]
__all__ += basics.__all__

mpi_ops = functions = sys.modules[__name__]  # modules of Horovod's, whose names are here

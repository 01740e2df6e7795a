"""Tributary for TensorFlow 2, with the names of Horovod and BytePS:

import tributary.tensorflow as hvd          # or: as bps
hvd.init()
tape = hvd.DistributedGradientTape(tape)
hvd.broadcast_variables(model.variables, root_rank=0)
"""

import sys

from ..errors import ArgumentError, JobLostError, MismatchError, NotInitializedError, TributaryError, UnsupportedError
from ..job import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    get_pushpull_speed,
    gloo_built,
    gloo_enabled,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    resume,
    rocm_built,
    size,
    start_timeline,
    stop_timeline,
    suspend,
)
from ..process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
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

# Horovod's name for the error after which a job begins anew.
HorovodInternalError = JobLostError

__all__ = [
    'Adasum',
    'ArgumentError',
    'Average',
    'BroadcastGlobalVariablesHook',
    'Compression',
    'DistributedGradientTape',
    'DistributedOptimizer',
    'HorovodInternalError',
    'JobLostError',
    'Max',
    'Min',
    'MismatchError',
    'NotInitializedError',
    'PartialDistributedGradientTape',
    'ProcessSet',
    'Product',
    'Sum',
    'TributaryError',
    'UnsupportedError',
    'add_process_set',
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
    'ccl_built',
    'cross_rank',
    'cross_size',
    'cuda_built',
    'ddl_built',
    'get_pushpull_speed',
    'global_process_set',
    'gloo_built',
    'gloo_enabled',
    'grouped_allgather',
    'grouped_allreduce',
    'grouped_reducescatter',
    'init',
    'is_homogeneous',
    'is_initialized',
    'join',
    'local_rank',
    'local_rank_op',
    'local_size',
    'local_size_op',
    'mpi_built',
    'mpi_enabled',
    'mpi_threads_supported',
    'nccl_built',
    'process_set_included_op',
    'push_pull',
    'rank',
    'rank_op',
    'reducescatter',
    'remove_process_set',
    'resume',
    'rocm_built',
    'shutdown',
    'size',
    'size_op',
    'start_timeline',
    'stop_timeline',
    'suspend',
    'util',
]


def __getattr__(name):
    import importlib

    if name in ('elastic', 'keras'):  # they import Keras, which takes a while
        return importlib.import_module('%s.%s' % (__name__, name))
    if name == 'mpi_ops':  # a module of Horovod's, whose names are here
        return sys.modules[__name__]
    if name == 'SyncBatchNormalization':
        return importlib.import_module(__name__ + '.sync_batch_norm').SyncBatchNormalization
    raise AttributeError(name)

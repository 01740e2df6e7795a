"""Tributary for MXNet 1.9 and 2.0, with the names of BytePS and Horovod:

    import tributary.mxnet as bps          # or: as hvd
    bps.init()
    trainer = bps.DistributedTrainer(net.collect_params(), 'sgd', {'learning_rate': 0.1})

Or, in place of an import: gluon.Trainer(..., kvstore=tributary.mxnet.KVStore()).
"""

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
from ..objects import allgather_object, broadcast_object
from ..process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
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

HorovodInternalError = JobLostError

__all__ = [
    'Adasum',
    'ArgumentError',
    'Average',
    'Compression',
    'DistributedOptimizer',
    'DistributedTrainer',
    'HorovodInternalError',
    'JobLostError',
    'KVStore',
    'Max',
    'Min',
    'MismatchError',
    'NotInitializedError',
    'ProcessSet',
    'Product',
    'Sum',
    'TributaryError',
    'UnsupportedError',
    'add_process_set',
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
    'grouped_allreduce_',
    'grouped_reducescatter',
    'init',
    'is_homogeneous',
    'is_initialized',
    'local_rank',
    'local_size',
    'mpi_built',
    'mpi_enabled',
    'mpi_threads_supported',
    'nccl_built',
    'push_pull',
    'rank',
    'reducescatter',
    'remove_process_set',
    'resume',
    'rocm_built',
    'shutdown',
    'size',
    'start_timeline',
    'stop_timeline',
    'suspend',
]

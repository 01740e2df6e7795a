"""Tributary for Keras 3, on TensorFlow, JAX or PyTorch, with the names of Horovod and BytePS:

import tributary.keras as hvd
hvd.init()
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam()), loss=...)
model.fit(..., callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
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

# Horovod's name for the error after which a job begins anew.
HorovodInternalError = JobLostError

__all__ = [
    'Adasum',
    'ArgumentError',
    'Average',
    'Compression',
    'DistributedOptimizer',
    'HorovodInternalError',
    'JobLostError',
    'MismatchError',
    'NotInitializedError',
    'PartialDistributedOptimizer',
    'ProcessSet',
    'Sum',
    'TributaryError',
    'UnsupportedError',
    'add_process_set',
    'allgather',
    'allgather_object',
    'allreduce',
    'broadcast',
    'broadcast_global_variables',
    'broadcast_object',
    'callbacks',
    'ccl_built',
    'cross_rank',
    'cross_size',
    'cuda_built',
    'ddl_built',
    'elastic',
    'get_pushpull_speed',
    'global_process_set',
    'gloo_built',
    'gloo_enabled',
    'init',
    'is_homogeneous',
    'is_initialized',
    'load_model',
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

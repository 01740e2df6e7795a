"""Tributary for PyTorch, with the names of Horovod and BytePS:

    import tributary.torch as hvd          # or: as bps
    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

tributary.torch.c10d is a backend for torch.distributed, tributary.torch.hooks a communication hook for its DDP.
"""

from ..checkpoint import CheckpointError
from ..errors import (
    ArgumentError,
    HostsUpdatedInterrupt,
    JobLostError,
    MismatchError,
    NotInitializedError,
    TributaryError,
    UnsupportedError,
)
from ..job import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
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
    shutdown,
    size,
    start_timeline,
    stop_timeline,
    suspend,
)
from ..process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from ..reductions import Adasum, Average, Max, Min, Product, Sum
from . import elastic, mpi_ops
from .byteps_ops import (
    byteps_push_pull,
    byteps_torch_set_num_grads,
    declare,
    get_pushpull_speed,
    push_pull,
    push_pull_async,
    push_pull_async_inplace,
    push_pull_group_sync_inplace,
    push_pull_inplace,
)
from .checkpoint import load_checkpoint, save_checkpoint
from .compression import Compression
from .cross_barrier import CrossBarrier
from .device import init
from .functions import allgather_object, broadcast_object, broadcast_optimizer_state, broadcast_parameters
from .gather_ops import (
    allgather,
    allgather_async,
    alltoall,
    alltoall_async,
    grouped_allgather,
    grouped_allgather_async,
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from .handles import poll, synchronize
from .ops import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    join,
)
from .optimizer import DistributedOptimizer
from .parallel import DistributedDataParallel
from .sparse import sparse_allreduce_async
from .sync_batch_norm import SyncBatchNorm

# Horovod's name for the error after which a job begins anew.
HorovodInternalError = JobLostError

__all__ = [
    'Adasum',
    'ArgumentError',
    'Average',
    'CheckpointError',
    'Compression',
    'CrossBarrier',
    'DistributedDataParallel',
    'DistributedOptimizer',
    'HorovodInternalError',
    'HostsUpdatedInterrupt',
    'JobLostError',
    'Max',
    'Min',
    'MismatchError',
    'NotInitializedError',
    'ProcessSet',
    'Product',
    'Sum',
    'SyncBatchNorm',
    'TributaryError',
    'UnsupportedError',
    'add_process_set',
    'allgather',
    'allgather_async',
    'allgather_object',
    'allreduce',
    'allreduce_',
    'allreduce_async',
    'allreduce_async_',
    'alltoall',
    'alltoall_async',
    'barrier',
    'broadcast',
    'broadcast_',
    'broadcast_async',
    'broadcast_async_',
    'broadcast_object',
    'broadcast_optimizer_state',
    'broadcast_parameters',
    'byteps_push_pull',
    'byteps_torch_set_num_grads',
    'ccl_built',
    'cross_rank',
    'cross_size',
    'cuda_built',
    'ddl_built',
    'declare',
    'elastic',
    'get_pushpull_speed',
    'global_process_set',
    'gloo_built',
    'gloo_enabled',
    'grouped_allgather',
    'grouped_allgather_async',
    'grouped_allreduce',
    'grouped_allreduce_',
    'grouped_allreduce_async',
    'grouped_allreduce_async_',
    'grouped_reducescatter',
    'grouped_reducescatter_async',
    'init',
    'is_homogeneous',
    'is_initialized',
    'join',
    'load_checkpoint',
    'local_rank',
    'local_size',
    'mpi_built',
    'mpi_enabled',
    'mpi_ops',
    'mpi_threads_supported',
    'nccl_built',
    'poll',
    'push_pull',
    'push_pull_async',
    'push_pull_async_inplace',
    'push_pull_group_sync_inplace',
    'push_pull_inplace',
    'rank',
    'reducescatter',
    'reducescatter_async',
    'remove_process_set',
    'resume',
    'rocm_built',
    'save_checkpoint',
    'shutdown',
    'size',
    'sparse_allreduce_async',
    'start_timeline',
    'stop_timeline',
    'suspend',
    'synchronize',
]

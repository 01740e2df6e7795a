"""Tributary for PyTorch, with the names of Horovod and BytePS:

    import tributary.torch as hvd          # or: as bps
    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

tributary.torch.c10d is a backend for torch.distributed, tributary.torch.hooks a communication hook for its DDP.
"""

from .. import basics
from ..basics import *
from ..checkpoint import CheckpointError
from ..errors import HostsUpdatedInterrupt
from ..job import shutdown
from ..reductions import Adasum, Average, Max, Min, Product, Sum
from . import elastic, mpi_ops
from .byteps_ops import (
    byteps_push_pull,
    byteps_torch_set_num_grads,
    declare,
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

__all__ = [
    'Adasum',
    'Average',
    'CheckpointError',
    'Compression',
    'CrossBarrier',
    'DistributedDataParallel',
    'DistributedOptimizer',
    'HostsUpdatedInterrupt',
    'Max',
    'Min',
    'Product',
    'Sum',
    'SyncBatchNorm',
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
    'declare',
    'elastic',
    'grouped_allgather',
    'grouped_allgather_async',
    'grouped_allreduce',
    'grouped_allreduce_',
    'grouped_allreduce_async',
    'grouped_allreduce_async_',
    'grouped_reducescatter',
    'grouped_reducescatter_async',
    'init',
    'join',
    'load_checkpoint',
    'mpi_ops',
    'poll',
    'push_pull',
    'push_pull_async',
    'push_pull_async_inplace',
    'push_pull_group_sync_inplace',
    'push_pull_inplace',
    'reducescatter',
    'reducescatter_async',
    'save_checkpoint',
    'shutdown',
    'sparse_allreduce_async',
    'synchronize',
]
__all__ += basics.__all__

"""Tributary for MXNet 1.9 and 2.0, with the names of BytePS and Horovod:

    import tributary.mxnet as bps          # or: as hvd
    bps.init()
    trainer = bps.DistributedTrainer(net.collect_params(), 'sgd', {'learning_rate': 0.1})

Or, in place of an import: gluon.Trainer(..., kvstore=tributary.mxnet.KVStore()).
"""

from ..errors import ArgumentError, JobLostError, MismatchError, NotInitializedError, TributaryError, UnsupportedError
from ..job import (
    cross_rank,
    cross_size,
    gloo_built,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    nccl_built,
    rank,
    size,
)
from ..objects import broadcast_object
from ..process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from ..reductions import Average, Max, Min, Product, Sum
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

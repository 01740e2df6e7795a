"""Tributary for TensorFlow 2, with the names of Horovod and BytePS:

import tributary.tensorflow as hvd          # or: as bps
hvd.init()
tape = hvd.DistributedGradientTape(tape)
hvd.broadcast_variables(model.variables, root_rank=0)
"""

from ..errors import ArgumentError, JobLostError, MismatchError, NotInitializedError, TributaryError, UnsupportedError
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
    rocm_built,
    size,
    start_timeline,
    stop_timeline,
)
from ..process_sets import ProcessSet, global_process_set
from ..reductions import Adasum, Average, Max, Min, Product, Sum
from .compression import Compression
from .functions import broadcast_object, broadcast_variables
from .gradients import DistributedGradientTape, DistributedOptimizer
from .ops import (
    allreduce,
    barrier,
    broadcast,
    grouped_allreduce,
    init,
    local_rank_op,
    local_size_op,
    push_pull,
    rank_op,
    shutdown,
    size_op,
)

# Horovod's name for the error after which a job begins anew.
HorovodInternalError = JobLostError


def __getattr__(name):
    if name == 'elastic':  # it imports Keras, which takes a while
        import importlib

        return importlib.import_module(__name__ + '.elastic')
    raise AttributeError(name)

"""Tributary for Keras 3, on TensorFlow, JAX or PyTorch, with the names of Horovod and BytePS:

import tributary.keras as hvd
hvd.init()
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam()), loss=...)
model.fit(..., callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
"""

from ..errors import ArgumentError, JobLostError, MismatchError, NotInitializedError, TributaryError, UnsupportedError
from ..job import (
    cross_rank,
    cross_size,
    gloo_built,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    nccl_built,
    rank,
    size,
)
from . import callbacks, elastic
from .core import (
    Average,
    Compression,
    DistributedOptimizer,
    Sum,
    allreduce,
    broadcast,
    broadcast_global_variables,
    init,
    load_model,
    push_pull,
    shutdown,
)

# Horovod's name for the error after which a job begins anew.
HorovodInternalError = JobLostError

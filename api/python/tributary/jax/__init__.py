"""Tributary for JAX: reductions in programs that jit, grad and vmap transform.

import tributary.jax as trib
trib.init()
gradients = trib.allreduce(gradients)                   # an array or a pytree, under jit or not
optimizer = optax.chain(trib.allreduce_gradients(), optax.adam(1e-3))
"""

from ..errors import ArgumentError, JobLostError, MismatchError, NotInitializedError, TributaryError, UnsupportedError
from ..job import cross_rank, cross_size, is_homogeneous, is_initialized, local_rank, local_size, rank, size
from ..objects import allgather_object, broadcast_object
from ..process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from ..reductions import Average, Max, Min, Product, Sum
from .gather_ops import allgather, alltoall, reducescatter
from .ops import Compression, allreduce, barrier, broadcast, init, push_pull, shutdown
from .optimizer import DistributedOptimizer, allreduce_gradients, broadcast_parameters
from .tensors import check, resume, suspend

# Horovod's name for the error after which a job begins anew.
HorovodInternalError = JobLostError

__all__ = [
    'ArgumentError',
    'Average',
    'Compression',
    'DistributedOptimizer',
    'HorovodInternalError',
    'JobLostError',
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
    'allreduce_gradients',
    'alltoall',
    'barrier',
    'broadcast',
    'broadcast_object',
    'broadcast_parameters',
    'check',
    'cross_rank',
    'cross_size',
    'global_process_set',
    'init',
    'is_homogeneous',
    'is_initialized',
    'local_rank',
    'local_size',
    'push_pull',
    'rank',
    'reducescatter',
    'remove_process_set',
    'resume',
    'shutdown',
    'size',
    'suspend',
]

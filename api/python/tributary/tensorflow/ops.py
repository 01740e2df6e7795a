"""Collectives on TensorFlow's tensors, eager and in tf.function, with Horovod's names and arguments.

Names decide which operations belong together. One without a name is counted, in a graph when it is traced: workers must
then call, or trace, operations in the same order."""

import ctypes
import itertools

import tensorflow as tf

from .. import _abi, job
from .._library import beside
from ..errors import ArgumentError, UnsupportedError
from ..process_sets import global_process_set, require_global
from ..reductions import REDUCTIONS, reduction_of
from .compression import Compression

_PUSH_PULL, _BROADCAST = 0, 1
_counters = {}

_path = beside('libtributary-tensorflow.so')
_module = tf.load_op_library(_path)
_native = ctypes.CDLL(_path)
_native.trib_tensorflow_set_engine.argtypes, _native.trib_tensorflow_set_engine.restype = [ctypes.c_void_p], None
_native.trib_tensorflow_calls.argtypes, _native.trib_tensorflow_calls.restype = [ctypes.c_bool], ctypes.c_uint64


def _closing():
    """Operations of graphs fail from now on, until init() is called again."""
    _native.trib_tensorflow_set_engine(None)
    _counters.clear()


job.follow(lambda: _native.trib_tensorflow_set_engine(job.engine()._handle), _closing)
init, shutdown = job.init, job.shutdown


def _name(name, kind):
    if name is None:
        name = 'noname.%d' % next(_counters.setdefault(kind, itertools.count()))
    return '%s.%s' % (kind, name.replace(':', '_'))


def _exchange(tensor, name, kind, reduce=0, root=0, priority=0, compression=Compression.none):
    job.engine()  # raises before init()
    return _module.tributary_exchange(
        value=tensor,
        tensor_name=name,
        kind=kind,
        reduce=reduce,
        root=root,
        priority=priority,
        codec=getattr(compression, 'text', ''),
        codec_min_bytes=getattr(compression, 'min_bytes', 0),
    )


@tf.RegisterGradient('TributaryExchange')
def _gradient(op, gradient):
    name, kind, root = op.get_attr('tensor_name').decode() + '.gradient', op.get_attr('kind'), op.get_attr('root')
    reduce = op.get_attr('reduce')
    if kind == _BROADCAST:
        total = _exchange(gradient, name, _PUSH_PULL, _abi.TRIB_SUM)
        return total if job.rank() == root else tf.zeros_like(total)
    if reduce not in (_abi.TRIB_SUM, _abi.TRIB_AVG):
        raise UnsupportedError('%s: a minimum, maximum or product over workers has no gradient' % name)
    return _exchange(gradient, name, _PUSH_PULL, reduce)


def _scaled(tensor, factor):
    """Returns tensor * factor, computed wider and rounded once to the tensor's type; integers are truncated."""
    if factor == 1.0:
        return tensor
    wide = tf.float64 if not tensor.dtype.is_floating or tensor.dtype == tf.float64 else tf.float32
    return tf.cast(tf.cast(tensor, wide) * tf.constant(factor, wide), tensor.dtype)


def allreduce(
    tensor,
    average=None,
    device_dense='',
    device_sparse='',
    compression=Compression.none,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    name=None,
    process_set=global_process_set,
    ignore_name_scope=False,
    priority=0,
):
    """Returns the reduction of all workers' tensors; differentiable. IndexedSlices are made dense. The arguments named
    device are taken and have no meaning: a tensor is summed where it is."""
    require_global(process_set)
    op = reduction_of(op, average)
    if isinstance(tensor, tf.IndexedSlices):
        tensor = tf.convert_to_tensor(tensor)
    tensor = tf.convert_to_tensor(tensor)
    name = _name(name, 'allreduce')
    compressed, context = compression.compress(_scaled(tensor, prescale_factor))
    reduced = _exchange(compressed, name, _PUSH_PULL, REDUCTIONS[op], priority=priority, compression=compression)
    return _scaled(compression.decompress(reduced, context), postscale_factor)


def push_pull(
    tensor,
    scope='',
    average=None,
    device_dense='',
    device_sparse='',
    compression=Compression.none,
    op=None,
    enable_async=False,
    name=None,
):
    """BytePS's name for allreduce."""
    if enable_async:
        raise UnsupportedError('asynchronous training is not supported')
    return allreduce(tensor, average=average, compression=compression, op=op, name=name)


def grouped_allreduce(
    tensors,
    average=None,
    device_dense='',
    device_sparse='',
    compression=Compression.none,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=global_process_set,
    ignore_name_scope=False,
    name=None,
):
    """Returns the reductions of several tensors."""
    return [
        allreduce(
            tensor,
            average,
            device_dense,
            device_sparse,
            compression,
            op,
            prescale_factor,
            postscale_factor,
            None if name is None else '%s.%d' % (name, index),
            process_set,
        )
        for index, tensor in enumerate(tensors)
    ]


def broadcast(tensor, root_rank, name=None, ignore_name_scope=False, process_set=global_process_set):
    """Returns the root's tensor on every worker; differentiable."""
    require_global(process_set)
    if not 0 <= root_rank < job.size():
        raise ArgumentError('root_rank %d is not one of the %d workers' % (root_rank, job.size()))
    tensor = tf.convert_to_tensor(tensor)
    return _exchange(tensor, _name(name, 'broadcast'), _BROADCAST, root=root_rank)


def barrier(process_set=global_process_set):
    """Waits until all workers have called it."""
    require_global(process_set)
    job.engine().barrier()


def rank_op(name=None):
    """rank() as a tensor."""
    return tf.constant(job.rank(), tf.int32, name=name)


def size_op(process_set_id=0, name=None):
    """size() as a tensor."""
    return tf.constant(job.size(), tf.int32, name=name)


def local_rank_op(name=None):
    """local_rank() as a tensor."""
    return tf.constant(job.local_rank(), tf.int32, name=name)


def local_size_op(name=None):
    """local_size() as a tensor."""
    return tf.constant(job.local_size(), tf.int32, name=name)


def calls(in_place=False):
    """How many operations kernels have submitted, or how many of those in place."""
    return _native.trib_tensorflow_calls(in_place)

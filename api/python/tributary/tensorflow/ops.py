"""Reductions and broadcasts of TensorFlow's tensors, eager and in tf.function, with Horovod's names and arguments.

Names decide which operations belong together. Eager operations without a name are counted, so workers must call them in
the same order. In a function they are counted within it: a worker may trace it more often than others."""

from __future__ import annotations

import collections
import ctypes
import itertools
import re
import sys
import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from .. import _abi, codecs, interrupts, job
from .._library import NAME_BYTES, beside, encoded
from ..errors import ArgumentError, UnsupportedError
from ..process_sets import ProcessSet, by_id, follow_removal, global_process_set, resolve
from ..reductions import REDUCTIONS, Average, Sum, reduction_of
from .compression import Compression

_PUSH_PULL, _BROADCAST, _REDUCE = 0, 1, 2
_INTERRUPT = 'Py_AddPendingCall', 'PyErr_SetInterrupt'
_counters = {}
_traces = weakref.WeakKeyDictionary()  # by graph
_plain_graphs = itertools.count()  # those that belong to no function, numbered in the order of their first operations
_joins = 0  # how often all workers have joined since init()

_path = beside('libtributary-tensorflow.so')
_module = tf.load_op_library(_path)
_native = ctypes.CDLL(_path)
_native.trib_tensorflow_set_engine.argtypes, _native.trib_tensorflow_set_engine.restype = [ctypes.c_void_p], None
_native.trib_tensorflow_set_group.argtypes = [ctypes.c_uint64, ctypes.c_void_p]
_native.trib_tensorflow_set_group.restype = None
_native.trib_tensorflow_wait.argtypes = [ctypes.c_int64, ctypes.c_bool]
_native.trib_tensorflow_wait.restype = ctypes.c_uint64
_native.trib_tensorflow_forget.argtypes, _native.trib_tensorflow_forget.restype = [], None
_native.trib_tensorflow_calls.argtypes, _native.trib_tensorflow_calls.restype = [ctypes.c_bool], ctypes.c_uint64


def _closing():
    """Operations of graphs fail from now on, until init() is called again. Results that the engine holds are taken."""
    global _joins, _plain_graphs
    _native.trib_tensorflow_set_engine(None)
    goes_on = job.is_advancing()  # else the engine's end ends all but gathers, and forgets the tensors
    while _native.trib_tensorflow_wait(200, goes_on):
        pass  # handlers of signals run; each operation ends at its own deadline, or with the job
    if goes_on:
        _native.trib_tensorflow_forget()
    _counters.clear()
    _joins, _plain_graphs = 0, itertools.count()


job.follow(lambda: _native.trib_tensorflow_set_engine(job.engine()._handle), _closing)
follow_removal(lambda number: _native.trib_tensorflow_set_group(number, None))  # graphs that were traced for it
init, shutdown = job.init, job.shutdown


_native.trib_tensorflow_interrupt.argtypes, _native.trib_tensorflow_interrupt.restype = [ctypes.c_void_p] * 3, None
_has_interrupt = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: isinstance(sys.exc_info()[1], KeyboardInterrupt))
_interrupt = [getattr(ctypes.pythonapi, name) for name in _INTERRUPT] + [_has_interrupt]
_interrupt = [ctypes.cast(function, ctypes.c_void_p) for function in _interrupt]
interrupts.follow(
    lambda: _native.trib_tensorflow_interrupt(*_interrupt), lambda: _native.trib_tensorflow_interrupt(None, None, None)
)

# AutoGraph would rewrite these functions, and all that they call, each time that a program is traced.
plain = tf.autograph.experimental.do_not_convert


class OnceName(str):
    """The name of an operation whose tensor is released when it is over. The tensor's name ends with a number, which is
    an input of the operation: TensorFlow keeps for ever what it has made for a value of an attribute."""

    def __new__(cls, name, number):
        made = super().__new__(cls, name)
        made.number = number  # an int, or a tensor
        return made


def _renamed(name, text):
    return OnceName(text, name.number) if isinstance(name, OnceName) else text


def part_of(name, part):
    """Returns the name of a part of what has that name."""
    return _renamed(name, '%s.%s' % (name, part))


def numbers_of(name):
    """Returns an operation's input `number`: what its tensor's name ends with, or none."""
    return [name.number] if isinstance(name, OnceName) else []


class _Trace:
    """Counts the uses of names in a graph, so that each trace of a function gives the same names."""

    def __init__(self, graph):
        self._used, outer = collections.Counter(), getattr(graph, 'outer_graph', None)
        is_inner = hasattr(outer, 'outer_graph') or not tf.compat.v1.executing_eagerly_outside_functions()
        if outer is not None and is_inner:  # a function within a function or a graph of TensorFlow 1, or a branch there
            self.place = '%s%d.' % (_trace_of(outer).place, _trace_of(outer).count(None))
        else:
            # Two plain graphs share no name: workers would number the tensors of one name differently if they disagreed
            # about a type, and wait for each other.
            name = getattr(graph, 'name', None) or 'graph%d' % next(_plain_graphs)
            self.place = re.sub(r'^(__.*)_\d+$', r'\1', name) + '.'  # without TensorFlow's number of the function

    def count(self, name):
        self._used[name] += 1
        return self._used[name] - 1

    def unique(self, name):
        number = self.count(name)
        return '%s~%d' % (name, number) if number else name


def _trace_of(graph):
    if graph not in _traces:
        _traces[graph] = _Trace(graph)
    return _traces[graph]


def _trace():
    """What is counted in the graph that is being traced; None in eager mode."""
    return None if tf.executing_eagerly() else _trace_of(tf.compat.v1.get_default_graph())


def unique(name):
    """Returns the name, with a number where this graph has used it before: its operations may run at the same time."""
    trace = _trace()
    return trace.unique(name) if trace else name


def place_of(name):
    """Returns the name, which in a graph follows that of the traced function, and is unique there."""
    trace = _trace()
    return trace.unique(trace.place + name) if trace else name


def name_of(name, kind, process_set=global_process_set):
    """Returns an operation's name. Eager ones without a name are counted for each set, as other workers do not see
    them, and anew after each join(), as workers that joined have counted less."""
    trace = _trace() if name is None else None
    if trace:
        name = 'noname.%s%d' % (trace.place, trace.count((kind, process_set.process_set_id)))
    elif name is None:
        epoch = '.%d' % _joins if _joins else ''
        counter = _counters.setdefault((kind, process_set.process_set_id), itertools.count())
        name = OnceName('noname' + epoch, next(counter))
    return _renamed(name, '%s.%s' % (kind, encoded(name, NAME_BYTES).decode().replace(':', '_')))


class NotAMemberError(ArgumentError, tf.errors.InvalidArgumentError):
    """A worker called an operation of a process set to which it does not belong. TensorFlow's error, too."""

    def __init__(self, node_def, op, message, *payloads):  # as TensorFlow has it, which makes it anew while it traces
        tf.errors.InvalidArgumentError.__init__(self, node_def, op, message, *payloads)
        ArgumentError.__init__(self, message)


def set_number(process_set):
    """Returns the number by which kernels know a set; NotAMemberError on a worker that does not belong to it."""
    if process_set.included() is False:
        raise NotAMemberError(None, None, '%r: rank %d does not belong to it' % (process_set, job.rank()))
    if process_set is not global_process_set:
        _native.trib_tensorflow_set_group(process_set.process_set_id or 0, process_set.engine()._group)
    job.engine()  # raises before init()
    return process_set.process_set_id


def module():
    """The operations that TensorFlow has loaded."""
    return _module


def refuse_xla(name):
    """Raises where the graph that is traced is for XLA, which does not know the operations."""
    if not tf.executing_eagerly() and control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise UnsupportedError('%s: XLA does not know this operation: use jit_compile=False' % name)


def _exchange(tensor, name, kind, reduce=0, root=0, priority=0, compression=Compression.none, process_set=None):
    refuse_xla(name)
    # Workers compare names without the kind where operations have an order. Those of a graph may run at the same time.
    has_order = tf.executing_eagerly() and not isinstance(name, OnceName)
    return _module.tributary_exchange(
        value=tensor,
        number=numbers_of(name),
        tensor_name=name,
        kind=kind,
        reduce=reduce,
        root=root,
        priority=priority,
        codec=getattr(compression, 'text', ''),
        codec_min_bytes=getattr(compression, 'min_bytes', 0),
        process_set=set_number(resolve(process_set)),
        name_begin=len(name.partition('.')[0].encode()) + 1 if has_order and '.' in name else 0,
    )


def gradient_name(op, numbers):
    """Returns the name of an operation's gradient. numbers: the inputs that numbers_of() gave the operation."""
    name = op.get_attr('tensor_name').decode() + '.gradient'
    return OnceName(name, numbers[0]) if numbers else unique(name)


@tf.RegisterGradient('TributaryExchange')
def _gradient(op, gradient):
    numbers = op.inputs[1:]
    return [_exchange_gradient(op, gradient, gradient_name(op, numbers)), *[None] * len(numbers)]


def _exchange_gradient(op, gradient, name):
    kind, root = op.get_attr('kind'), op.get_attr('root')
    reduce, process_set = op.get_attr('reduce'), by_id(op.get_attr('process_set'))
    if kind == _BROADCAST:
        return _exchange(gradient, name, _REDUCE, _abi.TRIB_AVG, root, process_set=process_set)
    if kind == _REDUCE:
        raise UnsupportedError("%s: the gradient of a broadcast's gradient is not known" % name)
    if reduce not in (_abi.TRIB_SUM, _abi.TRIB_AVG):
        raise UnsupportedError('%s: a minimum, maximum or product over workers has no gradient' % name)
    return _exchange(gradient, name, _PUSH_PULL, reduce, process_set=process_set)


def scaled(tensor, factor):
    """Returns tensor * factor, computed wider and rounded once to the tensor's type; integers are truncated."""
    if factor == 1.0:
        return tensor
    wide = tf.float64 if not tensor.dtype.is_floating or tensor.dtype == tf.float64 else tf.float32
    return tf.cast(tf.cast(tensor, wide) * tf.constant(factor, wide), tensor.dtype)


def _reduced_slices(slices, op, name, process_set):
    """The sum of IndexedSlices is all of them, one behind the other."""
    from .gather_ops import allgather

    if op not in (Average, Sum):
        raise UnsupportedError('%s: the op of IndexedSlices must be Average or Sum' % name)
    values = allgather(slices.values, part_of(name, 'values'), process_set=process_set)
    indices = allgather(slices.indices, part_of(name, 'indices'), process_set=process_set)
    if op == Average:
        values = values / tf.cast(process_set.size(), values.dtype)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


@plain
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = '',
    device_sparse: str = '',
    compression: Any = Compression.none,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet | None = global_process_set,
    ignore_name_scope: bool = False,
    priority: int = 0,
) -> Any:
    """Returns the reduction of the tensors of a set's workers; differentiable. Of IndexedSlices it is IndexedSlices.
    The arguments named device are taken and have no meaning: a tensor is summed where it is."""
    process_set, op = resolve(process_set), reduction_of(op, average)
    name = name_of(name, 'allreduce', process_set)
    if isinstance(tensor, tf.IndexedSlices):
        if prescale_factor != 1.0 or postscale_factor != 1.0:
            raise UnsupportedError('%s: IndexedSlices are not scaled: make them dense' % name)
        return _reduced_slices(tensor, op, name, process_set)
    tensor = tf.convert_to_tensor(tensor)
    compressed, context = codecs.checked(compression).compress(scaled(tensor, prescale_factor))
    reduced = _exchange(
        compressed,
        name,
        _PUSH_PULL,
        REDUCTIONS[op],
        priority=priority,
        compression=compression,
        process_set=process_set,
    )
    return scaled(compression.decompress(reduced, context), postscale_factor)


@plain
def push_pull(
    tensor: Any,
    scope: str = '',
    average: bool | None = None,
    device_dense: str = '',
    device_sparse: str = '',
    compression: Any = Compression.none,
    op: str | None = None,
    enable_async: bool = False,
    name: str | None = None,
) -> Any:
    """BytePS's name for allreduce."""
    if enable_async:
        raise UnsupportedError('asynchronous training is not supported')
    return allreduce(tensor, average=average, compression=compression, op=op, name=name)


@plain
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = '',
    device_sparse: str = '',
    compression: Any = Compression.none,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet | None = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Returns the reductions of several tensors."""
    process_set = resolve(process_set)
    base = name_of(name, 'grouped', process_set)
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
            part_of(base, index),
            process_set,
        )
        for index, tensor in enumerate(tensors)
    ]


@plain
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet | None = global_process_set,
    scope: str = '',
    is_variable: bool = True,
) -> Any:
    """Returns the root's tensor on every worker of a set; differentiable. root_rank: a rank of the job, also in a
    set. BytePS's scope and is_variable are taken and have no meaning."""
    process_set = resolve(process_set)
    root = process_set.root(root_rank)
    tensor = tf.convert_to_tensor(tensor)
    name = name_of(name, 'broadcast', process_set)
    return _exchange(tensor, name, _BROADCAST, root=root, process_set=process_set)


@plain
def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet | None = global_process_set,
) -> list[Any]:
    """Gives variables the root's values, and returns the values; in a graph, tensors that do so when they are run."""
    base = name_of(name, 'broadcast_', resolve(process_set))
    values = [
        broadcast(variable, root_rank, part_of(base, index), process_set=process_set)
        for index, variable in enumerate(variables)
    ]
    return [tf.convert_to_tensor(variable.assign(value)) for variable, value in zip(variables, values)]


def barrier(process_set: ProcessSet | None = global_process_set) -> None:
    """Waits until all workers of a set have called it."""
    resolve(process_set).engine().barrier()


def join() -> int:
    """This worker has no more data: waits until all have none, and returns the rank that joined last. Until then the
    others' allreduces go on, with zeros for this worker; Average divides by all workers."""
    global _joins
    last = job.engine().join()
    _joins += 1
    _counters.clear()
    return last


def rank_op(name: str | None = None) -> Any:
    """rank() as a tensor."""
    return tf.constant(job.rank(), tf.int32, name=name)


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """The size of a process set, of the job by default, as a tensor."""
    return tf.constant(by_id(process_set_id).size(), tf.int32, name=name)


def local_rank_op(name: str | None = None) -> Any:
    """local_rank() as a tensor."""
    return tf.constant(job.local_rank(), tf.int32, name=name)


def local_size_op(name: str | None = None) -> Any:
    """local_size() as a tensor."""
    return tf.constant(job.local_size(), tf.int32, name=name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """1 on workers that belong to a process set, 0 on others, as a tensor."""
    return tf.constant(int(by_id(process_set_id).included()), tf.int32, name=name)


def calls(in_place: bool = False) -> int:
    """How many operations kernels have submitted, or how many of those in place."""
    return _native.trib_tensorflow_calls(in_place)

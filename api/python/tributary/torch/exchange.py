"""Collectives on contiguous tensors of one engine: what ops.py (Horovod's names) and c10d.py (PyTorch's) are built on.

Each function submits and returns a Handle. A name of None takes one that is counted, so workers must submit operations
without names in the same order; the engine tells those that do not (TRIB_TENSOR_NUMBERED). Callbacks of futures count
for themselves. In threads beside the main one and its backward passes each kind is counted by itself, and of broadcasts
each size: these are not compared."""

import ctypes
import functools
import math
from typing import NamedTuple

import torch

from .. import _abi, job
from .._library import call, error_of, lib
from ..errors import ArgumentError, MismatchError
from . import futures
from .elements import bits_of, dtype_of, stream_of, used_here
from .handles import Handle

# All-reduces and broadcasts without a name share this many names, the slots, so that they overlap without growing in
# number. A slot has a tensor for each kind, type and size. Workers that differ get an error when they have waited for
# each other for a second.
_SLOTS = 16

# A slot keeps at most so many tensors, whatever sizes a program has.
_SLOT_TENSORS = 64


class OnceName(str):
    """The name of one operation, which none has again: its tensor is released when the operation is over."""


# How names of operations with Horovod's and BytePS's names begin: workers compare the rest.
_KINDS = 'allreduce', 'broadcast', 'byteps'


def prefixed(prefix, name):
    """Returns a name with a prefix."""
    return type(name)('%s.%s' % (prefix, name))


def part_of(name, part):
    """Returns the name of a part of what has that name."""
    return type(name)('%s.%s' % (name, part))


class _Call(NamedTuple):
    """A call without a name."""

    kind: str  # as the tensor's name begins with it
    number: int
    is_numbered: bool  # the number is that among all calls; else that among those of its kind from other threads
    tensors: dict  # of its slot
    failures: set  # of the slot's calls


def _counted(engine, kind):
    """Counts a call, after all that may refuse it: workers that count differently do not meet again."""
    has_order = futures.has_order()
    kind = kind if has_order else 'thread.' + kind
    counter = 'call' if has_order else kind
    number = futures.counted(engine, counter)
    return _Call(kind, number, has_order, *engine.known.setdefault((counter, number % _SLOTS), ({}, set())))


def _alone(engine, its_call, name, dtype, count, **options):
    """Returns the tensor of one call, and options of its submission."""
    tensor = engine.declare_once(name, dtype, count, is_numbered=its_call.is_numbered, **options)
    tensor.failures = its_call.failures
    return tensor, dict(is_once=True, step=its_call.number)


def _slot(engine, kind, source, priority, codec):
    """Returns the tensor of an operation without a name, and options of its submission."""
    dtype, count, is_cuda = dtype_of(source, kind), source.numel(), source.is_cuda
    its_call = _counted(engine, kind)
    kind, number, is_numbered, tensors, failures = its_call
    key = kind, dtype, count, is_cuda, codec
    if not failures and key in tensors:
        return tensors[key], dict(step=number)  # workers compare it, so that no sum is of different calls
    # Two workers that met in a name would learn at once that their sizes differ, and a third one, whose slot has a
    # tensor of its size, would not. So they do not meet, and their numbers tell all of them.
    size = '.%s.%d' % (str(source.dtype).removeprefix('torch.'), count) if is_numbered else ''
    try:
        if not failures and len(tensors) < _SLOT_TENSORS:
            name = '%s.%d%s' % (kind, number % _SLOTS, size)
            tensor = engine.declare(name, dtype, count, priority, is_cuda, codec=codec, is_numbered=is_numbered)
            tensor.failures, tensors[key] = failures, tensor
            return tensor, dict(step=number)
    except MismatchError:
        pass  # nobody has waited for the operation that failed
    # A new tensor of a full slot is declared for this call alone, and so is each of a slot with an operation that
    # failed, as workers may be at different rounds of its tensors. The call's number is the same on all, so they meet
    # again when each has seen the error, whichever does first. A failure on some alone parts them for good.
    name, options = '%s.alone.%d%s' % (kind, number, size), dict(priority=priority, is_device=is_cuda, codec=codec)
    return _alone(engine, its_call, name, dtype, count, **options)


def _tensor(engine, kind, name, source, priority=0, codec=None, shape=()):
    """Returns the tensor, and options of its submission. shape: compared with the other workers', if the name was given
    and the shape is that of the elements as sent."""
    is_cuda, line = source.is_cuda, futures.line()
    if name is None and line is not None:
        name, shape = OnceName('%s.%s' % (kind, line.next().name)), ()
    if isinstance(name, OnceName):
        declared = shape if math.prod(shape) == source.numel() else ()
        options = dict(priority=priority, is_device=is_cuda, codec=codec, shape=declared)
        return engine.declare_once(name, dtype_of(source, name), source.numel(), **options), dict(is_once=True)
    if name is None:
        return _slot(engine, kind, source, priority, codec)
    key = name, source.dtype, source.numel(), shape, is_cuda, codec
    if key not in engine.known:  # to look it up so is cheaper than to describe it
        dtype, count = dtype_of(source, name), source.numel()
        declared = shape if math.prod(shape) == count else ()
        kind, _, known = name.partition('.')
        known = known if kind in _KINDS else ''
        engine.known[key] = engine.declare(
            name, dtype, count, priority, is_cuda, codec=codec, shape=declared, known=known
        )
    return engine.known[key], {}


@functools.lru_cache(maxsize=None)
def _suits(dtype, reduce):
    return lib.trib_reduce_suits(dtype, reduce)


def _check_reduction(tensor, reduce, what):
    """Refuses a reduction that does not go with the type of elements."""
    dtype = dtype_of(tensor, what)
    if not _suits(dtype, reduce):
        text = '%s: there is no %s of %s: bitwise reductions need integers or bools, and bools have no average'
        names = lib.trib_reduce_name(reduce).decode(), lib.trib_dtype_name(dtype).decode()
        raise error_of(_abi.TRIB_UNSUPPORTED, text % (what, *names))


def _shape_of(tensor, count):
    """Returns the shape that is compared with the other workers', where elements are sent as they are."""
    fits = 0 < tensor.dim() <= _abi.TRIB_TENSOR_DIMS_MAX and tensor.numel() == count
    return tuple(tensor.shape) if fits else ()


def _device(tensor):
    return tensor.device if tensor.is_cuda else None


def can_scale(tensor, reduce, *factors):
    """Returns whether the engine multiplies by the factors, with one rounding at the end."""
    fits = (
        reduce in (_abi.TRIB_SUM, _abi.TRIB_AVG)
        and tensor.dtype != torch.bool
        and not tensor.is_complex()
        and not tensor.is_cuda
    )
    return fits and all(factor != 0 and math.isfinite(factor) for factor in factors)


def _result(tensor, value):
    """Returns a function that returns the value, or the tensor, when an operation has written to it. Its memory must be
    where it was when the operation began."""
    address = tensor.data_ptr()

    def finish():
        if tensor.data_ptr() != address:
            raise ArgumentError(
                'the memory of a tensor of %d elements was freed or replaced while an operation wrote to it: wait for '
                'the operation before' % tensor.numel()
            )
        return tensor if value is None else value

    return finish


def all_reduce(
    engine,
    source,
    landing,
    reduce,
    name=None,
    priority=0,
    value=None,
    codec=None,
    prescale=1.0,
    postscale=1.0,
    kind='all_reduce',
):
    """landing = reduction of all workers' sources. They may be the same tensor."""
    _check_reduction(source, reduce, name or kind)
    stream = stream_of(source, engine.gpu)
    tensor, options = _tensor(engine, kind, name, source, priority, codec=codec, shape=source.shape)
    operation = tensor.submit(
        lib.trib_push_pull,
        source.data_ptr(),
        landing.data_ptr(),
        (source, landing),
        reduce=reduce,
        stream=stream,
        priority=priority,
        prescale=prescale,
        postscale=postscale,
        timeout_ns=engine.timeout_ns,
        **options,
    )
    return Handle([(operation, _device(source))], _result(landing, value))


def broadcast(engine, tensor, root, name=None, value=None):
    """Every worker's tensor becomes the root's. Any type will do: the bytes are sent."""
    flat, shape, stream = bits_of(tensor), tensor.shape, stream_of(tensor, engine.gpu)
    if name is None and futures.line() is None and not futures.has_order():
        # A thread that saves a checkpoint broadcasts objects beside the training: each size counts for itself.
        kind, shape = 'broadcast.%s.%d' % (flat.dtype, flat.numel()), ()
        name = '%s.%d' % (kind, futures.counted(engine, kind) % _SLOTS)
    declared, options = _tensor(engine, 'broadcast', name, flat, shape=shape)
    operation = declared.submit(
        lib.trib_broadcast,
        flat.data_ptr(),
        flat.data_ptr(),
        (tensor, flat),
        root=root,
        stream=stream,
        timeout_ns=engine.timeout_ns,
        **options,
    )
    return Handle([(operation, _device(tensor))], _result(tensor, value))


def merged(handles, finish, device=None):
    """Returns one handle for several; `finish` makes its result when all are complete. device: the GPU on which it is,
    if that of no handle is."""

    def finish_all():
        for handle in handles:
            handle.take()
        return finish()

    device = device or next((handle.device for handle in handles if handle.device is not None), None)
    return Handle([pair for handle in handles for pair in handle.operations], finish_all, device)


def _once(engine, kind, name, dtype, count=0, **options):
    """Returns a tensor for one operation, and options of its submission. Its name is the caller's, or counted."""
    job.refuse_continue(kind)  # a caller takes the result apart by the number of workers
    if name is None and futures.line() is not None:
        name = '%s.%s' % (kind, futures.line().next().name)
    if name is not None:
        return engine.declare_once(name, dtype, count, **options), dict(is_once=True)
    # A worker that differs has a tensor of the slot in its place, so what all are told is a failure of the slot, too.
    its_call = _counted(engine, kind)
    return _alone(engine, its_call, '%s.%d' % (its_call.kind, its_call.number), dtype, count, **options)


def _within_reach(engine, tensor):
    """Returns a tensor's elements where the engine can read them: an engine without a device needs a copy on the
    host."""
    return tensor if engine.has_device or not tensor.is_cuda else tensor.cpu()


def _like(tensor, source):
    """Returns the tensor itself if it is where `source` is, and contiguous; else another one there, of its shape."""
    if tensor.device == source.device and tensor.is_contiguous():
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=source.device)


def _landed(operation, target, landing):
    """Returns a handle of an operation that writes to `target`, whose result is `landing`."""
    handle = Handle([(operation, _device(target))], lambda: target)
    return handle if target is landing else merged([handle], lambda: landing.copy_(used_here(target)), _device(landing))


def _taken(handle, dtype, lengths):
    """Returns a tensor with a copy of an operation's result, and the lengths of its slices (so many numbers)."""
    data, size, counts, count = ctypes.c_void_p(), ctypes.c_uint64(), (ctypes.c_uint64 * lengths)(), ctypes.c_size_t()
    call(lib.trib_op_output, handle, ctypes.byref(data), ctypes.byref(size))
    call(lib.trib_op_counts, handle, counts, lengths, ctypes.byref(count))
    result = torch.empty(size.value, dtype=torch.uint8, device='cpu')
    if size.value:
        ctypes.memmove(result.data_ptr(), data, size.value)
    return result.view(dtype), list(counts)


def all_gather(engine, source, row=1, name=None):
    """The handle's result: all workers' sources, flat, one behind the other, and their lengths in rows. row: elements
    that belong together. Type and row must be the same on all workers."""
    near = _within_reach(engine, source)
    bits = bits_of(near).reshape(-1)
    stream = stream_of(bits, engine.gpu)
    scale = max(row * (near.element_size() // bits.element_size()), 1)
    tensor, options = _once(
        engine,
        'all_gather',
        name,
        dtype_of(bits),
        bits.numel(),
        layout=_abi.TRIB_SLICES,
        row=scale,
        shape=_shape_of(source, bits.numel()),
        is_device=bits.is_cuda,
    )

    def value(handle):
        result, counts = _taken(handle, near.dtype, engine.size)
        return result, [count // scale for count in counts]

    return _of_unknown_length(engine, tensor, options, lib.trib_all_gather, bits, near, value, stream, source.device)


def _of_unknown_length(engine, tensor, options, function, bits, near, value, stream, device):
    """Submits an operation whose output the engine takes memory for, on the host, and returns its handle. device: where
    the output goes, on the stream of the thread that asks for it."""
    operation = tensor.submit(
        function,
        bits.data_ptr(),
        None,
        (near, bits),
        value,
        flags=_abi.TRIB_OP_ALLOCATE_OUTPUT,
        stream=stream,
        timeout_ns=engine.timeout_ns,
        **options,
    )

    def finish():
        result, lengths = operation.wait()
        return result.to(device), lengths

    return Handle([(operation, None)], finish, device if device.type == 'cuda' else None)


def all_gather_into(engine, landing, source):
    """landing = all workers' sources, one behind the other; they are equally long."""
    near = _within_reach(engine, source)
    flat = bits_of(near).reshape(-1)
    target, stream = _like(landing, flat), stream_of(flat, engine.gpu)
    tensor, options = _once(
        engine,
        'all_gather',
        None,
        dtype_of(flat),
        flat.numel(),
        layout=_abi.TRIB_SLICES,
        shape=(1, flat.numel()),  # but for the first dimension, workers compare it
        is_device=flat.is_cuda,
    )
    operation = tensor.submit(
        lib.trib_all_gather,
        flat.data_ptr(),
        target.data_ptr(),
        (near, flat, target),
        output_bytes=target.numel() * target.element_size(),
        stream=stream,
        timeout_ns=engine.timeout_ns,
        **options,
    )
    return _landed(operation, target, landing)


def reduce_scatter(engine, output, source, reduce, row=1, name=None):
    """output = this worker's slice of the reduction of all workers' sources; slices lie in order of rank."""
    near = _within_reach(engine, source)
    _check_reduction(near, reduce, name or 'reduce_scatter')
    target, stream = _like(output, near), stream_of(near, engine.gpu)
    tensor, options = _once(
        engine,
        'reduce_scatter',
        name,
        dtype_of(near),
        target.numel(),
        layout=_abi.TRIB_SLICES,
        row=row,
        shape=(1, target.numel()) if name is None else _shape_of(target, target.numel()),
        is_device=near.is_cuda,
    )
    operation = tensor.submit(
        lib.trib_reduce_scatter,
        near.data_ptr(),
        target.data_ptr(),
        (near, target),
        reduce=reduce,
        stream=stream,
        input_bytes=near.numel() * near.element_size(),  # workers' rows may differ, which only the engine knows
        timeout_ns=engine.timeout_ns,
        **options,
    )
    return _landed(operation, target, output)


def all_to_all(engine, source, lengths, row=1, name=None, kind='all_to_all'):
    """The handle's result: what all workers have for this one, flat, and how many rows each sent. lengths: rows of
    `source` for each worker. kind: of calls that may meet where they have no name."""
    near = _within_reach(engine, source)
    bits = bits_of(near).reshape(-1)
    stream = stream_of(bits, engine.gpu)
    scale = max(row * (near.element_size() // bits.element_size()), 1)
    tensor, options = _once(
        engine,
        kind,
        name,
        dtype_of(bits),
        layout=_abi.TRIB_PAIRS,
        splits=[length * scale for length in lengths],
        row=scale,
        is_device=bits.is_cuda,
    )

    def value(handle):
        result, counts = _taken(handle, near.dtype, engine.size**2)
        return result, [count // scale for count in counts[engine.rank :: engine.size]]

    return _of_unknown_length(engine, tensor, options, lib.trib_all_to_all, bits, near, value, stream, source.device)


def reduce_to(engine, source, landing, root, reduce):
    """landing on the root = reduction of all workers' sources; elsewhere it is not used."""
    near = source.cpu()  # on devices only groups reduce to one worker
    _check_reduction(near, reduce, 'reduce')
    target = _like(landing, near)
    # The workers end at different times, and the root may fail alone: they would not give up a slot together.
    tensor, options = _once(engine, 'reduce', None, dtype_of(near), near.numel())
    operation = tensor.submit(
        lib.trib_reduce_to,
        near.data_ptr(),
        target.data_ptr(),
        (near, target),
        reduce=reduce,
        root=root,
        timeout_ns=engine.timeout_ns,
        **options,
    )
    return _landed(operation, target, landing)

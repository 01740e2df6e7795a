"""Collectives on PyTorch's tensors, with Horovod's names and arguments. BytePS's names are in byteps_ops.py.

Every worker calls the same operations. Names decide which belong together; an operation without one is counted, so
workers must call those in the same order. In place: functions whose name ends with an underscore."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from .. import codecs, job
from ..errors import ArgumentError
from ..process_sets import ProcessSet, global_process_set, resolve
from ..reductions import REDUCTIONS, Average, reduction_of
from . import exchange
from .compression import Compression, codec_for
from .elements import checked, contiguous, is_plain, used_here
from .handles import Handle, in_flight

_counters = {}
_counters_generation = 0
_joins = 0  # how often all workers have joined


def _begin_generation():
    """Counts from nothing if the job is another one than when something was counted last."""
    global _counters_generation, _joins
    if _counters_generation != job.generation():
        _counters.clear()
        _counters_generation, _joins = job.generation(), 0


def counted_name(kind):
    """Returns the name of an operation that the caller did not name. Counting begins anew with each init() and join(),
    as workers that have joined have counted less."""
    _begin_generation()
    epoch = '.%d' % _joins if _joins else ''
    return exchange.OnceName('%s.noname%s.%d' % (kind, epoch, next(_counters.setdefault(kind, itertools.count()))))


def name_or_counted(kind, name):
    """Returns the caller's name, or one that is counted where there is none."""
    if name is None or name == '':
        return counted_name(kind)
    if not isinstance(name, str):
        raise ArgumentError('name: it must be a str, and is %s' % type(name).__name__)
    return name


def claim_name(kind, name):
    """Returns the full name of an operation. Raises ArgumentError if the caller's name is that of one that is under
    way."""
    name = name_or_counted(kind, name)
    full = exchange.prefixed(kind, name)
    if isinstance(name, exchange.OnceName):
        return full
    earlier = in_flight.get(full)
    if earlier is not None and not earlier.done():
        raise ArgumentError(
            'duplicate name %s: an operation of that name is under way: wait for it, or choose another name' % full
        )
    return full


def keep(name, handle):
    """Remembers the handle of an operation by its name until it has been waited for, and returns it."""
    if not isinstance(name, exchange.OnceName):
        handle.name = name
        in_flight[name] = handle
    return handle


def scaled(tensor, factor):
    """Returns tensor * factor, computed wider and rounded once to the tensor's type."""
    if not isinstance(factor, torch.Tensor) and factor == 1.0:
        return tensor
    if tensor.is_complex():
        wide = torch.promote_types(tensor.dtype, torch.complex64)
    else:
        wide = torch.float64 if not tensor.is_floating_point() or tensor.dtype == torch.float64 else torch.float32
    return (tensor.to(wide) * factor).to(tensor.dtype)


def _number(factor, name):
    """Returns a factor as a float, also that of a tensor of one element, but not that of a text."""
    try:
        return factor.__float__()
    except (AttributeError, ArithmeticError, RuntimeError, TypeError, ValueError):
        raise ArgumentError('%s: the factor %r is not a number' % (name, factor)) from None


def _factor(factor, tensor):
    """Returns a factor in the precision in which the tensor's framework multiplies."""
    if factor == 1.0 or tensor.dtype == torch.float64 or not tensor.is_floating_point():
        return factor
    return float(torch.tensor(factor, dtype=torch.float32, device='cpu'))


def submit_allreduce(
    tensor, output, name, op, prescale=1.0, postscale=1.0, priority=0, process_set=global_process_set, codec=None
):
    """Submits the reduction of a tensor. `output` gets it, and is what the handle's wait() returns."""
    source, factors, engine = contiguous(tensor, name), {}, resolve(process_set).engine()
    prescale, postscale = _number(prescale, name), _number(postscale, name)
    if prescale != 1.0 or postscale != 1.0:
        if exchange.can_scale(source, REDUCTIONS[op], prescale, postscale):
            factors = {'prescale': _factor(prescale, source), 'postscale': _factor(postscale, source)}
            prescale = postscale = 1.0
        source = scaled(source, prescale)
    landing = output if is_plain(output) else torch.empty_like(source)
    handle = exchange.all_reduce(engine, source, landing, REDUCTIONS[op], name, priority, codec=codec, **factors)
    if landing is not output or postscale != 1.0:
        handle = exchange.merged([handle], lambda: output.copy_(scaled(used_here(landing), postscale)))
    return keep(name, handle)


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: Any = Compression.none,
) -> Handle:
    """Begins a reduction into a new tensor and returns its handle. Of a compression the codec counts alone."""
    return submit_allreduce(
        tensor,
        torch.empty_like(checked(tensor, 'allreduce').detach(), memory_format=torch.contiguous_format),
        claim_name('allreduce', name),
        reduction_of(op, average),
        prescale_factor,
        postscale_factor,
        process_set=process_set,
        codec=codec_for(codecs.checked(compression), tensor),
    )


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begins a reduction in place and returns its handle."""
    output = checked(tensor, 'allreduce').detach()
    return submit_allreduce(
        output,
        output,
        claim_name('allreduce', name),
        reduction_of(op, average),
        prescale_factor,
        postscale_factor,
        process_set=process_set,
    )


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, name, arguments):
        ctx.arguments = arguments
        return allreduce_async(tensor, name=name, **arguments).wait()

    @staticmethod
    def backward(ctx, gradient):
        return allreduce(gradient, **ctx.arguments), None, None


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Returns the reduction of all workers' tensors; differentiable. op: Average (default), Sum, Min, Max or
    Product."""
    compressed, context = codecs.checked(compression).compress(checked(tensor, 'allreduce'))
    arguments = dict(
        op=reduction_of(op, average),
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
        compression=compression,
    )
    return compression.decompress(_Allreduce.apply(compressed, name, arguments), context)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduces a tensor over all workers, in place, and returns it."""
    allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set).wait()
    return tensor


def _grouped(begin, tensors, name, kind, arguments):
    base = name_or_counted(kind, name)
    handles = [begin(tensor, name=exchange.part_of(base, index), **arguments) for index, tensor in enumerate(tensors)]
    return exchange.merged(handles, lambda: [handle.wait() for handle in handles])


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: Any = Compression.none,
) -> Handle:
    """Begins the reductions of several tensors into new ones and returns one handle."""
    return _grouped(
        allreduce_async,
        tensors,
        name,
        'grouped_allreduce',
        dict(
            op=reduction_of(op, average),
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            process_set=process_set,
            compression=compression,
        ),
    )


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begins the reductions of several tensors in place and returns one handle."""
    tensors = list(tensors)
    places = [place for tensor in tensors if (place := checked(tensor, 'grouped_allreduce').data_ptr())]
    if len(set(places)) < len(places):
        raise ArgumentError('grouped_allreduce: two of the tensors are one memory, which cannot get two results')
    return _grouped(
        allreduce_async_,
        tensors,
        name,
        'grouped_allreduce',
        dict(
            op=reduction_of(op, average),
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            process_set=process_set,
        ),
    )


class _GroupedAllreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, name, arguments, *tensors):
        ctx.arguments = arguments
        return tuple(grouped_allreduce_async(list(tensors), name=name, **arguments).wait())

    @staticmethod
    def backward(ctx, *gradients):
        return (None, None, *grouped_allreduce(list(gradients), **ctx.arguments))


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Returns the reductions of several tensors; differentiable."""
    codecs.checked(compression)
    pairs = [compression.compress(checked(tensor, 'grouped_allreduce')) for tensor in tensors]
    arguments = dict(
        op=reduction_of(op, average),
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
        compression=compression,
    )
    reduced = _GroupedAllreduce.apply(name, arguments, *(compressed for compressed, _ in pairs))
    return [compression.decompress(tensor, context) for tensor, (_, context) in zip(reduced, pairs)]


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduces several tensors in place and returns them."""
    tensors = list(tensors)
    grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set).wait()
    return tensors


def submit_broadcast(tensor, output, root_rank, name, process_set):
    """Submits a broadcast; `output` gets the root's elements, and is what the handle's wait() returns."""
    process_set = resolve(process_set)
    root, engine = process_set.root(root_rank), process_set.engine()
    landing = output if is_plain(output) else torch.empty_like(contiguous(tensor, name))
    if job.rank() == root_rank and landing.data_ptr() != tensor.data_ptr():
        landing.copy_(tensor)
    handle = exchange.broadcast(engine, landing, root, name)
    if landing is not output:
        handle = exchange.merged([handle], lambda: output.copy_(used_here(landing)))
    return keep(name, handle)


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Begins a broadcast into a new tensor and returns its handle."""
    return submit_broadcast(
        tensor,
        torch.empty_like(checked(tensor, 'broadcast').detach(), memory_format=torch.contiguous_format),
        root_rank,
        claim_name('broadcast', name),
        process_set,
    )


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Begins a broadcast in place and returns its handle."""
    return submit_broadcast(
        tensor, checked(tensor, 'broadcast').detach(), root_rank, claim_name('broadcast', name), process_set
    )


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, root_rank, name, process_set):
        ctx.root_rank, ctx.process_set = root_rank, process_set
        return broadcast_async(tensor, root_rank, name, process_set).wait()

    @staticmethod
    def backward(ctx, gradient):
        reduced = allreduce(gradient, op=Average, process_set=ctx.process_set)
        return (reduced if job.rank() == ctx.root_rank else reduced * 0), None, None, None


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Returns the root's tensor on every worker; differentiable."""
    return _Broadcast.apply(tensor, root_rank, name, process_set)


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Replaces a tensor's elements by the root's and returns it."""
    broadcast_async_(tensor, root_rank, name, process_set).wait()
    return tensor


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits until all workers have called it."""
    resolve(process_set).engine().barrier()


def join(device: int = -1) -> int:
    """This worker has no more data: waits until all have none, and returns the rank that joined last. Until then the
    others' allreduces of tensors in host memory go on, with zeros for this worker; Average divides by all workers."""
    del device  # Horovod's, for its zeros; here servers count them
    global _joins
    job.refuse_continue('join()')
    last = job.engine().join()
    _begin_generation()  # a worker may join before it has counted anything
    _joins += 1
    _counters.clear()
    return last

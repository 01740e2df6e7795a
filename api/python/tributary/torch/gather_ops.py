"""Horovod's collectives whose results differ in size from what a worker gives: allgather, alltoall, reducescatter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .. import codecs
from ..errors import ArgumentError
from ..process_sets import ProcessSet, global_process_set, resolve
from ..reductions import REDUCTIONS, Average, Sum, reduction_of
from ..shares import lengths_of, share_of, summing
from . import exchange
from .compression import Compression
from .elements import checked, contiguous
from .handles import Handle
from .ops import allreduce, claim_name, keep, name_or_counted, scaled


def _rows(tensor):
    """Returns the number of elements that an index of the first dimension stands for."""
    return torch.Size(tensor.shape[1:]).numel()


def _empty_rows(source, counts):
    """Returns a tensor of so many rows that have no elements."""
    return source.new_empty([int(counts.sum()), *source.shape[1:]])


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Begins to gather and returns a handle of all workers' tensors, one behind the other along the first dimension,
    which may differ in length."""
    name = claim_name('allgather', name)
    source = contiguous(tensor, name)
    if source.dim() == 0:
        source = source.reshape(1)
    trailing = list(source.shape[1:])
    if not _rows(source):  # how many there are is all that can be sent of rows without elements
        counted = exchange.all_gather(
            resolve(process_set).engine(), torch.tensor([source.shape[0]], device='cpu'), 1, name
        )
        return keep(name, exchange.merged([counted], lambda: _empty_rows(source, counted.wait()[0])))
    handle = exchange.all_gather(resolve(process_set).engine(), source, _rows(source), name)

    def finish():
        flat, lengths = handle.wait()
        return flat.reshape([sum(lengths), *trailing])

    return keep(name, exchange.merged([handle], finish))


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, name, process_set):
        checked(tensor, 'allgather')
        ctx.length, ctx.process_set = tensor.shape[0] if tensor.dim() else 1, process_set
        ctx.shape = tensor.shape
        return allgather_async(tensor, name, process_set).wait()

    @staticmethod
    def backward(ctx, gradient):
        reduced = allreduce(gradient, op=Average, process_set=ctx.process_set)
        engine = ctx.process_set.engine()
        lengths = exchange.all_gather(engine, torch.tensor([ctx.length], device='cpu')).wait()[0]
        begin = int(lengths[: engine.rank].sum())
        return reduced[begin : begin + ctx.length].reshape(ctx.shape), None, None


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Returns all workers' tensors, one behind the other along the first dimension; differentiable."""
    return _Allgather.apply(tensor, name, process_set)


def _grouped(begin, tensors, name, kind, **arguments):
    base = name_or_counted(kind, name)
    handles = [begin(tensor, name=exchange.part_of(base, index), **arguments) for index, tensor in enumerate(tensors)]
    return exchange.merged(handles, lambda: [handle.wait() for handle in handles])


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Begins to gather several tensors and returns one handle."""
    return _grouped(allgather_async, tensors, name, 'grouped_allgather', process_set=process_set)


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """Returns the gathered tensors of a list; differentiable."""
    base = name_or_counted('grouped_allgather', name)
    return [allgather(tensor, exchange.part_of(base, index), process_set) for index, tensor in enumerate(tensors)]


def _lengths(tensor, splits, size, name):
    """Returns how many rows go to each worker."""
    if tensor.dim() == 0:
        raise ArgumentError('%s: a tensor without dimensions cannot be split' % name)
    return lengths_of(name, tensor.shape[0], size, splits.tolist() if isinstance(splits, torch.Tensor) else splits)


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begins an exchange in which rank r gets the r-th part of this worker's tensor. splits: how long each part is
    along the first dimension; None: equal parts. The handle's result is the output, with splits a pair of it and the
    lengths received."""
    engine = resolve(process_set).engine()
    name = claim_name('alltoall', name)
    source = contiguous(tensor, name)
    lengths = _lengths(source, splits, engine.size, name)
    trailing = list(source.shape[1:])
    if _rows(source):
        handle = exchange.all_to_all(engine, source[: sum(lengths)], lengths, _rows(source), name)
    else:  # how many there are is all that can be sent of rows without elements
        handle = exchange.all_to_all(engine, torch.tensor(lengths, device='cpu'), [1] * engine.size, 1, name)

    def finish():
        flat, received = handle.wait()
        received = received if _rows(source) else flat.tolist()
        output = (flat if _rows(source) else source.new_empty(0)).reshape([sum(received), *trailing])
        return output if splits is None else (output, torch.tensor(received, dtype=torch.int32, device='cpu'))

    return keep(name, exchange.merged([handle], finish))


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, splits, name, process_set):
        ctx.process_set = process_set
        checked(tensor, 'alltoall')
        lengths = _lengths(
            tensor, splits, resolve(process_set).engine().size, 'alltoall.%s' % name if name else 'alltoall'
        )
        output, received = alltoall_async(tensor, lengths, name, process_set).wait()
        ctx.received = received
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx, gradient, _unused):
        back, _ = alltoall_async(gradient, ctx.received, None, ctx.process_set).wait()
        return back, None, None, None


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Returns what all workers have for this one; differentiable. With splits a pair of it and the lengths received."""
    output, received = _Alltoall.apply(tensor, splits, name, process_set)
    return output if splits is None else (output, received)


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: str | None = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Begins a reduction of which each worker gets a part along the first dimension; the first ones get the rest's
    rows."""
    engine = resolve(process_set).engine()
    name = claim_name('reducescatter', name)
    reduce = REDUCTIONS[summing(op, name)]
    if checked(tensor, name).dim() == 0:
        raise ArgumentError('%s: a tensor without dimensions cannot be scattered' % name)
    source = scaled(contiguous(tensor, name), prescale_factor)
    output = source.new_empty([share_of(source.shape[0], engine.rank, engine.size), *source.shape[1:]])
    handle = exchange.reduce_scatter(engine, output, source, reduce, max(_rows(source), 1), name)
    return keep(name, exchange.merged([handle], lambda: scaled(output, postscale_factor)))


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, name, op, process_set, prescale, postscale):
        ctx.op, ctx.process_set, ctx.factor = op, process_set, prescale * postscale
        return reducescatter_async(tensor, name, op, process_set, prescale, postscale).wait()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.op == Sum:
            gradient = gradient * ctx.process_set.engine().size
        return scaled(allgather(gradient, process_set=ctx.process_set), ctx.factor), None, None, None, None, None


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: str | None = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Returns this worker's part of the reduction along the first dimension; differentiable."""
    compressed, context = codecs.checked(compression).compress(checked(tensor, 'reducescatter'))
    return compression.decompress(
        _Reducescatter.apply(compressed, name, reduction_of(op), process_set, prescale_factor, postscale_factor),
        context,
    )


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: str | None = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Begins the reductions of several tensors and returns one handle."""
    return _grouped(
        reducescatter_async,
        tensors,
        name,
        'grouped_reducescatter',
        op=op,
        process_set=process_set,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Any = Compression.none,
    op: str | None = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Returns this worker's parts of the reductions of several tensors; differentiable."""
    base = name_or_counted('grouped_reducescatter', name)
    return [
        reducescatter(
            tensor, exchange.part_of(base, index), compression, op, process_set, prescale_factor, postscale_factor
        )
        for index, tensor in enumerate(tensors)
    ]

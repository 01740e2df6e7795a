"""Sums of sparse tensors: every worker's indices and values are gathered, and added where indices meet."""

from __future__ import annotations

import torch

from ..errors import ArgumentError
from ..process_sets import ProcessSet, global_process_set
from ..reductions import Average, Sum, reduction_of
from . import exchange
from .gather_ops import allgather_async
from .ops import name_or_counted


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None = None, op: str = Average, process_set: ProcessSet = global_process_set
) -> SparseHandle:
    """Begins the sum or mean of a sparse (COO) tensor and returns its handle. Workers may have different indices."""
    op = reduction_of(op)
    if op not in (Average, Sum):
        raise ArgumentError('a sparse tensor can be reduced with Average and Sum only')
    if tensor.layout != torch.sparse_coo:
        raise ArgumentError('a sparse tensor must be of layout torch.sparse_coo, not %s' % tensor.layout)
    name = name_or_counted('sparse_allreduce', name)
    tensor = tensor.detach().coalesce()
    indices = allgather_async(tensor.indices().t().contiguous(), exchange.part_of(name, 'indices'), process_set)
    values = allgather_async(tensor.values(), exchange.part_of(name, 'values'), process_set)

    def finish():
        gathered = values.wait()
        if op == Average:
            gathered = gathered / process_set.engine().size
        return torch.sparse_coo_tensor(indices.wait().t(), gathered, tensor.shape).coalesce()

    return SparseHandle(exchange.merged([indices, values], finish))


class SparseHandle:
    """A handle that Horovod's scripts call, and others wait for."""

    def __init__(self, handle):
        self._handle = handle

    def __call__(self):
        return self._handle.wait()

    def wait(self):
        """Waits and returns the sum, coalesced."""
        return self._handle.wait()

    def done(self):
        """True if the operations are complete."""
        return self._handle.done()

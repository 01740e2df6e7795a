"""The names under which BytePS has the same collectives. Arguments that have no meaning here are taken and not used."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import ArgumentError
from ..job import get_pushpull_speed, resume, suspend  # noqa: F401 (names of this module)
from .compression import Compression
from ..reductions import Average, Sum
from .elements import checked
from .exchange import prefixed
from .handles import Handle
from .ops import allreduce, name_or_counted, submit_allreduce


def _name(name):
    return prefixed('byteps', name_or_counted('push_pull', name))


def push_pull_async(
    tensor: torch.Tensor, average: bool = True, name: str | None = None, version: int = 0, priority: int = 0
) -> Handle:
    """Begins a sum or mean into a new tensor and returns its handle."""
    output = checked(tensor, 'push_pull').detach().clone()
    return submit_allreduce(tensor, output, _name(name), Average if average else Sum, priority=priority)


def push_pull_async_inplace(
    tensor: torch.Tensor, average: bool = True, name: str | None = None, version: int = 0, priority: int = 0
) -> Handle:
    """Begins a sum or mean in place and returns its handle."""
    output = checked(tensor, 'push_pull').detach()
    return submit_allreduce(output, output, _name(name), Average if average else Sum, priority=priority)


byteps_push_pull = push_pull_async_inplace


def push_pull(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    compression: Any = Compression.none,
) -> torch.Tensor:
    """Returns the sum or mean of all workers' tensors; differentiable."""
    return allreduce(tensor, op=Average if average else Sum, name=name, compression=compression)


def push_pull_inplace(
    tensor: torch.Tensor, average: bool = True, name: str | None = None, version: int = 0, priority: int = 0
) -> torch.Tensor:
    """Replaces a tensor by the sum or mean of all workers' and returns it."""
    push_pull_async_inplace(tensor, average, name, version, priority).wait()
    return tensor


_group = {'expected': 0, 'done': 0}


def byteps_torch_set_num_grads(num_grads: int) -> int:
    """How many gradients a step has, for push_pull_group_sync_inplace()."""
    _group['expected'], _group['done'] = num_grads, 0
    return 0


def push_pull_group_sync_inplace(
    tensor: torch.Tensor, average: bool = True, name: str | None = None, version: int = 0, priority: int = 0
) -> tuple[Handle, int]:
    """Begins a mean in place; returns its handle and how many gradients of the step have been given."""
    handle = push_pull_async_inplace(tensor, average, name, version, priority)
    _group['done'] += 1
    count = _group['done']
    if count == _group['expected']:
        _group['done'] = 0
    return handle, count


def declare(name: str) -> None:
    """Does nothing: a tensor is declared at its first operation, which knows its size."""
    if not name:
        raise ArgumentError('declare() needs a name')

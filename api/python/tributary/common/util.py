"""Horovod's place of what its bindings share: horovod.common.util is tributary.common.util."""

from __future__ import annotations

from typing import Any

from ..job import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    mpi_built,
    nccl_built,
    rocm_built,
)

__all__ = [
    'ccl_built',
    'cuda_built',
    'ddl_built',
    'gloo_built',
    'gpu_available',
    'is_iterable',
    'mpi_built',
    'nccl_built',
    'num_rank_is_power_2',
    'rocm_built',
    'split_list',
]


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """True where this process's engine sums in the memory of a GPU."""
    return cuda_built()


def num_rank_is_power_2(num_rank: int) -> bool:
    """True if the number is a power of two."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(l: Any, n: int) -> list[Any]:  # noqa: E741 (Horovod's name of it)
    """Returns n parts of a sequence, whose lengths differ by one at most; the first ones are the longer ones."""
    each, more = divmod(len(l), n)
    return [l[i * each + min(i, more) : (i + 1) * each + min(i + 1, more)] for i in range(n)]


def is_iterable(x: Any) -> bool:
    """True if it can be iterated over."""
    try:
        iter(x)
    except TypeError:
        return False
    return True

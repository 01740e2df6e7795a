"""The GPU of a process. A script of Horovod's names none before init(), so init() takes the GPU of the process's local
rank, as such scripts do afterwards themselves."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import torch

from .. import _abi, job
from .._library import beside, call, initialised, lib
from . import places


def init(comm: Any = None, process_sets: Any = None, **settings: Any) -> None:
    """Joins the job that the launcher's environment describes, and waits until all are there. Alone without a launcher.
    A second call does nothing until shutdown() was called. comm: as tributary.init's. process_sets: a list of
    ProcessSet to be added, or "dynamic"; settings are fields of trib_config. Where PyTorch sees GPUs the engine sums in
    the memory of this process's own; TRIB_DEVICE=none keeps it from that."""
    if 'device' not in settings:
        choose()
    job.init(comm, process_sets, _may_continue=True, **settings)


def choose() -> None:
    """Takes a GPU where the environment does not say which device to use, and every process of the machine can have one
    of its own. A GPU that the program has chosen already is kept, if it is not the first one: each process has that at
    the beginning, so nobody can tell whether it was chosen."""
    if not _may_choose():
        return
    config = _read_settings()
    if not _has_each_one(config.local_size):
        return
    os.environ['TRIB_DEVICE'] = 'cuda'
    slot = int(os.environ.get('TRIB_LOCAL_RANK', config.local_rank))  # an elastic worker is a machine of its own
    if not torch.cuda.is_initialized() or torch.cuda.current_device() == 0:
        torch.cuda.set_device((slot if config.local_size == 1 else config.local_rank) % torch.cuda.device_count())


def choose_at(place: places.Place) -> dict[str, Any]:
    """Does the same for a process whose place on its machine is known; returns the engine's settings for it. A GPU that
    several programs have used was not chosen: CUDA begins with the first one."""
    if not _may_choose():
        return {}
    is_stated = 'TRIB_DEVICE_COUNT' in os.environ  # the environment says which processes are one machine's
    if not _has_each_one(_read_settings().local_size if is_stated else place.count):
        return {}
    if not place.has_own_gpu:
        gpus = range(torch.cuda.device_count())
        free = [gpu for gpu in gpus if places.name_of(gpu) not in place.taken] or gpus
        torch.cuda.set_device(free[place.turn % len(free)])
    if is_stated:
        os.environ['TRIB_DEVICE'] = 'cuda'
        return {}
    if not place.is_even:  # a machine of its own, as NCCL sums only within machines that are alike
        return {'device': 'cuda'}
    return {'device': 'cuda', 'local_rank': place.index, 'local_size': place.count}


def _read_settings():
    """Returns the environment's settings, as they are with a GPU."""
    os.environ['TRIB_DEVICE'] = 'cuda'
    try:
        config = initialised(_abi.trib_config(), lib.trib_config_init)
        call(lib.trib_config_from_env, ctypes.byref(config))
    finally:
        del os.environ['TRIB_DEVICE']
    return config


def _has_each_one(count):
    """True if each of so many processes can have a GPU of its own: NCCL does not sum between others."""
    is_restricted = torch.cuda.device_count() == 1 and 'CUDA_VISIBLE_DEVICES' in os.environ  # each sees its own alone
    return count <= torch.cuda.device_count() or is_restricted


def _may_choose():
    return 'TRIB_DEVICE' not in os.environ and _is_usable()


def _is_usable():
    if torch.version.cuda is None or not torch.cuda.is_available():
        return False
    try:
        beside('libtributary-cuda.so.0')
    except ImportError:
        return False  # the library was built without CUDA
    return True

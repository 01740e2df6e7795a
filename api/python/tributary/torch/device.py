"""The GPU of a process. A script of Horovod's names none before init(), so init() takes the GPU of the process's local
rank, as such scripts do afterwards themselves."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import torch

from .. import _abi, job
from .._library import beside, call, initialised, lib


def init(comm: Any = None, process_sets: Any = None, **settings: Any) -> None:
    """Joins the job that the launcher's environment describes, and waits until all are there. Alone without a launcher.
    A second call does nothing until shutdown() was called. comm: as tributary.init's. process_sets: a list of
    ProcessSet to be added, or "dynamic"; settings are fields of trib_config. Where PyTorch sees GPUs the engine sums in
    the memory of this process's own; TRIB_DEVICE=none keeps it from that."""
    if 'device' not in settings:
        choose()
    job.init(comm, process_sets, _may_continue=True, **settings)


def choose():
    """Takes a GPU where the environment does not say which device to use, and every process of the machine can have one
    of its own. A GPU that the program has chosen already is kept."""
    if 'TRIB_DEVICE' in os.environ or not _is_usable():
        return
    os.environ['TRIB_DEVICE'] = 'cuda'
    config = initialised(_abi.trib_config(), lib.trib_config_init)
    call(lib.trib_config_from_env, ctypes.byref(config))
    count = torch.cuda.device_count()
    is_restricted = count == 1 and 'CUDA_VISIBLE_DEVICES' in os.environ  # each process sees its own GPU alone
    if config.local_size > count and not is_restricted:
        del os.environ['TRIB_DEVICE']  # NCCL does not sum between processes that share a GPU
    elif not torch.cuda.is_initialized():
        slot = int(os.environ.get('TRIB_LOCAL_RANK', config.local_rank))  # an elastic worker is a machine of its own
        torch.cuda.set_device((slot if config.local_size == 1 else config.local_rank) % count)


def _is_usable():
    if torch.version.cuda is None or not torch.cuda.is_available():
        return False
    try:
        beside('libtributary-cuda.so.0')
    except ImportError:
        return False  # the library was built without CUDA
    return True

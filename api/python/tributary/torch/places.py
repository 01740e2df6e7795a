"""Where the processes of a group of torch.distributed run. Only some launchers say it, so the processes tell each other
through the group's store which machine each is on, and which GPU its program has chosen."""

import os
import socket
from typing import NamedTuple

import torch


class Place(NamedTuple):
    """A process's place on its machine."""

    index: int  # among the processes of its machine, in the order of their ranks
    count: int  # of these processes
    is_even: bool  # each machine has as many, and they have consecutive ranks
    has_own_gpu: bool  # its program has chosen a GPU that no other process of the machine has chosen
    turn: int  # among the processes of the machine without a GPU of their own, if it is one
    taken: frozenset  # the GPUs of the machine that one process has chosen


def host_of(store):
    """Returns where the store of a group is, as the program said it by init_method or the environment."""
    while hasattr(store, 'underlying_store'):
        store = store.underlying_store
    return getattr(store, 'host', None) or os.environ.get('MASTER_ADDR', '127.0.0.1')


def own_address(master):
    """Returns the address by which the others reach this process, as far as the way to the store tells."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((master, 9))
            return probe.getsockname()[0]
    except OSError:
        return '127.0.0.1'


def name_of(gpu):
    """Returns what all processes of the machine call a GPU; gpu: its index in this one."""
    properties = torch.cuda.get_device_properties(gpu)
    return str(getattr(properties, 'uuid', gpu))  # PyTorch 2.4 and newer tell the uuid


def _describe():
    try:
        with open('/proc/sys/kernel/random/boot_id', encoding='ascii') as file:
            boot = file.read().strip()
    except OSError:
        boot = ''
    gpu = name_of(torch.cuda.current_device()) if torch.cuda.is_initialized() else '-'
    return '%s/%s %s' % (socket.gethostname(), boot, gpu)


def find(texts, rank):
    """Returns the Place of a rank; texts: 'MACHINE GPU' of each rank, where '-' is for none that was used yet."""
    machines, gpus = zip(*(text.rsplit(' ', 1) for text in texts))
    here = [other for other, machine in enumerate(machines) if machine == machines[rank]]
    is_even = len(set(machines)) * len(here) == len(machines) and all(
        machine == machines[other - other % len(here)] for other, machine in enumerate(machines)
    )
    chosen = [gpus[other] for other in here]
    taken = frozenset(gpu for gpu in chosen if gpu != '-' and chosen.count(gpu) == 1)
    others = [other for other in here if gpus[other] not in taken and other < rank]
    return Place(here.index(rank), len(here), is_even, gpus[rank] in taken, len(others), taken)


def _key(name, rank):
    return 'tributary.%s.%d' % (name, rank)


def exchange(store, name, rank, size):
    """Tells the others of this process's place and returns it. All ranks call it, with a name that no earlier call had
    in this store."""
    keys = [_key(name, other) for other in range(size)]
    store.set(keys[rank], _describe())
    texts = store.multi_get(keys) if store.has_extended_api() else [store.get(key) for key in keys]
    return find([text.decode() for text in texts], rank)


def forget(store, name, rank):
    """Takes away what exchange() has put into the store, once all have it."""
    store.delete_key(_key(name, rank))

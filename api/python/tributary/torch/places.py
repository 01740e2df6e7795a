"""Where the processes of a group of torch.distributed run. Only some launchers say it, so the processes tell each other
through the group's store which machine each is on, and which GPU its program has chosen."""

import socket
from typing import NamedTuple

import torch


class Place(NamedTuple):
    """A process's place on its machine."""

    index: int  # among the processes of its machine, in the order of their ranks
    count: int  # of these processes
    is_even: bool  # each machine has as many, and they have consecutive ranks
    has_own_gpu: bool  # each process of the machine has chosen another GPU


def _describe():
    try:
        with open('/proc/sys/kernel/random/boot_id', encoding='ascii') as file:
            boot = file.read().strip()
    except OSError:
        boot = ''
    gpu = torch.cuda.current_device() if torch.cuda.is_initialized() else -1  # -1: the program has not used one yet
    return '%s/%s %d' % (socket.gethostname(), boot, gpu)


def find(texts, rank):
    """Returns the Place of a rank; texts: 'MACHINE GPU' of each rank."""
    machines, gpus = zip(*(text.rsplit(' ', 1) for text in texts))
    here = [other for other, machine in enumerate(machines) if machine == machines[rank]]
    count = len(here)
    is_even = len(set(machines)) * count == len(machines) and all(
        machine == machines[other - other % count] for other, machine in enumerate(machines)
    )
    chosen = {gpus[other] for other in here}
    return Place(here.index(rank), count, is_even, '-1' not in chosen and len(chosen) == count)


def exchange(store, name, rank, size):
    """Tells the others of this process's place and returns it. All ranks call it, with a name that no earlier call had
    in this store."""
    keys = ['%s.%d' % (name, other) for other in range(size)]
    store.set(keys[rank], _describe())
    texts = store.multi_get(keys) if store.has_extended_api() else [store.get(key) for key in keys]
    return find([text.decode() for text in texts], rank)

"""Jobs without an address: a unique id, or a communicator by which the workers exchange one."""

from __future__ import annotations

import ctypes

from . import _abi
from ._library import call, lib
from .errors import ArgumentError


def unique_id(address: str | None = None) -> bytes:
    """Returns the bytes of an id for one job. Rank 0's process makes it, the program hands it to all others as it would
    a secret, and all give it to init(unique_id=...). address: "host:0" where rank 0 is reached (None: the environment
    and the machine's interfaces say)."""
    made = _abi.trib_unique_id()
    if address is None:
        call(lib.trib_unique_id_create, ctypes.byref(made))
    else:
        call(lib.trib_unique_id_create_at, address.encode(), ctypes.byref(made))
    return bytes(made)


def place_of(comm):
    """Returns rank and size that a communicator of mpi4py's kind tells: properties, or methods as MPI calls them."""
    if not callable(getattr(comm, 'allgather', None)):
        raise ArgumentError(
            'init(comm): %r has no allgather(): give a communicator such as mpi4py.MPI.COMM_WORLD, or none' % (comm,)
        )
    if callable(getattr(comm, 'Get_rank', None)):
        return comm.Get_rank(), comm.Get_size()
    return comm.rank, comm.size


class Exchange:
    """The exchange of trib_config.oob_cb, by a communicator's allgather()."""

    def __init__(self, comm):
        self._comm, self.problem = comm, None
        self.callback = _abi.trib_oob_cb(self._run)

    def _run(self, mine, everything, size, _user):
        try:
            parts = self._comm.allgather(ctypes.string_at(mine, size))
            joined = b''.join(parts)
            if len(joined) != size * self._comm_size():
                raise ArgumentError('init(comm): allgather() has not brought %d bytes of each worker' % size)
            ctypes.memmove(everything, joined, len(joined))
            return 0
        except BaseException as problem:  # none may pass through C; the engine raises it
            self.problem = problem
            return 1

    def _comm_size(self):
        return place_of(self._comm)[1]

"""Process sets: some of the job's workers, with collectives of their own (Horovod's name for groups).

Each set has an engine of its own, which its workers make together."""
import secrets
import socket

from . import job
from .engine import Engine
from .errors import ArgumentError, UnsupportedError


class ProcessSet:
    """A set of ranks. add_process_set(), or init(process_sets=...), makes it usable, on all workers alike."""

    def __init__(self, ranks):
        self.ranks = sorted(int(rank) for rank in ranks)
        if len(set(self.ranks)) != len(self.ranks):
            raise ArgumentError('process set %s: a rank stands twice in it' % self.ranks)
        self.process_set_id = None
        self._engine = None

    def engine(self):
        """Returns the engine that carries out the set's collectives; ArgumentError on workers outside it."""
        if self._engine is None:
            raise ArgumentError('%r: %s' % (self, 'rank %d does not belong to it' % job.rank() if self.process_set_id is not None
                                            else 'add_process_set() has not been called for it'))
        return self._engine

    def root(self, rank):
        """Returns the number that a rank of the job has in the set."""
        if rank not in self.ranks:
            raise ArgumentError('%r: root_rank %d does not belong to it' % (self, rank))
        return self.ranks.index(rank)

    def size(self):
        """How many workers belong to it; None before it was added."""
        return None if self.process_set_id is None else len(self.ranks)

    def rank(self):
        """This worker's number in the set; -1 if it does not belong to it, None before it was added."""
        if self.process_set_id is None:
            return None
        return self.ranks.index(job.rank()) if self.included() else -1

    def included(self):
        """True if this worker belongs to the set; None before it was added."""
        return None if self.process_set_id is None else job.rank() in self.ranks

    def __repr__(self):
        return 'ProcessSet(process_set_id=%s, ranks=%s)' % (self.process_set_id, self.ranks)


class _GlobalProcessSet(ProcessSet):
    """All workers of the job."""

    def __init__(self):
        super().__init__([])
        self.process_set_id = 0

    def engine(self):
        return job.engine()

    def root(self, rank):
        if not 0 <= rank < job.size():
            raise ArgumentError('root_rank %d is not one of the %d workers' % (rank, job.size()))
        return rank

    def size(self):
        return job.size()

    def rank(self):
        return job.rank()

    def included(self):
        return True


global_process_set = _GlobalProcessSet()
_added = {}
_next_id = 1


def add_process_set(process_set):
    """Makes a set usable. All workers of the job call it, with the same ranks, in the same order. Takes a ProcessSet or a
    list of ranks, and returns the ProcessSet."""
    global _next_id
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    if process_set.process_set_id is not None:
        raise ArgumentError('%r has been added already' % process_set)
    ranks = process_set.ranks
    if not ranks or ranks[0] < 0 or ranks[-1] >= job.size():
        raise ArgumentError('%r: ranks must be 0 to %d, and at least one' % (process_set, job.size() - 1))
    if any(known.ranks == ranks for known in _added.values()) or ranks == list(range(job.size())):
        raise ArgumentError('%r: a set of these ranks has been added already' % process_set)
    process_set.process_set_id, _next_id = _next_id, _next_id + 1
    _added[process_set.process_set_id] = process_set
    if ranks == [job.rank()]:
        process_set._engine = Engine(rank=0, worker_count=1, server_count=0, coordinator=None)
        process_set._engine.wait_ready()
        _rendezvous(ranks, process_set.process_set_id)
        return process_set
    coordinator, token = _rendezvous(ranks, process_set.process_set_id)
    if process_set.included():
        process_set._engine = Engine(rank=ranks.index(job.rank()), worker_count=len(ranks), server_count=0, coordinator=coordinator,
                                     token=token)
        process_set._engine.wait_ready()
    return process_set


def _rendezvous(ranks, number):
    """Returns the address and the token of a set's engine, which its first rank chooses and all get."""
    import array
    text = bytes(128)
    if job.rank() == ranks[0]:
        address = job.engine().own_address()
        with socket.socket() as probe:
            probe.bind((address, 0))
            chosen = '%s:%d %s' % (address, probe.getsockname()[1], secrets.token_hex(24))
        text = chosen.encode().ljust(128)
    data = array.array('B', text)
    job.engine().declare_like('process_set.%d' % number, data).broadcast(data, ranks[0]).wait()
    return data.tobytes().decode().split()


def remove_process_set(process_set):
    """Ends a set. All workers call it. Returns False for one that was not added, and for the global one."""
    if process_set.process_set_id not in _added:
        return False
    del _added[process_set.process_set_id]
    process_set.process_set_id = None
    engine, process_set._engine = process_set._engine, None
    job.engine().barrier()
    if engine is not None:
        engine.close()
    return True


def close_all():
    """Ends all sets: the engine that they belong to is going to be closed."""
    for process_set in list(_added.values()):
        process_set.process_set_id = None
        engine, process_set._engine = process_set._engine, None
        if engine is not None:
            engine.close()
    _added.clear()


def require_global(process_set):
    """Raises UnsupportedError for any other set than the global one."""
    if process_set is not global_process_set and process_set is not None:
        raise UnsupportedError('%r: this binding has no operations of a part of the workers' % (process_set,))

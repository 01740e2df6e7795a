"""Process sets: some of the job's workers, with collectives of their own (Horovod's name for groups)."""

from __future__ import annotations

import operator
from collections.abc import Iterable

from . import job
from .errors import ArgumentError


def _rank_of(rank):
    try:
        return operator.index(rank)
    except TypeError:
        raise ArgumentError('root_rank: it must be an integer, and is %r' % (rank,)) from None


class ProcessSet:
    """A set of ranks. add_process_set(), or init(process_sets=...), makes it usable, on all workers alike."""

    def __init__(self, ranks):
        try:
            self.ranks = sorted(operator.index(rank) for rank in ranks)
        except TypeError:
            raise ArgumentError('a process set is a list of ranks, which are integers, and not %r' % (ranks,)) from None
        if len(set(self.ranks)) != len(self.ranks):
            raise ArgumentError('process set %s: a rank stands twice in it' % self.ranks)
        self.process_set_id = None
        self._engine = None

    def engine(self):
        """Returns the group of the engine that carries out the set's collectives; ArgumentError on workers outside
        it."""
        if self._engine is None:
            raise ArgumentError(
                '%r: %s'
                % (
                    self,
                    'rank %d does not belong to it' % job.rank()
                    if self.process_set_id is not None
                    else 'add_process_set() has not been called for it',
                )
            )
        return self._engine

    def root(self, rank):
        """Returns the number that a rank of the job has in the set."""
        if _rank_of(rank) not in self.ranks:
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

    process_set_id = 0

    def __init__(self):
        pass  # ranks are those of the job that there is

    @property
    def ranks(self):
        """All ranks of the job, or none before init()."""
        return list(range(job.size())) if job.is_initialized() else []

    def engine(self):
        return job.engine()

    def root(self, rank):
        if not 0 <= _rank_of(rank) < job.size():
            raise ArgumentError('root_rank %d is not one of the %d workers' % (rank, job.size()))
        return _rank_of(rank)

    def size(self):
        return job.size()

    def rank(self):
        return job.rank()

    def included(self):
        return True


global_process_set = _GlobalProcessSet()
_added = {}
_next_id = 1
_followers = []


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Makes a set usable. All workers of the job call it, with the same ranks, in the same order. Takes a ProcessSet
    or a list of ranks, and returns the ProcessSet."""
    global _next_id
    job.refuse_continue('a process set')
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
    if process_set.included():
        process_set._engine = job.engine().group('process_set.%d' % process_set.process_set_id, ranks)
    return process_set


def follow_removal(removed):
    """For bindings with native parts: `removed` is called with the number of each set that ends."""
    _followers.append(removed)


def remove_process_set(process_set: ProcessSet) -> bool:
    """Ends a set. All workers call it, when their operations in it are over, else TributaryError. Returns False for
    one that was not added, and for the global one."""
    if resolve(process_set).process_set_id not in _added:
        return False
    number = process_set.process_set_id
    if process_set._engine is not None:
        process_set._engine.release()
    del _added[number]
    for removed in _followers:
        removed(number)
    process_set.process_set_id = None
    process_set._engine = None
    job.engine().barrier()
    return True


def close_all():
    """Ends all sets: the engine that they belong to is going to be closed, or their ranks become other workers'.
    Numbers begin anew, as they do on a worker that comes."""
    global _next_id
    for number, process_set in _added.items():
        for removed in _followers:
            removed(number)
        process_set.process_set_id = process_set._engine = None
    _added.clear()
    _next_id = 1


def resolve(process_set):
    """Returns the set that an argument means: the global one for None. ArgumentError for anything but a ProcessSet."""
    if process_set is None:
        return global_process_set
    if not isinstance(process_set, ProcessSet):
        raise ArgumentError('process_set: %r is not a ProcessSet' % (process_set,))
    return process_set


def by_id(number):
    """Returns the set of that number. ArgumentError if it was not added, or has been removed."""
    if number != 0 and number not in _added:
        raise ArgumentError('process set %d: there is none of that number' % number)
    return _added[number] if number else global_process_set

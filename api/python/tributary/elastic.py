"""Elastic training: workers are lost or come while a job trains on, with Horovod's names and rules.

    state = tributary.elastic.ObjectState(epoch=0, weights=weights)

    @tributary.elastic.run
    def train(state):
        while state.epoch < 10:
            ...
            state.epoch += 1
            state.commit()

    tributary.init()
    train(state)

A worker that is lost ends the operations of all others with JobLostError. They go back to their last commit, begin anew
with whoever is there, and take the state from rank 0, which was there before. Workers that come, or have to go, are
taken in or left out at a commit (or check_host_updates()), and nothing is lost. Start such a job with `tributary run
--elastic MIN:MAX`.

With TRIB_SURVIVE=workers no launcher is needed: the workers that are left go on in the engine that they have, and those
that wait to join (TRIB_RANK=-1) come in then, or at admit()."""

import copy
import functools
import logging

from . import job
from .errors import HostsUpdatedInterrupt, JobLostError
from .objects import broadcast_object

HorovodInternalError = JobLostError

_NO_WAY_ON = (
    'tributary: a worker is lost, and nothing says here who is left: elastic training goes on after a loss under '
    '`tributary run --elastic MIN:MAX`, or with TRIB_SURVIVE=workers. This worker ends, for a launcher that starts all '
    'of them again'
)


def _begin_anew():
    """Leaves the job as it was and joins it as it is now, or goes on in it: the one place where a change of membership
    takes place. Returns True if others may have come in that lack the state."""
    if job.goes_on():
        job.advance()
    else:
        job.begin_anew()
    return job.has_newcomers()


class State:
    """What a job needs to go on after a change: save() keeps a copy, restore() goes back to it, sync() gives rank 0's
    to all."""

    def __init__(self, bcast_object=broadcast_object, get_rank=job.rank):
        self._bcast_object, self._rank = bcast_object, get_rank
        self._reset_callbacks = []

    def register_reset_callbacks(self, callbacks):
        """Functions without arguments that are called after each change, such as one that scales the learning rate."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self):
        """Called after a change, when the new job has formed."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self):
        """Saves the state, and takes part in a change of hosts if one waits."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self):
        """Raises HostsUpdatedInterrupt on all workers if the launcher has told rank 0 of a change of hosts. All workers
        must call it at the same place."""
        launcher = job.launcher()
        if launcher is None:
            return
        change = self._bcast_object(launcher.change() if self._rank() == 0 else None)
        launcher.tell_worked()
        if change is not None:
            self.before_change()
            raise HostsUpdatedInterrupt(skip_sync=not change['added'])

    def admit(self):
        """Takes in workers that wait to join, in a job with TRIB_SURVIVE=workers: raises HostsUpdatedInterrupt on all
        workers, which must call it at the same place, such as the end of an epoch. Nobody can tell whether some wait,
        so a change takes place in any case, and all take rank 0's state. Does nothing where a launcher says when
        workers come."""
        if job.goes_on():
            self.before_change()
            raise HostsUpdatedInterrupt(skip_sync=False)

    def before_change(self):
        """What a kind of state has to do while the workers of before are still there."""

    def save(self):
        raise NotImplementedError

    def restore(self):
        raise NotImplementedError

    def sync(self):
        raise NotImplementedError

    def reset(self):
        """What a kind of state has to do after a change, before the callbacks."""


class ObjectState(State):
    """A state of attributes that pickle can take: ObjectState(epoch=0, batch=0) has .epoch and .batch. The first two
    arguments may be left out."""

    def __init__(self, bcast_object=broadcast_object, get_rank=job.rank, **attributes):
        super().__init__(bcast_object, get_rank)
        self._saved = dict(attributes)
        self.__dict__.update(attributes)
        self.save()

    def save(self):
        self._saved = {name: copy.deepcopy(getattr(self, name)) for name in self._saved}

    def restore(self):
        self.__dict__.update(copy.deepcopy(self._saved))

    def sync(self):
        if self._saved:
            self._saved = self._bcast_object({name: getattr(self, name) for name in self._saved})
            self.__dict__.update(copy.deepcopy(self._saved))


def run(func):
    """Makes a function of a state, and more arguments, go on through losses and changes. It is called again after
    each."""
    return run_fn(func, _begin_anew)


def run_fn(func, reset):
    """As run(), with a function that leaves the job and joins it again."""

    @functools.wraps(func)
    def elastic(state, *arguments, **keywords):
        must_sync, is_changed = True, False
        while True:
            try:
                if is_changed:
                    state.on_reset()
                if must_sync:
                    state.sync()
                return func(state, *arguments, **keywords)
            except HostsUpdatedInterrupt as change:
                must_sync = not change.skip_sync
            except Exception as problem:
                # A framework may have an error of its own for a loss. Without the launcher nobody says who is left, and
                # one that starts all workers again, such as torchrun, sees the error.
                is_loss = isinstance(problem, JobLostError) or job.is_lost()
                can_go_on = reset is not _begin_anew or job.launcher() is not None or job.goes_on()
                if is_loss and not can_go_on:
                    logging.getLogger('tributary').warning(_NO_WAY_ON)
                if not (is_loss and can_go_on):
                    raise
                state.restore()
                must_sync = True
            must_sync = bool(reset()) or must_sync
            is_changed = True

    return elastic

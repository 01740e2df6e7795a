"""The process's own engine and place in the job: init(), shutdown(), rank() and their kin, as all bindings export
them."""

from __future__ import annotations

import atexit
import contextlib
import errno
import logging
import os
import sys
import threading
import time
import traceback
from typing import Any

from . import _abi, byteps_variables, timeline
from .bootstrap import place_of
from .engine import Engine
from .errors import ArgumentError, JobLostError, NotInitializedError, TributaryError, UnsupportedError
from .rendezvous import mine as launcher

_lock = threading.Lock()
_engine = None
_has_newcomers = True
_settings = {}  # of the last init()
_generation = 0  # how often the job has begun or gone on with others; what a binding keeps for an engine ends with it


def init(comm: Any = None, process_sets: Any = None, *, _may_continue: bool = False, **settings: Any) -> None:
    """Joins the job that the launcher's environment describes, and waits until all are there. Alone without a launcher.
    A second call does nothing until shutdown() was called. comm: a communicator of mpi4py's kind, whose processes are
    the job then, or None. process_sets: a list of ProcessSet to be added, or "dynamic"; settings are fields of
    trib_config, or unique_id=tributary.unique_id() of rank 0 (Engine)."""
    global _engine, _generation, _settings, _suspended, _continues
    if comm:
        place_of(comm)  # what is no communicator is refused at once
        settings['comm'] = comm
    continues = is_continue(settings.get('survive', os.environ.get('TRIB_SURVIVE')))
    if continues and not _may_continue:
        raise UnsupportedError(
            'TRIB_SURVIVE=continue: this binding needs a boundary where the number of workers changes: take '
            'TRIB_SURVIVE=workers, or tributary.torch or tributary.Engine, which go on without one'
        )
    with _lock:
        if _engine is not None:
            return
        recording = timeline.of_environment()
        _engine = _join(settings, time.monotonic() + _REJOIN_SECONDS if _generation else 0)
        if _engine.rank == 0 and not _generation:
            byteps_variables.tell_unread()
        _generation, _settings, _suspended, _continues = _generation + 1, settings, None, continues
        if _engine.size > 1 and sys.excepthook is sys.__excepthook__:
            sys.excepthook = _told_in_short
        # It runs before the engine's own, as it is registered later: frameworks may still compute.
        atexit.register(_shutdown_at_exit)
        for opened, _ in _followers:
            opened()
    try:
        if recording is not None:
            start_timeline(recording)
        for process_set in process_sets if isinstance(process_sets, (list, tuple)) else []:
            from .process_sets import add_process_set

            add_process_set(process_set)
    except ValueError:
        shutdown()  # a second init() shall find nothing of this one
        raise


def _told_in_short(kind, problem, trace):
    """Ctrl-C reaches all workers of a machine: a line of each says enough."""
    if not issubclass(kind, KeyboardInterrupt) or trace is None:
        sys.__excepthook__(kind, problem, trace)
        return
    frames = [frame for frame, _ in traceback.walk_tb(trace)]
    package = os.path.join(os.path.dirname(__file__), '')
    mine = [frame for frame in frames if not frame.f_code.co_filename.startswith(package)]
    frame = (mine or frames)[-1]
    place = '%s, line %d' % (frame.f_code.co_filename, frame.f_lineno)
    print('tributary: rank %s: interrupted in %s' % (_interrupted_rank(), place), file=sys.stderr)


def _interrupted_rank():
    return '?' if _engine is None else _engine.rank


_followers = []


def follow(opened, closing):
    """For bindings with native parts: `opened` is called when there is an engine, `closing` before it closes."""
    _followers.append((opened, closing))
    if _engine is not None:
        opened()


# So long may other workers take to leave the last job when this one begins the next.
_REJOIN_SECONDS = 30


def is_continue(survive):
    """True if that value of TRIB_SURVIVE lets operations go on by themselves."""
    return str(survive).lower() in ('continue', str(_abi.TRIB_SURVIVE_CONTINUE))


_continues = False


def continues():
    """True if operations go on by themselves with the workers that are left, and no boundary tells that there are
    fewer: TRIB_SURVIVE=continue."""
    return _continues


def refuse_continue(what):
    """For what counts on a number of workers that stays while it is under way."""
    if _continues:
        raise UnsupportedError(
            'TRIB_SURVIVE=continue: %s needs to know how many workers take part, and a loss may change that at any '
            'time: take TRIB_SURVIVE=workers' % what
        )


def _join(settings, deadline):
    """Returns an engine that has joined. Under `tributary run --elastic` the launcher says where: each attempt has a
    coordinator of its own, and one that cannot form is followed by another. Without it a worker that begins anew may
    come while others still leave the last job. It is rejected until they have, and one that is rank 0 now finds its
    address in use while the last rank 0 waits for them on the same machine."""
    global _has_newcomers
    rendezvous = launcher()
    while True:
        place, made = {} if rendezvous is None else rendezvous.next_place(), None
        try:
            made = Engine(**dict(byteps_variables.settings(), **dict(settings, **_place_settings(place))))
            made.wait_ready(None if rendezvous is None else rendezvous.is_void)
            if rendezvous is not None:
                rendezvous.tell_ready()
            _has_newcomers = place.get('has_newcomers', True)
            return made
        except BaseException as problem:
            if made is not None:
                made.close()
            if not isinstance(problem, JobLostError) or (rendezvous is not None and made is None):
                raise
            if rendezvous is None:
                is_in_use = problem.status == _abi.TRIB_SYSTEM and os.strerror(errno.EADDRINUSE) in str(problem)
                if not (problem.status == _abi.TRIB_JOIN_FAILED or is_in_use) or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)  # no event tells: the workers that still leave the last job know nothing of this one


# The launcher describes a place by these fields of trib_config.
_PLACE_FIELDS = {'rank': 'rank', 'size': 'worker_count', 'coordinator': 'coordinator', 'job': 'job'}


def _place_settings(place):
    return {field: place[name] for name, field in _PLACE_FIELDS.items() if name in place}


def shutdown() -> None:
    """Leaves the job. init() may be called again afterwards."""
    global _engine, _suspended
    _suspended = None
    engine = _engine
    if engine is not None:
        engine.give_up_if_failing()
        try:
            stop_timeline()
        except (OSError, TributaryError) as problem:  # the job ends as it would without one
            logging.getLogger('tributary').warning('tributary: %s', problem)
    with _lock:
        for _, closing in _followers if _engine is not None else ():
            closing()
        gone, _engine = _engine, None
    if sys.excepthook is _told_in_short and not isinstance(sys.exc_info()[1], KeyboardInterrupt):
        sys.excepthook = sys.__excepthook__  # unless Ctrl-C is on its way through a script's `finally`
    if gone is not None:
        from . import process_sets

        process_sets.close_all()
        gone.close()


def _shutdown_at_exit():
    engine = _engine
    if engine is not None:
        engine.give_up_if_failing(is_exit=True)
    with contextlib.suppress(KeyboardInterrupt):  # a second Ctrl-C: the engine's own function closes it
        shutdown()


def begin_anew():
    """Leaves the job as it was, and joins it as it is now, with the settings of the last init()."""
    shutdown()
    init(_may_continue=_continues, **_settings)


def goes_on():
    """True if this process goes on after the loss of another worker: TRIB_SURVIVE=workers, without a launcher that
    deals out places."""
    survive = _settings.get('survive', os.environ.get('TRIB_SURVIVE'))
    return str(survive).lower() in ('workers', str(_abi.TRIB_SURVIVE_WORKERS)) and launcher() is None


def advance():
    """Goes on with the workers that are left and those that wait to join, in the engine that is there. Tensors and
    counted names begin anew, as they do on a worker that comes."""
    global _generation, _has_newcomers, _advances
    from . import process_sets

    with _lock:
        _advances = True
        try:
            for _, closing in _followers:
                closing()
        finally:
            _advances = False
        process_sets.close_all()
        _engine.forget_tensors()
        _engine.advance()
        _has_newcomers = True  # counts cannot tell: another worker may have left in good order
        _generation += 1
        for opened, _ in _followers:
            opened()


_advances = False


def is_advancing():
    """For followers: True while they close for an engine that stays."""
    return _advances


def is_lost():
    """True if the engine's job has ended because a member was lost or has left, or goes on without it."""
    return _engine is not None and (_engine.is_lost() or _engine.has_changed())


def is_initialized() -> bool:
    """True between init() and shutdown()."""
    return _engine is not None


def engine() -> Engine:
    """Returns the process's engine; NotInitializedError before init()."""
    if _engine is None:
        raise NotInitializedError('tributary has not been initialized: call init() first')
    return _engine


def has_newcomers():
    """True if workers may have come in with the last change that were not in the job before."""
    return _has_newcomers


def generation():
    """Returns a number that changes with each init(), and each time that the job goes on with others."""
    return _generation


def rank() -> int:
    """This worker's number in the job, from 0."""
    return engine().rank if _suspended is None else _suspended.rank


def size() -> int:
    """How many workers the job has."""
    return engine().size if _suspended is None else _suspended.worker_count


def _info():
    return engine().info() if _suspended is None else _suspended


def local_rank() -> int:
    """This worker's number among those of its machine, from 0."""
    return _info().local_rank


def local_size() -> int:
    """How many workers this machine has."""
    return _info().local_size


def cross_rank() -> int:
    """The number of this worker's machine among those that have a worker of its local rank."""
    return _info().cross_rank


def cross_size() -> int:
    """How many machines have a worker of this local rank."""
    return _info().cross_size


def is_homogeneous() -> bool:
    """True if every machine has the same number of workers."""
    return size() == local_size() * cross_size()


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Records what the engine does from now on, until stop_timeline() or shutdown(). HOROVOD_TIMELINE names a file for
    all that a job does. mark_cycles is taken and has no meaning here."""
    global _timeline
    try:
        path = timeline.checked(file_path)
    except ArgumentError as problem:
        if rank() == 0:
            raise
        logging.getLogger('tributary').warning('tributary: rank %d records nothing: %s', rank(), problem)
        return
    engine().trace_start()
    _timeline = path


def stop_timeline() -> None:
    """Writes what rank 0 has recorded to start_timeline's file, in Chrome's format, and what each worker has to
    FILE.rankN.trib, of which `tributary trace` makes one view."""
    global _timeline
    path, _timeline = _timeline, None
    if path is not None:
        timeline.write(engine(), path)


_timeline = None


def _enter_child():
    """A forked child has no engine whose recording it could write when it ends."""
    global _timeline
    _timeline = None


os.register_at_fork(after_in_child=_enter_child)


# Horovod's functions that tell what the library was built with. Scripts choose their way by them. verbose is taken and
# has no meaning.


def gloo_built(verbose: bool = False) -> bool:
    """True: sums over sockets between CPUs are there, whatever was built."""
    return True


gloo_enabled = mpi_threads_supported = gloo_built


def cuda_built() -> bool:
    """True where this process's engine sums in the memory of a GPU."""
    return os.environ.get('TRIB_DEVICE') == 'cuda'


def nccl_built(verbose: bool = False) -> int:
    """1 where NCCL sums inside a machine, else 0."""
    return int(cuda_built())


def mpi_built(verbose: bool = False) -> bool:
    """False, as for the other libraries that are not used."""
    return False


mpi_enabled = ddl_built = ccl_built = rocm_built = mpi_built


# BytePS's functions of a job.


def get_pushpull_speed() -> tuple[float, float]:
    """Returns the time in seconds and the MB pushed and pulled for each second since the last call, as BytePS does."""
    stats, now = engine().stats(), time.time()
    moved = stats.bytes_pushed + stats.bytes_pulled
    before, _speed['last'] = _speed.get('last', (now, moved)), (now, moved)
    return now, (moved - before[1]) / 1e6 / max(now - before[0], 1e-9)


_speed = {}
_suspended = None  # what the engine knew when suspend() closed it


def suspend() -> None:
    """Leaves the job; resume() joins it again, with other counts if need be. rank() and its kin keep their answers
    until then."""
    global _suspended
    info = _suspended if _engine is None else engine().info()
    shutdown()
    _suspended = info


def resume(num_workers: int, num_servers: int, global_rank: int, context: Any = None) -> None:
    """Joins the job again as rank global_rank of num_workers, with num_servers servers and else the settings of the
    last init(). All workers that go on call it; the coordinator stays at its address, so rank 0 has to be on the same
    machine as before, unless TRIB_STORE names a store, where it is found. Under `tributary run --elastic` the launcher
    says ranks and counts, and these arguments have no meaning."""
    settings = {name: value for name, value in _settings.items() if name != 'comm'}  # others may be in it
    init(
        _may_continue=_continues, **dict(settings, rank=global_rank, worker_count=num_workers, server_count=num_servers)
    )


@contextlib.contextmanager
def initialized(**settings):
    """init() on entry, shutdown() on exit."""
    init(**settings)
    try:
        yield engine()
    finally:
        shutdown()

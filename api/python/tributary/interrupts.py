"""Ctrl-C while the main thread waits in a framework's own code, where the interpreter cannot raise KeyboardInterrupt:
what it waits for ends with the engine, so that the wait ends, too."""

import contextlib
import os
import signal
import sys
import threading
import time
import weakref

PATIENCE_S = 1.0  # for an operation to complete while the main thread does not move
_LOOK_S = 0.05

_engines = weakref.WeakSet()
_followers = []
_written = None  # the descriptor to which the interpreter writes the numbers of signals


def follow(begun, ended):
    """For bindings with native parts: `begun` is called when Ctrl-C has come, `ended` when the main thread runs on."""
    _followers.append((begun, ended))


def watch(engine):
    """Ends an engine's operations after a Ctrl-C that the main thread cannot take because it waits for one of them. The
    main thread makes the first engine, as the interpreter lets no other one ask for signals; else nothing is done."""
    global _written
    _engines.add(engine)
    if _written is not None or threading.current_thread() is not threading.main_thread():
        return
    read, written = os.pipe()
    os.set_blocking(written, False)
    before = signal.set_wakeup_fd(written, warn_on_full_buffer=False)
    if before != -1:  # an event loop wants to know of signals, and there is one place for that
        signal.set_wakeup_fd(before)
        os.close(read)
        os.close(written)
        return
    _written = written
    # A daemon: the interpreter waits for other threads before it closes engines.
    threading.Thread(target=_run, args=(read,), name='tributary signals', daemon=True).start()


def _run(read):
    while True:
        numbers = os.read(read, 64)
        # Another handler may only take a note of the signal, and let the step be completed.
        if signal.SIGINT in numbers and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            for begun, _ in _followers:
                begun()
            _end_waits()
            for _, ended in _followers:
                ended()


def _end_waits():
    """Returns when the main thread runs on. Engines are given up whose operations do not move meanwhile."""
    place, counts, since = _place(), _counts(), time.monotonic()
    while _is_stuck(place):
        time.sleep(_LOOK_S)
        if time.monotonic() - since > PATIENCE_S:
            before, counts, since = counts, _counts(), time.monotonic()
            for engine, (ended, in_flight) in counts.items():
                if in_flight and before.get(engine) == (ended, in_flight) and _is_stuck(place):
                    engine.give_up()


def _is_stuck(place):
    return _place() == place and not _is_raised()


def _place():
    """Where the main thread is: the same again if it has run no code of Python's meanwhile."""
    frame = sys._current_frames().get(threading.main_thread().ident)
    return frame, frame and frame.f_lasti


def _is_raised():
    """True if the main thread has its exception already: what it waits for in the clause that handles it, goes on."""
    problem = getattr(sys, '_current_exceptions', dict)().get(threading.main_thread().ident)
    return isinstance(problem[1] if isinstance(problem, tuple) else problem, KeyboardInterrupt)


def _counts():
    counts = {}
    for engine in list(_engines):
        with contextlib.suppress(RuntimeError):  # it has been closed
            stats = engine.stats()
            counts[engine] = stats.ops_completed + stats.ops_failed, stats.ops_in_flight
    return counts


def _enter_child():
    """A forked child has no such thread, and must not tell its parent of its own signals."""
    global _written
    _engines.clear()
    if _written is not None:
        before = signal.set_wakeup_fd(-1)
        if before != _written:
            signal.set_wakeup_fd(before)
        os.close(_written)
        _written = None


os.register_at_fork(after_in_child=_enter_child)

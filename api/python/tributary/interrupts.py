"""Ctrl-C while the main thread waits in a framework's own code, where the interpreter cannot raise KeyboardInterrupt:
what it waits for ends with the engine, so that the wait ends, too."""

import contextlib
import ctypes
import os
import select
import signal
import threading
import time
import weakref

PATIENCE_S = 5.0  # for the main thread to run, while nothing moves
_SECOND_S = 0.5  # signals that come closer together are one: a launcher hands on what the terminal sends, too
_LOOK_MS = 50

_engines = weakref.WeakSet()
_followers = []
_pipe = ()  # its two ends; the interpreter writes the numbers of signals into the second
_marks = []  # one, from a Ctrl-C until the main thread runs: it carries out pending calls then
# A method in C: a handler of signals would run within Python's code, and ctypes would swallow its KeyboardInterrupt.
_take_mark = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(_marks.pop)


def follow(begun, ended):
    """For bindings with native parts: `begun` is called when Ctrl-C has come, `ended` when the main thread runs on."""
    _followers.append((begun, ended))


def watch(engine):
    """Ends an engine's operations after a Ctrl-C that the main thread cannot take because it waits for one of them. The
    main thread makes the first engine, as the interpreter lets no other one ask for signals; else nothing is done."""
    global _pipe
    _engines.add(engine)
    if _pipe:
        return
    ends = os.pipe()
    os.set_blocking(ends[1], False)
    try:
        before = signal.set_wakeup_fd(ends[1], warn_on_full_buffer=False)
    except ValueError:  # the interpreter refuses
        _close(ends)
        return
    if before != -1:  # an event loop wants to know of signals, and there is one place for that
        signal.set_wakeup_fd(before)
        _close(ends)
        return
    _pipe = ends
    # A daemon: the interpreter waits for other threads before it closes engines.
    threading.Thread(target=_run, args=(ends[0],), name='tributary signals', daemon=True).start()


def _close(ends):
    for end in ends:
        os.close(end)


def _run(end):
    come = select.poll()
    come.register(end, select.POLLIN)
    while True:
        # Another handler may only take a note of the signal, and let the step be completed.
        if _has_come(end) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            for begun, _ in _followers:
                begun()
            _end_waits(lambda: come.poll(_LOOK_MS) and _has_come(end))
            for _, ended in _followers:
                ended()


def _has_come(end):
    return signal.SIGINT in os.read(end, 4096)


def _end_waits(comes_again):
    """Returns when the main thread has run. Before, engines with operations in flight are given up at a second Ctrl-C,
    or when nothing has moved for a while."""
    _marks.append(0)
    while ctypes.pythonapi.Py_AddPendingCall(_take_mark, None) != 0:
        time.sleep(_LOOK_MS / 1000)  # many calls are pending
    counts = _counts()
    began = since = time.monotonic()
    while _marks:
        comes, now = comes_again(), time.monotonic()
        before, counts = counts, _counts()
        if counts != before:
            since = now
        if (comes and now - began > _SECOND_S) or now - since > PATIENCE_S:
            for engine, (in_flight, *_) in counts.items():
                if in_flight and _marks:
                    _engines.discard(engine)  # once is enough
                    engine.give_up()


def _counts():
    counts = {}
    with contextlib.suppress(RuntimeError):  # another thread makes an engine, or closes this one
        for engine in list(_engines):
            stats = engine.stats()
            moved = stats.ops_completed + stats.ops_failed, stats.bytes_pushed + stats.bytes_pulled
            counts[engine] = stats.ops_in_flight, *moved
    return counts


def _enter_child():
    """A forked child has no such thread, and must not tell its parent of its own signals."""
    global _pipe
    _engines.clear()
    if _pipe:
        before = signal.set_wakeup_fd(-1)
        if before != _pipe[1]:
            signal.set_wakeup_fd(before)
        _close(_pipe)
        _pipe = ()


os.register_at_fork(after_in_child=_enter_child)

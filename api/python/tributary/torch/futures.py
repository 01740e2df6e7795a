"""PyTorch's futures of operations, and names for what their callbacks submit.

Operations without a name are counted, and belong with those of the same number on the other workers. Callbacks run as
operations end, so their order differs from worker to worker. A count of its own for each callback does not depend on
that order: a Line, whose name tells where in the program the callback was given."""

import functools
import itertools
import threading
import weakref

import torch

# Private names of PyTorch's, which a version may lack.
_HAS_STATE = all(hasattr(torch._C, n) for n in ('_stash_obj_in_tls', '_is_key_in_tls', '_current_graph_task_id'))
_lock = threading.Lock()
_running = threading.local()  # .line: of the callback that runs on a thread
_lines = weakref.WeakKeyDictionary()  # by future: PyTorch's have no room for more


class Line:
    """The numbers of what a callback submits, or of what is done with a future."""

    def __init__(self, name):
        self.name, self._count = name, itertools.count()

    def next(self):
        """Returns the line of the next one."""
        return Line('%s.%d' % (self.name, next(self._count)))


def line():
    """Returns the line of the callback that runs on this thread, or None."""
    return getattr(_running, 'line', None)


def counted(engine, key):
    """Returns how many were counted under a key before. Threads may submit at once."""
    with _lock:
        turn = engine.turns[key] = engine.turns.get(key, -1) + 1
    return turn


def has_order():
    """Returns whether this thread's calls have an order among all: those of the main thread, which waits for its
    backward passes. PyTorch takes a thread's state along to threads of its own on which its backward pass runs; where
    it has no such state, these threads count as others."""
    if threading.get_ident() == threading.main_thread().ident:
        if _HAS_STATE:
            torch._C._stash_obj_in_tls('tributary.main', True)
        return True
    return _HAS_STATE and torch._C._current_graph_task_id() >= 0 and torch._C._is_key_in_tls('tributary.main')


def of_thread(kind):
    """Returns what counts operations of a kind: threads whose calls have no order among all count for themselves."""
    return kind if has_order() else 'thread.' + kind


def next_line(engine):
    """Returns a line for a future of an operation, which has just been submitted."""
    if line() is not None:
        return line().next()
    kind = of_thread('line')
    return Line('%s@%s.%d' % (engine.name, kind, counted(engine, kind)))


def future_of(handle, outcome, its_line, is_in_place=False):
    """Returns a future of what outcome(None) returns when the operations of a handle are complete. is_in_place:
    outcome() copies nothing, so it may run on another stream than the caller's."""
    operations, device = handle.operations, handle.device
    complete = torch.futures.Future(devices=[device] if device is not None else None)
    if device is not None and not is_in_place:
        outcome = _on_stream(torch.cuda.current_stream(device), outcome)
    # What reads a future in C++, such as DistributedDataParallel, sees an error only if a callback raises it.
    future = complete.then(outcome)
    _lines[future] = its_line
    if not operations:
        complete.set_result(None)
        return future
    if device is not None:
        # The caller goes on giving work to the GPU, while the other workers may not have come so far. Callbacks run on
        # a stream of PyTorch's that outcome() lets wait.
        launch = functools.partial(_wait_for_launch, operations)
        operations[0][0].run_apart(functools.partial(complete.set_result, None), launch)
        return future
    count = itertools.count(1)

    def finish(_unused):
        if next(count) == len(operations):
            # What follows may wait for another future, and this thread completes all of them.
            operations[0][0].run_apart(functools.partial(complete.set_result, None))

    for operation, _ in operations:
        operation.future().add_done_callback(finish)
    return future


def _on_stream(stream, outcome):
    """Returns outcome() on the caller's stream: its copies read and write memory that PyTorch gives out again in the
    order of that stream. The future's own stream waits for them, and what waits for the future for that."""

    def run(unused):
        with torch.cuda.stream(stream):
            value = outcome(unused)
        torch.cuda.current_stream(stream.device).wait_stream(stream)
        return value

    return run


def _wait_for_launch(operations):
    for operation, place in operations:
        try:
            if place is None:
                operation.wait()
            else:
                operation.stream_wait(torch.cuda.Stream(place).cuda_stream)
        except RuntimeError:
            pass  # outcome() raises it


def _inside(its_line, callback):
    """Returns the callback with a line, whichever thread it runs on: a future that is complete calls it at once."""

    def run(future):
        before, _running.line = line(), its_line
        try:
            return callback(future)
        finally:
            _running.line = before

    return run


def _follow(name):
    plain = getattr(torch._C.Future, name)

    @functools.wraps(plain)
    def follow(self, callback):
        its_line = _lines.get(self)
        if its_line is None:
            return plain(self, callback)
        inner, outer = its_line.next(), its_line.next()
        future = plain(self, _inside(inner, callback))
        if future is not None:
            _lines[future] = outer
        return future

    setattr(torch._C.Future, name, follow)


# PyTorch makes a future's followers itself, of a type that cannot be derived from. Other futures are left as they are.
_follow('then')
_follow('add_done_callback')

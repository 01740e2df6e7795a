"""Completes futures of operations: one thread that waits for them, started when the first future is asked for."""

import concurrent.futures
import functools
import queue
import threading
import warnings
import weakref

CALLBACK_S = 60  # for callbacks to return once all operations are complete


class Completions:
    def __init__(self):
        self._condition = threading.Condition()
        self._waiting, self._thread, self._is_stopping = [], None, False
        self._apart, self._next = 0, queue.SimpleQueue()  # run_apart(): functions that have not returned; that wait
        self._threads, self._idle = weakref.WeakSet(), 0  # which run them, and how many of these have none to run
        self._launching = 0  # of these, the ones before which operations are waited for

    def future_of(self, operation):
        future = concurrent.futures.Future()
        future.set_running_or_notify_cancel()  # an operation that runs is not ended by dropping its future
        with self._condition:
            self._waiting.append((operation, future))
            if self._thread is None:
                # A daemon: the interpreter waits for other threads before it closes engines.
                self._thread = threading.Thread(target=self._run, name='tributary futures', daemon=True)
                self._thread.start()
            self._condition.notify_all()
        return future

    def run_apart(self, function, wait=None):
        """Calls wait(), which ends when operations do, and then a function, on a thread that has no other meanwhile, or
        on this one where none can be started: better that it keeps others waiting than that its future is never
        complete."""
        with self._condition:
            self._apart += 1
            self._launching += wait is not None
            is_served = self._idle > 0
            self._idle -= is_served
        self._next.put(function if wait is None else functools.partial(self._call_after, wait, function))
        try:
            if not is_served:
                threading.Thread(target=self._serve, name='tributary callbacks', daemon=True).start()
        except (RuntimeError, MemoryError):  # too many threads, or the interpreter is about to end
            self._call_next()

    def _call_after(self, wait, function):
        try:
            wait()
        finally:
            with self._condition:
                self._launching -= 1
                self._condition.notify_all()
        function()

    def _serve(self):
        """A thread of run_apart(), which stays for the next function: to start one takes longer than most of them."""
        self._threads.add(threading.current_thread())
        while self._call_next():
            with self._condition:
                if self._is_stopping:
                    return
                self._idle += 1

    def _call_next(self):
        function = self._next.get()
        if function is None:
            return False
        try:
            function()
        finally:
            with self._condition:
                self._apart -= 1
                self._condition.notify_all()
        return True

    def stop(self):
        """Ends the thread when the futures asked for are complete, and their callbacks have returned. One that calls
        it is not waited for."""
        this = threading.current_thread()
        is_apart = this in self._threads
        with self._condition:
            thread = self._thread
            if this is not thread:
                self._condition.wait_for(self._has_no_operations)  # they end by themselves
                if not self._condition.wait_for(
                    lambda: self._has_no_operations() and self._apart == is_apart, CALLBACK_S
                ):
                    warnings.warn(
                        'a callback of a future has not returned for %g s: the engine is closed without it'
                        % CALLBACK_S,
                        stacklevel=2,
                    )
            self._is_stopping = True
            for _ in range(self._idle):
                self._next.put(None)
            self._idle = 0
            self._condition.notify_all()
        if thread is not None and thread is not this:
            thread.join()

    def _has_no_operations(self):
        return not self._waiting and not self._launching

    def _run(self):
        while True:
            with self._condition:
                while not self._waiting:
                    if self._is_stopping:
                        return
                    self._condition.wait()
                waiting = list(self._waiting)
            # The oldest is waited for; of the others it is seen every few milliseconds whether they were faster.
            try:
                waiting[0][0].wait(0.005)
            except Exception:  # the future gets it below
                pass
            finished = [pair for pair in waiting if pair[0].done()]
            for operation, future in finished:
                try:
                    future.set_result(operation.wait())
                except Exception as problem:
                    future.set_exception(problem)
            with self._condition:
                self._waiting = [pair for pair in self._waiting if pair not in finished]
                self._condition.notify_all()

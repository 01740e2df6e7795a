"""Completes futures of operations: one thread that waits for them, started when the first future is asked for."""

import concurrent.futures
import threading
import warnings

CALLBACK_S = 60  # for callbacks to return once all operations are complete


class Completions:
    def __init__(self):
        self._condition = threading.Condition()
        self._waiting, self._thread, self._is_stopping = [], None, False
        self._apart = set()  # threads of run_apart() that have not ended
        self._waiting_apart = set()  # of these, the ones that wait for operations

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
        """Calls wait(), which ends when operations do, and then a function, on a thread of its own, or on this one
        where none can be started: better that it keeps others waiting than that its future is never complete."""

        def run():
            try:
                if wait is not None:
                    wait()
                with self._condition:
                    self._waiting_apart.discard(thread)
                    self._condition.notify_all()
                function()
            finally:
                with self._condition:
                    self._apart.discard(thread)
                    self._waiting_apart.discard(thread)
                    self._condition.notify_all()

        thread = threading.Thread(target=run, name='tributary callbacks', daemon=True)
        with self._condition:
            self._apart.add(thread)
            if wait is not None:
                self._waiting_apart.add(thread)
        try:
            thread.start()
        except (RuntimeError, MemoryError):  # too many threads, or the interpreter is about to end
            run()

    def stop(self):
        """Ends the thread when the futures asked for are complete, and their callbacks have returned. One that calls
        it is not waited for."""
        this = threading.current_thread()
        with self._condition:
            thread = self._thread
            if this is not thread:
                self._condition.wait_for(self._has_no_operations)  # they end by themselves
                if not self._condition.wait_for(
                    lambda: self._has_no_operations() and self._apart <= {this}, CALLBACK_S
                ):
                    warnings.warn(
                        'a callback of a future has not returned for %g s: the engine is closed without it'
                        % CALLBACK_S,
                        stacklevel=2,
                    )
            self._is_stopping = True
            self._condition.notify_all()
        if thread is not None and thread is not this:
            thread.join()

    def _has_no_operations(self):
        return not self._waiting and not self._waiting_apart

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

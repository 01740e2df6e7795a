"""Calls of a process group: their arguments in all forms that PyTorch takes, and their deadlines."""

import datetime
import functools
import threading

import torch.distributed as dist

_inner = threading.local()  # .works: of the calls that a short form makes on a thread, while it runs


def nanoseconds(timeout):
    """Returns a timeout in nanoseconds; 0 for none, for which PyTorch's options have -1 ms."""
    return max(int(timeout.total_seconds() * 1e9), 0) if isinstance(timeout, datetime.timedelta) else 0


class Timed:
    """An engine, or a group of it, in which what is submitted has a deadline of its own."""

    def __init__(self, group, timeout_ns):
        self.timeout_ns = timeout_ns
        # A call reads some of them several times, and __getattr__() would take twenty times as long.
        for name in 'name', 'rank', 'size', 'has_device', 'gpu', 'turns', 'known', 'declare', 'declare_once':
            setattr(self, name, getattr(group, name))


def ends_coalescing(method):
    """Makes a method that raises end what start_coalescing() has begun: PyTorch leaves it open then, and nothing is to
    be kept for an end that does not come."""

    @functools.wraps(method)
    def begin(self, *arguments, **keywords):
        try:
            return method(self, *arguments, **keywords)
        except BaseException:
            vars(self._coalescing).pop('handles', None)
            raise

    return begin


def with_short_forms(method):
    """Makes a method take PyTorch's other arguments, too: a tensor instead of a list, a root, an operation or a timeout
    instead of options, keywords. The base class makes lists and options of them, and calls this again."""

    @ends_coalescing
    @functools.wraps(method)
    def begin(self, *arguments, **keywords):
        if keywords.keys() == {'opts'}:
            arguments, keywords = (*arguments, keywords['opts']), {}
        works = getattr(_inner, 'works', None)
        if not keywords and arguments and hasattr(arguments[-1], 'timeout') and _are_whole(arguments[:-1]):
            work = method(self, *arguments)
            if works is not None:
                works.append(work)
            return work
        _inner.works = made = []
        try:
            getattr(dist.ProcessGroup, method.__name__)(self, *arguments, **keywords)
        finally:
            _inner.works = works
        return made[-1]  # what PyTorch has made of it passes only wait() and get_future() on

    return begin


def _are_whole(arguments):
    return all(isinstance(each, (list, tuple)) for each in arguments)

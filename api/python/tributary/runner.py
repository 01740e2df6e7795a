"""A function in all workers of a job, started from a program of one process: Horovod's horovod.run."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from . import objects
from ._library import beside
from .errors import ArgumentError, TributaryError

_MAIN = 'from tributary import runner; runner._work(*__import__("sys").argv[1:])'


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    num_proc: int | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    env: dict[str, str] | None = None,
    executable: str | None = None,
    np: int | None = None,
    **_unused: Any,
) -> list[Any]:
    """Calls func(*args, **kwargs) in num_proc (or np) workers and returns what each of them returned, in order of rank.
    The function calls init() itself. Several hosts ("a:2,b:2", or a host file) need a folder for temporary files that
    all of them see. TributaryError if a worker fails. Functions of the program itself need cloudpickle. Further
    arguments of Horovod's are taken and have no meaning."""
    count = num_proc or np or 1
    if hosts and hostfile:
        raise ArgumentError('run: hosts and hostfile exclude each other')
    with tempfile.TemporaryDirectory() as folder:
        with open(folder + '/call', 'wb') as file:
            file.write(objects.dumps((func, tuple(args), dict(kwargs or {}))))
        place = ['-H', hosts] if hosts else ['--hostfile', hostfile] if hostfile else []
        python = [executable or sys.executable, '-c', _MAIN, folder]
        command = [beside('tributary'), 'run', '-n', str(count), *place, '--', *python]
        status = subprocess.run(command, env=dict(os.environ if env is None else env)).returncode
        if status != 0:
            raise TributaryError('run: a worker ended with status %d; its output says why' % status)
        return [_result(os.path.join(folder, str(rank))) for rank in range(count)]


def _result(path):
    if not os.path.exists(path):
        raise TributaryError('run: worker %s has left no result: do all hosts see %s?' % os.path.split(path)[::-1])
    with open(path, 'rb') as file:
        return objects.loads(file.read())


def _work(folder):
    """What a worker does."""
    with open(folder + '/call', 'rb') as file:
        func, arguments, keywords = objects.loads(file.read())
    result = func(*arguments, **keywords)
    with open(os.path.join(folder, os.environ['TRIB_RANK']), 'wb') as file:
        file.write(objects.dumps(result))

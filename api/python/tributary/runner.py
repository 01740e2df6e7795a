"""A function in all workers of a job, started from a program of one process: Horovod's horovod.run."""

from __future__ import annotations

import os
import site
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from . import objects, rendezvous
from ._library import beside
from .errors import ArgumentError, TributaryError, UnsupportedError

_WORKERS_MAX = 4096  # of a job
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
    *,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    host_discovery_script: str | None = None,
    slots: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Sequence[int] | None = None,
    **_unused: Any,
) -> list[Any]:
    """Calls func(*args, **kwargs) in num_proc (or np) workers and returns what each of them returned, in order of rank.
    The function calls init() itself. Several hosts ("a:2,b:2", or a host file) need a folder for temporary files that
    all of them see. TributaryError if a worker fails. Functions of the program itself need cloudpickle.

    With min_num_proc or host_discovery_script the job is elastic: it trains while that many workers are there
    (num_proc by default), with at most max_num_proc (all slots of the hosts by default). Then the results are those of
    the first min_num_proc ranks at the end. Further arguments of Horovod's are taken and have no meaning."""
    count = num_proc or np or min_num_proc or min_np or 1
    least, most = min_num_proc or min_np or count, max_num_proc or max_np
    is_elastic = host_discovery_script is not None or (min_num_proc or min_np) is not None
    if (hosts is not None) + (hostfile is not None) + (host_discovery_script is not None) > 1:
        raise ArgumentError('run: hosts, hostfile and host_discovery_script exclude each other')
    if most is not None and (not is_elastic or most < least):
        raise ArgumentError('run: max_num_proc=%d needs a min_num_proc that is not larger' % most)
    if is_elastic and not (reset_limit is None and cooldown_range is None):
        raise UnsupportedError('run: reset_limit and cooldown_range have no counterpart here: leave them out')
    if slots is not None and host_discovery_script is not None:
        raise ArgumentError('run: slots=%d: the discovery script must print the slots of each host, "a:2"' % slots)
    with tempfile.TemporaryDirectory() as folder:
        with open(folder + '/call', 'wb') as file:
            file.write(objects.dumps((func, tuple(args), dict(kwargs or {}))))
        place = ['-H', hosts] if hosts else ['--hostfile', hostfile] if hostfile else []
        if is_elastic:
            has_hosts = place or host_discovery_script is not None
            place += ['--elastic', '%d:%d' % (least, most or (_WORKERS_MAX if has_hosts else max(least, count)))]
            place += [] if host_discovery_script is None else ['--discover', host_discovery_script]
        else:
            place += ['-n', str(count)]
        python = [executable or sys.executable, '-c', _MAIN, folder]
        command = [beside('tributary'), 'run', *place, '--', *python]
        variables = dict(os.environ if env is None else env)
        if executable is None:  # the function may be one of a module beside the script: workers look where this does
            folders = [variables.get('PYTHONPATH'), *_own_folders()]
            variables['PYTHONPATH'] = os.pathsep.join(filter(None, folders))
        status = subprocess.run(command, env=variables).returncode
        if status != 0:
            raise TributaryError('run: a worker ended with status %d; its output says why' % status)
        return [_result(os.path.join(folder, str(rank))) for rank in range(least if is_elastic else count)]


def _own_folders():
    """Where this program looks for modules, but for the interpreter's own places: every worker looks there, and another
    interpreter that it starts must not."""
    places = [sysconfig.get_path(name) for name in ('stdlib', 'platstdlib', 'purelib', 'platlib')]
    places += [*site.getsitepackages(), site.getusersitepackages()]
    places = tuple(os.path.join(place, '') for place in places)
    folders = filter(os.path.exists, map(os.path.abspath, sys.path))
    return [folder for folder in folders if not os.path.join(folder, '').startswith(places)]


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
    launcher = rendezvous.mine()
    rank = os.environ['TRIB_RANK'] if launcher is None else launcher.rank
    if rank is None:
        raise TributaryError(
            'run: the function has not called init(), by which the workers of an elastic job get ranks'
        )
    with open(os.path.join(folder, str(rank)), 'wb') as file:
        file.write(objects.dumps(result))

#!/usr/bin/env python3
"""Training with PyTorch that goes on by itself (TRIB_SURVIVE=continue): rank 0 is killed, and the others lose no step
and have the same parameters. Prints `ok NAME` / `not ok NAME: why`, or one `skip NAME: why` and exits with 77."""

import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(os.path.dirname(HERE), 'process'))
import python_bed  # noqa: E402
from cases import PIPES, job_settings, read_until, run_cases  # noqa: E402
from elastic_bed import open_gate  # noqa: E402


def worker_is_killed(python):
    with tempfile.TemporaryDirectory() as folder:
        env = python_bed.environment(**job_settings(3, TRIB_SURVIVE='continue'))
        command = [python, HERE + '/continue_cases.py', folder + '/gate']
        workers = [subprocess.Popen(command, env=dict(env, TRIB_RANK=str(rank)), **PIPES) for rank in range(3)]
        try:
            survive(workers, folder + '/gate')
        finally:
            for worker in workers:
                worker.kill()
                worker.communicate()


def survive(workers, gate):
    said = [[], [], []]
    read_until(workers[0], 'step 3', said[0])
    workers[0].kill()
    for rank in 1, 2:
        read_until(workers[rank], r'\[4\.0\]', said[rank])
    open_gate(gate)
    ends = [read_until(workers[rank], 'end: ', said[rank]) for rank in (1, 2)]
    assert ends[0] == ends[1], ends  # steps, gradients and parameters
    for rank in 1, 2:
        workers[rank].communicate(timeout=python_bed.TIMEOUT)
        assert workers[rank].returncode == 0, ''.join(said[rank])[-2000:]


def main():
    python, why = python_bed.interpreter('torch')
    if python is None:
        print('skip continue_torch: ' + why)
        return 77
    return run_cases([('worker_is_killed', lambda: worker_is_killed(python))])


if __name__ == '__main__':
    sys.exit(main())

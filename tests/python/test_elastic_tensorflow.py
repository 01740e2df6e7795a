#!/usr/bin/env python3
"""Elastic training with Keras on TensorFlow: a worker is killed and comes back, or another one comes in. Prints `ok
NAME` / `not ok NAME: why`, or one `skip NAME: why` and exits with 77.
"""

import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(os.path.dirname(HERE), 'process'))
import python_bed  # noqa: E402
from cases import PIPES, job_settings, run_cases  # noqa: E402
from elastic_bed import Job, all_have_trained, open_gate  # noqa: E402


def worker_is_lost(python):
    with tempfile.TemporaryDirectory() as folder:
        gate = folder + '/gate'
        job = Job('--elastic', '1:2', '--', python, HERE + '/elastic_keras_cases.py', gate, KERAS_BACKEND='tensorflow')
        job.has_size(2, seconds=120)
        victim = next(pid for pid, each in job.steps().items() if each[1] == 0)
        job.kill(victim)
        job.comes_to(lambda steps: victim not in steps, 'the end of the worker that was killed')
        job.has_size(2, seconds=120)
        open_gate(gate)
        output = job.end(seconds=180)
    assert output.count('was ended by signal 9') == 1, output[-2500:]
    all_have_trained(output, 2)


def names_begin_anew(python):
    """A worker comes into a job in which a name has had two shapes, and uses it for the second one first."""
    env = python_bed.environment(**job_settings(2, TRIB_SURVIVE='workers'))
    command = [python, HERE + '/elastic_names_cases.py']
    workers = [subprocess.Popen(command, env=dict(env, TRIB_RANK=rank), **PIPES) for rank in ('0', '1', '-1')]
    try:
        outputs = [worker.communicate(timeout=python_bed.TIMEOUT)[0] for worker in workers]
        assert ''.join(outputs).count('of 3 is right') == 3, ''.join(outputs)[-2500:]
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


def main():
    python, reason = python_bed.interpreter('tensorflow')
    if python is None:
        print('skip elastic_tensorflow: ' + reason)
        return 77
    return run_cases(
        [
            ('worker_is_lost', lambda: worker_is_lost(python)),
            ('names_begin_anew', lambda: names_begin_anew(python)),
        ]
    )


if __name__ == '__main__':
    sys.exit(main())

#!/usr/bin/env python3
"""examples/pytorch.py on processors, where PyTorch is installed (tests/gpu runs it on GPUs). Prints `ok NAME` / `not ok
NAME: why`, or one `skip NAME: why` and exits with 77.
"""
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import run_cases  # noqa: E402

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(SOURCE, os.environ.get('TRIB_BUILD', 'build/release'))
EXAMPLE = SOURCE + '/examples/pytorch.py'


def run(ranks, *arguments):
    env = {k: v for k, v in os.environ.items() if not k.startswith('TRIB_')}
    return subprocess.run([BUILD + '/tributary', 'run', '-n', str(ranks), '--', sys.executable, EXAMPLE, *arguments], timeout=180,
                          env=dict(env, LD_LIBRARY_PATH=BUILD, OMP_NUM_THREADS='1'), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ranks_train_alike():
    result = run(3)
    assert result.returncode == 0, result.stdout[-1500:]
    for rank in range(3):
        assert 'worker %d of 3, processors' % rank in result.stdout, result.stdout[-1500:]


def a_loss_that_does_not_fall_is_told():
    result = run(1, '1')
    assert result.returncode != 0 and 'the loss did not fall' in result.stdout, result.stdout[-1500:]


def main():
    if subprocess.run([sys.executable, '-c', 'import torch'], stderr=subprocess.DEVNULL).returncode != 0:
        print('skip pytorch: PyTorch is not installed')
        return 77
    if os.path.basename(BUILD).startswith(('asan', 'tsan')):
        print('skip pytorch: a library with a sanitizer cannot be loaded into Python')
        return 77
    return run_cases([('ranks_train_alike', ranks_train_alike), ('loss_that_stays', a_loss_that_does_not_fall_is_told)])


if __name__ == '__main__':
    sys.exit(main())

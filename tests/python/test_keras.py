#!/usr/bin/env python3
"""tributary.keras on each of Keras 3's backends. Prints `ok NAME` / `not ok NAME: why`, or `skip NAME: why`; exits with
77 if all is skipped.
"""

import os
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import python_bed  # noqa: E402
from cases import run_cases  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))


def keras(python, backend, workers):
    with tempfile.TemporaryDirectory() as folder:
        output = python_bed.run_workers(
            python, workers, HERE + '/keras_cases.py', KERAS_BACKEND=backend, SCRATCH=folder, JAX_PLATFORMS='cpu'
        )
    assert output.count('keras on %s is right' % backend) == workers, output[-1500:]


def main():
    cases = []
    for backend in 'tensorflow', 'jax', 'torch':
        python, reason = python_bed.interpreter(backend)
        if python is None:
            print('skip keras_on_%s: %s' % (backend, reason))
            continue
        cases.append(('keras_on_' + backend, lambda python=python, backend=backend: keras(python, backend, 2)))
        if backend == 'tensorflow':
            cases.append(('example', lambda python=python: python_bed.example_learns(python, 'train_keras.py')))
    return run_cases(cases) if cases else 77


if __name__ == '__main__':
    sys.exit(main())

#!/usr/bin/env python3
"""tributary.mxnet with workers on this machine's processors. Prints `ok NAME` / `not ok NAME: why`, or one `skip NAME:
why` and exits with 77.

  tests/python/test_mxnet.py [mxnet2]      mxnet2: with MXNet 2.0 in place of 1.9
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import python_bed  # noqa: E402
from cases import run_cases  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))


def all_cases(python, workers, *options):
    output = python_bed.run_workers(python, workers, HERE + '/mxnet_cases.py', options=options)
    assert output.count('is right') == 16 * workers, output[-1500:]


WAITS = '''
import mxnet as mx
import tributary.mxnet as trib
trib.init()
trib.allreduce(mx.nd.ones((3,)), name='of all').wait_to_read()
interrupted(trib.rank(), lambda name: trib.allreduce(mx.nd.ones((3,)), name=name).wait_to_read())
'''


def main():
    python, reason = python_bed.interpreter(sys.argv[1] if len(sys.argv) > 1 else 'mxnet')
    if python is None:
        print('skip mxnet: ' + reason)
        return 77
    return run_cases(
        [
            ('alone', lambda: all_cases(python, 1)),
            ('two_workers', lambda: all_cases(python, 2)),
            ('three_and_a_server', lambda: all_cases(python, 3, '-s', '1')),
            ('ctrl_c', lambda: python_bed.ctrl_c_ends_waits(python, WAITS)),
            ('example', lambda: python_bed.example_learns(python, 'train_mxnet.py')),
        ]
    )


if __name__ == '__main__':
    sys.exit(main())

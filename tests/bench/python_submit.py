#!/usr/bin/env python3
"""The cost of Python for one operation: processor time of the submitting thread, for 200 tensors of 1 KiB, the least of
60 rounds. `python_submit.py`, or `tributary run -n 2 -- python3 tests/bench/python_submit.py`; with PyTorch, if that is
installed."""

import time

import numpy as np
import tributary

COUNT, ROUNDS = 200, 60


def measure(what, submit):
    best = float('inf')
    for _ in range(ROUNDS):
        begin = time.thread_time_ns()
        operations = submit()
        best = min(best, time.thread_time_ns() - begin)
        for operation in operations:
            operation.wait()
    if tributary.rank() == 0:
        print('%-28s %5.1f us' % (what, best / COUNT / 1e3))


def main():
    tributary.init()
    arrays = [np.ones(256, np.float32) for _ in range(COUNT)]
    tensors = [tributary.engine().declare_like('array %d' % i, array) for i, array in enumerate(arrays)]
    starts = [tensor.prepare_push_pull(array) for tensor, array in zip(tensors, arrays)]
    measure('prepare_push_pull(), then it', lambda: [start() for start in starts])
    measure('push_pull() of numpy', lambda: [tensor.push_pull(array) for tensor, array in zip(tensors, arrays)])
    try:
        import torch
        import tributary.torch as trib
    except ImportError:
        return
    named = [('tensor %d' % i, torch.from_numpy(array)) for i, array in enumerate(arrays)]
    measure('allreduce_async_() of torch', lambda: [trib.allreduce_async_(tensor, name=name) for name, tensor in named])


if __name__ == '__main__':
    main()
    tributary.shutdown()

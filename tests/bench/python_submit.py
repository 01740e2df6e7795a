#!/usr/bin/env python3
"""The cost of Python for one operation: processor time of the submitting thread, for 200 tensors of 1 KiB, the least of
60 rounds. `python_submit.py`, or `tributary run -n 2 -- python3 tests/bench/python_submit.py`; with PyTorch, if that is
installed. `python3 -m torch.distributed.run --nproc-per-node 2 tests/bench/python_submit.py`: of torch.distributed's
all_reduce(), with Gloo beside it."""

import functools
import os
import time

import numpy as np
import tributary

COUNT, ROUNDS = 200, 60


def measure(what, submit, rank):
    best = float('inf')
    for _ in range(ROUNDS):
        begin = time.thread_time_ns()
        operations = submit()
        best = min(best, time.thread_time_ns() - begin)
        for operation in operations:
            operation.wait()
    if rank == 0:
        print('%-28s %5.1f us' % (what, best / COUNT / 1e3))


def measure_backends():
    import torch
    import torch.distributed as dist
    import tributary.torch.c10d  # noqa: F401

    dist.init_process_group('tributary')
    tensors = [torch.ones(256) for _ in range(COUNT)]
    for name, group in ('tributary', None), ('gloo', dist.new_group(backend='gloo')):
        begin = functools.partial(dist.all_reduce, group=group, async_op=True)
        measure('all_reduce() of ' + name, lambda begin=begin: list(map(begin, tensors)), dist.get_rank())
    dist.destroy_process_group()


def main():
    if 'MASTER_ADDR' in os.environ:
        measure_backends()
        return
    tributary.init()
    rank = tributary.rank()
    arrays = [np.ones(256, np.float32) for _ in range(COUNT)]
    tensors = [tributary.engine().declare_like('array %d' % i, array) for i, array in enumerate(arrays)]
    starts = [tensor.prepare_push_pull(array) for tensor, array in zip(tensors, arrays)]
    measure('prepare_push_pull(), then it', lambda: [start() for start in starts], rank)
    measure('push_pull() of numpy', lambda: [tensor.push_pull(array) for tensor, array in zip(tensors, arrays)], rank)
    try:
        import torch
        import tributary.torch as trib
    except ImportError:
        return
    named = [('tensor %d' % i, torch.from_numpy(array)) for i, array in enumerate(arrays)]
    measure(
        'allreduce_async_() of torch',
        lambda: [trib.allreduce_async_(tensor, name=name) for name, tensor in named],
        rank,
    )


if __name__ == '__main__':
    main()
    tributary.shutdown()

"""A communication hook for torch.nn.parallel.DistributedDataParallel: its buckets are averaged by this engine,
whatever backend the process group has.

    model = DistributedDataParallel(model)
    model.register_comm_hook(None, tributary.torch.hooks.allreduce_hook)
"""

import torch

from .. import _abi, job
from . import exchange


def allreduce_hook(state, bucket):
    """Averages a bucket in place and returns its future. Call init() first; state is not used."""
    buffer = bucket.buffer()
    handle = exchange.all_reduce(
        job.engine(),
        buffer,
        buffer,
        _abi.TRIB_AVG,
        'bucket.%d.%d' % (bucket.index(), buffer.numel()),
        priority=bucket.index(),
    )
    future = torch.futures.Future()
    ((operation, device),) = handle.operations
    if device is not None:
        handle.wait()  # the stream waits
        future.set_result(buffer)
        return future

    def complete(finished):
        problem = finished.exception()
        if problem is None:
            future.set_result(buffer)
        else:
            future.set_exception(problem)

    operation.future().add_done_callback(complete)
    return future

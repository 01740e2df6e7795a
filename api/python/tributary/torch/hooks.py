"""A communication hook for torch.nn.parallel.DistributedDataParallel: its buckets are averaged by this engine,
whatever backend the process group has.

    model = DistributedDataParallel(model)
    model.register_comm_hook(None, tributary.torch.hooks.allreduce_hook)
"""

from .. import _abi, job
from . import exchange, futures


def allreduce_hook(state, bucket):
    """Averages a bucket in place and returns its future. Call init() first; state is not used."""
    buffer = bucket.buffer()
    engine = job.engine()
    handle = exchange.all_reduce(
        engine,
        buffer,
        buffer,
        _abi.TRIB_AVG,
        'bucket.%d.%d' % (bucket.index(), buffer.numel()),
        priority=bucket.index(),
    )
    return futures.future_of(handle, lambda _unused: handle.wait(), futures.next_line(engine), is_in_place=True)

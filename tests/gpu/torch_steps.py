#!/usr/bin/env python3
"""Trains as a script of Horovod's does, on GPUs, as one worker of a job: init() first, then the GPU is chosen by the
local rank. The parameters must be the same on all workers to the bit, the loss must fall, and sums of whole numbers be
exact.

GPU_DDP=1 trains with torch.distributed's DistributedDataParallel over the backend instead.
"""

import os
import sys

import torch

import tributary.torch as hvd

STEPS, WIDTH = 200, 64


def network():
    layers = torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.BatchNorm1d(WIDTH), torch.nn.Linear(WIDTH, 8)
    return torch.nn.Sequential(*layers).cuda()


def steps_of(model, optimizer):
    """Returns the loss of each step; the samples are another worker's on each rank."""
    losses = []
    for _ in range(STEPS):
        samples = torch.randn(64, WIDTH, device='cuda')
        loss = torch.nn.functional.mse_loss(model(samples), samples[:, :8].abs())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    losses = torch.stack(losses).tolist()
    return sum(losses[:5]) / 5, sum(losses[-5:]) / 5


def check_training(model, reduce_in_place):
    """True if the parameters are the same everywhere. Their bits are compared as whole numbers."""
    bits = torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).view(torch.int32)
    least, most = bits.clone(), bits.clone()
    reduce_in_place(least, 'min')
    reduce_in_place(most, 'max')
    assert torch.equal(least, bits) and torch.equal(most, bits), 'the parameters are not the same on all workers'


def train_as_horovod():
    hvd.init()
    torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
    rank, size = hvd.rank(), hvd.size()
    for count in (1, 1000, 3_000_001):
        values = torch.arange(count, device='cuda', dtype=torch.int32) % 1000
        total = hvd.allreduce(values * (rank + 1), op=hvd.Sum, name='whole.%d' % count)
        assert total.is_cuda and torch.equal(total, values * (size * (size + 1) // 2)), count
    torch.manual_seed(rank)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    first, last = steps_of(model, optimizer)
    operations = {'min': hvd.Min, 'max': hvd.Max}
    check_training(model, lambda tensor, how: hvd.allreduce_(tensor, op=operations[how]))
    hvd.shutdown()
    return rank, first, last


def train_as_ddp():
    import torch.distributed as dist

    import tributary.torch.c10d  # noqa: F401

    torch.cuda.set_device(int(os.environ['LOCAL_RANK']) % torch.cuda.device_count())
    dist.init_process_group('tributary')
    torch.manual_seed(dist.get_rank())
    model = torch.nn.parallel.DistributedDataParallel(network())
    first, last = steps_of(model, torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9))
    operations = {'min': dist.ReduceOp.MIN, 'max': dist.ReduceOp.MAX}
    check_training(model, lambda tensor, how: dist.all_reduce(tensor, op=operations[how]))
    rank = dist.get_rank()
    dist.destroy_process_group()
    return rank, first, last


def main():
    rank, first, last = (train_as_ddp if os.environ.get('GPU_DDP') else train_as_horovod)()
    assert last < first / 2, 'the loss did not fall: %.4f, then %.4f' % (first, last)
    print('worker %d, GPU %d: loss %.4f, then %.4f' % (rank, torch.cuda.current_device(), first, last), flush=True)


if __name__ == '__main__':
    sys.exit(main())

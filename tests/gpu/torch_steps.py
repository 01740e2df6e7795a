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


def rows_of(rank, count):
    return (torch.arange(count * 3, device='cuda', dtype=torch.float32) + 1000 * rank).reshape(count, 3)


def check_exchanges(rank, size):
    """Exchanges in slices and in a group; results are compared with what each rank computes itself."""
    gathered = hvd.allgather(rows_of(rank, 5000 * (rank + 1)))
    assert gathered.is_cuda and torch.equal(gathered, torch.cat([rows_of(r, 5000 * (r + 1)) for r in range(size)]))
    each = 70_001
    total = sum(rows_of(r, each * size) for r in range(size))
    scattered = hvd.reducescatter(rows_of(rank, each * size), op=hvd.Sum)
    assert scattered.is_cuda and torch.equal(scattered, total[each * rank : each * (rank + 1)])
    splits = [10 * (rank + 1) + to for to in range(size)]
    taken, lengths = hvd.alltoall(rows_of(rank, sum(splits)), splits)
    wanted, expected = [], []
    for giver in range(size):
        first = sum(10 * (giver + 1) + to for to in range(rank))
        expected.append(10 * (giver + 1) + rank)
        wanted.append(rows_of(giver, first + expected[-1])[first:])
    assert taken.is_cuda and torch.equal(taken, torch.cat(wanted)) and lengths.tolist() == expected
    some = list(range(1, size)) or [0]
    if len(some) == size:
        return
    part = hvd.add_process_set(some)
    if part.included():
        total = hvd.allreduce(rows_of(rank, 40_001), op=hvd.Sum, name='part', process_set=part)
        assert total.is_cuda and torch.equal(total, sum(rows_of(r, 40_001) for r in some))
        copy = hvd.broadcast(rows_of(rank, 40_001), root_rank=size - 1, name='part', process_set=part)
        assert torch.equal(copy, rows_of(size - 1, 40_001))


def train_as_horovod():
    hvd.init()
    torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
    rank, size = hvd.rank(), hvd.size()
    for count in (1, 1000, 3_000_001):
        values = torch.arange(count, device='cuda', dtype=torch.int32) % 1000
        total = hvd.allreduce(values * (rank + 1), op=hvd.Sum, name='whole.%d' % count)
        assert total.is_cuda and torch.equal(total, values * (size * (size + 1) // 2)), count
    check_exchanges(rank, size)
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
    rank, size = dist.get_rank(), dist.get_world_size()
    gathered = torch.empty(9000 * size, 3, device='cuda')
    dist.all_gather_into_tensor(gathered, rows_of(rank, 9000))
    assert torch.equal(gathered, torch.cat([rows_of(r, 9000) for r in range(size)]))
    scattered = torch.empty(9000, 3, device='cuda')
    dist.reduce_scatter_tensor(scattered, gathered)
    assert torch.equal(scattered, rows_of(rank, 9000) * size)
    total = rows_of(rank, 9000)
    dist.all_reduce(total, group=dist.new_group(list(range(size))))
    assert torch.equal(total, sum(rows_of(r, 9000) for r in range(size)))
    dist.destroy_process_group()
    return rank, first, last


def main():
    rank, first, last = (train_as_ddp if os.environ.get('GPU_DDP') else train_as_horovod)()
    assert last < first / 2, 'the loss did not fall: %.4f, then %.4f' % (first, last)
    print('worker %d, GPU %d: loss %.4f, then %.4f' % (rank, torch.cuda.current_device(), first, last), flush=True)


if __name__ == '__main__':
    sys.exit(main())

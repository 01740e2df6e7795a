#!/usr/bin/env python3
"""A worker of a job with TRIB_SURVIVE=continue, for test_continue_torch.py: trains until the file GATE is there. Tells
which gradients are new to it, and at the end how many steps there were, and the parameters. Usage: continue_cases.py
GATE"""

import os
import sys

import torch

import tributary.torch as hvd
from tributary.errors import UnsupportedError

GRADIENTS = [1.0, 2.0, 6.0]  # of each rank; the mean tells who has contributed


def is_refused(function, *arguments, **keywords):
    try:
        function(*arguments, **keywords)
    except UnsupportedError as problem:
        return 'TRIB_SURVIVE=continue' in str(problem)
    return False


def main():
    hvd.init()
    rank = hvd.rank()
    torch.manual_seed(rank)
    model = torch.nn.Linear(8, 8)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5), named_parameters=model.named_parameters()
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    assert is_refused(hvd.allgather, torch.zeros(2)) and is_refused(hvd.join)
    assert is_refused(
        hvd.DistributedOptimizer,
        torch.optim.SGD(model.parameters(), lr=0.01),
        named_parameters=model.named_parameters(),
        gradient_predivide_factor=2.0,
    )
    step, means, mean, is_over = 0, [], [], False
    while not is_over:
        optimizer.zero_grad()
        (sum(parameter.sum() for parameter in model.parameters()) * GRADIENTS[rank]).backward()
        optimizer.step()
        last = mean
        mean = sorted({float(each) for parameter in model.parameters() for each in parameter.grad.flatten()})
        step += 1
        if step <= 3 or mean != last:  # the loss may fall between the sums of a step, which then has both means
            print('step %d: %s' % (step, mean), flush=True)
        means += mean
        over = hvd.allreduce(torch.tensor([float(os.path.exists(sys.argv[1]))]), op=hvd.Sum, name='over')
        is_over = float(over) > 0
    assert set(means) == {3.0, 4.0} and means == sorted(means), sorted(set(means))
    assert (hvd.rank(), hvd.size()) == (rank, 3)
    numbers = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    print('end: %d steps, %d of three, %s' % (step, means.count(3.0), numbers.numpy().tobytes().hex()), flush=True)
    hvd.shutdown()


main()

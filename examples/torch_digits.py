#!/usr/bin/env python3
"""torch_digits.py - a PyTorch training script for Horovod or BytePS: the import is the one line that differs.

    tributary run -n 4 -- python3 torch_digits.py [--epochs N]

It learns to read the handwritten digits of examples/digits/digits.csv, and says how many it reads right that it has
not seen.
"""

import argparse
import os

import torch

import tributary.torch as hvd  # was: import horovod.torch as hvd


def load(path):
    """Returns images, 64 pixels from 0 to 1, and their digits."""
    with open(path, encoding='ascii') as file:
        rows = torch.tensor([[int(value) for value in line.split(',')] for line in file])
    return rows[:, :64].float() / 16, rows[:, 64]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--epochs', type=int, default=20)
    parser.add_argument(
        '--data', default=os.path.join(os.path.dirname(os.path.abspath(__file__)), 'digits', 'digits.csv')
    )
    arguments = parser.parse_args()

    hvd.init()
    torch.manual_seed(1)
    images, digits = load(arguments.data)
    order = torch.randperm(len(images))
    training, held_out = order[:1500], order[1500:]
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    sampler = torch.utils.data.distributed.DistributedSampler(training, hvd.size(), hvd.rank())
    for epoch in range(arguments.epochs):
        sampler.set_epoch(epoch)
        for batch in torch.utils.data.DataLoader(training, batch_size=25, sampler=sampler):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images[batch]), digits[batch])
            loss.backward()
            optimizer.step()

    right = (model(images[held_out]).argmax(1) == digits[held_out]).float().mean()
    accuracy = hvd.allreduce(right, name='accuracy').item()
    if hvd.rank() == 0:
        print('%d workers, %d epochs: accuracy %.1f %%' % (hvd.size(), arguments.epochs, 100 * accuracy))


if __name__ == '__main__':
    main()

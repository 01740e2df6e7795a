#!/usr/bin/env python3
"""elastic_digits.py - trains on while workers are lost and come back. It reads handwritten digits.

    tributary run --elastic 1:4 -- python3 elastic_digits.py [--epochs N] [--chaos KILLS --pause 0.1]

The state is committed after each step. With --chaos workers kill themselves at random, KILLS times in all.
"""

import argparse
import os
import random
import signal
import time

import data
import torch

import tributary.torch as hvd  # was: import horovod.torch as hvd


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--epochs', type=int, default=20)
    parser.add_argument('--chaos', type=int, default=0, metavar='KILLS')
    parser.add_argument(
        '--pause', type=float, default=0, metavar='SECONDS', help='after each step, as a larger model has'
    )
    arguments = parser.parse_args()

    hvd.init()
    torch.manual_seed(1)
    (images, digits), held_out = (tuple(map(torch.from_numpy, part)) for part in data.digits())
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    sampler = hvd.elastic.ElasticSampler(images)
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0, kills=0)

    def die_now_and_then():
        """All draw alike, so all know how many have been killed. The only worker never dies: the state would be
        lost."""
        draw = random.Random(1000 * state.epoch + len(sampler.processed_indices) + 7 * state.kills)
        if hvd.size() > 1 and state.kills < arguments.chaos and draw.random() < 0.05:
            state.kills += 1
            state.save()
            if draw.randrange(hvd.size()) == hvd.rank():
                os.kill(os.getpid(), signal.SIGKILL)

    @hvd.elastic.run
    def train(state):
        while state.epoch < arguments.epochs:
            for batch in torch.utils.data.DataLoader(range(len(images)), batch_size=25, sampler=sampler):
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(images[batch]), digits[batch])
                loss.backward()
                optimizer.step()
                sampler.record_indices(batch.tolist())
                state.commit()
                time.sleep(arguments.pause)
                die_now_and_then()
            state.epoch += 1
            sampler.set_epoch(state.epoch)
        right = (model(held_out[0]).argmax(1) == held_out[1]).float().mean()
        return hvd.allreduce(right, name='accuracy').item()

    accuracy = train(state)
    if hvd.rank() == 0:
        print('%d workers, %d epochs: accuracy %.1f %%' % (hvd.size(), state.epoch, 100 * accuracy))


if __name__ == '__main__':
    main()

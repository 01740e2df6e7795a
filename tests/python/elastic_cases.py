#!/usr/bin/env python3
"""A worker of an elastic job with PyTorch, for test_elastic_torch.py: elastic_cases.py GATE. It trains until there is a
file GATE, which the test makes when it has seen all changes. Each epoch every sample counts once, also over changes of
hosts. Prints a line for each step, as elastic_worker.py does."""

import os
import sys
import time

import torch

import tributary.torch as hvd

GATE, SAMPLES, BATCH = sys.argv[1], 60, 2


def main():
    hvd.init()
    torch.manual_seed(hvd.rank())  # the workers begin with different weights: sync() makes them alike
    model = torch.nn.Linear(4, 2)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), named_parameters=model.named_parameters()
    )
    sampler = hvd.elastic.ElasticSampler(range(SAMPLES))
    state = hvd.elastic.TorchState(
        model=model, optimizer=optimizer, sampler=sampler, epoch=0, batch=0, steps=0, over=False
    )
    state.register_reset_callbacks([lambda: setattr(state, 'batch', 0)])

    @hvd.elastic.run
    def train(state):
        while not state.over:
            for index in range(state.batch, -(-len(sampler) // BATCH)):
                chosen = sampler.get_indices(index, BATCH)
                data = torch.tensor([[float(i), 1, 2, 3] for i in chosen]) / SAMPLES
                optimizer.zero_grad()
                model(data).square().sum().backward()
                optimizer.step()
                sampler.record_batch(index, BATCH)
                state.batch, state.steps = index + 1, state.steps + 1
                print('step %d rank %d of %d pid %d' % (state.steps, hvd.rank(), hvd.size(), os.getpid()), flush=True)
                time.sleep(0.05)
                state.commit()
            used = hvd.elastic.SamplerStateHandler(sampler)
            used.sync()
            assert sampler.processed_indices == set(range(SAMPLES)), sampler.processed_indices
            state.epoch, state.batch = state.epoch + 1, 0
            sampler.set_epoch(state.epoch)
            state.over = hvd.broadcast_object(os.path.exists(GATE))
            if not state.over:
                state.save()
                state.admit()
        weights = hvd.allgather(torch.cat([p.detach().flatten() for p in model.parameters()])[None])
        assert (weights == weights[0]).all(), weights

    train(state)
    print('trained %d epochs' % state.epoch, flush=True)
    hvd.shutdown()


if __name__ == '__main__':
    main()

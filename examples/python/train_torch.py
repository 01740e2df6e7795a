#!/usr/bin/env python3
"""train_torch.py - a PyTorch script for Horovod or BytePS, in which the import is the one line that differs.

    tributary run -n 2 -- python3 train_torch.py [digits] [image] [text]

It trains a perceptron and a small residual network that read handwritten digits, and a transformer that continues
texts letter by letter. Rank 0 says how much of what a model has not seen it gets right.
"""

import os
import sys

import data
import torch
from torch import nn

import tributary.torch as hvd  # was: import horovod.torch as hvd

EPOCHS = {'digits': 10, 'image': 4, 'text': 1}


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return torch.relu(x + self.second(torch.relu(self.first(x))))


class Transformer(nn.Module):
    def __init__(self, letters, width=48):
        super().__init__()
        self.letter, self.place = nn.Embedding(letters, width), nn.Embedding(data.LENGTH, width)
        self.block = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0, batch_first=True, norm_first=True)
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, letters)
        self.register_buffer('later', torch.ones(data.LENGTH, data.LENGTH).triu(1).bool(), persistent=False)

    def forward(self, letters):
        x = self.letter(letters) + self.place.weight
        return self.out(self.norm(self.block(x, src_mask=self.later)))


def build(name, classes):
    if name == 'digits':
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, classes))
    if name == 'image':
        first = nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 16, 3, padding=1), nn.ReLU()
        return nn.Sequential(*first, Residual(16), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, classes))
    return Transformer(classes)


def train(name):
    training, held_out, classes = data.load(name)
    training = torch.utils.data.TensorDataset(*map(torch.from_numpy, training))
    model = build(name, classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.004)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    # All workers together take 32 rows a step, however many they are.
    sampler = torch.utils.data.distributed.DistributedSampler(training, hvd.size(), hvd.rank())
    loader = torch.utils.data.DataLoader(training, batch_size=max(1, 32 // hvd.size()), sampler=sampler)
    for epoch in range(EPOCHS[name]):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())
            loss.backward()
            optimizer.step()

    inputs, targets = (torch.from_numpy(array) for array in data.shard(held_out, hvd.rank(), hvd.size()))
    with torch.no_grad():
        right = (model(inputs).argmax(-1) == targets).float().mean()
    return hvd.allreduce(right, name='accuracy').item()


def main():
    hvd.init()
    torch.set_num_threads(max(1, os.cpu_count() // hvd.local_size()))  # workers of a machine share its cores
    torch.manual_seed(hvd.rank())
    for name in sys.argv[1:] or EPOCHS:
        accuracy = train(name)
        if hvd.rank() == 0:
            print('%s: %d workers: accuracy %.1f %%' % (name, hvd.size(), 100 * accuracy))


if __name__ == '__main__':
    main()

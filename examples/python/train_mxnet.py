#!/usr/bin/env python3
"""train_mxnet.py - an MXNet script for BytePS or Horovod, in which the import is the one line that differs.

    tributary run -n 2 -- python3 train_mxnet.py [digits] [image] [text]

It trains a perceptron and a small residual network that read handwritten digits, and a recurrent network that continues
texts letter by letter. Rank 0 says how much of what a model has not seen it gets right.
"""

import sys

import data
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn

import tributary.mxnet as bps  # was: import byteps.mxnet as bps, or import horovod.mxnet as hvd

EPOCHS = {'digits': 10, 'image': 4, 'text': 1}


class Residual(nn.HybridBlock):
    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2D(channels, 3, padding=1, activation='relu')
        self.second = nn.Conv2D(channels, 3, padding=1)

    def forward(self, x):
        return mx.npx.relu(x + self.second(self.first(x)))


def build(name, classes):
    net = nn.Sequential()
    if name == 'digits':
        net.add(nn.Dense(64, activation='relu'), nn.Dense(classes))
    elif name == 'image':
        net.add(nn.Lambda(lambda images: images.reshape(-1, 1, 8, 8)), nn.Conv2D(16, 3, padding=1, activation='relu'))
        net.add(Residual(16), nn.MaxPool2D(), nn.Dense(classes))
    else:
        net.add(nn.Embedding(classes, 64), gluon.rnn.LSTM(96, layout='NTC'), nn.Dense(classes, flatten=False))
    net.initialize(mx.init.Uniform(0.1))
    return net


def train(name):
    training, held_out, classes = data.load(name)
    net = build(name, classes)
    # The trainer begins with rank 0's parameters, and each step takes the mean of all workers' gradients.
    trainer = bps.DistributedTrainer(net.collect_params(), 'adam', {'learning_rate': 0.004}, prefix=name)
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()

    # All workers together take 32 rows a step, however many they are.
    mine, rows = data.shard(training, bps.rank(), bps.size()), max(1, 32 // bps.size())
    for epoch in range(EPOCHS[name]):
        for inputs, targets in data.batches(mine, rows, seed=epoch):
            with autograd.record():
                loss = loss_of(net(mx.np.array(inputs)), mx.np.array(targets))
            loss.backward()
            trainer.step(rows)

    inputs, targets = data.shard(held_out, bps.rank(), bps.size())
    right = net(mx.np.array(inputs)).argmax(-1).asnumpy() == targets
    return bps.allreduce(mx.np.array([right.mean()]), name=name + '.accuracy').item()


def main():
    bps.init()
    mx.npx.set_np()
    mx.random.seed(bps.rank())
    for name in sys.argv[1:] or EPOCHS:
        accuracy = train(name)
        if bps.rank() == 0:
            print('%s: %d workers: accuracy %.1f %%' % (name, bps.size(), 100 * accuracy))


if __name__ == '__main__':
    main()

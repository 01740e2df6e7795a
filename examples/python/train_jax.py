#!/usr/bin/env python3
"""train_jax.py - a JAX script with optax: three lines make it one for many workers.

    tributary run -n 2 -- python3 train_jax.py [digits] [image] [text]

It trains a perceptron and a small residual network that read handwritten digits, and a transformer that continues
texts letter by letter. Rank 0 says how much of what a model has not seen it gets right.
"""

import functools
import sys

import data
import jax
import numpy as np
import optax
from jax import numpy as jnp

import tributary.jax as trib

EPOCHS = {'digits': 10, 'image': 4, 'text': 1}


def parameters_of(shapes, seed):
    """Returns arrays of those shapes with random values, which are the smaller the more of them a sum has."""
    random = np.random.RandomState(seed)
    return {
        name: (random.normal(size=shape) / np.sqrt(np.prod(shape[:-1]))).astype('float32')
        for name, shape in shapes.items()
    }


def dense(p, name, x):
    return x @ p[name][:-1] + p[name][-1]  # the last row is added to each output


def convolution(p, name, x):
    return jax.lax.conv_general_dilated(x, p[name], (1, 1), 'SAME', dimension_numbers=('NHWC', 'HWIO', 'NHWC'))


def normalized(x):
    return jax.nn.standardize(x, axis=-1)


def perceptron(p, images):
    return dense(p, 'out', jax.nn.relu(dense(p, 'hidden', images.reshape(-1, 64))))


def residual_network(p, images):
    x = jax.nn.relu(convolution(p, 'first', images[..., None]))
    x = jax.nn.relu(x + convolution(p, 'third', jax.nn.relu(convolution(p, 'second', x))))
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), 'VALID')
    return dense(p, 'out', x.reshape(-1, 256))


def transformer(p, letters):
    x = p['letter'][letters] + p['place']
    query, key, value = (
        part.reshape(*letters.shape, 4, -1) for part in jnp.split(dense(p, 'attention', normalized(x)), 3, -1)
    )
    seen = jax.nn.dot_product_attention(query, key, value, is_causal=True)
    x = x + dense(p, 'joined', seen.reshape(x.shape))
    x = x + dense(p, 'narrow', jax.nn.relu(dense(p, 'wide', normalized(x))))
    return dense(p, 'out', normalized(x))


def build(name, classes, width=48):
    if name == 'digits':
        return perceptron, {'hidden': (65, 64), 'out': (65, classes)}
    if name == 'image':
        deep = {'second': (3, 3, 16, 16), 'third': (3, 3, 16, 16)}
        return residual_network, {'first': (3, 3, 1, 16), **deep, 'out': (257, classes)}
    attention = {'attention': (width + 1, 3 * width), 'joined': (width + 1, width)}
    perceptrons = {'wide': (width + 1, 4 * width), 'narrow': (4 * width + 1, width), 'out': (width + 1, classes)}
    return transformer, {'letter': (classes, width), 'place': (data.LENGTH, width), **attention, **perceptrons}


def train(name):
    training, held_out, classes = data.load(name)
    model, shapes = build(name, classes)
    parameters = trib.broadcast_parameters(parameters_of(shapes, seed=trib.rank()))
    optimizer = optax.chain(trib.allreduce_gradients(name=name), optax.adam(0.004))
    state = jax.jit(optimizer.init)(parameters)

    def loss(parameters, inputs, targets):
        return optax.softmax_cross_entropy_with_integer_labels(model(parameters, inputs), targets).mean()

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(parameters, state, inputs, targets):
        updates, state = optimizer.update(jax.grad(loss)(parameters, inputs, targets), state)
        return optax.apply_updates(parameters, updates), state

    # All workers together take 32 rows a step, however many they are.
    mine, rows = data.shard(training, trib.rank(), trib.size()), max(1, 32 // trib.size())
    for epoch in range(EPOCHS[name]):
        for inputs, targets in data.batches(mine, rows, seed=epoch):
            parameters, state = step(parameters, state, inputs, targets)

    inputs, targets = data.shard(held_out, trib.rank(), trib.size())
    right = np.mean(np.asarray(jax.jit(model)(parameters, inputs)).argmax(-1) == targets, dtype='float32')
    return trib.allreduce(right, name=name + '.accuracy')


def main():
    trib.init()
    for name in sys.argv[1:] or EPOCHS:
        accuracy = train(name)
        if trib.rank() == 0:
            print('%s: %d workers: accuracy %.1f %%' % (name, trib.size(), 100 * accuracy))


if __name__ == '__main__':
    main()

#!/usr/bin/env python3
"""train_tensorflow.py - a TensorFlow script for Horovod, in which the import is the one line that differs.

    tributary run -n 2 -- python3 train_tensorflow.py [digits] [image] [text]

It trains the models of keras_models.py by steps of its own: a perceptron and a small residual network that read
handwritten digits, and a transformer that continues texts letter by letter. Rank 0 says how much of what a model has
not seen it gets right.
"""

import sys

import data
import keras
import keras_models
import tensorflow as tf

import tributary.tensorflow as hvd  # was: import horovod.tensorflow as hvd

EPOCHS = {'digits': 10, 'image': 4, 'text': 1}


def train(name):
    training, held_out, classes = data.load(name)
    model = keras_models.build(name, classes)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.Adam(0.004)
    optimizer.build(model.trainable_variables)
    hvd.broadcast_variables(model.variables + optimizer.variables, root_rank=0)

    @tf.function
    def step(inputs, targets):
        with tf.GradientTape() as tape:
            loss = loss_of(targets, model(inputs, training=True))
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    # All workers together take 32 rows a step, however many they are.
    mine = tf.data.Dataset.from_tensor_slices(data.shard(training, hvd.rank(), hvd.size()))
    mine = mine.shuffle(10000).batch(max(1, 32 // hvd.size()), drop_remainder=True)
    for _epoch in range(EPOCHS[name]):
        for inputs, targets in mine:
            step(inputs, targets)

    inputs, targets = data.shard(held_out, hvd.rank(), hvd.size())
    right = tf.reduce_mean(tf.cast(tf.argmax(model(inputs), -1) == targets, tf.float32))
    return hvd.allreduce(right, name='accuracy').numpy()


def main():
    hvd.init()
    keras.utils.set_random_seed(hvd.rank())
    for name in sys.argv[1:] or EPOCHS:
        accuracy = train(name)
        if hvd.rank() == 0:
            print('%s: %d workers: accuracy %.1f %%' % (name, hvd.size(), 100 * accuracy))


if __name__ == '__main__':
    main()

#!/usr/bin/env python3
"""train_keras.py - a Keras script for Horovod, in which the import is the one line that differs.

    KERAS_BACKEND=jax tributary run -n 2 -- python3 train_keras.py [digits] [image] [text]

It fits the models of keras_models.py, on any backend of Keras 3: a perceptron and a small residual network that read
handwritten digits, and a transformer that continues texts letter by letter. Rank 0 says how much of what a model has
not seen it gets right.
"""

import sys

import data
import keras
import keras_models

import tributary.keras as hvd  # was: import horovod.keras as hvd

EPOCHS = {'digits': 10, 'image': 4, 'text': 1}


def train(name):
    training, held_out, classes = data.load(name)
    model = keras_models.build(name, classes)
    model.compile(
        optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(0.004)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=['accuracy'],
    )
    history = model.fit(
        *data.shard(training, hvd.rank(), hvd.size()),
        validation_data=data.shard(held_out, hvd.rank(), hvd.size()),
        # All workers together take 32 rows a step, however many they are.
        batch_size=max(1, 32 // hvd.size()),
        epochs=EPOCHS[name],
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()],
        verbose=0,
    )
    return history.history['val_accuracy'][-1]


def main():
    hvd.init()
    keras.utils.set_random_seed(hvd.rank())
    for name in sys.argv[1:] or EPOCHS:
        accuracy = train(name)
        if hvd.rank() == 0:
            print('%s: %d workers: accuracy %.1f %%' % (name, hvd.size(), 100 * accuracy))


if __name__ == '__main__':
    main()

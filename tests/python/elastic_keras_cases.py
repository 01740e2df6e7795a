#!/usr/bin/env python3
"""A worker of an elastic job with Keras, for test_elastic_tensorflow.py: elastic_keras_cases.py GATE. It trains until
there is a file GATE, which the test makes when it has seen all changes. Prints a line for each step, as
elastic_worker.py does."""

import os
import sys
import time

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
import keras  # noqa: E402
import numpy as np  # noqa: E402
import tributary.keras as hvd  # noqa: E402

GATE, BATCHES, MANY = sys.argv[1], 8, 1000000


class Steps(keras.callbacks.Callback):
    count = 0

    def on_batch_end(self, batch, logs=None):
        Steps.count += 1
        print('step %d rank %d of %d pid %d' % (Steps.count, hvd.rank(), hvd.size(), os.getpid()), flush=True)
        time.sleep(0.1)

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = hvd.broadcast_object(os.path.exists(GATE))


def main():
    hvd.init()
    keras.utils.set_random_seed(hvd.rank())
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01, momentum=0.9)), 'mse', jit_compile=False)
    state = hvd.elastic.KerasState(model, epoch=0, batch=0)
    data = np.random.default_rng(1).normal(size=(4 * BATCHES, 4)).astype('float32')

    @hvd.elastic.run
    def train(state):
        model.fit(
            data,
            data[:, :2],
            batch_size=4,
            shuffle=False,
            verbose=0,
            epochs=MANY,
            callbacks=[
                hvd.elastic.UpdateBatchStateCallback(state),
                hvd.elastic.UpdateEpochStateCallback(state),
                Steps(),
                hvd.elastic.CommitStateCallback(state),
            ],
        )

    train(state)
    for index, weights in enumerate(model.get_weights()):
        root = hvd.broadcast(weights, 0, "last.%d" % index)
        assert np.array_equal(root, weights), np.abs(root - weights).max()
    print('trained %d epochs' % state.epoch, flush=True)
    hvd.shutdown()


if __name__ == '__main__':
    main()

"""Keras on the backend of KERAS_BACKEND: every worker fits a model, and all end with the parameters of one process that fits on
whole batches."""

import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
import keras  # noqa: E402
import numpy as np  # noqa: E402
import tributary.keras as trib  # noqa: E402


def model_of(seed, wrap):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(32, activation='tanh'), keras.layers.Dense(4)])
    model.compile(wrap(keras.optimizers.SGD(0.05, momentum=0.9)), 'mse', jit_compile=False)
    return model


def main():
    trib.init()
    rank, size, rows, steps = trib.rank(), trib.size(), 8, 10
    x = np.random.default_rng(5).normal(size=(steps, size, rows, 16)).astype('float32')
    mine = x[:, rank].reshape(-1, 16)
    model = model_of(rank, trib.DistributedOptimizer)
    history = model.fit(
        mine,
        np.abs(mine[:, :4]),
        batch_size=rows,
        epochs=2,
        shuffle=False,
        verbose=0,
        callbacks=[trib.callbacks.BroadcastGlobalVariablesCallback(0), trib.callbacks.MetricAverageCallback()],
    )
    whole = x.reshape(-1, 16)
    alone = model_of(0, lambda optimizer: optimizer)
    expected = alone.fit(whole, np.abs(whole[:, :4]), batch_size=rows * size, epochs=2, shuffle=False, verbose=0)
    for a, b in zip(model.get_weights(), alone.get_weights()):
        assert np.allclose(a, b, atol=1e-4), np.abs(a - b).max()
        assert np.array_equal(trib.allreduce(a, 'check'), a) or size == 3  # a mean of equal values; thirds may round
    assert np.allclose(history.history['loss'], expected.history['loss'], rtol=1e-3)
    model.save('%s/model.%d.keras' % (os.environ['SCRATCH'], rank))
    loaded = trib.load_model('%s/model.%d.keras' % (os.environ['SCRATCH'], rank))
    assert type(loaded.optimizer).__name__ == 'SGD' and hasattr(type(loaded.optimizer), '_reduces_gradients')
    print('worker %d of %d: keras on %s is right' % (rank, size, keras.backend.backend()), flush=True)
    trib.shutdown()


if __name__ == '__main__':
    main()

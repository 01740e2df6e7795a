"""Keras on the backend of KERAS_BACKEND: every worker fits a model, and all end with the parameters of one process
that fits on whole batches."""

import os
import threading

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
import keras  # noqa: E402
import numpy as np  # noqa: E402
import python_bed  # noqa: E402
import tributary  # noqa: E402
import tributary.keras as trib  # noqa: E402
import tributary.keras.byteps as bps  # noqa: E402
from tributary.keras.framework import momentums_of  # noqa: E402


def model_of(seed, wrap):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(32, activation='tanh'), keras.layers.Dense(4)])
    model.compile(wrap(keras.optimizers.SGD(0.05, momentum=0.9)), 'mse', jit_compile=False)
    return model


def steps_of(optimizer, variables, gradients):
    """Applies gradients one after the other and returns the variables' values."""
    for gradient in gradients:
        optimizer.apply([keras.ops.convert_to_tensor(np.full(2, gradient, 'float32'))] * 2, variables)
    return [keras.ops.convert_to_numpy(variable) for variable in variables]


def accumulates_and_leaves_local(rank, size):
    # Two passes a step; the sum of both counts, as in Horovod, or their mean. A local layer's gradient is the worker's.
    mean = (size + 1) / 2
    for average, factor in (False, 2), (True, 1):
        first, second = [keras.Variable(np.zeros(2, 'float32')) for _ in range(2)]
        optimizer = trib.DistributedOptimizer(
            keras.optimizers.SGD(1.0), backward_passes_per_step=2, average_aggregated_gradients=average
        )
        for value in steps_of(optimizer, [first, second], [rank + 1.0] * 2):
            assert np.allclose(value, -mean * factor), (value, mean)
    layer = keras.layers.Dense(2, use_bias=False)
    layer.build((1, 1))
    local, shared = layer.kernel, keras.Variable(np.zeros((1, 2), 'float32'))
    begin = np.array(keras.ops.convert_to_numpy(local))
    optimizer = trib.PartialDistributedOptimizer(keras.optimizers.SGD(1.0), local_layers=layer)
    optimizer.apply([keras.ops.convert_to_tensor(np.full((1, 2), rank + 1, 'float32'))] * 2, [local, shared])
    assert np.allclose(keras.ops.convert_to_numpy(local), begin - (rank + 1) / size)
    assert np.allclose(keras.ops.convert_to_numpy(shared), -mean)
    try:
        optimizer.apply([keras.ops.convert_to_tensor(np.ones((1, 2), 'float32'))], [local, shared])
    except ValueError as problem:
        assert '1 gradients for 2 variables' in str(problem), problem
    else:
        raise AssertionError('a gradient was missing, and nothing was said')
    halves = trib.allreduce(np.array([3, 5]), prescale_factor=0.5, op=trib.Sum)  # integers are truncated
    assert halves.tolist() == [1 * size, 2 * size], halves
    rows = trib.allgather(np.full((rank + 1, 2), rank))
    assert np.array_equal(rows, np.repeat(np.repeat([range(size)], 2, 0).T, range(1, size + 1), 0))
    part = trib.reducescatter(np.arange(2.0 * size) * (rank + 1), op=trib.Sum)
    assert np.array_equal(part, np.arange(2.0 * size)[2 * rank : 2 * rank + 2] * size * mean)


def rates_of(callback, epochs=3):
    """Returns the learning rates of each batch of a model that begins with a rate of 1; an epoch has 2 batches."""
    rates = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: rates.append(
            float(keras.ops.convert_to_numpy(note.model.optimizer.learning_rate))
        )
    )
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1.0), 'mse', jit_compile=False)
    ones = np.ones((2, 1), 'float32')
    model.fit(ones, ones, batch_size=1, epochs=epochs, verbose=0, callbacks=[callback, note])
    return rates


def rates(rank, size):
    step = (1 - 1 / size) / 4
    expected = [1 / size + step * (batch + 1) for batch in range(4)] + [1, 1]
    assert np.allclose(rates_of(trib.callbacks.LearningRateWarmupCallback(1.0, 2)), expected)
    assert np.allclose(rates_of(bps.callbacks.LearningRateWarmupCallback(2, verbose=1)), expected)
    decayed = trib.callbacks.LearningRateScheduleCallback(1.0, 0.5, start_epoch=1)
    assert np.allclose(rates_of(decayed), [1, 1, 1, 1, 0.5, 0.5])
    constant = bps.callbacks.LearningRateScheduleCallback(0.5, 1)
    assert np.allclose(rates_of(constant), [1, 1, 0.5, 0.5, 0.5, 0.5])


def momentum_follows_the_rate(rank, size):
    """A step is the momentum times the last step, as it would be at the present rate, less the rate times the gradient,
    which is 1 here."""
    rates = [1, 0.5, 2, 2]
    for is_corrected in True, False:
        for wrap in lambda made: made, trib.DistributedOptimizer:
            optimizer = wrap(keras.optimizers.SGD(1.0, momentum=0.5))
            model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
            model.layers[0].kernel.assign([[0.0]])
            model.compile(optimizer, lambda _, made: keras.ops.mean(made), jit_compile=False)
            callback = trib.callbacks.LearningRateScheduleCallback(
                1.0, lambda epoch: rates[round(2 * epoch)], staircase=False, momentum_correction=is_corrected
            )
            ones = np.ones((2, 1), 'float32')
            model.fit(ones, ones, batch_size=1, epochs=2, verbose=0, callbacks=[callback])
            expected, velocity, before = 0.0, 0.0, rates[0]
            for rate in rates:
                velocity = 0.5 * velocity * (rate / before if is_corrected else 1) - rate
                expected, before = expected + velocity, rate
            got = keras.ops.convert_to_numpy(model.layers[0].kernel)
            assert np.allclose(got, expected), (is_corrected, got, expected)
    adam = keras.optimizers.Adam()
    adam.build([keras.Variable(np.zeros(2))])
    assert momentums_of(adam) == []


class OfKeras2:
    """An optimizer with the interface that those of Keras 2 have."""

    def get_config(self):
        return {}

    @classmethod
    def from_config(cls, config):
        return cls(**config)

    def apply_gradients(self, grads_and_vars, name=None):
        return [(keras.ops.convert_to_numpy(grad), name) for grad, _ in grads_and_vars]


def optimizers_of_keras_2(rank, size):
    optimizer = trib.DistributedOptimizer(OfKeras2())
    gradient = keras.ops.convert_to_tensor(np.full(2, rank + 1, 'float32'))
    if keras.backend.backend() != 'jax':  # which sums in compiled functions only
        [(value, name)] = optimizer.apply_gradients([(gradient, keras.Variable(np.zeros(2)))], name='step')
        assert np.allclose(value, (size + 1) / 2) and name == 'step'
    python_bed.refused(
        NotImplementedError,
        (lambda: trib.DistributedOptimizer(OfKeras2(), backward_passes_per_step=2), 'Keras 2'),
    )


class Unused(keras.layers.Layer):
    """A layer with a variable that its output does not depend on."""

    def build(self, shape):
        self.used, self.unused = self.add_weight(shape=(1, 1)), self.add_weight(shape=(3,))

    def call(self, x):
        return keras.ops.matmul(x, self.used)


def unused_and_compiled(rank, size):
    # On TensorFlow Keras asks for XLA by itself where there is a GPU.
    model = keras.Sequential([keras.Input((1,)), Unused()])
    is_compiled = keras.backend.backend() == 'tensorflow'
    model.compile(trib.DistributedOptimizer(keras.optimizers.SGD(1.0)), 'mse', jit_compile=is_compiled)
    model.layers[0].used.assign([[0.0]])
    model.fit(np.ones((1, 1)), np.full((1, 1), rank + 1.0), verbose=0)
    assert np.allclose(keras.ops.convert_to_numpy(model.layers[0].used), size + 1)  # twice the mean of rank + 1


def wrong_use_is_told(rank, size):
    sgd = keras.optimizers.SGD(1.0)
    python_bed.refused(
        tributary.ArgumentError,
        *python_bed.wrong_arguments(trib, np.ones(3)),
        (lambda: trib.DistributedOptimizer('sgd'), "one of Keras's"),
        (lambda: trib.DistributedOptimizer(sgd, backward_passes_per_step=0), 'backward_passes_per_step'),
    )
    if size > 1:
        turned = np.ones((2, 3) if rank % 2 else (3, 2))
        python_bed.refused(
            tributary.MismatchError,
            (lambda: trib.allreduce(np.ones(3 + rank), 'lengths'), 'lengths'),
            (lambda: trib.allreduce(turned, 'turned'), 'turned'),
            (lambda: trib.broadcast(np.ones(3, np.float32 if rank % 2 else np.float64), 0, 'types'), 'types'),
        )


def without_names_in_any_order(rank, size):
    """Threads begin an all-reduce and a broadcast without names in other orders. Rank 0 is told that workers wait for
    each other, which is later than MismatchError would come."""
    sums = []
    thread = threading.Thread(target=lambda: sums.append(trib.allreduce(np.ones(3), average=False)))
    if rank == 0:
        python_bed.told_of(b'stalled for', thread.start)
    assert trib.broadcast(np.array([rank + 1.0]), 0).tolist() == [1.0]
    if rank > 0:
        thread.start()
    thread.join()
    assert [total.tolist() for total in sums] == [[size] * 3], sums


def built_in_the_first_batch(rank, size):
    """A model without an input shape may have its variables in the first batch alone."""
    model = keras.Sequential([keras.layers.Dense(2, kernel_initializer=keras.initializers.Constant(rank + 1.0))])
    model.compile(trib.DistributedOptimizer(keras.optimizers.SGD()), loss='mse')
    callback = trib.callbacks.BroadcastGlobalVariablesCallback(size - 1)
    callback.set_model(model)
    callback.on_train_begin()
    model.build((1, 3))
    callback.on_train_batch_end(0)
    assert np.array_equal(model.get_weights()[0], np.full((3, 2), size)), model.get_weights()


def scaled_losses(rank, size):
    """A step whose gradients are infinite on one worker is left out on all, whichever of the two wraps the other."""
    scaler = keras.optimizers.LossScaleOptimizer
    wrappers = (
        lambda inner: scaler(trib.DistributedOptimizer(inner), initial_scale=4.0),
        lambda inner: scaler(trib.DistributedOptimizer(inner, op='Min'), initial_scale=4.0),
        lambda inner: trib.DistributedOptimizer(scaler(inner, initial_scale=4.0)),
    )
    x, y = np.full((8, 4), rank + 1.0, 'float32'), np.ones((8, 3), 'float32')
    x[4:] = np.inf if rank == 0 else 1.0  # the second of two batches
    for wrap in wrappers:
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        before = model.get_weights()[0]
        model.compile(wrap(keras.optimizers.SGD(0.1)), 'mse', jit_compile=False)
        model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0)
        weights = model.get_weights()[0]
        assert float(model.optimizer.dynamic_scale) == 1.0 and np.isfinite(weights).all(), weights
        assert not np.array_equal(weights, before) and np.array_equal(trib.allreduce(weights, 'same'), weights)
    shared, local = (keras.layers.Dense(1, use_bias=False) for _ in range(2))
    inputs = keras.Input((4,)), keras.Input((4,))
    model = keras.Model(inputs, keras.layers.Add()([shared(inputs[0]), local(inputs[1])]))
    optimizer = scaler(keras.optimizers.SGD(0.1), initial_scale=4.0)
    optimizer = trib.PartialDistributedOptimizer(optimizer, local_layers=[local])
    model.compile(optimizer, lambda expected, got: keras.ops.mean(got), jit_compile=False)
    # The local layer's gradient is infinite in the second batch.
    model.fit([np.ones((8, 4)), x], np.ones((8, 1)), batch_size=4, shuffle=False, verbose=0)
    assert float(model.optimizer.dynamic_scale) == 2.0, float(model.optimizer.dynamic_scale)


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
    alone = keras.saving.load_model('%s/model.%d.keras' % (os.environ['SCRATCH'], rank))
    again = trib.DistributedOptimizer(alone.optimizer)
    for optimizer in loaded.optimizer, again:
        assert len(optimizer.variables) == len(model.optimizer.variables)
        for a, b in zip(optimizer.variables, model.optimizer.variables):
            assert np.array_equal(keras.ops.convert_to_numpy(a), keras.ops.convert_to_numpy(b))
    accumulates_and_leaves_local(rank, size)
    rates(rank, size)
    momentum_follows_the_rate(rank, size)
    optimizers_of_keras_2(rank, size)
    unused_and_compiled(rank, size)
    scaled_losses(rank, size)
    wrong_use_is_told(rank, size)
    without_names_in_any_order(rank, size)
    built_in_the_first_batch(rank, size)
    count, untyped = python_bed.untyped(trib)
    assert count > 15 and not untyped, untyped
    print('worker %d of %d: keras on %s is right' % (rank, size, keras.backend.backend()), flush=True)
    trib.shutdown()


if __name__ == '__main__':
    main()

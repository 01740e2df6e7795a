"""Cases of BytePS's MirroredStrategy that every worker of a job runs, each with one device and with two. Each compares
with what a worker computes by itself."""

import numpy as np
import tensorflow as tf
import tributary.tensorflow as trib
from tributary.tensorflow.distribute import MirroredStrategy


def inputs(rank):
    return np.random.default_rng(rank).normal(size=(16, 4)).astype('float32')


def wanted(inputs):
    return tf.reduce_sum(inputs, 1, keepdims=True)


def keras_trains(strategy, _devices, rank, size):
    tf.keras.utils.set_random_seed(rank)
    with strategy.scope():
        layers = [tf.keras.Input((4,)), tf.keras.layers.Dense(3, activation='tanh'), tf.keras.layers.Dense(1)]
        model = tf.keras.Sequential(layers)
        model.compile(optimizer=tf.keras.optimizers.SGD(0.1), loss='mse')
    weights = [variable.numpy() for variable in model.trainable_variables]
    for others in trib.allgather_object(weights):
        assert all(np.array_equal(a, b) for a, b in zip(others, weights))
    model.fit(inputs(rank), wanted(inputs(rank)), batch_size=16, epochs=3, shuffle=False, verbose=0)
    alone = [tf.Variable(weight) for weight in weights]
    for _ in range(3):
        with tf.GradientTape() as tape:
            errors = [
                tf.tanh(inputs(r) @ alone[0] + alone[1]) @ alone[2] + alone[3] - wanted(inputs(r)) for r in range(size)
            ]
            loss = sum(tf.reduce_mean(error**2) for error in errors)
        for variable, gradient in zip(alone, tape.gradient(loss, alone)):
            variable.assign_sub(0.1 * gradient)
    for variable, expected in zip(model.trainable_variables, alone):
        assert np.allclose(variable.numpy(), expected.numpy(), atol=1e-5), (variable.numpy(), expected.numpy())


def reductions(strategy, devices, rank, size):
    with strategy.scope():
        first, rows = tf.Variable(tf.fill((3,), rank + 1.0)), tf.Variable(tf.ones((size + 1, 2)))
    assert (first.numpy() == 1).all()
    count = size * devices
    expected = np.zeros((size + 1, 2), 'float32')
    for number in range(count):
        expected[[number // devices, size]] += number + 1

    def replica():
        context = tf.distribute.get_replica_context()
        number = tf.cast(context.replica_id_in_sync_group, tf.float32) + devices * rank
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(rows, [rank, size])) * (number + 1)
        slices = tape.gradient(loss, rows)
        assert isinstance(slices, tf.IndexedSlices)
        return [
            context.all_reduce('SUM', number * tf.ones(3)),
            context.all_reduce('MEAN', number * tf.ones(3)),
            tf.convert_to_tensor(context.all_reduce('SUM', slices)),
        ]

    def run():
        return strategy.run(replica)

    for function in (tf.function(run), run):
        for _ in range(2):
            for total, mean, summed in zip(*map(strategy.experimental_local_results, function())):
                assert (total.numpy() == sum(range(count))).all(), total
                assert (mean.numpy() == sum(range(count)) / count).all(), mean
                assert np.array_equal(summed.numpy(), expected), (summed, expected)


if __name__ == '__main__':
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices('CPU')[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    trib.init()
    for devices in 1, 2:
        for case in (keras_trains, reductions):
            strategy = MirroredStrategy(['/cpu:%d' % number for number in range(devices)])
            case(strategy, devices, trib.rank(), trib.size())
            words = trib.rank(), trib.size(), case.__name__, devices
            print('worker %d of %d: %s with %d devices is right' % words, flush=True)
    trib.shutdown()

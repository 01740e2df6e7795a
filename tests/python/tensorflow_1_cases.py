"""Cases of tributary.tensorflow in graphs of TensorFlow 1, which tensorflow_cases.py runs."""

import numpy as np
import python_bed
import tensorflow as tf
import tributary
import tributary.tensorflow as trib
from tributary.tensorflow.gradient_aggregation import LocalGradientAggregationHelper


def session_of_tensorflow_1(rank, size):
    # A worker's loss is (weight - rank)^2, so the mean of all gradients is that of the mean rank.
    with tf.Graph().as_default():
        weight = tf.compat.v1.get_variable('weight', initializer=float(10 + rank))
        step = tf.compat.v1.train.get_or_create_global_step()
        optimizer = trib.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.25))
        train = optimizer.minimize((weight - float(rank)) ** 2, global_step=step)
        hooks = [trib.BroadcastGlobalVariablesHook(0), tf.compat.v1.train.StopAtStepHook(last_step=3)]
        expected = 10.0
        with tf.compat.v1.train.MonitoredTrainingSession(hooks=hooks) as session:
            while not session.should_stop():
                _, value = session.run([train, weight])
                assert value in (expected, (expected + (size - 1) / 2) / 2), (value, expected)  # before or after it
                expected = (expected + (size - 1) / 2) / 2
        assert expected == 10.0 / 8 + (size - 1) / 2 * 7 / 8


def passes_of_tensorflow_1(rank, size):
    # Three passes make a step: of the sum of their gradients, or of their mean.
    for average, factor in (False, 3), (True, 1):
        with tf.Graph().as_default():
            weight = tf.compat.v1.get_variable('weight', initializer=[0.0, 0.0])
            unused = tf.compat.v1.get_variable('unused', initializer=0.0)
            table = tf.compat.v1.get_variable('table', initializer=tf.zeros((4, 2)))
            step = tf.compat.v1.train.get_or_create_global_step()
            optimizer = trib.DistributedOptimizer(
                tf.compat.v1.train.MomentumOptimizer(1.0, 0.0),
                name='passes%d' % factor,
                sparse_as_dense=True,
                backward_passes_per_step=3,
                average_aggregated_gradients=average,
            )
            loss = (rank + 1.0) * tf.reduce_sum(weight) + tf.reduce_sum(tf.gather(table, [rank % 4]))
            pairs = optimizer.compute_gradients(loss, [weight, unused, table])
            assert pairs[1][0] is None
            train = optimizer.apply_gradients(pairs, global_step=step)
            rows = np.bincount(np.arange(size) % 4, minlength=4) / size
            with tf.compat.v1.Session() as session:
                session.run([tf.compat.v1.global_variables_initializer(), tf.compat.v1.local_variables_initializer()])
                for done in range(1, 8):
                    session.run(train)
                    values, looked_up, steps = session.run([weight, table, step])
                    expected = -(done // 3) * factor
                    assert np.allclose(values, expected * (size + 1) / 2), (done, values)
                    assert np.allclose(looked_up, expected * np.stack([rows, rows], 1)) and steps == done, steps
    helper = LocalGradientAggregationHelper(2, lambda gradients, variables: [2 * one for one in gradients], False, True)
    with tf.Graph().as_default():
        mine, shared = (tf.compat.v1.get_variable(name, initializer=0.0) for name in ('mine', 'shared'))
        helper.register_local_var(mine)
        results = helper.compute_gradients([tf.constant(1.0)] * 2, [mine, shared])
        slices = tf.IndexedSlices(tf.ones(1), tf.constant([0]), tf.constant([1]))
        python_bed.refused(
            tributary.UnsupportedError, (lambda: helper.compute_gradients([slices], [mine]), 'sparse_as_dense')
        )
        with tf.compat.v1.Session() as session:
            session.run([tf.compat.v1.global_variables_initializer(), tf.compat.v1.local_variables_initializer()])
            assert [session.run(results) for _ in range(2)] == [[1, 1], [np.float32(1 / size), 2]]


def graphs_with_other_types(rank, size):
    # In the second graph one worker has the type that all had in the first.
    for kinds in (tf.float32, tf.float32), (tf.float32, tf.int32), (tf.float64, tf.float64):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            result = trib.broadcast(tf.fill([3], tf.cast(rank, kinds[rank % 2])), 0)
            if size == 1 or kinds[0] == kinds[1]:
                assert np.array_equal(session.run(result), np.zeros(3))
            else:
                python_bed.refused(tf.errors.FailedPreconditionError, (lambda: session.run(result), 'int32'))

"""Cases of tributary.tensorflow that every worker of a job runs. Each compares with what a worker computes by
itself."""

import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
import tributary  # noqa: E402
import tributary.tensorflow as trib  # noqa: E402
from tributary.tensorflow import ops  # noqa: E402


def of(rank, shape, dtype=tf.float32):
    return tf.cast(np.random.default_rng(rank).integers(0, 5, shape), dtype)


def total(shape, dtype=tf.float32):
    return sum(of(rank, shape, tf.float64) for rank in range(trib.size()))


def summed(x):
    return trib.allreduce(x, op=trib.Sum)


def reductions(rank, size):
    for dtype in (tf.float32, tf.float64, tf.float16, tf.bfloat16, tf.int32, tf.int64, tf.uint8):
        for shape in ((), (7,), (3, 5), (0, 2)):
            for function in (summed, tf.function(summed)):
                assert np.array_equal(tf.cast(function(of(rank, shape, dtype)), tf.float64), total(shape)), (
                    dtype,
                    shape,
                )
    least = trib.allreduce(of(rank, (50,)), op=trib.Min)
    assert np.array_equal(least, np.min([of(r, (50,)) for r in range(size)], 0))
    assert np.array_equal(trib.broadcast(of(rank, (9,)), size - 1), of(size - 1, (9,)))
    assert trib.broadcast_object({'rank': rank}, size - 1) == {'rank': size - 1}


def scaling(rank, size):
    # The reference rounds where the operation rounds, before the sum and after it; integers are truncated there. The
    # sums themselves are exact: halves are summed in single precision, and the others' factor adds no bits.
    for dtype in (np.float16, np.float32, np.float64, np.int32, np.int64):
        wide = np.float32 if dtype in (np.float16, np.float32) else np.float64
        factor = 0.75 if dtype in (np.float32, np.float64) else 1 / 3
        parts = [
            (of(r, (50,)).numpy().astype(wide) * wide(factor)).astype(dtype).astype(np.float64) for r in range(size)
        ]
        expected = (sum(parts).astype(dtype).astype(wide) * wide(2.5)).astype(dtype)
        mine = tf.cast(of(rank, (50,)), dtype)
        for function in (scaled_sum, tf.function(scaled_sum)):
            got = function(mine, factor)
            assert got.dtype == mine.dtype and np.array_equal(got, expected), dtype


def scaled_sum(x, factor):
    return trib.allreduce(x, op=trib.Sum, prescale_factor=factor, postscale_factor=2.5)


def independent_in_any_order(rank, size):
    """Eight sums in one function, which ranks begin in opposite order: none waits for another."""

    @tf.function
    def function(values):
        order = range(8) if rank % 2 else reversed(range(8))
        results = {i: trib.allreduce(values[i], op=trib.Sum, name='independent.%d' % i) for i in order}
        return [results[i] for i in range(8)]

    for i, result in enumerate(function([of(rank, (10 + i,)) for i in range(8)])):
        assert np.array_equal(result, total((10 + i,)))
    before = ops.calls(), ops.calls(True)
    function([of(rank, (10 + i,)) for i in range(8)])
    assert ops.calls() == before[0] + 8


def trains(rank, size):
    def batch(step, of_rank):
        return tf.constant(np.random.default_rng(1000 * step + of_rank).normal(size=(8, 16)), tf.float32)

    def variables(seed):
        generator = np.random.default_rng(seed)
        return [tf.Variable(generator.normal(size=(16, 4)), dtype=tf.float32), tf.Variable(tf.zeros(4))]

    def loss(w, b, x):
        return tf.reduce_mean((x @ w + b - tf.abs(x[:, :4])) ** 2)

    mine, alone = variables(rank), variables(0)
    trib.broadcast_variables(mine, 0)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            value = loss(*mine, x)
        tape = trib.DistributedGradientTape(tape)
        for variable, gradient in zip(mine, tape.gradient(value, mine)):
            variable.assign_sub(0.05 * gradient)

    for i in range(10):
        step(batch(i, rank))
        gradients = []
        for r in range(size):
            with tf.GradientTape() as tape:
                value = loss(*alone, batch(i, r))
            gradients.append(tape.gradient(value, alone))
        for variable, *parts in zip(alone, *gradients):
            variable.assign_sub(0.05 * sum(parts) / size)
    for a, b in zip(mine, alone):
        assert np.allclose(a, b, atol=1e-5)
        assert np.array_equal(trib.allreduce(a.value(), op=trib.Min), trib.allreduce(a.value(), op=trib.Max))


def gradients_flow(rank, size):
    x = tf.Variable(of(rank, (6,)))
    with tf.GradientTape() as tape:
        value = tf.reduce_sum(trib.allreduce(x, op=trib.Sum) ** 2)
    assert np.array_equal(tape.gradient(value, x), 2 * size * total((6,)))


def codecs(rank, size):
    halves = trib.Compression.codec('fp16')
    fine = tf.fill([20000], tf.constant(1 + 2.0**-12))  # 16 bits round it to 1

    def summed_in_halves(x):
        return trib.allreduce(x, op=trib.Sum, compression=halves)

    for function in (summed_in_halves, tf.function(summed_in_halves)):
        assert np.array_equal(function(fine), np.full(20000, size, 'float32'))
        assert np.array_equal(function(fine[:9000]), np.full(9000, size * (1 + 2.0**-12), 'float32'))
    onebit = trib.Compression.codec({'compressor': 'onebit', 'scaling': True, 'ef': 'vanilla'})
    signs = np.where(np.arange(20000) % 3 == 0, -2, 2).astype('float32')
    weight = tf.Variable(np.zeros(20000, 'float32'))
    before = tributary.engine().stats().bytes_pushed
    with trib.DistributedGradientTape(tf.GradientTape(), compression=onebit) as tape:
        loss = tf.reduce_sum(weight * signs)
    assert np.array_equal(tape.gradient(loss, [weight])[0], signs)  # of one magnitude: nothing is lost
    assert tributary.engine().stats().bytes_pushed - before < 80000 / 8


def errors(rank, size):
    if size > 1:
        try:
            trib.allreduce(tf.ones(3 + rank), name='differs')
        except tf.errors.OpError as problem:
            assert 'differs' in str(problem), problem
        else:
            raise AssertionError('workers disagreed, and nothing was raised')
    if os.environ.get('TRIB_SERVERS', '0') != '0':
        return  # servers of `tributary run` end with the job
    trib.barrier()
    trib.shutdown()
    try:
        trib.allreduce(tf.ones(3))
    except tributary.NotInitializedError:
        pass
    else:
        raise AssertionError('it ran without a job')
    trib.init()
    assert np.array_equal(trib.allreduce(of(rank, (4,)), op=trib.Sum), total((4,)))


if __name__ == '__main__':
    trib.init()
    for case in (reductions, scaling, independent_in_any_order, trains, gradients_flow, codecs, errors):
        case(trib.rank(), trib.size())
        print('worker %d of %d: %s is right' % (trib.rank(), trib.size(), case.__name__), flush=True)
    trib.shutdown()

"""Cases of tributary.tensorflow that every worker of a job runs. Each compares with what a worker computes by
itself."""

import os
import resource
import threading

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
import python_bed  # noqa: E402
import tensorflow_1_cases  # noqa: E402
import tributary  # noqa: E402
import tributary.tensorflow as trib  # noqa: E402
from tributary import _abi, job  # noqa: E402
from tributary._library import lib  # noqa: E402
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
    trib.allreduce(of(rank, (2,)), name='kept')
    assert python_bed.is_declared('allreduce.kept') and not python_bed.is_declared('allreduce.noname.0')
    one_fails_alone(rank, size)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB
    for _ in range(150):
        trib.allreduce(tf.ones(2**18))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024
    variable = tf.Variable(of(rank, (2,)))
    for length in range(1, 33):  # kernels come again, with other lengths and gradients
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(trib.allreduce(variable, op=trib.Sum)) * length
            loss += tf.reduce_sum(trib.allgather(tf.ones(length + rank)))
        assert np.array_equal(tape.gradient(loss, variable), [size * length] * 2)
    assert not any(python_bed.is_declared('allreduce.noname.gradient.%d' % number) for number in range(400))
    least = trib.allreduce(of(rank, (50,)), op=trib.Min)
    assert np.array_equal(least, np.min([of(r, (50,)) for r in range(size)], 0))
    assert np.array_equal(trib.broadcast(of(rank, (9,)), size - 1), of(size - 1, (9,)))
    assert trib.broadcast_object({'rank': rank}, size - 1) == {'rank': size - 1}


def one_fails_alone(rank, size):
    """The last worker's operation fails before it is submitted. The others' are given up."""
    if rank == size - 1:
        python_bed.refused(Exception, (lambda: trib.allreduce(tf.constant('text')), 'string'))
    else:
        name = ops.name_of(None, 'allreduce')
        tensor = job.engine().declare_once('%s.%d' % (name, name.number), _abi.TRIB_FLOAT32, 2)
        lib.trib_tensor_release(tensor.handle, None)
    for _ in range(40):
        assert np.array_equal(trib.allreduce(of(rank, (2,)), op=trib.Sum), total((2,)))


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
    python_bed.assert_only_reactors_are_pinned()


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


def like_gradients_in_one_function(rank, size):
    """Two tapes, one of which is asked twice, and two optimizers: kernels begin in any order."""
    ones, hundreds = [[tf.Variable(tf.fill([8], value)) for _ in range(4)] for value in (1.0, 100.0)]
    steps = [[tf.Variable(tf.zeros([8])) for _ in range(4)] for _ in range(2)]
    plain = [trib.DistributedOptimizer(tf.keras.optimizers.SGD(1.0)) for _ in range(2)]
    for optimizer, variables in zip(plain, steps):
        optimizer.build(variables)

    @tf.function
    def function():
        with tf.GradientTape(persistent=True) as tape, tf.GradientTape() as other:
            a, b = [tf.add_n([tf.reduce_sum(v * v) / 2 for v in variables]) for variables in (ones, hundreds)]
        tape = trib.DistributedGradientTape(tape)
        gradients = tape.gradient(a, ones), tape.gradient(b, hundreds)
        gradients += (trib.DistributedGradientTape(other).gradient(b, hundreds),)
        for optimizer, variables, values in zip(plain, steps, (gradients[0], gradients[1])):
            optimizer.apply(values, variables)
        return gradients

    for step in range(1, 31):
        for values, expected in zip(function(), (1.0, 100.0, 100.0)):
            assert all(np.all(value == expected) for value in values), (step, values)
    for variables, expected in zip(steps, (-30.0, -3000.0)):
        assert all(np.all(variable.numpy() == expected) for variable in variables), variables


def traced_more_often_by_one(rank, size):
    """The first worker's batches differ in length, so it traces more often than others."""

    @tf.function
    def function(x):
        return trib.allreduce(tf.reduce_mean(x)) + tf.reduce_sum(trib.allgather(x[:1]))

    for length in (3, 3, 2, 3) if rank == 0 else (3, 3, 3, 3):
        assert float(function(tf.fill([length], float(rank)))) == (size - 1) / 2 + size * (size - 1) / 2
    assert float(tf.reduce_sum(trib.allreduce(tf.ones([2]), op=trib.Sum))) == 2 * size


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


def rows_of(rank, dtype=tf.float32):
    """What a worker gathers: rank + 1 rows of 3."""
    return of(rank, (rank + 1, 3), dtype)


def gathered(size, dtype=tf.float32):
    return np.concatenate([rows_of(rank, dtype) for rank in range(size)])


def gathers(rank, size):
    for dtype in (tf.float32, tf.float16, tf.bfloat16, tf.int64, tf.int16, tf.uint8, tf.bool):
        for function in (trib.allgather, tf.function(trib.allgather)):
            assert np.array_equal(function(rows_of(rank, dtype)), gathered(size, dtype)), dtype
    assert all(np.array_equal(x, gathered(size)) for x in trib.grouped_allgather([rows_of(rank)] * 3))
    assert trib.allgather_object('x' * rank) == ['x' * r for r in range(size)]
    for function in (trib.allgather, tf.function(trib.allgather)):
        assert function(tf.ones([rank + 1, 0])).shape == (size * (size + 1) // 2, 0)
    for function in (trib.alltoall, tf.function(trib.alltoall)):
        empty, counts = function(tf.ones([size, 0]), tf.constant([int(to == 0) for to in range(size)]))
        assert empty.shape == (size if rank == 0 else 0, 0) and list(counts) == [int(rank == 0)] * size
        assert trib.alltoall(tf.ones([2 * size, 0])).shape == (2 * size, 0)
    # Rank r has r + to + 1 rows for worker `to`, all of r * 10 + to.
    splits = [rank + to + 1 for to in range(size)]
    source = tf.constant(np.repeat([[rank * 10.0 + to] * 2 for to in range(size)], splits, 0), tf.float32)
    expected = np.repeat([[r * 10.0 + rank] * 2 for r in range(size)], [r + rank + 1 for r in range(size)], 0)
    for function in (trib.alltoall, tf.function(trib.alltoall)):
        output, counts = function(source, tf.constant(splits))
        assert np.array_equal(output, expected) and list(counts) == [r + rank + 1 for r in range(size)]
    even = trib.alltoall(tf.fill([2 * size], rank))
    assert np.array_equal(even, np.repeat(range(size), 2))
    for length in (2 * size, 2 * size + 1, 0):
        begin = rank * (length // size) + min(rank, length % size)
        end = begin + length // size + (rank < length % size)
        for function in (trib.reducescatter, tf.function(trib.reducescatter)):
            result = function(of(rank, (length, 3)), op=trib.Sum)
            assert np.array_equal(result, total((length, 3))[begin:end]), (length, result)
    parts = trib.grouped_reducescatter([of(rank, (size, 2))] * 2, op=trib.Sum, prescale_factor=2.0)
    assert all(np.array_equal(x, 2 * total((size, 2))[rank : rank + 1]) for x in parts)
    for wrong in (
        lambda: trib.alltoall(tf.ones(3), [1] * (size + 1)),
        lambda: trib.alltoall(tf.ones(3), [-1] * size),
        lambda: trib.alltoall(tf.ones(size + 1), None) if size > 1 else trib.allgather(tf.constant(1)),
        lambda: trib.reducescatter(tf.ones(3), op=trib.Max),
        lambda: trib.allgather(tf.constant(1)),
    ):
        try:
            wrong()
        except (tributary.ArgumentError, tf.errors.InvalidArgumentError):
            continue
        raise AssertionError('wrong use was not refused')


def gathers_have_gradients(rank, size):
    # A loss of all results' squares; each operation's gradient is the one of Horovod's table of them.
    def gradient(function, x):
        x = tf.Variable(x)
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(function(x) ** 2)
        return tape.gradient(value, x)

    mine, several = rows_of(rank), of(rank, (2 * size, 3))
    for wrapped in (lambda f: f, tf.function):
        assert np.array_equal(gradient(wrapped(trib.allgather), mine), 2 * mine)
        assert np.array_equal(gradient(wrapped(trib.alltoall), several), 2 * several)
        part = tf.function(lambda x: trib.reducescatter(x, op=trib.Sum))
        assert np.array_equal(gradient(part, several), 2 * size * total((2 * size, 3)))
        from_root = wrapped(lambda x: trib.broadcast(x, size - 1))
        expected = 2 * of(rank, (6,)) if rank == size - 1 else np.zeros(6)
        assert np.array_equal(gradient(from_root, of(rank, (6,))), expected)


def sparse(rank, size):
    slices = tf.IndexedSlices(rows_of(rank), tf.range(rank + 1, dtype=tf.int64), tf.constant([size + 1, 3], tf.int64))
    dense = [tf.convert_to_tensor(tf.IndexedSlices(rows_of(r), tf.range(r + 1), (size + 1, 3))) for r in range(size)]
    result = trib.allreduce(slices, op=trib.Sum)
    assert isinstance(result, tf.IndexedSlices)
    assert np.array_equal(tf.convert_to_tensor(result), sum(dense))
    table = tf.Variable(tf.zeros([size + 1, 3]))
    for options in ({}, {'sparse_as_dense': True}):
        with trib.DistributedGradientTape(tf.GradientTape(), op=trib.Sum, **options) as tape:
            value = tf.reduce_sum(tf.gather(table, range(rank + 1)) * rows_of(rank))
        result = tape.gradient(value, [table])[0]
        assert isinstance(result, tf.Tensor) == bool(options)
        assert np.array_equal(tf.convert_to_tensor(result), sum(dense))


def sets(rank, size):
    if size == 1:
        return
    ranks = list(range(1, size)) if size > 2 else [1]
    members = trib.add_process_set(ranks)
    inside = rank in ranks
    assert int(trib.process_set_included_op(members.process_set_id)) == inside
    assert int(trib.size_op(members.process_set_id)) == len(ranks)
    if inside:
        expected = sum(of(r, (5,)) for r in ranks)
        for function in (trib.allreduce, tf.function(trib.allreduce)):
            assert np.array_equal(function(of(rank, (5,)), op=trib.Sum, process_set=members), expected)
        assert np.array_equal(trib.broadcast(of(rank, (5,)), size - 1, process_set=members), of(size - 1, (5,)))
        everyone = np.concatenate([rows_of(r) for r in ranks])
        assert np.array_equal(trib.allgather(rows_of(rank), process_set=members), everyone)
        assert trib.allgather_object(rank, process_set=members) == ranks
        assert trib.broadcast_object(rank, size - 1, process_set=members) == size - 1
        weight = tf.Variable(1.0)
        with trib.DistributedGradientTape(tf.GradientTape(), op=trib.Sum, process_set=members) as tape:
            value = weight * float(rank)
        assert float(tape.gradient(value, [weight])[0]) == sum(ranks)
        traced = tf.function(lambda value: trib.allreduce(value, process_set=members))
        traced(tf.ones(2))
    else:
        for function in trib.allgather, tf.function(trib.allgather), trib.allreduce:
            try:
                function(tf.ones(2), process_set=members)
            except tf.errors.InvalidArgumentError as problem:
                assert isinstance(problem, tributary.ArgumentError) and 'does not belong' in str(problem), problem
            else:
                raise AssertionError('a worker outside the set was not refused')
    trib.remove_process_set(members)
    if inside:
        try:
            traced(tf.ones(2))
        except tf.errors.OpError as problem:
            assert 'process set' in str(problem), problem
        else:
            raise AssertionError('a graph went on in a set that has ended')


def modules_of_horovod(rank, size):
    """Scripts name them as attributes, without an import of their own."""
    assert trib.sync_batch_norm.SyncBatchNormalization is trib.SyncBatchNormalization
    assert trib.mpi_ops.allreduce is trib.allreduce and trib.functions.broadcast_object is trib.broadcast_object


def batch_norm_over_all(rank, size):
    # Batches of different lengths: the mean and variance are those of all rows together.
    layer = trib.SyncBatchNormalization(momentum=0.0, epsilon=0.0)
    alone = [of(r, (4 + r, 3)) for r in range(size)]
    rows = np.concatenate(alone)
    result = layer(alone[rank], training=True)
    assert np.allclose(result, (alone[rank] - rows.mean(0)) / rows.std(0), atol=1e-5)
    assert np.allclose(layer.moving_mean, rows.mean(0)) and np.allclose(layer.moving_variance, rows.var(0), atol=1e-5)


def local_layers(rank, size):
    first, second = keras.layers.Dense(1, use_bias=False), keras.layers.Dense(1, use_bias=False)
    x = tf.fill([1, 1], float(rank + 1))
    model = keras.Sequential([first, second])
    model(x)
    trib.broadcast_variables(model.variables)
    for scale in True, False:
        tape = trib.PartialDistributedGradientTape(
            tf.GradientTape(persistent=True), local_layers=[first], scale_local_gradients=scale
        )
        with tape:
            value = tf.reduce_sum(model(x))
        ours, alone = tape.gradient(value, model.trainable_variables), tape._tape.gradient(value, first.kernel)
        assert np.allclose(ours[0], alone / (size if scale else 1))
        assert np.allclose(ours[1], first.kernel * (size + 1) / 2)  # the mean of all workers' inputs


def uneven_data(rank, size):
    # Worker r has r more batches. The last worker's last batch is summed alone, so it is the last one to join.
    trib.allreduce(tf.ones(4))
    for batch in range(rank):
        for function in (summed, tf.function(summed)):
            assert np.all(function(tf.fill((4,), 2.0)) == 2.0 * (size - 1 - batch))
    assert trib.join() == size - 1
    assert trib.allgather_object(rank) == list(range(size))
    for function in (summed, tf.function(summed)):
        assert np.array_equal(function(of(rank, (4,))), total((4,)))


def shut_down_in_flight():
    """Another thread's eager operation, which no other worker has begun, ends with the job."""
    before, problems = ops.calls(), []

    def run():
        try:
            trib.allreduce(tf.ones(3))
        except tf.errors.OpError as problem:
            problems.append(problem)

    thread = threading.Thread(target=run)
    thread.start()
    while ops.calls() == before and thread.is_alive():
        pass
    trib.shutdown()
    thread.join()
    assert len(problems) == 1


def errors(rank, size):
    old = tf.compat.v1.train.AdamOptimizer()
    python_bed.refused(
        tributary.UnsupportedError,
        (lambda: trib.DistributedOptimizer(object()), 'object is neither'),
        (lambda: trib.DistributedOptimizer(old, backward_passes_per_step=2), 'sum in graphs alone'),
        (lambda: tf.function(trib.allreduce, jit_compile=True)(tf.ones(3)), 'jit_compile'),
    )
    python_bed.refused(
        tributary.ArgumentError,
        *python_bed.wrong_arguments(trib, tf.ones(3)),
        (lambda: trib.allreduce(tf.ones(3), compression='fp16'), "and is 'fp16'"),
        (lambda: trib.broadcast_variables([1]), 'number 0 is no variable'),
        (lambda: trib.DistributedGradientTape(tf.GradientTape(), op='Mean'), "op='Mean'"),
        (lambda: trib.DistributedOptimizer(tf.keras.optimizers.SGD(), op='Mean'), "op='Mean'"),
        (lambda: trib.add_process_set(3), 'not 3'),
        (lambda: trib.remove_process_set(3), 'not a ProcessSet'),
    )
    same = 'x' * 300  # names that differ behind what the library takes are two names
    assert np.array_equal(trib.allreduce(tf.ones(3), name=same + 'a', op=trib.Sum), np.full(3, size))
    assert np.array_equal(trib.allreduce(tf.ones(4), name=same + 'b', op=trib.Sum), np.full(4, size))
    if size > 1:
        turned = tf.ones((2, 3) if rank % 2 else (3, 2))
        kind = tf.float32 if rank % 2 else tf.float64
        python_bed.refused(
            tf.errors.FailedPreconditionError,
            (lambda: trib.allreduce(tf.ones(3 + rank), name='differs'), 'differs'),
            (lambda: trib.allreduce(turned, name='turned'), 'turned'),
            (lambda: tf.function(lambda x: trib.broadcast(x, 0, 'types'))(tf.ones(4, kind)), 'float64'),
            (lambda: trib.broadcast(tf.ones(3), rank, 'roots'), 'roots'),
            (lambda: trib.allgather(tf.ones((2, 3 + rank)), 'rows'), 'rows'),
        )
        for count in 3, 4, 5:  # workers would number further shapes of that name differently
            call = lambda: trib.allreduce(tf.ones(count), name='differs')
            python_bed.refused(tf.errors.FailedPreconditionError, (call, 'differs'), (tf.function(call), 'differs'))
        for count in 3, 4:
            trib.allreduce(tf.ones(count), name='used before')
            tf.function(lambda x: trib.allreduce(x, name='traced before'))(tf.ones(count))
        mine = tf.ones(3 + rank % 2)  # both shapes are known, so that no declaration differs
        python_bed.refused(
            tf.errors.FailedPreconditionError,
            (lambda: trib.allreduce(mine, name='used before'), 'a sum of float32[4]'),
            (tf.function(lambda: trib.allreduce(mine, name='traced before')), 'a sum of float32[4]'),
        )
        trib.broadcast(trib.allreduce(tf.ones(3), name='kinds'), 0, name='kinds')
        other = lambda: (
            trib.broadcast(tf.ones(3), 0, name='kinds') if rank else trib.allreduce(tf.ones(3), name='kinds')
        )
        python_bed.refused(tf.errors.FailedPreconditionError, (other, 'began a broadcast of float32[3]'))
        for count in 3, 4, 3:  # that was one round alone
            assert np.array_equal(trib.broadcast(tf.ones(count), 0, 'roots'), np.ones(count))
    if os.environ.get('TRIB_SERVERS', '0') != '0':
        return  # servers of `tributary run` end with the job
    trib.barrier()
    if size > 1 and rank == 0:
        shut_down_in_flight()
    trib.shutdown()
    for call in trib.allreduce, tf.function(lambda x: trib.allreduce(x)):
        python_bed.refused(tributary.NotInitializedError, (lambda: call(tf.ones(3)), 'call init() first'))
    trib.init()
    assert np.array_equal(trib.allreduce(of(rank, (4,)), op=trib.Sum), total((4,)))


def functions_have_type_hints(rank, size):
    count, untyped = python_bed.untyped(trib)
    assert count > 15 and not untyped, untyped


if __name__ == '__main__':
    trib.init()
    for case in (
        reductions,
        scaling,
        independent_in_any_order,
        trains,
        like_gradients_in_one_function,
        traced_more_often_by_one,
        gradients_flow,
        codecs,
        gathers,
        gathers_have_gradients,
        sparse,
        sets,
        modules_of_horovod,
        batch_norm_over_all,
        local_layers,
        uneven_data,
        tensorflow_1_cases.session_of_tensorflow_1,
        tensorflow_1_cases.passes_of_tensorflow_1,
        tensorflow_1_cases.graphs_with_other_types,
        functions_have_type_hints,
        errors,
    ):
        case(trib.rank(), trib.size())
        print('worker %d of %d: %s is right' % (trib.rank(), trib.size(), case.__name__), flush=True)
    trib.shutdown()

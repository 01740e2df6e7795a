"""Cases of tributary.mxnet that every worker of a job runs. Each compares with what a worker computes by itself."""

import copy
import itertools
import os
import pickle
import warnings

warnings.simplefilter('ignore')
import mxnet as mx  # noqa: E402
import numpy as np  # noqa: E402
from mxnet import autograd, gluon  # noqa: E402

import python_bed  # noqa: E402
import tributary  # noqa: E402
import tributary.mxnet as trib  # noqa: E402

if mx.__version__.startswith('1.'):
    nd = mx.nd
else:
    nd = mx.np  # gluon takes no other arrays since 2.0
    mx.npx.set_np()


def of(rank, shape, dtype='float32'):
    return np.random.RandomState(rank).randint(0, 5, shape).astype(dtype)


def total(shape, dtype='float32'):
    return sum(of(rank, shape, 'float64') for rank in range(trib.size())).astype(dtype)


def reductions(rank, size):
    for dtype in ('float32', 'float64', 'float16', 'int32', 'int64', 'int8', 'uint8'):
        for shape in ((7,), (3, 5)):
            got = trib.allreduce(nd.array(of(rank, shape), dtype=dtype), op=trib.Sum).asnumpy()
            assert np.array_equal(got, total(shape, dtype)), (dtype, shape)
    assert np.array_equal(trib.broadcast(nd.array(of(rank, (9,))), size - 1).asnumpy(), of(size - 1, (9,)))
    trib.allreduce(nd.ones(2), name='kept').wait_to_read()
    assert python_bed.is_declared('allreduce.kept')
    assert not any(python_bed.is_declared('%s.noname.0' % kind) for kind in ('allreduce', 'broadcast'))
    arrays = [nd.array(of(rank, (100 + i,))) for i in range(30)]
    for i, array in enumerate(arrays):
        trib.byteps_push_pull(array, name='many.%d' % i, is_average=False, priority=-i)
    for i, array in enumerate(arrays):
        assert np.array_equal(array.asnumpy(), total((100 + i,)))
    python_bed.assert_only_reactors_are_pinned()


def scaling(rank, size):
    # The reference rounds where the operation rounds, before the sum and after it; integers are truncated there. The
    # sums themselves are exact: halves are summed in single precision, and the others' factor adds no bits.
    for dtype in ('float16', 'float32', 'float64', 'int32', 'int64'):
        wide = np.float32 if dtype in ('float16', 'float32') else np.float64
        factor = 0.75 if dtype in ('float32', 'float64') else 1 / 3
        parts = [(of(r, (50,), wide) * wide(factor)).astype(dtype).astype('float64') for r in range(size)]
        expected = (sum(parts).astype(dtype).astype(wide) * wide(2.5)).astype(dtype)
        mine = nd.array(of(rank, (50,)), dtype=dtype)
        got = trib.allreduce(mine, op=trib.Sum, prescale_factor=factor, postscale_factor=2.5).asnumpy()
        assert got.dtype == mine.dtype and np.array_equal(got, expected), dtype
        assert np.array_equal(mine.asnumpy(), of(rank, (50,), dtype)), 'the input has changed'


class Recorder:
    """An optimizer that keeps the gradient it is given."""

    def update(self, index, weight, grad, state):
        self.gradient = grad.asnumpy()


def predivides(rank, size):
    # In half precision it shows whether gradients were divided before the sum: the reference rounds after each step.
    gradients = [np.random.RandomState(r).normal(size=200).astype('float16') for r in range(size)]
    parts = [(one.astype('float32') * np.float32(1 / 3)).astype('float16').astype('float64') for one in gradients]
    expected = (sum(parts).astype('float16').astype('float32') * np.float32(3 / size)).astype('float16')
    assert not np.array_equal(expected, (sum(one.astype('float64') for one in gradients) / size).astype('float16'))
    recorder = Recorder()
    optimizer = trib.DistributedOptimizer(recorder, gradient_predivide_factor=3.0)
    optimizer.update(0, None, nd.array(gradients[rank], dtype='float16'), None)
    assert np.array_equal(recorder.gradient, expected)
    for take in copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value)):
        taken = take(optimizer)
        taken.update(0, None, nd.array(gradients[rank], dtype='float16'), None)
        assert np.array_equal(taken.gradient, expected)
    raises(lambda: trib.DistributedOptimizer(optimizer), 'already')
    for refused in (
        lambda: trib.DistributedOptimizer(recorder, process_set=object()),
        lambda: trib.allreduce(nd.ones((2,)), process_set=object()),
    ):
        raises(refused, 'is not a ProcessSet')


def raises(call, text):
    try:
        call()
    except tributary.ArgumentError as problem:
        assert text in str(problem), problem
    else:
        raise AssertionError('nothing was raised')


class Refusing:
    """MXNet, which has no memory for an operation."""

    @staticmethod
    def trib_mxnet_submit(*arguments):
        return -1


def grouped(rank, size):
    got = trib.grouped_allreduce([nd.array(of(rank, (4 + i,))) for i in range(3)], op=trib.Sum, name='three')
    for i, array in enumerate(got):
        assert np.array_equal(array.asnumpy(), total((4 + i,)))
    assert python_bed.is_declared('allreduce.grouped.three.0')
    for array in trib.grouped_allreduce([nd.ones((2,))] * 2):
        assert np.array_equal(array.asnumpy(), np.ones(2))
    assert not python_bed.is_declared('allreduce.grouped.noname.0.0')
    real, trib.ops._native = trib.ops._native, Refusing()
    try:
        trib.allreduce(nd.ones((2,)))
        raise AssertionError('nothing was raised')
    except tributary.TributaryError as problem:
        name = str(problem).split(':')[0]
        assert 'did not take' in str(problem) and not python_bed.is_declared(name), problem
    finally:
        trib.ops._native = real

    # Objects of other lengths, one after another: only the root knows them.
    for length in (3, 1000):
        mine = {'rank': rank, 'values': list(range(length if rank == size - 1 else 1))}
        assert trib.broadcast_object(mine, size - 1) == {'rank': size - 1, 'values': list(range(length))}


def sets(rank, size):
    if size == 1:
        return  # a set of all workers is the global one
    last = trib.add_process_set([size - 1])
    most = trib.add_process_set(list(range(1, size))) if size > 2 else None
    for group in (last, most):
        if group is None:
            continue
        if not group.included():
            mine = nd.ones((2,))
            raises(lambda: trib.allreduce_(mine, prescale_factor=2.0, process_set=group), 'does not belong')
            assert np.array_equal(mine.asnumpy(), np.ones(2)), 'a refused array has changed'
            recorder = Recorder()
            trib.DistributedOptimizer(recorder, process_set=group).update(0, None, nd.array(of(rank, (9,))), None)
            assert np.array_equal(recorder.gradient, of(rank, (9,)))
            continue
        expected = sum(of(r, (9,), 'float64') for r in group.ranks)
        # The same name in both sets: names belong to a set.
        got = trib.allreduce(nd.array(of(rank, (9,))), op=trib.Sum, name='in.set', process_set=group)
        assert np.array_equal(got.asnumpy(), expected.astype('float32'))
        got = trib.allreduce(nd.array(of(rank, (9,))), op=trib.Sum, process_set=group)
        assert np.array_equal(got.asnumpy(), expected.astype('float32'))
        root = group.ranks[-1]
        got = trib.broadcast(nd.array(of(rank, (5,))), root, name='from.last', process_set=group)
        assert np.array_equal(got.asnumpy(), of(root, (5,)))
        raises(lambda: trib.broadcast(nd.ones((2,)), 0, process_set=group), 'root_rank 0')
        recorder = Recorder()
        trib.DistributedOptimizer(recorder, process_set=group).update(0, None, nd.array(of(rank, (9,)) * 4), None)
        assert np.allclose(recorder.gradient, expected * 4 / len(group.ranks))
        net = network(root)
        trainer = trib.DistributedTrainer(net.collect_params(), 'sgd', {'learning_rate': 0.1}, process_set=group)
        for step in range(3):
            with autograd.record():
                value = loss(net, batch(step, rank))
            value.backward()
            trainer.step(8)
        assert np.allclose(parameters(net), alone_over(group.ranks), atol=1e-5)
    # Operations without a name are counted for each set: those outside it have not counted its own.
    for name in ('in.set', None):
        got = trib.allreduce(nd.array(of(rank, (9,))), op=trib.Sum, name=name).asnumpy()
        assert np.array_equal(got, total((9,))), name


def joined(parts):
    return nd.concat(*parts, dim=0) if nd is mx.nd else nd.concatenate(parts)


def alone_over(ranks):
    """Parameters that one process gets from the batches of those workers, with the last one's network."""
    net = network(ranks[-1])
    trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.1}, kvstore=None)
    for step in range(3):
        with autograd.record():
            value = joined([loss(net, batch(step, r)) for r in ranks])
        value.backward()
        trainer.step(8 * len(ranks))
    return parameters(net)


def network(seed):
    mx.random.seed(seed)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(16, activation='tanh', in_units=16), gluon.nn.Dense(4, in_units=16))
    net.initialize(mx.init.Xavier())
    return net


def parameters(net):
    return np.concatenate([parameter.data().asnumpy().ravel() for parameter in net.collect_params().values()])


def batch(step, rank):
    return nd.array(np.random.RandomState(100 * step + rank).normal(size=(8, 16)))


def loss(net, x):
    return ((net(x) - nd.abs(x[:, :4])) ** 2).mean(axis=1)


def trains(rank, size):
    alone = network(0)
    trainer = gluon.Trainer(alone.collect_params(), 'sgd', {'learning_rate': 0.1}, kvstore=None)
    for step in range(6):
        with autograd.record():
            value = joined([loss(alone, batch(step, r)) for r in range(size)])
        value.backward()
        trainer.step(8 * size)
    for make in (
        lambda net: trib.DistributedTrainer(net.collect_params(), 'sgd', {'learning_rate': 0.1}),
        lambda net: trib.DistributedTrainer(
            net.collect_params(), 'sgd', {'learning_rate': 0.1}, gradient_predivide_factor=4.0
        ),
        lambda net: gluon.Trainer(
            net.collect_params(), 'sgd', {'learning_rate': 0.1}, kvstore=trib.KVStore(), update_on_kvstore=False
        ),
    ):
        net = network(rank)
        trib.broadcast_parameters({str(i): p for i, p in enumerate(net.collect_params().values())})
        trainer = make(net)
        is_own = isinstance(trainer, trib.DistributedTrainer)
        for step in range(6):
            with autograd.record():
                value = loss(net, batch(step, rank))
            value.backward()
            trainer.step(8 if is_own else 8 * size)
        assert np.allclose(parameters(net), parameters(alone), atol=1e-5)
        least = trib.allreduce(nd.array(parameters(net)), op=trib.Min).asnumpy()
        assert np.array_equal(least, trib.allreduce(nd.array(parameters(net)), op=trib.Max).asnumpy())


class Kept(mx.optimizer.Optimizer):
    """Keeps the gradient that a trainer gives it in the weight's place."""

    def update(self, index, weight, grad, state):
        for one, gradient in zip(weight, grad) if isinstance(weight, (list, tuple)) else [(weight, grad)]:
            gradient.copyto(one)

    def create_state(self, index, weight):
        return None


def fine(count):
    """Numbers that 16 bits round to 1."""
    return np.full(count, 1 + 2.0**-12, 'float32')


def codecs(rank, size):
    trib.byteps_declare_tensor('halves', compressor='fp16')
    onebit = dict(byteps_compressor_type='onebit', byteps_compressor_onebit_scaling='true', byteps_ef_type='vanilla')
    trib.byteps_declare_tensor('like', **onebit)
    array = nd.full((20000,), 2.0)
    trib.byteps_push_pull(array, name='like', is_average=False)
    assert np.array_equal(array.asnumpy(), np.full(20000, 2 * size, 'float32'))
    for count, name, wanted in ((20000, 'halves', 1), (20000, 'whole', 1 + 2.0**-12), (9000, 'halves', 1 + 2.0**-12)):
        array = nd.array(fine(count))
        trib.byteps_push_pull(array, name=name, is_average=False)
        assert np.array_equal(array.asnumpy(), np.full(count, size * wanted, 'float32')), (count, name)
    signs = nd.array(np.where(np.arange(20000) % 3 == 0, -2, 2))
    parameter = gluon.Parameter('signs', shape=(20000,), init='zeros')
    parameter.initialize()
    params = {'compressor': 'onebit', 'scaling': True, 'ef': 'vanilla', 'momentum': '', 'k': 1}  # k: of others
    assert trib.Compression.codec({'compressor': '', 'ef': '', 'k': 1, 'scaling': False}).text == 'none'
    before = tributary.engine().stats().bytes_pushed
    trainer = trib.DistributedTrainer([parameter], Kept(), compression_params=params, prefix='codec.')
    with autograd.record():
        loss = (parameter.data() * signs).sum()
    loss.backward()
    trainer.step(1)
    assert np.array_equal(parameter.data().asnumpy(), signs.asnumpy())  # of one magnitude: nothing is lost
    assert trainer._compression.text == 'compressor=onebit,scaling=True,ef=vanilla,two_way'
    assert tributary.engine().stats().bytes_pushed - before < 80000 + 80000 / 8  # the broadcast and few bytes more
    # Signs alone are of the same size whatever the batch's is: gradients are divided before.
    trainer = trib.DistributedTrainer([parameter], Kept(), compression_params={'compressor': 'onebit'}, prefix='sign.')
    with autograd.record():
        loss = (parameter.data() * signs).sum()
    loss.backward()
    trainer.step(64)
    assert np.array_equal(parameter.data().asnumpy(), np.sign(signs.asnumpy()))
    for params, words in (({'compressor': 'onebit', 'momentum': 'nesterov'}, 'mu'), ({'k': 3}, 'compressor')):
        try:
            trib.DistributedTrainer([parameter], 'sgd', compression_params=params)
        except tributary.ArgumentError as problem:
            assert words in str(problem), problem
        else:
            raise AssertionError('%s was taken' % params)
    momentum = {'compressor': 'onebit', 'momentum': 'nesterov'}
    trainer = trib.DistributedTrainer([parameter], 'sgd', {'momentum': 0.9}, compression_params=momentum)
    assert trainer._compression.text == 'compressor=onebit,momentum=nesterov,mu=0.9,two_way'
    assert trainer._optimizer.momentum == 0.0


def suspended_and_resumed(rank, size):
    """A trainer's gradients are means of the workers that there are, also when they have become fewer."""
    if size == 1 or os.environ.get('TRIB_SERVERS', '0') != '0':
        return
    parameter = gluon.Parameter('resumed', shape=(4,), init='zeros')
    parameter.initialize()
    trainer = trib.DistributedTrainer([parameter], 'sgd', {'learning_rate': 1.0}, prefix='resumed.')
    expected = np.zeros(4, 'float32')
    for change, workers in enumerate((size, size - 1, size)):
        if change:
            trib.suspend()
            if rank < workers:
                trib.resume(workers, 0, rank)
        if rank < workers:
            with autograd.record():
                loss = (parameter.data() * (rank + 1)).sum()
            loss.backward()
            trainer.step(1)
            expected -= (workers + 1) / 2
            assert np.array_equal(parameter.data().asnumpy(), expected), (workers, parameter.data(), expected)


def rows_of(rank, dtype='float32'):
    """What a worker gathers: rank + 1 rows of 3."""
    return of(rank, (rank + 1, 3), dtype)


def gathers(rank, size):
    for dtype in ('float32', 'float16', 'int64', 'uint8'):
        expected = np.concatenate([rows_of(r, dtype) for r in range(size)])
        got = trib.allgather(nd.array(rows_of(rank), dtype=dtype))
        assert got.dtype == np.dtype(dtype) and np.array_equal(got.asnumpy(), expected), dtype
    expected = np.concatenate([rows_of(r) for r in range(size)])
    for got in trib.grouped_allgather([nd.array(rows_of(rank))] * 3):
        assert np.array_equal(got.asnumpy(), expected)
    assert trib.allgather_object('x' * rank) == ['x' * r for r in range(size)]
    # Rank r has r + to + 1 rows for worker `to`, all of r * 10 + to.
    splits = [rank + to + 1 for to in range(size)]
    source = nd.array(np.repeat([[rank * 10 + to] * 2 for to in range(size)], splits, 0))
    output, counts = trib.alltoall(source, nd.array(splits, dtype='int32'))
    received = [r + rank + 1 for r in range(size)]
    assert np.array_equal(output.asnumpy(), np.repeat([[r * 10 + rank] * 2 for r in range(size)], received, 0))
    assert counts.asnumpy().tolist() == received
    even = trib.alltoall(nd.array([rank] * 2 * size))
    assert np.array_equal(even.asnumpy(), np.repeat(range(size), 2))
    for length in (2 * size, 2 * size + 1):
        begin = rank * (length // size) + min(rank, length % size)
        end = begin + length // size + (rank < length % size)
        part = trib.reducescatter(nd.array(of(rank, (length, 3))), op=trib.Sum)
        assert np.array_equal(part.asnumpy(), total((length, 3))[begin:end])
        parts = trib.grouped_reducescatter([nd.array(of(rank, (length, 3)))] * 2, trib.Sum, prescale_factor=2.0)
        assert all(np.array_equal(one.asnumpy(), 2 * total((length, 3))[begin:end]) for one in parts)
    raises(lambda: trib.alltoall(nd.ones((3,)), [1] * (size + 1)), 'do not fit')
    raises(lambda: trib.alltoall(nd.ones((3,)), nd.ones((size,))), 'integers')
    raises(lambda: trib.reducescatter(nd.ones((3,)), trib.Max), 'Average or Sum')


def compression(rank, size):
    halves = trib.Compression.fp16
    sent, context = halves.compress(nd.array([1 + 2.0**-12]))
    assert sent.dtype == np.float16 and halves.decompress(sent, context).asnumpy() == np.float32(1)
    assert halves.compress(nd.ones((2,), dtype='int32'))[0].dtype == np.int32
    parameter = gluon.Parameter('weight', shape=(4,))
    parameter.initialize(mx.init.Zero())
    trainer = trib.DistributedTrainer([parameter], 'sgd', {'learning_rate': 1.0}, compression=halves)
    with autograd.record():
        value = (parameter.data() * (1 + 2.0**-12)).sum()
    value.backward()
    trainer.step(1)
    assert np.array_equal(parameter.data().asnumpy(), np.full(4, -1, 'float32'))  # 16 bits have rounded it


def deferred(rank, size):
    layer = gluon.nn.Dense(3)  # how many inputs it has, the first batch says
    layer.initialize(mx.init.Constant(rank + 1))
    trib.broadcast_parameters({'deferred': layer.weight}, size - 1)
    layer(nd.ones((2, 5)))
    assert np.array_equal(layer.weight.data().asnumpy(), np.full((3, 5), size, 'float32'))


def kinds_in_any_order(rank, size):
    """MXNet begins operations on different arrays in an order of its own. Workers that are in two of one name wait for
    each other here until they are told of that, which is later than MismatchError would come."""
    own, root = nd.ones((3,)), nd.array([rank + 1.0])
    if rank == 0 and size > 1:
        python_bed.told_of(b'stalled for', lambda: trib.allreduce_(own, average=False, name='any order'))
    trib.broadcast_(root, 0, name='any order').wait_to_read()
    if rank > 0 or size == 1:
        trib.allreduce_(own, average=False, name='any order')
    assert root.asnumpy().tolist() == [1.0] and own.asnumpy().tolist() == [size] * 3


def errors(rank, size):
    # An error comes where the array is read, and MXNet goes on.
    python_bed.refused(
        tributary.ArgumentError,
        *python_bed.wrong_arguments(trib, nd.ones(3)),
        (lambda: trib.allreduce(np.ones(3)), 'must be an array of MXNet'),
        (lambda: trib.allgather(None), 'must be an array of MXNet'),
        (lambda: trib.allreduce(nd.ones((3, 3)).tostype('row_sparse')), 'it is sparse'),
        (lambda: trib.DistributedOptimizer(None), 'mx.optimizer'),
    )
    if size > 1:
        # A name takes no further shape then, as workers would number it differently.
        for shape in ((3 + rank,), (3,), (4,), (5,), ((2, 3), (3, 2))[rank % 2]):
            try:
                trib.allreduce(nd.ones(shape), name='differs.%d' % len(shape)).wait_to_read()
            except (mx.base.MXNetError, tributary.MismatchError) as problem:
                assert 'differs' in str(problem), problem
            else:
                raise AssertionError('workers disagreed, and nothing was raised')
        for count in 3, 4:
            trib.allreduce(nd.ones((count,)), name='used before').wait_to_read()
        mine = trib.allreduce(nd.ones((3 + rank % 2,)), name='used before')  # no declaration differs
        python_bed.refused(mx.base.MXNetError, (mine.wait_to_read, 'a sum of float32[4]'))
        # MXNet skips an operation on an array with an error, and the tensor that it was to have ends all the same.
        array = nd.ones((3 + rank,))
        trib.allreduce_(array)
        skipped = next(trib.ops._counters['allreduce', 0])
        trib.ops._counters['allreduce', 0] = itertools.count(skipped)
        trib.allreduce_(array)
        python_bed.refused(mx.base.MXNetError, (array.wait_to_read, 'allreduce.noname.%d' % (skipped - 1)))
        while python_bed.is_declared('allreduce.noname.%d' % skipped):
            pass
        try:
            trib.allgather(nd.ones((2, 3 + rank)), name='differs')
        except tributary.MismatchError as problem:
            assert 'differs' in str(problem), problem
        else:
            raise AssertionError('workers disagreed, and nothing was raised')
    assert np.array_equal(trib.allreduce(nd.ones((4,)), op=trib.Sum).asnumpy(), np.full(4, size, 'float32'))


def operations_that_mxnet_keeps(rank, size):
    """The end of the job does not wait for them for ever."""

    class Keeping:
        lefts = iter([2] * 9 + [0])

        def trib_mxnet_wait(self, milliseconds):
            return next(self.lefts)

    ops, kept = trib.ops, (trib.ops._native, trib.ops.FREED_S)
    ops._native, ops.FREED_S = Keeping(), 0
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter('always')
        ops._closing()
    ops._native, ops.FREED_S = kept
    assert ['has not freed 2 operations' in str(one.message) for one in told] == [True], told


def modules_of_horovod(rank, size):
    """Scripts name them as attributes, without an import of their own."""
    assert trib.mpi_ops.allreduce is trib.allreduce and trib.functions.broadcast_object is trib.broadcast_object


def functions_have_type_hints(rank, size):
    count, untyped = python_bed.untyped(trib)
    assert count > 15 and not untyped, untyped


if __name__ == '__main__':
    trib.init()
    cases = reductions, scaling, predivides, grouped, sets, trains, codecs, gathers, compression, deferred
    cases = *cases, operations_that_mxnet_keeps, modules_of_horovod, functions_have_type_hints, suspended_and_resumed
    for case in (*cases, kinds_in_any_order, errors):
        case(trib.rank(), trib.size())
        print('worker %d of %d: %s is right' % (trib.rank(), trib.size(), case.__name__), flush=True)
    trib.shutdown()

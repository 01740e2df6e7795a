"""Cases of tributary.jax that every worker of a job runs. Each compares with what a worker computes by itself."""

import importlib.util
import os
import sys

import jax
import jax.numpy as jnp
import jax_program_cases as programs
import numpy as np
import python_bed
import tributary
import tributary.jax as trib
from jax_bed import IS_GPU, ended, equal, numbers, of, total
from tributary.jax.tensors import calls as ops_called
from tributary.jax.tensors import checked_name


def reductions(rank, size):
    for dtype in (jnp.float32, jnp.float16, jnp.bfloat16, jnp.int32, jnp.int8):
        for shape in ((), (7,), (3, 5), (0, 2)):
            for function in (lambda x: trib.allreduce(x, trib.Sum), jax.jit(lambda x: trib.allreduce(x, trib.Sum))):
                assert equal(function(of(rank, shape, dtype)), total(shape, dtype)), (dtype, shape)
    least = jax.jit(lambda x: trib.allreduce(x, trib.Min))(of(rank, (50,)))
    assert equal(least, np.stack([numbers(r, (50,)) for r in range(size)]).min(0))
    tree = {'a': of(rank, (4,)), 'b': [of(rank, (2, 2)), of(rank, ())]}
    summed = trib.allreduce(tree, trib.Sum)
    assert equal(summed['a'], total((4,))) and equal(summed['b'][0], total((2, 2))) and equal(summed['b'][1], total(()))
    root = jax.jit(lambda x: trib.broadcast(x, size - 1))(of(rank, (9,)))
    assert equal(root, numbers(size - 1, (9,)))


def transformed(rank, size):
    gradient = jax.jit(jax.grad(lambda x: (trib.allreduce(x, trib.Sum) ** 2).sum()))(of(rank, (6,)))
    assert equal(gradient, 2 * size * total((6,))), gradient
    mapped = jax.jit(jax.vmap(lambda x: trib.allreduce(x, trib.Sum)))(of(rank, (4, 3)))
    assert equal(mapped, total((4, 3)))


def complex_numbers(rank, size):
    def of_rank(r, shape):
        return np.asarray(numbers(r, shape) + 1j * numbers(r + size, shape), np.complex64)

    shape = 2 * size, 3
    every = np.stack([of_rank(r, shape) for r in range(size)])
    part = slice(2 * rank, 2 * rank + 2)

    def moved(x):
        return trib.allreduce(x, trib.Sum), trib.broadcast(x), trib.allgather(x), trib.alltoall(x)

    for function in (moved, jax.jit(moved), jax.jit(jax.vmap(moved, in_axes=1, out_axes=1))):
        got = function(of_rank(rank, shape))
        expected = every.sum(0), every[0], every.reshape(-1, 3), every[:, part].reshape(shape)
        assert all(equal(*pair) for pair in zip(got, expected)), function
    for scattered in (lambda x: trib.reducescatter(x, trib.Sum), jax.jit(lambda x: trib.reducescatter(x, trib.Sum))):
        assert equal(scattered(of_rank(rank, shape)), every.sum(0)[part])
    assert equal(trib.allreduce(of_rank(rank, ()), trib.Sum), sum(of_rank(r, ()) for r in range(size)))

    def loss(x):
        summed = trib.allreduce(x, trib.Sum)
        return (summed * summed.conj()).real.sum()

    gradient = jax.grad(loss)(of_rank(rank, shape))
    assert equal(gradient, 2 * size * every.sum(0).conj()), gradient  # JAX gives the conjugate
    python_bed.refused(
        tributary.ArgumentError,
        (lambda: trib.allreduce(of_rank(rank, shape), trib.Max), 'complex64 can only be summed'),
        (lambda: trib.allgather(of_rank(rank, ())), 'without dimensions'),
    )


def gathers(rank, size):
    mine = of(rank, (rank + 1, 3), jnp.bfloat16)
    whole = np.concatenate([numbers(r, (r + 1, 3), jnp.bfloat16) for r in range(size)])
    assert equal(trib.allgather(mine), whole)
    assert equal(trib.reducescatter(of(rank, (size * 2, 2)), trib.Sum), total((size * 2, 2))[2 * rank : 2 * rank + 2])
    sent = of(rank, (size, 2))
    assert equal(trib.alltoall(sent), np.stack([numbers(r, (size, 2))[rank] for r in range(size)]))
    splits = [size] + [0] * (size - 1)  # all rows go to the first worker
    output, received = trib.alltoall(sent, splits)
    assert received.tolist() == [size if rank == 0 else 0] * size and output.shape == (size * size * (rank == 0), 2)
    assert trib.allgather(jnp.ones((rank + 1, 0))).shape == (size * (size + 1) // 2, 0)
    empty, received = trib.alltoall(jnp.ones((size, 0)), splits)
    assert empty.shape == (int(received.sum()), 0) and received.tolist() == [size if rank == 0 else 0] * size
    pair = trib.add_process_set([0, size - 1]) if size > 2 else trib.global_process_set
    if rank in (0, size - 1):
        ends = np.concatenate([numbers(r, (2, 2)) for r in sorted({0, size - 1})])
        assert equal(trib.allgather(of(rank, (2, 2)), process_set=pair), ends)
    trib.remove_process_set(pair)
    python_bed.refused(
        tributary.ArgumentError,
        (lambda: trib.alltoall(sent, [size + 1] * size), 'do not fit'),
        (lambda: trib.alltoall(sent, [1.5] * size), 'must be integers'),
    )


def gathers_in_programs(rank, size):
    for dtype in (jnp.float32, jnp.bfloat16, jnp.int8):
        for trailing in ((), (3,), (2, 0)):
            shape = (2 * size, *trailing)
            before = ops_called()
            got = jax.jit(lambda x: (trib.allgather(x), trib.alltoall(x), trib.reducescatter(x, trib.Sum)))(
                of(rank, shape, dtype)
            )
            assert ops_called() == before + 3
            every = [numbers(r, shape, dtype) for r in range(size)]
            part = slice(2 * rank, 2 * rank + 2)
            assert equal(got[0], np.concatenate(every)), (dtype, trailing)
            assert equal(got[1], np.concatenate([values[part] for values in every])), (dtype, trailing)
            assert equal(got[2], sum(every)[part]), (dtype, trailing)
    uneven = jax.jit(lambda x: trib.reducescatter(x, trib.Sum))(of(rank, (size + 1, 2)))
    assert equal(uneven, total((size + 1, 2))[(0 if rank == 0 else rank + 1) : rank + 2])
    mapped = jax.jit(jax.vmap(trib.allgather, 1, 1))(of(rank, (3, 4)))
    assert equal(mapped, np.concatenate([numbers(r, (3, 4)) for r in range(size)]))
    pair = trib.add_process_set([0, size - 1]) if size > 2 else trib.global_process_set
    if pair.included():
        ends = [numbers(r, (2, 2)) for r in sorted({0, size - 1})]

        def of_pair(x):
            whole = trib.allgather(x, 'ends', process_set=pair)
            return whole, trib.allreduce(x, trib.Sum, process_set=pair), trib.broadcast(x, size - 1, process_set=pair)

        for function in (of_pair, jax.jit(of_pair)):
            whole, summed, last = function(of(rank, (2, 2)))
            assert equal(whole, np.concatenate(ends)) and equal(summed, sum(ends)) and equal(last, ends[-1])
    if size > 2:
        trib.remove_process_set(pair)
        if rank in (0, size - 1):
            python_bed.refused(
                Exception, (lambda: jax.block_until_ready(jax.jit(of_pair)(of(rank, (2, 2)))), 'has been closed')
            )
    python_bed.refused(
        tributary.UnsupportedError, (lambda: jax.jit(lambda x: trib.alltoall(x, [0] * size))(jnp.ones(size)), 'splits')
    )
    if size > 1:
        ragged = jnp.ones((rank + 1, 3))
        python_bed.refused(
            RuntimeError,
            (lambda: ended(jax.jit(trib.allgather)(ragged)), 'x3] in slices'),
            (lambda: ended(jax.jit(trib.alltoall)(jnp.ones((size * (rank + 1), 3)))), 'alltoall'),
        )


def derivatives(rank, size):
    """Compares with the function of all workers' values at once, whose loss is the sum of theirs."""
    weights = [np.arange(1.0, 1 + 4 * size, dtype=np.float32).reshape(2 * size, 2) * (r + 1) for r in range(size)]
    values = [of(r, (2 * size, 2)) for r in range(size)]
    everybody = jnp.stack(values)

    def mean(parts):
        return sum(parts) / size

    cases = {
        'gather': (lambda x: trib.allgather(x[:2]), lambda xs, r: jnp.concatenate([x[:2] for x in xs])),
        'exchange': (trib.alltoall, lambda xs, r: jnp.concatenate([x[2 * r : 2 * r + 2] for x in xs])),
        'scatter': (lambda x: trib.reducescatter(x, trib.Sum), lambda xs, r: sum(xs)[2 * r : 2 * r + 2]),
        'scatter of means': (trib.reducescatter, lambda xs, r: mean(xs)[2 * r : 2 * r + 2]),
        'mean': (trib.allreduce, lambda xs, r: mean(xs)),
        'broadcast': (lambda x: trib.broadcast(x, size - 1), lambda xs, r: xs[size - 1]),
    }
    for what, (ours, theirs) in cases.items():

        def loss(x, r, function):
            result = function(x)
            return (jnp.sin(result) * weights[r][: len(result)]).sum()

        def whole(xs):
            return sum(loss(xs, r, lambda xs: theirs(xs, r)) for r in range(size))

        got = jax.jit(jax.grad(lambda x: loss(x, rank, ours)))(values[rank])
        assert jnp.allclose(got, jax.grad(whole)(everybody)[rank], atol=1e-4), what
        _, got = jax.jit(lambda x, t: jax.jvp(ours, (x,), (t,)))(values[rank], values[rank] + 1)
        _, expected = jax.jvp(lambda xs: theirs(xs, rank), (everybody,), (everybody + 1,))
        assert jnp.allclose(got, expected, atol=1e-4), what
    most = jax.jit(lambda x: jax.jvp(lambda x: trib.allreduce(x, trib.Max), (x,), (x,)))
    python_bed.refused(tributary.UnsupportedError, (lambda: most(values[rank]), 'no derivative'))


def trains(rank, size):
    parameters = {'w': jax.random.normal(jax.random.key(rank), (16, 4)), 'b': jnp.zeros(4)}
    parameters = trib.broadcast_parameters(parameters)
    alone = parameters

    def batch(step, of_rank):
        return jax.random.normal(jax.random.key(1000 * step + of_rank), (8, 16))

    def loss(p, x):
        return ((x @ p['w'] + p['b'] - jnp.abs(x[:, :4])) ** 2).mean()

    def updated(p, gradients):
        return jax.tree.map(lambda value, gradient: value - 0.05 * gradient, p, gradients)

    reduce = trib.allreduce_gradients()
    gradient = jax.jit(jax.grad(loss))
    step = jax.jit(lambda p, x: updated(p, reduce.update(jax.grad(loss)(p, x), ())[0]))
    for i in range(10):
        parameters = step(parameters, batch(i, rank))
        gradients = [gradient(alone, batch(i, r)) for r in range(size)]
        alone = updated(alone, jax.tree.map(lambda *parts: sum(parts) / size, *gradients))
    assert jax.tree.all(jax.tree.map(lambda a, b: jnp.allclose(a, b, atol=1e-5), parameters, alone))
    least, most = trib.allreduce(parameters, trib.Min), trib.allreduce(parameters, trib.Max)
    assert jax.tree.all(jax.tree.map(lambda a, b: (a == b).all(), least, most))


def keys_travel(rank, size):
    mine = {'key': jax.random.split(jax.random.key(rank), 3), 'array': of(rank, (3,)), 'none': None}
    for function in trib.broadcast_parameters, jax.jit(trib.broadcast_parameters):
        got = function(mine)
        assert got['key'].dtype == mine['key'].dtype and equal(got['array'], numbers(0, (3,))), got
        expected = jax.random.key_data(jax.random.split(jax.random.key(0), 3))
        assert equal(jax.random.key_data(got['key']), np.asarray(expected)), got
    python_bed.refused(tributary.ArgumentError, (lambda: trib.allreduce(mine), 'key<fry>'))


def further_arguments_come_through(rank, size):
    """An optimizer in optax.chain gets `value` and the like, and one that takes none is not given any."""
    if IS_GPU and importlib.util.find_spec('optax') is None:
        return
    import optax

    plateau = trib.DistributedOptimizer(optax.contrib.reduce_on_plateau(patience=1))
    sgd = trib.DistributedOptimizer(optax.sgd(0.5))
    for optimizer in optax.chain(plateau, sgd), optax.chain(trib.allreduce_gradients(), optax.sgd(0.5)):
        state = optimizer.init(jnp.ones(3))
        updates, _ = jax.jit(optimizer.update)(of(rank, (3,)), state, jnp.ones(3), value=jnp.float32(1))
        assert np.allclose(updates, -0.5 * total((3,)) / size), updates


def codecs(rank, size):
    halves = trib.Compression.codec('fp16')
    fine = jnp.full(20000, 1 + 2.0**-12, jnp.float32)  # 16 bits round it to 1
    tree = {'large': fine, 'small': fine[:9000]}
    large = fine[0] if IS_GPU and size == 1 else 1.0  # NCCL sums on one machine alone, without a codec

    def summed(x):
        return trib.allreduce(x, trib.Sum, 'halves', halves)

    for got in (summed(tree), jax.jit(summed)(tree)):
        assert (got['large'] == size * large).all() and (got['small'] == jnp.float32(size * (1 + 2.0**-12))).all()
    optimizer = trib.allreduce_gradients(
        trib.Sum, 'signs', trib.Compression.codec({'compressor': 'onebit', 'scaling': True, 'ef': 'vanilla'})
    )
    signs = jnp.where(jnp.arange(20000) % 3 == 0, -1.0, 1.0)
    before = tributary.engine().stats().bytes_pushed
    got, _ = optimizer.update(signs, optimizer.init(signs))
    assert (got == size * signs).all()
    assert tributary.engine().stats().bytes_pushed - before < 80000 / 8


def errors(rank, size):
    python_bed.refused(
        tributary.ArgumentError,
        *python_bed.wrong_arguments(trib, jnp.ones(3)),
        (lambda: trib.allreduce(jnp.ones(3, jnp.int4)), 'int4'),
        (lambda: trib.allreduce(jnp.ones(3), compression='fp16'), "and is 'fp16'"),
        (lambda: trib.allreduce_gradients('Mean'), "op='Mean'"),
        (lambda: trib.DistributedOptimizer(None), 'of optax'),
    )
    if size > 1:
        turned = jnp.ones((2, 3) if rank % 2 else (3, 2))
        mismatch = tributary.TributaryError if IS_GPU else tributary.MismatchError  # a stream keeps the text alone
        python_bed.refused(mismatch, (lambda: ended(trib.allreduce(turned, name='turned')), 'turned'))
        python_bed.refused(
            RuntimeError,
            (lambda: ended(jax.jit(lambda x: trib.broadcast(x, 0, 'as well'))(turned)), '3x2'),
            (lambda: ended(jax.jit(lambda x: trib.allreduce(x, name='differs'))(jnp.ones(3 + rank))), 'differs'),
            (lambda: ended(jax.jit(lambda x: trib.allgather(x, name='rows'))(jnp.ones((2, 3 + rank)))), 'rows'),
        )
        for count in 3, 4, 5:  # workers would number further shapes of that name differently
            python_bed.refused(
                RuntimeError,
                (lambda: ended(jax.jit(lambda x: trib.allreduce(x, name='differs'))(jnp.ones(count))), 'differs'),
                (lambda: ended(trib.allreduce(jnp.ones(count), name='differs')), 'differs'),
                (lambda: ended(jax.jit(lambda x: trib.allgather(x, name='rows'))(jnp.ones((2, count)))), 'rows'),
            )
        for count in 3, 4:
            ended(trib.allreduce(jnp.ones(count), name='used before'))
            ended(jax.jit(lambda x: trib.allreduce(x, name='compiled before'))(jnp.ones(count)))
        mine = jnp.ones(3 + rank % 2)  # both shapes are known, so that no declaration differs
        compiled = jax.jit(lambda x: trib.allreduce(x, name='compiled before'))
        python_bed.refused(mismatch, (lambda: ended(trib.allreduce(mine, name='used before')), 'float32[4]'))
        python_bed.refused(RuntimeError, (lambda: ended(compiled(mine)), 'float32[4]'))
    program = jax.jit(lambda x: trib.allreduce(x, trib.Sum))
    assert (program(of(rank, (4,))) == total((4,))).all()
    if os.environ.get('TRIB_SERVERS', '0') != '0':
        return  # servers of `tributary run` end with the job
    trib.barrier()
    trib.shutdown()
    trib.init()
    try:
        jax.block_until_ready(program(of(rank, (4,))))
    except Exception as problem:
        assert 'has been closed' in str(problem), problem
    else:
        raise AssertionError('a program of the last job ran')
    assert (trib.allreduce(of(rank, (4,)), trib.Sum) == total((4,))).all()


def suspended_and_resumed(rank, size):
    """A compiled program goes on with the workers that there are, unless it is for another rank."""
    if size == 1 or os.environ.get('TRIB_SERVERS', '0') != '0':
        return
    program = jax.jit(lambda x: trib.allreduce(x, trib.Sum))
    to_root = jax.jit(jax.grad(lambda x: trib.broadcast(x, size - 1, 'from the root').sum()))
    assert equal(to_root(jnp.ones(3)), np.full(3, np.float32(size * (rank == size - 1))))
    turned = 1 + rank % (size - 1) if rank else 0  # the first one stays, as the coordinator stays at its address
    for change, (workers, now) in enumerate(((size, rank), (size - 1, rank), (size, rank), (size, turned))):
        if change:
            trib.suspend()
            if rank < workers:
                trib.resume(workers, 0, now)
        if rank < workers:
            assert (program(of(rank, (5,))) == sum(of(r, (5,)) for r in range(workers))).all(), workers
    assert (trib.allreduce(of(rank, (4,)), trib.Sum) == total((4,))).all() and program._cache_size() == 1
    if now != rank:
        python_bed.refused(Exception, (lambda: jax.block_until_ready(to_root(jnp.ones(3))), 'jax.clear_caches()'))
    jax.clear_caches()
    assert equal(to_root(jnp.ones(3)), np.full(3, np.float32(size * (now == size - 1))))
    # A worker that was not there before traces gathers for the first time, so all count them from the start.
    assert checked_name(None, 'allgather', 0) == 'allgather.0'
    whole = jax.jit(trib.allgather)(of(now, (2,)))
    assert equal(whole, np.concatenate([numbers(r, (2,)) for r in range(size)]))


def functions_have_type_hints(rank, size):
    count, untyped = python_bed.untyped(trib)
    assert count > 15 and not untyped, untyped


if __name__ == '__main__':
    trib.init()
    for case in (
        reductions,
        transformed,
        complex_numbers,
        gathers,
        gathers_in_programs,
        derivatives,
        programs.many_at_once,
        programs.computations_do_not_wait_for_each_other,
        trains,
        keys_travel,
        further_arguments_come_through,
        programs.like_gradients_in_one_program,
        codecs,
        programs.functions_in_programs,
        programs.functions_that_are_lowered_once,
        programs.one_name_in_two_programs,
        programs.several_devices,
        functions_have_type_hints,
        suspended_and_resumed,
        errors,
    ):
        if sys.argv[1:] and case.__name__ not in sys.argv[1:]:
            continue
        case(trib.rank(), trib.size())
        print('worker %d of %d: %s is right' % (trib.rank(), trib.size(), case.__name__), flush=True)
    trib.shutdown()

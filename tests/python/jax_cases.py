"""Cases of tributary.jax that every worker of a job runs. Each compares with what a worker computes by itself."""

import concurrent.futures
import os
import threading

import jax
import jax.numpy as jnp
import numpy as np
import python_bed
import tributary
import tributary.jax as trib
from tributary.jax import ops


# What is expected is computed in numpy: JAX would compile each shape and type of it.
def numbers(rank, shape, dtype=jnp.float32):
    return np.random.default_rng(rank).integers(0, 5, shape).astype(dtype)


def of(rank, shape, dtype=jnp.float32):
    return jnp.asarray(numbers(rank, shape, dtype))


def total(shape, dtype=jnp.float32):
    return sum(numbers(rank, shape, dtype) for rank in range(trib.size()))


def equal(got, expected):
    got = np.asarray(got)
    return got.dtype == expected.dtype and np.array_equal(got, expected)


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
    python_bed.refused(
        tributary.UnsupportedError, (lambda: jax.jit(trib.allgather)(mine), 'does not run in a compiled program')
    )
    python_bed.refused(tributary.ArgumentError, (lambda: trib.alltoall(sent, [size + 1] * size), 'do not fit'))


def many_at_once(rank, size):
    before = ops.calls()
    results = jax.jit(lambda xs: [trib.allreduce(x, trib.Sum) for x in xs])([of(rank, (100 + i,)) for i in range(40)])
    for i, result in enumerate(results):
        assert equal(result, total((100 + i,)))
    assert ops.calls() == before + 40
    python_bed.assert_only_reactors_are_pinned()


def computations_do_not_wait_for_each_other(rank, size):
    """A function that follows an operation in one program ends only when another program's operation is over."""
    has_begun, is_over = threading.Event(), threading.Event()

    def wait(x):
        has_begun.set()
        assert is_over.wait(60), 'the other operation does not end'
        return x

    waits = jax.jit(lambda x: jax.pure_callback(wait, jax.typeof(x), trib.allreduce(x, trib.Sum)))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        first = pool.submit(lambda: np.asarray(waits(of(rank, (5,)))))
        assert has_begun.wait(60), first.result()
        second = jax.jit(lambda x: trib.allreduce(x, trib.Sum))(of(rank, (6,)))
        assert equal(second, total((6,)))
        is_over.set()
        assert equal(first.result(), total((5,)))


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


def like_gradients_in_one_program(rank, size):
    """Two optimizers, one of which is used twice: XLA begins operations in any order."""
    first, second = [trib.allreduce_gradients() for _ in range(2)]
    values = [jnp.ones((200, 200)) for _ in range(4)]

    @jax.jit
    def program(ones):
        return [
            transform.update([factor * (one @ one) / 200 for one in ones], ())[0]
            for transform, factor in ((first, 1.0), (second, 10.0), (first, 100.0))
        ]

    for _ in range(20):
        for results, expected in zip(program(values), (1.0, 10.0, 100.0)):
            assert all((abs(result - expected) < 1e-3).all() for result in results), (expected, results)


def codecs(rank, size):
    halves = trib.Compression.codec('fp16')
    fine = jnp.full(20000, 1 + 2.0**-12, jnp.float32)  # 16 bits round it to 1
    tree = {'large': fine, 'small': fine[:9000]}

    def summed(x):
        return trib.allreduce(x, trib.Sum, 'halves', halves)

    for got in (summed(tree), jax.jit(summed)(tree)):
        assert (got['large'] == size).all() and (got['small'] == jnp.float32(size * (1 + 2.0**-12))).all()
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
        (lambda: trib.allreduce(jnp.ones(3, jnp.complex64)), 'complex64'),
        (lambda: trib.allreduce(jnp.ones(3), compression='fp16'), "and is 'fp16'"),
        (lambda: trib.allreduce_gradients('Mean'), "op='Mean'"),
        (lambda: trib.DistributedOptimizer(None), 'of optax'),
    )
    if size > 1:
        turned = jnp.ones((2, 3) if rank % 2 else (3, 2))
        python_bed.refused(tributary.MismatchError, (lambda: trib.allreduce(turned, name='turned'), 'turned'))
        python_bed.refused(
            RuntimeError,
            (lambda: jax.block_until_ready(jax.jit(lambda x: trib.broadcast(x, 0, 'as well'))(turned)), '3x2'),
        )
        try:
            jax.block_until_ready(jax.jit(lambda x: trib.allreduce(x, name='differs'))(jnp.ones(3 + rank)))
            trib.check()  # a GPU's stream goes on, and tells no one
        except Exception as problem:
            assert 'differs' in str(problem), problem
        else:
            raise AssertionError('workers disagreed, and nothing was raised')
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
    """A compiled program goes on with the workers that there are."""
    if size == 1 or os.environ.get('TRIB_SERVERS', '0') != '0':
        return
    program = jax.jit(lambda x: trib.allreduce(x, trib.Sum))
    for change, workers in enumerate((size, size - 1, size)):
        if change:
            trib.suspend()
            if rank < workers:
                trib.resume(workers, 0, rank)
        if rank < workers:
            assert (program(of(rank, (5,))) == sum(of(r, (5,)) for r in range(workers))).all(), workers
    assert (trib.allreduce(of(rank, (4,)), trib.Sum) == total((4,))).all() and program._cache_size() == 1


def functions_have_type_hints(rank, size):
    count, untyped = python_bed.untyped(trib)
    assert count > 15 and not untyped, untyped


if __name__ == '__main__':
    trib.init()
    for case in (
        reductions,
        transformed,
        gathers,
        many_at_once,
        computations_do_not_wait_for_each_other,
        trains,
        like_gradients_in_one_program,
        codecs,
        functions_have_type_hints,
        suspended_and_resumed,
        errors,
    ):
        case(trib.rank(), trib.size())
        print('worker %d of %d: %s is right' % (trib.rank(), trib.size(), case.__name__), flush=True)
    trib.shutdown()

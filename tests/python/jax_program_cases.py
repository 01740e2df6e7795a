"""Cases of jax_cases.py on programs that jax.jit makes: many operations in one, several at once, functions within."""

import concurrent.futures
import os
import threading
import unittest.mock

import jax
import jax.numpy as jnp
import numpy as np
import python_bed
import tributary
import tributary.jax as trib
from jax_bed import IS_GPU, equal, of, total
from tributary.jax.program import _Lowered as Lowered
from tributary.jax.tensors import calls as ops_called


def many_at_once(rank, size):
    before = ops_called()
    results = jax.jit(lambda xs: [trib.allreduce(x, trib.Sum) for x in xs])([of(rank, (100 + i,)) for i in range(40)])
    for i, result in enumerate(results):
        assert equal(result, total((100 + i,)))
    assert ops_called() == before + 40
    python_bed.assert_only_reactors_are_pinned()


def computations_do_not_wait_for_each_other(rank, size):
    """A function that follows an operation in one program ends only when another program's operation is over."""
    if IS_GPU:
        return  # one stream has all programs, one behind the other
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


def functions_in_programs(rank, size):
    """A program may have a function of its own jit, a checkpoint or a loop as often as it likes. XLA begins operations
    that do not depend on each other in another order on each worker."""
    values = [jnp.full((200, 200), 1.0 + i) for i in range(6)]
    three = jnp.stack(values[:3])

    def reduced(x):
        return trib.allreduce(x, trib.Sum)

    def body(carry, x):
        return carry + reduced(x), None

    def loop(xs, unroll=1):
        return jax.lax.scan(body, xs[0], xs, unroll=unroll)[0]

    inner, saved = jax.jit(reduced), jax.checkpoint(reduced)
    for function in inner, saved, jax.jit(reduced, inline=True):
        program = jax.jit(lambda values: [function(value @ value) for value in values])
        for _ in range(10):
            for i, result in enumerate(program(values)):
                assert (result == size * 200 * (1.0 + i) ** 2).all(), i

    def crossed(values):  # nothing overlaps, and yet each worker's first call must not meet the other's second one
        first, second = values[:2] if rank == 0 else values[1::-1]
        done = inner(first)
        return done, inner(second + 0 * done)

    first, second = jax.jit(crossed)(values)
    assert (first == 1 + 2.0 * (size - 1)).all() and (second == 2 + 1.0 * (size - 1)).all()
    assert (jax.jit(lambda x: inner(inner(x)))(values[1]) == 2.0 * size**2).all()
    swept = jax.jit(lambda xs: jax.lax.map(inner, xs) + jax.lax.map(inner, xs, batch_size=8))(of(rank, (20, 3)))
    assert equal(swept, 2 * total((20, 3)))
    for unroll in 1, 2, True:
        assert (jax.jit(lambda xs: loop(xs, unroll) + loop(xs + 1, unroll))(three) == 3.0 + 15 * size).all()
        gradient = jax.jit(jax.grad(lambda xs: loop(xs, unroll).sum()))(three)
        assert (gradient == (size + jnp.array([1.0, 0, 0]))[:, None, None]).all()
    squared = jax.checkpoint(lambda x: reduced(x) ** 2)
    gradient = jax.jit(jax.grad(lambda x: squared(squared(x)).sum()))(values[0])
    assert (gradient == 4 * size**6).all()
    branches = jax.jit(lambda x: jax.lax.cond(x[0, 0] > 0, inner, lambda x: 2 * inner(x), x) + inner(x))(values[2])
    assert (branches == 6.0 * size).all()
    repeated = jax.lax.while_loop(
        lambda state: state[0] < 3, lambda state: (state[0] + 1, inner(inner(state[1]))), (0, 1.0)
    )
    assert repeated[1] == size**6


def functions_that_are_lowered_once(rank, size):
    """A JAX that keeps them where this package does not look would have two operations of one name in a program."""
    if IS_GPU:
        return  # its stream has the same order on all workers
    inner = jax.jit(lambda x: trib.allreduce(x, trib.Sum))
    program = jax.jit(lambda x: inner(inner(x)))
    with unittest.mock.patch.object(Lowered, '__setitem__', dict.__setitem__):
        python_bed.refused(
            RuntimeError, (lambda: jax.block_until_ready(program(jnp.ones(3))), 'has this operation twice')
        )
    assert (inner(jnp.ones(3)) == size).all()


def one_name_in_two_programs(rank, size):
    """Two threads run programs that have one name: the second one's operation is refused, and the job ends."""
    if IS_GPU or os.environ.get('TRIB_SERVERS', '0') != '0':
        return  # a GPU's stream has an order; servers of `tributary run` end with the job
    programs = [jax.jit(lambda x, i=i: trib.allreduce(x + i, trib.Sum, 'of both')) for i in range(2)]
    if size == 1:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for _ in range(50):  # one worker mixes nothing up
                assert [result[0] for result in pool.map(lambda program: program(jnp.ones(9)), programs)] == [1, 2]
        return
    if rank == 0:
        before = ops_called()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            first = pool.submit(lambda: jax.block_until_ready(programs[0](jnp.ones(9))))
            while ops_called() == before:
                os.sched_yield()
            text = 'of both: two programs at the same time'
            python_bed.refused(
                Exception, (lambda: jax.block_until_ready(programs[1](jnp.ones(9))), text), (first.result, text)
            )
    else:
        try:
            trib.allreduce(jnp.ones(9), name='other')
        except tributary.TributaryError as problem:  # the first worker withdraws, and may have left the job then
            assert any(text in str(problem) for text in ('withdrew', 'left')), problem
        else:
            raise AssertionError('the job went on')
    trib.shutdown()
    trib.init()


def several_devices(rank, size):
    """An array on several devices of a worker is reduced outside of programs, and refused within them. A mesh may have
    one device."""
    spec = jax.sharding.PartitionSpec('devices')
    alone = jax.sharding.Mesh(np.array(jax.devices()[:1]), ('devices',))
    mapped = jax.shard_map(lambda x: trib.allreduce(x, trib.Sum), mesh=alone, in_specs=spec, out_specs=spec)
    for function in mapped, jax.jit(mapped):
        assert equal(jax.jit(lambda x: function(function(x)))(of(rank, (8, 2))), size * total((8, 2)))
    if len(jax.devices()) == 1:
        return
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ('devices',))
    spread = jax.device_put(of(rank, (8, 2)), jax.sharding.NamedSharding(mesh, spec))
    for _ in range(2):
        assert equal(trib.allreduce(spread, trib.Sum), total((8, 2)))
    for function in (trib.allreduce, jax.shard_map(trib.allreduce, mesh=mesh, in_specs=spec, out_specs=spec)):
        python_bed.refused(tributary.UnsupportedError, (lambda: jax.jit(function)(spread), 'several devices'))

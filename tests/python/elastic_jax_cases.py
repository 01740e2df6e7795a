#!/usr/bin/env python3
"""A worker of a job with TRIB_SURVIVE=workers and JAX, for test_jax.py. Two workers run a compiled step until a third
one has come, and one of the three is lost. Each compiles the step anew then."""

import os
import signal

import jax
import jax.numpy as jnp
import numpy as np

import tributary.elastic
import tributary.jax as trib


@jax.jit
def step(total):
    return total + trib.allreduce(jnp.ones(3), op=trib.Sum) + trib.allreduce(jnp.ones(1000), op=trib.Sum)[0]


@tributary.elastic.run
def train(state):
    size = trib.size()
    state.had_three = state.had_three or size == 3
    for _ in range(3):
        before, state.total = state.total, np.asarray(step(state.total))
        assert (state.total == before + 2 * size).all(), (size, before, state.total)
        state.commit()
    if size == 3 and trib.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if size == 3:
        step(state.total).block_until_ready()  # a worker is lost
    if not state.had_three:
        state.admit()


if __name__ == '__main__':
    trib.init()
    state = tributary.elastic.ObjectState(total=np.zeros(3, np.float32), had_three=False)
    state.register_reset_callbacks([jax.clear_caches])
    train(state)
    print('rank %d of %d is right, three: %s' % (trib.rank(), trib.size(), state.had_three), flush=True)
    trib.shutdown()

"""Shared parts of the cases of tributary.jax: arrays of each worker, and what is expected of them."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import tributary.jax as trib

IS_GPU = os.environ.get('TRIB_DEVICE') == 'cuda'


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


def ended(result):
    """Waits for a result. On a GPU XLA's stream goes on behind an operation that has failed: check() tells of it."""
    jax.block_until_ready(result)
    trib.check()

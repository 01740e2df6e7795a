"""Reductions and broadcasts of JAX's arrays, in programs that are compiled (program.py) and outside of them.

The same program must run on all workers. Names belong to places in a program: where none is given they are counted as
the program is traced, so workers must trace the same functions in the same order."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import codecs, job
from .._library import lib
from ..process_sets import ProcessSet, global_process_set, resolve
from ..reductions import REDUCTIONS, Average, Sum, reduction_of
from .program import BROADCAST, PUSH_PULL, bind
from .tensors import check, checked_name, joined, parted, type_of

init, shutdown = job.init, job.shutdown


def _is_key(leaf):
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _apply(tree, name, kind, op, root, prefix, process_set, compression=None):
    """Does one thing with all arrays of a pytree. root: its place in the set."""
    if compression is not None:
        codecs.checked(compression)
    engine, set_id = process_set.engine(), process_set.process_set_id
    name = checked_name(name, prefix, set_id)
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    results = []
    for index, (path, leaf) in enumerate(leaves):
        full = name + jax.tree_util.keystr(path)
        leaf, is_complex = parted(jnp.asarray(leaf), full, op)
        dtype, codec = type_of(leaf.dtype, full), codecs.codec_of(compression, leaf.size * leaf.dtype.itemsize)
        if not isinstance(leaf, jax.core.Tracer) and next(iter(leaf.devices())).platform == 'cpu':
            begun = _begin(engine, full, leaf, dtype, kind, op, root, -index, codec)
        else:
            begun = bind(leaf, kind, full, set_id, op, root, -index, codec)
        results.append((begun, is_complex))
    ended = [joined(begun() if callable(begun) else begun, is_complex) for begun, is_complex in results]
    return jax.tree_util.tree_unflatten(structure, ended)


def _begin(engine, name, leaf, dtype, kind, op, root, priority, codec):
    """Outside of programs: submits at once, and returns a function that waits and returns the array."""
    memory = np.array(leaf)
    tensor = engine.declare(name, dtype, memory.size, priority, codec=codec, shape=memory.shape)
    address = memory.__array_interface__['data'][0]
    function = lib.trib_broadcast if kind == BROADCAST else lib.trib_push_pull
    operation = tensor.submit(
        function, address, address, memory, memory, reduce=REDUCTIONS.get(op, 0), root=max(root, 0)
    )
    return lambda: jnp.asarray(operation.wait())


class Compression(codecs.Compression):
    """The values of arguments named `compression`."""

    none = None


def allreduce(
    tree: Any,
    op: str | None = Average,
    name: str | None = None,
    compression: Any = None,
    process_set: ProcessSet | None = global_process_set,
) -> Any:
    """Returns the reduction of the arrays of a set's workers; a pytree gives a pytree. op: Average, Sum, Min, Max or
    Product. Average and Sum can be differentiated; all of them work under jit and vmap."""
    return _apply(tree, name, PUSH_PULL, reduction_of(op), -1, 'allreduce', resolve(process_set), compression)


def push_pull(tree: Any, average: bool = True, name: str | None = None) -> Any:
    """BytePS's name for allreduce."""
    return allreduce(tree, Average if average else Sum, name)


def broadcast(
    tree: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet | None = global_process_set,
) -> Any:
    """Returns the root's arrays on every worker of a set, keys of jax.random, too; a pytree gives a pytree. root_rank:
    a rank of the job, also in a set."""
    process_set = resolve(process_set)
    leaves, structure = jax.tree.flatten(tree)
    data = jax.tree.unflatten(structure, [jax.random.key_data(leaf) if _is_key(leaf) else leaf for leaf in leaves])
    data = _apply(data, name, BROADCAST, None, process_set.root(root_rank), 'broadcast', process_set)
    results = [
        jax.random.wrap_key_data(result, impl=jax.random.key_impl(leaf)) if _is_key(leaf) else result
        for leaf, result in zip(leaves, jax.tree.leaves(data))
    ]
    return jax.tree.unflatten(structure, results)


def barrier() -> None:
    """Waits until all workers have called it."""
    check()
    job.engine().barrier()

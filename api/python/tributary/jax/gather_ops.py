"""Collectives of JAX's arrays whose results differ from them in the first dimension.

In compiled programs XLA must know how long a result is, so all workers have arrays of one shape there. Outside of them
the workers say how many rows they have as these are gathered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._library import encoded
from ..errors import ArgumentError, UnsupportedError
from ..process_sets import ProcessSet, global_process_set, resolve
from ..reductions import Average
from ..rows import begin_gather, begin_scatter
from ..shares import lengths_of, share_of, summing
from .program import EXCHANGE, GATHER, SCATTER, bind
from .tensors import checked_name, joined, parted, type_of


def _rows(array, name):
    """Returns an array as parted() does, and how many rows it has. An array whose rows cannot be sent is refused."""
    encoded(name)  # refuses what is no name
    shape = np.shape(array)
    if not shape:
        raise ArgumentError('%s: an array without dimensions has no rows' % name)
    array, is_complex = parted(array, name)
    type_of(array.dtype if isinstance(array, jax.core.Tracer) else np.asarray(array).dtype, name)
    return array, is_complex, shape[0]


def _in_program(array, kind, text, name, process_set, rows, op=None):
    """Adds an operation to the program that is traced. It shares no name with those outside of programs."""
    set_id = process_set.process_set_id
    name = checked_name(None, text, set_id) if name is None else '%s.%s' % (name, text)
    return bind(array, kind, name, set_id, op, rows=rows)


def allgather(array: Any, name: str | None = None, process_set: ProcessSet | None = global_process_set) -> jax.Array:
    """Returns the arrays of a set's workers, one behind the other along the first dimension. Outside of compiled
    programs they may differ in length."""
    process_set = resolve(process_set)
    engine, (array, is_complex, rows) = process_set.engine(), _rows(array, name or 'allgather')
    if isinstance(array, jax.core.Tracer):
        whole = _in_program(array, GATHER, 'allgather', name, process_set, rows * process_set.size())
    else:
        whole = jnp.asarray(begin_gather(engine, name or 'allgather', np.array(array, order='C'))()[0])
    return joined(whole, is_complex)


def alltoall(
    array: Any,
    splits: Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet | None = global_process_set,
) -> Any:
    """Returns what the workers of a set have for this one. splits: how many rows each worker gets, in order of rank;
    then the result is a pair of the output and the rows received. None: equal parts. A compiled program takes no
    splits."""
    process_set, text = resolve(process_set), name or 'alltoall'
    engine, size, (array, is_complex, rows) = process_set.engine(), process_set.size(), _rows(array, text)
    if isinstance(array, jax.core.Tracer) or isinstance(splits, jax.core.Tracer):
        if splits is not None:
            raise UnsupportedError(
                '%s: with splits its result is of unknown length, which no compiled program can have: call it outside '
                'of jit, grad and vmap, or leave splits out' % text
            )
        lengths_of(text, rows, size)
        return joined(_in_program(array, EXCHANGE, 'alltoall', name, process_set, rows), is_complex)
    lengths = lengths_of(text, rows, size, splits)
    output, received = begin_gather(engine, text, np.array(array, order='C'), lengths)()
    output = joined(jnp.asarray(output), is_complex)
    return output if splits is None else (output, jnp.asarray(received, jnp.int32))


def reducescatter(
    array: Any,
    op: str | None = Average,
    name: str | None = None,
    process_set: ProcessSet | None = global_process_set,
) -> jax.Array:
    """Returns this worker's part of the reduction along the first dimension; the first workers get the rest's rows."""
    process_set, text = resolve(process_set), name or 'reducescatter'
    engine, op, (array, is_complex, rows) = process_set.engine(), summing(op, text), _rows(array, text)
    if isinstance(array, jax.core.Tracer):
        rows = share_of(rows, process_set.rank(), process_set.size())
        share = _in_program(array, SCATTER, 'reducescatter', name, process_set, rows, op)
    else:
        share = jnp.asarray(begin_scatter(engine, text, np.array(array, order='C'), op)())
    return joined(share, is_complex)

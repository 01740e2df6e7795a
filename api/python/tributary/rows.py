"""Collectives of arrays of numpy whose results differ from them in the first dimension, for bindings whose arrays are
copied to the host anyway."""

from __future__ import annotations

import math

import numpy as np

from . import _abi
from ._library import lib
from .buffers import DTYPES, Buffer
from .objects import gathered
from .reductions import REDUCTIONS
from .shares import share_of, summing


def _buffer(host):
    return Buffer(host.__array_interface__['data'][0], DTYPES[str(host.dtype)], host.size, host, False, True)


def _row(host):
    """Returns how many elements an index of the first dimension stands for."""
    return max(math.prod(host.shape[1:]), 1)


def begin_gather(engine, name, host, splits=None):
    """Sends all rows to each worker, or, with splits, so many to each. Returns a function that waits for the rows that
    came from all workers, and for how many came from each."""
    row, trailing, dtype, is_empty = _row(host), host.shape[1:], host.dtype, 0 in host.shape[1:]
    if is_empty:  # how many there are is all that can be sent of rows without elements
        host = np.array([host.shape[0]] if splits is None else splits, np.int64)
        splits = splits and [1] * len(splits)
    kind = lib.trib_all_gather if splits is None else lib.trib_all_to_all
    elements = None if splits is None else [length * row for length in splits]
    shape = host.shape if splits is None else ()
    operation = gathered(engine, kind, name, _buffer(host), row, elements, host, shape)

    def finish():
        content, counts = operation.wait()
        values = np.frombuffer(content, host.dtype)
        rows = values.tolist() if is_empty else [count // row for count in counts]
        values = np.empty(0, dtype) if is_empty else values
        return values.reshape([sum(rows), *trailing]), rows

    return finish


def begin_scatter(engine, name, host, op):
    """Reduces the rows; the first workers get the rest's rows. Returns a function that waits for this worker's part."""
    reduce = REDUCTIONS[summing(op, name)]
    result = np.empty([share_of(host.shape[0], engine.rank, engine.size), *host.shape[1:]], host.dtype)
    source, target = _buffer(host), _buffer(result)
    declared = engine.declare_once(
        name, target.dtype, target.count, layout=_abi.TRIB_SLICES, row=_row(host), shape=result.shape
    )
    operation = declared.submit(
        lib.trib_reduce_scatter,
        source.address,
        target.address,
        (host, result),
        reduce=reduce,
        input_bytes=host.nbytes,
        is_once=True,
    )

    def finish():
        operation.wait()
        return result

    return finish

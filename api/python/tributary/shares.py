"""The workers' shares of a first dimension, which the exchanges of all bindings divide."""

import operator

from .errors import ArgumentError
from .reductions import Average, Sum, reduction_of


def share_of(rows, rank, size):
    """Returns how many rows of a reducescatter a worker gets: the first workers get the rest's."""
    return rows // size + (rank < rows % size)


def summing(op, name):
    """Returns the reduction of a reducescatter, and refuses those that are no sum."""
    op = reduction_of(op)
    if op not in (Average, Sum):
        raise ArgumentError('%s: op must be Average or Sum' % name)
    return op


def lengths_of(name, rows, size, splits=None):
    """Returns how many of an array's rows go to each worker of an alltoall: equal parts without splits."""
    if splits is None:
        if rows % size:
            raise ArgumentError('%s: %d rows cannot be split evenly among %d workers: give splits' % (name, rows, size))
        return [rows // size] * size
    try:
        lengths = [operator.index(length) for length in splits]
    except TypeError:
        raise ArgumentError('%s: splits must be integers' % name) from None
    if len(lengths) != size or sum(lengths) > rows or min(lengths) < 0:
        raise ArgumentError('%s: splits %s do not fit %d workers and %d rows' % (name, lengths, size, rows))
    return lengths

"""The reductions that all bindings offer, under Horovod's names."""

from . import _abi
from .errors import ArgumentError, UnsupportedError

Average, Sum, Adasum, Min, Max, Product = 'Average', 'Sum', 'Adasum', 'Min', 'Max', 'Product'
REDUCTIONS = {
    Average: _abi.TRIB_AVG,
    Sum: _abi.TRIB_SUM,
    Min: _abi.TRIB_MIN,
    Max: _abi.TRIB_MAX,
    Product: _abi.TRIB_PRODUCT,
}


def reduction_of(op=None, average=None):
    """Returns the reduction that `op`, or the older argument `average`, stands for; Average where neither is given."""
    if op is not None and average is not None:
        raise ArgumentError('op and average say the same: give only one of them')
    if op is None:
        return Average if average is None or average else Sum
    if op == Adasum:
        raise UnsupportedError('op=%s is not supported: use one of %s' % (op, ', '.join(REDUCTIONS)))
    if not isinstance(op, str) or op not in REDUCTIONS:
        raise ArgumentError('op=%r is not one of %s' % (op, ', '.join(REDUCTIONS)))
    return op


def passes_of(count):
    """Returns backward_passes_per_step as it is, and refuses what is no count."""
    if not hasattr(count, '__index__') or count < 1:
        raise ArgumentError('backward_passes_per_step must be an integer of at least 1')
    return int(count)

"""PyTorch's reductions in the engine's terms: their factors, and the parts of complex numbers."""

import torch
import torch.distributed as dist

from .. import _abi
from ..errors import UnsupportedError
from .ops import scaled

_REDUCTIONS = [
    (dist.ReduceOp.SUM, _abi.TRIB_SUM),
    (dist.ReduceOp.AVG, _abi.TRIB_AVG),
    (dist.ReduceOp.MIN, _abi.TRIB_MIN),
    (dist.ReduceOp.MAX, _abi.TRIB_MAX),
    (dist.ReduceOp.PRODUCT, _abi.TRIB_PRODUCT),
    (dist.ReduceOp.BAND, _abi.TRIB_BIT_AND),
    (dist.ReduceOp.BOR, _abi.TRIB_BIT_OR),
    (dist.ReduceOp.BXOR, _abi.TRIB_BIT_XOR),
]


def reduction_and_factor(opts):
    """Returns the engine's reduction, and by what the input is multiplied before; None: by nothing."""
    op = getattr(opts, 'reduceOp', opts)
    if op is None:
        return _abi.TRIB_SUM, None
    for known, reduce in _REDUCTIONS:  # a ReduceOp does not hash as its constants do
        if op == known:
            return reduce, None
    if op == getattr(dist.ReduceOp, 'PREMUL_SUM', None):
        factor = op.__getstate__()[1]  # older releases have no other call that tells it
        if isinstance(factor, torch.Tensor):  # to read one of a GPU would wait for it
            factor = factor.reshape(()) if factor.is_cuda else float(factor)
        return _abi.TRIB_SUM, factor
    raise UnsupportedError('tributary: %s is not supported' % op)


def parts_of(tensor, reduce):
    """Returns a complex tensor as its real and imaginary parts where they may be reduced apart, as in a sum; else the
    tensor as it is."""
    is_linear = reduce in (_abi.TRIB_SUM, _abi.TRIB_AVG)
    return torch.view_as_real(tensor) if tensor.is_complex() and is_linear else tensor


def multiplied(tensor, factor):
    """Returns tensor * factor; None: the tensor itself."""
    return tensor if factor is None else scaled(tensor, factor)

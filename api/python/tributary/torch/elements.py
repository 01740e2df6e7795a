"""PyTorch's types and memory in the engine's terms."""

import torch

from .. import _abi
from ..errors import ArgumentError

DTYPES = {
    torch.float32: _abi.TRIB_FLOAT32,
    torch.float64: _abi.TRIB_FLOAT64,
    torch.float16: _abi.TRIB_FLOAT16,
    torch.bfloat16: _abi.TRIB_BFLOAT16,
    torch.int8: _abi.TRIB_INT8,
    torch.uint8: _abi.TRIB_UINT8,
    torch.int32: _abi.TRIB_INT32,
    torch.int64: _abi.TRIB_INT64,
    torch.bool: _abi.TRIB_BOOL,
    torch.int16: _abi.TRIB_INT16,
}
for _name, _number in (  # not in every release
    ('uint16', _abi.TRIB_UINT16),
    ('uint32', _abi.TRIB_UINT32),
    ('uint64', _abi.TRIB_UINT64),
    ('float8_e4m3fn', _abi.TRIB_FLOAT8_E4M3),
    ('float8_e5m2', _abi.TRIB_FLOAT8_E5M2),
):
    if hasattr(torch, _name):
        DTYPES[getattr(torch, _name)] = _number


def dtype_of(tensor, what='tensor'):
    """Returns the engine's type of a tensor's elements."""
    dtype = DTYPES.get(tensor.dtype)
    if dtype is None and tensor.is_complex():
        raise ArgumentError(
            '%s: elements of %s cannot be reduced so: sum torch.view_as_real(tensor), their parts, or gather and '
            'reduce them by yourself; sums and averages of torch.distributed take them as they are'
            % (what, tensor.dtype)
        )
    if dtype is None:
        raise ArgumentError(
            '%s: elements of %s cannot be summed: convert the tensor to one of %s'
            % (what, tensor.dtype, ', '.join(sorted(str(known) for known in DTYPES)))
        )
    return dtype


def bits_of(tensor):
    """Returns a contiguous tensor's memory as elements that the engine can move: its own type, or bytes."""
    return (
        tensor
        if tensor.dtype in DTYPES
        else tensor.view(torch.uint8)
        if tensor.dim()
        else tensor.view(1).view(torch.uint8)
    )


def checked(tensor, what='tensor'):
    """Returns what is a tensor with memory of its own, and refuses all else."""
    if isinstance(tensor, torch.Tensor) and tensor.is_cpu and tensor.layout is torch.strided and not tensor.is_nested:
        return tensor
    if not isinstance(tensor, torch.Tensor):
        raise ArgumentError('%s: it must be a torch.Tensor, and is %s' % (what, type(tensor).__name__))
    if tensor.is_nested:
        raise ArgumentError('%s: it is nested: pass the tensors that tensor.unbind() returns' % what)
    if tensor.layout != torch.strided:
        raise ArgumentError(
            '%s: it is sparse; pass tensor.to_dense(), or sparse_as_dense=True to DistributedOptimizer' % what
        )
    if tensor.device.type not in ('cpu', 'cuda'):
        raise ArgumentError(
            '%s: memory of a %s cannot be reached: move the tensor to the CPU' % (what, tensor.device.type)
        )
    return tensor


def is_plain(tensor):
    """Returns whether a tensor's memory holds its elements in the order of its shape, and no negatives or conjugates of
    them."""
    return tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


def contiguous(tensor, what='tensor'):
    """Returns a tensor of the same memory, which stays when the caller's gets another (`x.data = y`), or a copy that
    is_plain(). Strides may differ between workers."""
    tensor = checked(tensor, what).detach()
    return tensor if is_plain(tensor) else tensor.resolve_conj().resolve_neg().contiguous()


def used_here(made):
    """Returns a tensor that the current stream is about to read. PyTorch gives its memory out again in the order of the
    stream that it was taken for, which may be another one."""
    if made.is_cuda:
        made.record_stream(torch.cuda.current_stream(made.device))
    return made


def stream_of(tensor, gpu=None):
    """Returns the CUDA stream that fills a tensor, None for a tensor in host memory. gpu: the index of the engine's: on
    another one it would wait for a stream of its own, as the default streams of all have one number."""
    if not tensor.is_cuda:
        return None
    if gpu not in (None, tensor.device.index):
        raise ArgumentError(
            'a tensor on %s, and this process joined the job with cuda:%d: move the tensor there, or call '
            'torch.cuda.set_device() before joining' % (tensor.device, gpu)
        )
    return torch.cuda.current_stream(tensor.device).cuda_stream

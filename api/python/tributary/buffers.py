"""Says where the elements of an array lie: arrays of numpy, the array module, DLPack and CUDA's array interface."""

import collections
import ctypes

from . import _abi
from .errors import ArgumentError

# address: of the first element; count: elements; owner: keeps the memory alive; is_device: memory of a GPU
Buffer = collections.namedtuple('Buffer', 'address dtype count owner is_device writable')

DTYPES = {
    'float32': _abi.TRIB_FLOAT32,
    'float64': _abi.TRIB_FLOAT64,
    'float16': _abi.TRIB_FLOAT16,
    'bfloat16': _abi.TRIB_BFLOAT16,
    'int8': _abi.TRIB_INT8,
    'uint8': _abi.TRIB_UINT8,
    'int32': _abi.TRIB_INT32,
    'int64': _abi.TRIB_INT64,
    'bool': _abi.TRIB_BOOL,
    'int16': _abi.TRIB_INT16,
    'uint16': _abi.TRIB_UINT16,
    'uint32': _abi.TRIB_UINT32,
    'uint64': _abi.TRIB_UINT64,
    'float8_e4m3fn': _abi.TRIB_FLOAT8_E4M3,
    'float8_e5m2': _abi.TRIB_FLOAT8_E5M2,
}
_FORMATS = {
    'f': 'float32',
    'd': 'float64',
    'e': 'float16',
    'b': 'int8',
    'B': 'uint8',
    'i': 'int32',
    'l': 'int64',
    'q': 'int64',
    '?': 'bool',
    'h': 'int16',
    'H': 'uint16',
    'I': 'uint32',
    'L': 'uint64',
    'Q': 'uint64',
}
_TYPESTRINGS = {
    'f4': 'float32',
    'f8': 'float64',
    'f2': 'float16',
    'i1': 'int8',
    'u1': 'uint8',
    'i4': 'int32',
    'i8': 'int64',
    'b1': 'bool',
    'i2': 'int16',
    'u2': 'uint16',
    'u4': 'uint32',
    'u8': 'uint64',
}
_DLPACK = {
    (0, 8): 'int8',
    (0, 32): 'int32',
    (0, 64): 'int64',
    (0, 16): 'int16',
    (1, 8): 'uint8',
    (1, 16): 'uint16',
    (1, 32): 'uint32',
    (1, 64): 'uint64',
    (2, 16): 'float16',
    (2, 32): 'float32',
    (2, 64): 'float64',
    (4, 16): 'bfloat16',
    (6, 8): 'bool',
    (10, 8): 'float8_e4m3fn',
    (12, 8): 'float8_e5m2',
}
_DLPACK_HOST, _DLPACK_CUDA = (1, 3), (2, 13)  # kCPU, kCUDAHost; kCUDA, kCUDAManaged


class _DLTensor(ctypes.Structure):
    """DLPack's DLTensor, the first member of a DLManagedTensor."""

    _fields_ = [
        ('data', ctypes.c_void_p),
        ('device_type', ctypes.c_int32),
        ('device_id', ctypes.c_int32),
        ('ndim', ctypes.c_int32),
        ('code', ctypes.c_uint8),
        ('bits', ctypes.c_uint8),
        ('lanes', ctypes.c_uint16),
        ('shape', ctypes.POINTER(ctypes.c_int64)),
        ('strides', ctypes.POINTER(ctypes.c_int64)),
        ('byte_offset', ctypes.c_uint64),
    ]


def buffer_of(array):
    """Returns the Buffer of a contiguous array. Raises ArgumentError where there is none."""
    if hasattr(array, '__cuda_array_interface__'):
        return _of_interface(array, array.__cuda_array_interface__, True)
    if hasattr(array, '__array_interface__'):
        return _of_interface(array, array.__array_interface__, False)
    if hasattr(array, '__dlpack__'):
        return _of_dlpack(array)
    return _of_memoryview(array)


def _of_interface(array, interface, is_device):
    kind = _TYPESTRINGS.get(interface['typestr'].lstrip('<|='))
    if kind is None:
        raise ArgumentError('elements of type %s cannot be summed' % interface['typestr'])
    if interface.get('strides') is not None:
        raise ArgumentError('the array is not contiguous: pass a contiguous copy')
    address, is_read_only = interface['data']
    count = 1
    for extent in interface['shape']:
        count *= extent
    return Buffer(address or 0, DTYPES[kind], count, array, is_device, not is_read_only)


def _of_dlpack(array):
    capsule = array.__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = _DLTensor.from_address(pointer(capsule, b'dltensor'))
    kind = _DLPACK.get((tensor.code, tensor.bits))
    if kind is None or tensor.lanes != 1:
        raise ArgumentError(
            'elements of DLPack type %d, %d bits, %d lanes cannot be summed' % (tensor.code, tensor.bits, tensor.lanes)
        )
    if tensor.device_type not in _DLPACK_HOST + _DLPACK_CUDA:
        raise ArgumentError('memory of DLPack device type %d cannot be reached' % tensor.device_type)
    count, expected = 1, 1
    for axis in reversed(range(tensor.ndim)):
        if tensor.strides and tensor.shape[axis] > 1 and tensor.strides[axis] != expected:
            raise ArgumentError('the array is not contiguous: pass a contiguous copy')
        expected *= tensor.shape[axis]
        count *= tensor.shape[axis]
    return Buffer(
        (tensor.data or 0) + tensor.byte_offset,
        DTYPES[kind],
        count,
        (array, capsule),
        tensor.device_type in _DLPACK_CUDA,
        True,
    )


def _of_memoryview(array):
    try:
        view = memoryview(array)
    except TypeError:
        raise ArgumentError(
            '%s is no array: it has neither a buffer, an array interface nor DLPack' % type(array).__name__
        ) from None
    if view.format not in _FORMATS:
        raise ArgumentError('elements of type %s cannot be summed' % view.format)
    if not view.c_contiguous:
        raise ArgumentError('the array is not contiguous: pass a contiguous copy')
    if view.readonly:
        memory = (ctypes.c_char * view.nbytes).from_buffer_copy(view)
    else:
        memory = (ctypes.c_char * view.nbytes).from_buffer(view)
    return Buffer(
        ctypes.addressof(memory),
        DTYPES[_FORMATS[view.format]],
        view.nbytes // view.itemsize,
        (memory, array),
        False,
        not view.readonly,
    )

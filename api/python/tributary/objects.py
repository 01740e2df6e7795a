"""Objects that pickle can take, given to all workers without a framework."""

from __future__ import annotations

import array
import ctypes
import pickle
from typing import Any

from . import _abi, job
from ._library import call, lib
from .buffers import buffer_of
from .process_sets import ProcessSet, resolve


def dumps(obj: Any) -> bytes:
    """Returns an object's bytes. With cloudpickle functions and classes of scripts can be sent, too."""
    try:
        import cloudpickle
    except ImportError:
        return pickle.dumps(obj)
    return cloudpickle.dumps(obj)


loads = pickle.loads


def _broadcast(engine, name, data, root):
    buffer = buffer_of(data)
    tensor = engine.declare_once(name, buffer.dtype, buffer.count)
    tensor.submit(
        lib.trib_broadcast, buffer.address, buffer.address, (data, buffer.owner), root=root, is_once=True
    ).wait()


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet | None = None
) -> Any:
    """Returns the root's object on every worker of a set (None: all). root_rank: a rank of the job, also in a set."""
    process_set = resolve(process_set)
    engine, root, name = process_set.engine(), process_set.root(root_rank), name or 'object'
    is_root = job.rank() == root_rank
    data = bytearray(dumps(obj)) if is_root else bytearray()
    length = array.array('q', [len(data)])
    _broadcast(engine, name + '.length', length, root)
    if not is_root:
        data = bytearray(length[0])
    _broadcast(engine, name + '.data', data, root)
    return obj if is_root else loads(data)


def gathered(engine, kind, name, buffer, row=1, splits=None, owner=None, shape=()):
    """Gathers (kind: trib_all_gather) or exchanges (trib_all_to_all) elements, and returns the bytes of the result and
    how many elements came from each worker."""
    is_pairs = splits is not None
    layout = _abi.TRIB_PAIRS if is_pairs else _abi.TRIB_SLICES
    tensor = engine.declare_once(
        name, buffer.dtype, 0 if is_pairs else buffer.count, layout=layout, splits=splits, row=row, shape=shape
    )

    def value(handle):
        data, size, count = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t()
        lengths = engine.size**2 if is_pairs else engine.size
        counts = (ctypes.c_uint64 * lengths)()
        call(lib.trib_op_output, handle, ctypes.byref(data), ctypes.byref(size))
        call(lib.trib_op_counts, handle, counts, lengths, ctypes.byref(count))
        received = counts[engine.rank :: engine.size] if is_pairs else list(counts)
        return ctypes.string_at(data, size.value) if size.value else b'', received

    return tensor.submit(
        kind,
        buffer.address,
        None,
        (owner, buffer.owner),
        value,
        flags=_abi.TRIB_OP_ALLOCATE_OUTPUT,
        is_once=True,
    )


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet | None = None) -> list[Any]:
    """Returns the objects of a set's workers (None: all), in order of rank."""
    engine = resolve(process_set).engine()
    data = bytearray(dumps(obj))
    operation = gathered(engine, lib.trib_all_gather, (name or 'object') + '.gather', buffer_of(data), owner=data)
    content, counts = operation.wait()
    ends = [sum(counts[: index + 1]) for index in range(len(counts))]
    return [loads(content[end - count : end]) for end, count in zip(ends, counts)]

"""The tensors of compiled programs: numbers in a native table (native/jax.c), which programs know them by and which
outlive an engine."""

from __future__ import annotations

import collections
import ctypes
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp

from .. import _abi, job, process_sets
from .._library import beside, encoded
from ..buffers import DTYPES
from ..errors import ArgumentError, TributaryError
from ..reductions import Average, Sum

native = ctypes.CDLL(beside('libtributary-jax.so'))
native.trib_jax_add.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_bool]
native.trib_jax_add.restype = ctypes.c_uint64
native.trib_jax_close.argtypes, native.trib_jax_close.restype = [ctypes.c_void_p], None
native.trib_jax_reopen.argtypes = [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_bool]
native.trib_jax_reopen.restype = None
native.trib_jax_calls.argtypes, native.trib_jax_calls.restype = [ctypes.c_bool], ctypes.c_uint64
native.trib_jax_failure.argtypes, native.trib_jax_failure.restype = [ctypes.c_char_p], ctypes.c_bool

# What declares a tensor: row and splits are those of layouts other than whole, in elements. set_id: the set's number.
# rank: the one that the program is for, or None if it is for all.
Declaration = collections.namedtuple(
    'Declaration',
    'name dtype shape set_id priority is_device codec layout row splits rank',
    defaults=(0, False, None, _abi.TRIB_WHOLE, 1, None, None),
)

_numbers = {}  # declaration -> its number in the native table, and the tensor
_counters = {}
_suspended = {}, {}  # the two as suspend() left them


def _closing():
    """Waits for what XLA computes."""
    for array in jax.live_arrays():
        try:
            array.block_until_ready()
        except Exception:  # its owner sees the error
            pass
    native.trib_jax_close(job.engine()._handle)
    _numbers.clear()
    _counters.clear()


def _set_removed(set_id):
    """Programs that were compiled for a set fail with a text when it is gone."""
    for what in [what for what in _numbers if what.set_id == set_id]:
        native.trib_jax_reopen(_numbers.pop(what)[0], None, None, False)


job.follow(lambda: None, _closing)
process_sets.follow_removal(_set_removed)


def suspend() -> None:
    """Leaves the job; resume() joins it again. Programs that have been compiled can run again then, but for those that
    depend on the number of workers, on a rank that is another one then, or on a process set."""
    global _suspended
    kept = dict(_numbers) or _suspended[0], dict(_counters) or _suspended[1]
    job.suspend()
    _suspended = kept


def resume(num_workers: int, num_servers: int, global_rank: int, context: Any = None) -> None:
    """Joins the job again, as job.resume() has it. Names go on to be counted where they were: a worker that was not
    there before traces the same programs from the start."""
    global _suspended
    job.resume(num_workers, num_servers, global_rank, context)
    numbers, counters = _suspended
    for what, (number, _) in numbers.items():
        if what.layout == _abi.TRIB_WHOLE and what.set_id == 0 and what.rank in (None, job.rank()):
            _numbers[what] = number, _declare(what)
            engine = job.engine()
            native.trib_jax_reopen(number, engine._handle, _numbers[what][1].handle, engine.loss_undoes())
    # Operations that cannot go on are traced again by all, who count them from the start.
    _counters.update({key: counters[key] for key in (('allreduce', 0), ('broadcast', 0)) if key in counters})
    _suspended = {}, {}


def checked_name(name, kind, set_id):
    """Returns the caller's name, or one that is counted: in each set by itself, as others know nothing of it."""
    if name is None:
        return '%s.%d' % (kind, next(_counters.setdefault((kind, set_id), itertools.count())))
    encoded(name)  # refuses what is no name
    return name


def type_of(dtype, name):
    """Returns the engine's number of a type of elements."""
    if str(dtype) not in DTYPES:
        raise ArgumentError('%s: elements of %s cannot be sent' % (name, dtype))
    return DTYPES[str(dtype)]


def parted(array, name, op=None):
    """Returns an array and False, or a complex one's real and imaginary parts, in a last dimension, and True. Parts can
    be moved, and reduced where that is linear."""
    if not jnp.iscomplexobj(array):
        return array, False
    if op not in (None, Average, Sum):
        raise ArgumentError('%s: elements of %s can only be summed and averaged, and op=%s' % (name, array.dtype, op))
    return jnp.stack([jnp.real(array), jnp.imag(array)], -1), True


def joined(array, is_complex):
    """Returns what parted() has taken apart."""
    return jax.lax.complex(array[..., 0], array[..., 1]) if is_complex else array


def _declare(what):
    engine = process_sets.by_id(what.set_id).engine()
    count, options = math.prod(what.shape), dict(priority=what.priority, is_device=what.is_device, shape=what.shape)
    if what.layout == _abi.TRIB_WHOLE:
        return engine.declare(what.name, what.dtype, count, codec=what.codec, **options)
    named = what.name, what.set_id
    alike = [tensor for known, (_, tensor) in _numbers.items() if (known.name, known.set_id) == named]
    job.engine().refuse_disputed(what.name, alike)
    name = '%s#%d' % (what.name, len(alike)) if alike else what.name
    return engine.declare_once(name, what.dtype, count, layout=what.layout, row=what.row, splits=what.splits, **options)


def number_of(what):
    """Returns the number of a tensor in the native table. It is declared when a program is lowered."""
    if what not in _numbers:
        engine, tensor = job.engine(), _declare(what)
        _numbers[what] = native.trib_jax_add(engine._handle, tensor.handle, engine.loss_undoes()), tensor
    return _numbers[what][0]


def check() -> None:
    """Raises the error of an operation on a GPU that has failed. There XLA's stream goes on, as it waits for no thread:
    the next operation raises the error, or this call, after block_until_ready(). Where a loss may undo operations
    (TRIB_SURVIVE=workers or continue) the call waits, and raises the error itself."""
    text = ctypes.create_string_buffer(_abi.TRIB_ERROR_TEXT_SIZE)
    if native.trib_jax_failure(text):
        raise TributaryError(text.value.decode(errors='replace'))


def calls(in_place: bool = False) -> int:
    """How many operations XLA's programs have called for, or how many of those in place."""
    return native.trib_jax_calls(in_place)

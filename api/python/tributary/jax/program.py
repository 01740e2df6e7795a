"""Collectives as a primitive of JAX: what compiled programs call (native/jax.c), with its derivatives and batches."""

from __future__ import annotations

import collections
import inspect
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.interpreters import ad, batching, mlir

from .. import _abi, process_sets
from ..errors import UnsupportedError
from ..reductions import REDUCTIONS, Average, Sum
from .tensors import Declaration, native, number_of, type_of

PUSH_PULL, BROADCAST, GATHER, SCATTER, EXCHANGE = range(5)  # as native/jax.c numbers them

_on_host = {
    'instantiate': jax.ffi.pycapsule(native.trib_jax_place),
    'execute': jax.ffi.pycapsule(native.trib_jax_host),
}
jax.ffi.register_ffi_target('tributary', _on_host, platform='cpu')
# XLA fills a stream in one order on all workers, so a program may have a place twice there.
jax.ffi.register_ffi_target('tributary_device', jax.ffi.pycapsule(native.trib_jax_device), platform='CUDA')
_places = itertools.count()  # of operations that are lowered

_collective = core.Primitive('tributary')
_collective.def_impl(lambda value, **parameters: jax.jit(lambda x: _collective.bind(x, **parameters))(value))


def bind(value, kind, name, set_id, op=None, root=-1, priority=0, codec=None, rows=None):
    """Adds an operation to the program that is traced. rows: of the result, where it has others than the value."""
    parameters = dict(kind=kind, name=name, set_id=set_id, op=op, root=root, priority=priority, codec=codec, rows=rows)
    return _collective.bind(value, **parameters)


@_collective.def_abstract_eval
def _shaped(value, *, rows, **_parameters):
    return value if rows is None else jax.core.ShapedArray((rows, *value.shape[1:]), value.dtype)


def _declaration(value, result, is_device, kind, name, set_id, root, priority, codec):
    """Returns what declares the tensor of an operation."""
    dtype, members = type_of(value.dtype, name), process_sets.by_id(set_id)
    if kind in (PUSH_PULL, BROADCAST):
        rank = members.rank() if kind == PUSH_PULL and root >= 0 else None
        return Declaration(name, dtype, tuple(value.shape), set_id, priority, is_device, codec, rank=rank)
    size, row = members.size(), math.prod(value.shape[1:])
    if kind == EXCHANGE:
        layout, shape, splits = _abi.TRIB_PAIRS, (), (value.shape[0] // size * row,) * size
    else:
        mine, whole = (value, result) if kind == GATHER else (result, value)
        # The engine lets slices differ in their first dimension. Here they may not, unless the rows cannot be dealt
        # evenly: a program has room for as many rows as its own from each worker.
        is_even = whole.shape[0] == size * mine.shape[0]
        layout, shape, splits = _abi.TRIB_SLICES, (1,) * is_even + tuple(mine.shape), None
    return Declaration(name, dtype, shape, set_id, priority, is_device, None, layout, max(row, 1), splits)


class _Names(collections.Counter):
    """How often a program that is lowered has used each name."""

    uses = 0  # of all names


class _Lowered(dict):
    """What JAX has lowered of a program, and would call again where it is used again: a function with a jit of its own,
    a checkpoint, the body of a loop. One with an operation is not kept and so lowered for each use, and its operations
    have names of their own there."""

    def __init__(self, kept, names):
        super().__init__(kept)
        self._names, self._begun = names, {}

    def get(self, key, default=None):
        if key not in self:
            self._begun[key] = self._names.uses
        return super().get(key, default)

    def __missing__(self, key):
        self._begun[key] = self._names.uses
        raise KeyError(key)

    def __setitem__(self, key, value):
        if self._begun.pop(key, None) == self._names.uses:
            super().__setitem__(key, value)


def _names_of(module):
    names = next((kept for kept in module.keepalives if isinstance(kept, _Names)), None)
    if names is None:
        module.keepalives.append(names := _Names())
    for cache in 'cached_primitive_lowerings', 'lowering_cache':
        # A JAX without them has others, and a program that has an operation twice is refused by the native part.
        if not isinstance(getattr(module, cache, names), (_Lowered, _Names)):
            setattr(module, cache, _Lowered(getattr(module, cache), names))
    return names


def _unique(name, module):
    """Returns the name, with a number where the program has it before: its operations may run at the same time. All
    workers lower the same functions in the same order, so they give an operation the same number."""
    names = _names_of(module)
    names.uses += 1
    names[name] += 1
    return name if names[name] == 1 else '%s~%d' % (name, names[name] - 1)


def _refuse_devices(context, name):
    """Each device would run the operation, in no order that other workers know. shard_map's context has a mesh."""
    if getattr(context, 'num_devices', getattr(getattr(context, 'mesh', None), 'size', 0)) != 1:
        raise UnsupportedError(
            '%s: the program runs on several devices, and a compiled operation is for a worker with one: take a worker '
            'for each device, or call it outside of jit, shard_map and pmap' % name
        )


def _lowering(target, is_device):
    def lower(context, value, *, kind, name, set_id, op, root, priority, codec, rows):
        (before,), (after,) = context.avals_in, context.avals_out
        _refuse_devices(context.module_context.axis_context, name)
        name = _unique(name, context.module_context)
        number = number_of(_declaration(before, after, is_device, kind, name, set_id, root, priority, codec))
        aliases = {0: 0} if rows is None else None
        rule = jax.ffi.ffi_lowering(target, operand_output_aliases=aliases, has_side_effect=True)
        return rule(
            context,
            value,
            name=name,
            place=np.int64(next(_places)),
            tensor=np.int64(number),
            kind=np.int64(kind),
            reduce=np.int64(REDUCTIONS.get(op, 0)),
            root=np.int64(root),
            input_bytes=np.int64(before.size * before.dtype.itemsize),
            output_bytes=np.int64(after.size * after.dtype.itemsize),
        )

    return lower


# Newer JAX would lower operations that look alike once, for all of them.
_each = {'cacheable': False} if 'cacheable' in inspect.signature(mlir.register_lowering).parameters else {}
mlir.register_lowering(_collective, _lowering('tributary', False), platform='cpu', **_each)
mlir.register_lowering(_collective, _lowering('tributary_device', True), platform='cuda', **_each)


def _refuse_nonlinear(name, op):
    if op not in (None, Average, Sum):
        raise UnsupportedError('%s: a minimum, maximum or product over workers has no derivative' % name)


def _jvp(values, tangents, *, name, op, **parameters):
    (value,), (tangent,) = values, tangents
    result = _collective.bind(value, name=name, op=op, **parameters)
    if isinstance(tangent, ad.Zero):
        return result, ad.Zero.from_primal_value(result)
    _refuse_nonlinear(name, op)
    return result, _collective.bind(tangent, name=name + '.tangent', op=op, **parameters)


def _transpose(cotangent, value, *, kind, name, set_id, op, root, priority, codec, rows):
    _refuse_nonlinear(name, op)
    if isinstance(cotangent, ad.Zero):
        return [ad.Zero(value.aval)]
    members, name = process_sets.by_id(set_id), name + '.gradient'
    if kind == BROADCAST:
        total = bind(cotangent, PUSH_PULL, name, set_id, Sum, root, priority, codec)
        # On the others, too, the result depends on the sum: a program without a use for it would leave it out.
        # A sum that has a root says that the program is for this rank.
        return [jnp.where(members.rank() == root, total, jnp.zeros_like(total))]
    if kind == GATHER:
        return [bind(cotangent, SCATTER, name, set_id, Sum, priority=priority, rows=value.aval.shape[0])]
    if kind == SCATTER:
        gathered = bind(cotangent, GATHER, name, set_id, priority=priority, rows=value.aval.shape[0])
        return [gathered / members.size() if op == Average else gathered]
    return [bind(cotangent, kind, name, set_id, op, root, priority, codec, rows)]


# Sums, broadcasts and gathers are linear: their derivative is the same operation on tangents.
ad.primitive_jvps[_collective] = _jvp
ad.primitive_transposes[_collective] = _transpose


def _batch(values, axes, *, rows, **parameters):
    if rows is None:  # an operation on elements: a batch is one larger array
        return _collective.bind(values[0], rows=None, **parameters), axes[0]
    value = jnp.moveaxis(values[0], axes[0], -1)  # a batch is longer rows
    return _collective.bind(value, rows=rows, **parameters), value.ndim - 1


batching.primitive_batchers[_collective] = _batch

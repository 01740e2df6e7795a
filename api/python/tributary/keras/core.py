"""What the binding of Keras has beside its callbacks. The backend's own binding does the sums."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from .._library import NAME_BYTES, encoded, lib
from ..buffers import buffer_of
from .. import codecs
from ..errors import ArgumentError, UnsupportedError
from ..objects import gathered
from ..process_sets import ProcessSet, global_process_set, resolve
from ..reductions import REDUCTIONS, Adasum, Average, Sum, passes_of, reduction_of  # noqa: F401 (names of this module)
from .framework import keras, to_numpy
from .optimizer import distributed

_backend = keras.backend.backend()
if _backend == 'tensorflow':
    from ..tensorflow import Compression, init, shutdown  # noqa: F401 (names of this module)
    from ..tensorflow.gradients import reduce_gradients
elif _backend == 'jax':
    from .. import jax as _jax
    from ..jax import init, shutdown  # noqa: F401

    Compression = _jax.Compression

    def reduce_gradients(gradients, op=Average, compression=None, process_set=global_process_set, **options):
        return _jax.allreduce(gradients, op, 'gradient', compression, process_set)
else:
    import torch

    from ..torch import Compression, init, shutdown  # noqa: F401
    from ..torch import ops as _torch_ops

    def reduce_gradients(
        gradients, op=Average, compression=Compression.none, process_set=global_process_set, **options
    ):
        known = [gradient for gradient in gradients if gradient is not None]  # None: the loss does not depend on it
        pairs = [compression.compress(gradient) for gradient in known]
        handles = [
            _torch_ops.submit_allreduce(
                tensor,
                torch.empty_like(tensor, memory_format=torch.contiguous_format),  # the gradients are the caller's
                'gradient.%d' % index,
                op,
                priority=-index,
                process_set=process_set,
                codec=_torch_ops.codec_for(compression, tensor),
            )
            for index, (tensor, _) in enumerate(pairs)
        ]
        reduced = (compression.decompress(handle.wait(), context) for handle, (_, context) in zip(handles, pairs))
        return [None if gradient is None else next(reduced) for gradient in gradients]


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = '',
    device_sparse: str = '',
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: str | None = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet | None = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Returns the optimizer with gradients that are reduced over the workers of a set. On TensorFlow a model with it
    trains without XLA (jit_compile), which does not know the operation."""
    return PartialDistributedOptimizer(
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        backward_passes_per_step,
        average_aggregated_gradients,
        num_groups,
        groups,
        process_set,
        None,
        scale_local_gradients,
    )


def PartialDistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = '',
    device_sparse: str = '',
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: str | None = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet | None = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """DistributedOptimizer, but for the variables of local_layers (a layer, or a list of them): their gradients are
    each worker's own."""
    op, process_set = reduction_of(op), resolve(process_set)
    if not hasattr(optimizer, 'get_config'):
        raise ArgumentError("optimizer: it must be one of Keras's, and is %r" % (optimizer,))
    passes = passes_of(backward_passes_per_step)
    if _backend != 'jax':
        codecs.checked(compression)
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ArgumentError('gradient_predivide_factor: op must be Average')
    process_set.engine()  # raises on a worker outside the set, before it trains alone
    layers = local_layers if isinstance(local_layers, (list, tuple, set)) else [local_layers] if local_layers else []
    options = {'process_set': process_set}
    if _backend == 'tensorflow':
        options.update(sparse_as_dense=sparse_as_dense, predivide=gradient_predivide_factor)
    return distributed(
        optimizer,
        lambda gradients, op=op: reduce_gradients(gradients, op, compression, **options),
        passes,
        1.0 if average_aggregated_gradients else float(passes),
        [variable for layer in layers for variable in layer.trainable_weights],
        lambda: 1.0 / process_set.size() if scale_local_gradients and op == Average else 1.0,
    )


def _scaled(array, factor):
    """Returns the product, computed wider and rounded once; integers are truncated."""
    if factor == 1.0:
        return array
    wide = np.float32 if array.dtype in (np.float16, np.float32) else np.float64
    return np.array((array.astype(wide) * factor).astype(array.dtype), order='C')


def _declared(kind, name, array, process_set):
    buffer, known = buffer_of(array), encoded(name or '', NAME_BYTES).decode()
    engine, full = resolve(process_set).engine(), 'keras.%s.%s' % (kind, known or 'value')
    return engine.declare(full, buffer.dtype, buffer.count, shape=array.shape, known=known)


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: str | None = None,
    compression: Any = Compression.none,
    process_set: ProcessSet | None = global_process_set,
) -> np.ndarray:
    """Returns the mean (or sum) of all workers' values, a numpy array. compression is taken and has no meaning here."""
    reduce = REDUCTIONS[reduction_of(op, average)]
    array = _scaled(to_numpy(value), prescale_factor)
    result = _declared('allreduce', name, array, process_set).push_pull(array, reduce=reduce).wait()
    return _scaled(result, postscale_factor)


def push_pull(value: Any, name: str | None = None, average: bool = True) -> np.ndarray:
    """BytePS's name for allreduce."""
    return allreduce(value, name, average)


def allgather(value: Any, name: str | None = None, process_set: ProcessSet | None = global_process_set) -> np.ndarray:
    """Returns the values of all workers, one behind the other along the first dimension, a numpy array."""
    array, engine = to_numpy(value), resolve(process_set).engine()
    row = max(math.prod(array.shape[1:]), 1)
    name = 'keras.allgather.%s' % (name or 'value')
    content, counts = gathered(
        engine, lib.trib_all_gather, name, buffer_of(array), row, owner=array, shape=array.shape
    ).wait()
    return np.frombuffer(content, array.dtype).reshape([sum(counts) // row, *array.shape[1:]]).copy()


def reducescatter(
    value: Any, name: str | None = None, op: str | None = Average, process_set: ProcessSet | None = global_process_set
) -> np.ndarray:
    """Returns this worker's part of the reduction along the first dimension, a numpy array."""
    total = allreduce(value, 'reducescatter.%s' % (name or 'value'), op=op, process_set=process_set)
    process_set = resolve(process_set)
    each, more = divmod(total.shape[0], process_set.size())
    begin = process_set.rank() * each + min(process_set.rank(), more)
    return total[begin : begin + each + (process_set.rank() < more)].copy()


def broadcast(value: Any, root_rank: int, name: str | None = None) -> np.ndarray:
    """Returns the root's value on every worker, a numpy array."""
    array = to_numpy(value)
    root = global_process_set.root(root_rank)
    return _declared('broadcast', name, array, None).broadcast(array, root).wait()


def broadcast_variables(variables: Iterable[Any], root_rank: int) -> None:
    """Gives all workers the root's variables."""
    variables, root = list(variables), global_process_set.root(root_rank)
    arrays = [to_numpy(variable) for variable in variables]
    operations = [
        _declared('variable', str(index), array, None).broadcast(array, root) for index, array in enumerate(arrays)
    ]
    for variable, operation in zip(variables, operations):
        variable.assign(operation.wait())


def broadcast_global_variables(root_rank: int, model: Any = None) -> None:
    """Gives all workers the root's variables of a model: Keras 3 has no global ones."""
    if model is None:
        raise UnsupportedError(
            'Keras 3 has no global variables: use callbacks.BroadcastGlobalVariablesCallback, or give the model'
        )
    broadcast_variables(model.variables, root_rank)


def load_model(
    filepath: Any,
    custom_optimizers: Any = None,
    custom_objects: Any = None,
    compression: Any = Compression.none,
    **keywords: Any,
) -> Any:
    """Loads a model and makes its optimizer a distributed one."""
    objects = {kind.__name__: kind for kind in custom_optimizers or ()}
    objects.update(custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=objects or None, **keywords)
    if getattr(model, 'optimizer', None) is not None:
        made = DistributedOptimizer(model.optimizer, compression=compression)
        model.optimizer.__class__ = type(made)  # it keeps its state
    return model


def _without_xla(make):
    """Keras compiles with XLA by default where TensorFlow sees a GPU."""

    @functools.wraps(make)
    def make_train_function(self, *arguments, **keywords):
        optimizer = getattr(self.optimizer, 'inner_optimizer', self.optimizer)  # of one that scales the loss
        if hasattr(type(optimizer), '_reduces_gradients') and self.jit_compile:
            self.jit_compile = False
        return make(self, *arguments, **keywords)

    return make_train_function


def _on_all_workers(check):
    """A scaler of the loss leaves a step out whose gradients are not finite: on all workers, or on none."""

    @functools.wraps(check)
    def check_finite(self, grads):
        is_finite = check(self, grads)
        for kind in type(self.inner_optimizer), type(self):  # local gradients differ where it is wrapped itself
            if hasattr(kind, '_reduces_gradients'):
                break
        else:
            return is_finite
        return kind._is_zero_on_all(keras.ops.cast(keras.ops.logical_not(is_finite), 'float32'))

    return check_finite


_LossScaleOptimizer = getattr(keras.optimizers, 'LossScaleOptimizer', None)
if hasattr(_LossScaleOptimizer, 'check_finite'):
    _LossScaleOptimizer.check_finite = _on_all_workers(_LossScaleOptimizer.check_finite)
if _backend == 'tensorflow':
    keras.Model.make_train_function = _without_xla(keras.Model.make_train_function)

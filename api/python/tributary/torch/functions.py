"""Gives all workers the same parameters, optimizer state and objects at the start of training."""

from __future__ import annotations

import collections.abc
import io
import pickle
from typing import Any

import torch

from .. import job
from ..errors import ArgumentError
from ..process_sets import ProcessSet, global_process_set
from . import exchange
from .ops import broadcast_, broadcast_async_, name_or_counted


def broadcast_parameters(params: Any, root_rank: int, prefix: str = '') -> None:
    """Gives all workers the root's parameters, in place. params: a state_dict(), or pairs of name and tensor."""
    if isinstance(params, collections.abc.Mapping):
        pairs = sorted(params.items())
    else:
        pairs = [pair if isinstance(pair, tuple) else (None, pair) for pair in params]
    handles = []
    for name, parameter in pairs:
        if parameter is None or not isinstance(parameter, torch.Tensor):
            continue  # a state_dict may hold numbers, which are the same wherever the model was built alike
        handles.append(broadcast_async_(parameter.data, root_rank, prefix + name if name else None))
    for handle in handles:
        handle.wait()


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Returns the root's object on every worker. It must be one that pickle can take."""
    name = exchange.OnceName(name_or_counted('broadcast_object', name))  # sizes differ each time
    if job.rank() == root_rank:
        buffer = io.BytesIO()
        _dump(obj, buffer)
        data = torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)
        length = torch.tensor([data.numel()], dtype=torch.int64, device='cpu')
    else:
        length = torch.zeros(1, dtype=torch.int64, device='cpu')
    broadcast_(length, root_rank, exchange.part_of(name, 'length'), process_set)
    if job.rank() != root_rank:
        data = torch.empty(int(length), dtype=torch.uint8, device='cpu')
    broadcast_(data, root_rank, exchange.part_of(name, 'data'), process_set)
    return obj if job.rank() == root_rank else pickle.loads(data.numpy().tobytes())


def _dump(obj, buffer):
    try:
        import cloudpickle  # it takes functions and classes of scripts, too

        cloudpickle.dump(obj, buffer)
    except ImportError:
        pickle.dump(obj, buffer)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None, prefix: str = ''
) -> None:
    """Gives all workers the root's optimizer state: hyperparameters and the state of each parameter. A worker whose
    optimizer has no state yet gets the root's, whatever it holds. If the root's has none, gradients that are not there
    become 0, as in Horovod, whose scripts may read them before the first step."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ArgumentError('LBFGS keeps state that depends on its closure: it cannot be broadcast')
    state = optimizer.state_dict()
    if job.rank() == root_rank:
        shape_of = {
            'param_groups': state['param_groups'],
            'state': {
                key: {
                    name: ('tensor', tuple(value.shape), value.dtype)
                    if isinstance(value, torch.Tensor)
                    else ('value', value)
                    for name, value in entries.items()
                }
                if isinstance(entries, dict)
                else entries
                for key, entries in state['state'].items()
            },
        }
    else:
        shape_of = None
    # The object's name is not counted by prefix alone: optimizers may be broadcast several times, always in the same
    # order.
    shape_of = broadcast_object(shape_of, root_rank)
    parameters = [parameter for group in optimizer.param_groups for parameter in group['params']]
    if not shape_of['state']:
        _make_gradients(parameters)
    devices = [parameter.device for parameter in parameters]
    filled, handles = {}, []
    for key, entries in shape_of['state'].items():
        mine = state['state'].get(key, {})
        if not isinstance(entries, dict):
            filled[key] = entries
            continue
        filled[key] = {}
        for name, (kind, *what) in entries.items():
            if kind == 'value':
                filled[key][name] = what[0]
                continue
            shape, dtype = what
            value = mine.get(name) if isinstance(mine, dict) else None
            if not isinstance(value, torch.Tensor) or tuple(value.shape) != shape or value.dtype != dtype:
                device = devices[key] if isinstance(key, int) and key < len(devices) and shape else torch.device('cpu')
                value = torch.empty(shape, dtype=dtype, device=device)
            filled[key][name] = value
            handles.append(broadcast_async_(value, root_rank))
    for handle in handles:
        handle.wait()
    if job.rank() != root_rank:
        optimizer.load_state_dict({'param_groups': shape_of['param_groups'], 'state': filled})


def _make_gradients(parameters):
    for parameter in parameters:
        if parameter.requires_grad and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Returns the objects of all workers, by rank. They must be ones that pickle can take."""
    from .gather_ops import allgather

    buffer = io.BytesIO()
    _dump(obj, buffer)
    data = torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)
    name = name_or_counted('allgather_object', name)
    lengths = allgather(
        torch.tensor([data.numel()], dtype=torch.int64, device='cpu'), exchange.part_of(name, 'lengths'), process_set
    ).tolist()
    gathered = allgather(data, exchange.part_of(name, 'data'), process_set).split(lengths)
    return [pickle.loads(part.numpy().tobytes()) for part in gathered]

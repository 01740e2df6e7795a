"""Checkpoints with PyTorch, at a boundary between operations that is the same on all workers."""

from __future__ import annotations

import io
import os
from typing import Any

import torch

from .. import job
from ..checkpoint import CheckpointError, read_file, write_file
from .functions import allgather_object, broadcast_object


def _used_by_all(sampler):
    """The state of an ElasticSampler with the samples that all workers have used."""
    states = allgather_object(sampler.state_dict())
    used = set().union(*(each['processed_indices'] for each in states if each['epoch'] == states[0]['epoch']))
    return {'epoch': states[0]['epoch'], 'processed_indices': sorted(used)}


def save_checkpoint(
    path: str | os.PathLike[str],
    step: int,
    model: Any = None,
    optimizer: Any = None,
    sampler: Any = None,
    **values: Any,
) -> Any:
    """Saves a training's state. All workers call it, with no handle of an operation outstanding that the state needs.
    Returns the boundary (Engine.checkpoint).

    path: a file of the worker of the lowest rank, which alone writes. It is whole or as it was before.
    step: the number of the step that is done, the same on all.
    sampler: an ElasticSampler, or None. values: plain values and tensors, such as a generator's state.

    Raises MismatchError on all if the workers' operations differ, and CheckpointError on all if the file could not be
    written."""
    used = None if sampler is None else _used_by_all(sampler)
    operation = job.engine().checkpoint(step)
    boundary = operation.wait()
    writer = operation.contributors[0]
    problem = None
    if job.rank() == writer:
        state = {
            'step': step,
            'model': None if model is None else model.state_dict(),
            'optimizer': None if optimizer is None else optimizer.state_dict(),
            'sampler': used,
            'values': values,
        }
        try:
            write_file(path, lambda file: torch.save(state, file))
        except Exception as caught:  # the others wait for the outcome
            problem = caught
    told = broadcast_object(None if problem is None else str(problem), writer)
    if problem is not None and not isinstance(problem, CheckpointError):
        raise problem
    if told is not None:
        raise CheckpointError(told)
    return boundary


def _read(path):
    """Returns the file's bytes, None where there is none, or the error."""
    try:
        return read_file(path) if os.path.exists(path) else None
    except CheckpointError as problem:
        return str(problem)


def load_checkpoint(
    path: str | os.PathLike[str], model: Any = None, optimizer: Any = None, sampler: Any = None
) -> tuple[int, dict[str, Any]] | None:
    """Loads what save_checkpoint wrote on all workers, whose number may be another one. Rank 0 reads the file.

    Returns the step and the values, or None if there is no file. Training goes on with the next step. CheckpointError
    on all: the file is not whole, or lacks a part that is asked for. The residuals of codecs with error feedback, and
    the state of momentum and two_way codecs, begin anew (docs/membership.md)."""
    data = broadcast_object(_read(path) if job.rank() == 0 else None, 0)
    if data is None:
        return None
    if isinstance(data, str):
        raise CheckpointError(data)
    try:
        state = torch.load(io.BytesIO(data), map_location='cpu', weights_only=True)
    except Exception as problem:
        raise CheckpointError('%s: not written by save_checkpoint: %s' % (os.fspath(path), problem)) from problem
    for name, target in ('model', model), ('optimizer', optimizer), ('sampler', sampler):
        if target is not None and state[name] is None:
            raise CheckpointError('%s: the checkpoint has no %s' % (os.fspath(path), name))
        if target is not None:
            target.load_state_dict(state[name])
    return state['step'], state['values']

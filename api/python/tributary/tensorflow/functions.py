"""Gives all workers the same variables and objects at the start of training."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from .. import objects
from ..errors import ArgumentError, UnsupportedError
from ..process_sets import ProcessSet, global_process_set
from .ops import broadcast, broadcast_, plain


@plain
def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int = 0,
    scope: str = '',
    process_set: ProcessSet | None = global_process_set,
    inplace: bool = False,
) -> Any:
    """Gives the workers of a set the root's variables. In a graph of TensorFlow 1: returns the operation that does so.
    scope and inplace are taken and have no meaning."""
    assigned = []
    for index, variable in enumerate(variables):
        if not hasattr(variable, 'assign'):
            raise ArgumentError('broadcast_variables: number %d is no variable, but %r' % (index, variable))
        name = 'variable.%d.%s' % (index, getattr(variable, 'path', None) or variable.name)
        value = broadcast(tf.convert_to_tensor(variable), root_rank, name, process_set=process_set)
        assigned.append(variable.assign(value))
    return None if tf.executing_eagerly() or tf.inside_function() else tf.group(*assigned)


def broadcast_global_variables(root_rank: int) -> Any:
    """In a graph of TensorFlow 1: returns the operation that gives all workers the root's global variables. Refused in
    eager mode, which keeps no list of them."""
    if tf.executing_eagerly():
        raise UnsupportedError(
            'broadcast_global_variables: there are no global variables in eager mode: use '
            'broadcast_variables(model.variables, %d)' % root_rank
        )
    return tf.group(*broadcast_(tf.compat.v1.global_variables(), root_rank))


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Gives all workers the root's global variables when a session of TensorFlow 1, such as MonitoredTrainingSession,
    begins. device is taken and has no meaning."""

    def __init__(self, root_rank: int, device: str = ''):
        super().__init__()
        self._root_rank, self._operation = root_rank, None

    def begin(self) -> None:
        """Adds the operation to the graph that is about to be finished."""
        self._operation = broadcast_global_variables(self._root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Broadcasts."""
        session.run(self._operation)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet | None = global_process_set,
) -> Any:
    """Returns the root's object on every worker of a set, in a graph, too. It must be one that pickle can take. session
    is taken and has no meaning."""
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet | None = global_process_set,
) -> Callable[[Any], Any]:
    """Returns a function of an object that broadcasts it."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet | None = global_process_set,
) -> list[Any]:
    """Returns the objects of a set's workers, in order of rank. They must be ones that pickle can take."""
    return objects.allgather_object(obj, name, process_set)

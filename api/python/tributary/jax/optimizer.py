"""Transformations of gradients in the form that optax chains, and the start of training."""

from __future__ import annotations

import collections
import itertools
import sys
from typing import Any

from .._library import encoded
from ..errors import ArgumentError
from ..reductions import reduction_of
from .ops import Average, allreduce, broadcast

GradientTransformation = collections.namedtuple('GradientTransformation', 'init update')

_made = itertools.count()


def _name_of(name):
    if name is None:
        number = next(_made)
        return 'gradients.%d' % number if number else 'gradients'
    encoded(name)  # refuses what is no name
    return name


def _transformation(init, update):
    """optax's own type where the program has optax: others would not hand on further arguments, such as `value`."""
    optax = sys.modules.get('optax')
    return getattr(optax, 'GradientTransformationExtraArgs', GradientTransformation)(init, update)


def allreduce_gradients(
    op: str | None = Average, name: str | None = None, compression: Any = None
) -> GradientTransformation:
    """Returns a transformation that reduces gradients over all workers: optax.chain(allreduce_gradients(),
    optax.adam(...)). Those without a name are counted, so workers must make them in the same order."""

    op, name = reduction_of(op), _name_of(name)

    def init(_parameters):
        return ()

    def update(gradients, state, parameters=None, **_extra):
        return allreduce(gradients, op, name, compression), state

    return _transformation(init, update)


def DistributedOptimizer(
    optimizer: Any, op: str | None = Average, name: str | None = None, compression: Any = None
) -> GradientTransformation:
    """Returns an optimizer of optax's form whose gradients are reduced over all workers first. Those without a name are
    counted, so workers must make them in the same order."""

    op, name = reduction_of(op), _name_of(name)
    if not hasattr(optimizer, 'init') or not hasattr(optimizer, 'update'):
        raise ArgumentError("optimizer: it must be one of optax's form, with init and update, and is %r" % (optimizer,))

    support = getattr(sys.modules.get('optax'), 'with_extra_args_support', None)
    if support is not None:
        optimizer = support(optimizer)

    def update(gradients, state, parameters=None, **extra):
        return optimizer.update(allreduce(gradients, op, name, compression), state, parameters, **extra)

    return _transformation(optimizer.init, update)


def broadcast_parameters(parameters: Any, root_rank: int = 0) -> Any:
    """Returns the root's parameters on every worker."""
    return broadcast(parameters, root_rank, 'parameters')

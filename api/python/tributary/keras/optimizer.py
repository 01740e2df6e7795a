"""The wrapper of Keras's optimizers, for every backend of Keras 3 and for TensorFlow's Keras 2.13 and newer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..errors import ArgumentError, UnsupportedError


def distributed(
    optimizer: Any,
    reduce: Callable[[list[Any]], list[Any]],
    passes: int = 1,
    factor: float = 1.0,
    local: Iterable[Any] = (),
    local_factor: Callable[[], float] = lambda: 1.0,
) -> Any:
    """Returns an optimizer of a class derived from the optimizer's own, whose gradients go through reduce() first.
    passes: so many gradients are averaged before a step; factor: multiplies all gradients then. Those of the variables
    in `local` are multiplied by local_factor() instead of reduced."""
    kind = type(optimizer)
    if hasattr(kind, '_reduces_gradients'):
        return optimizer
    locals_of = {id(variable) for variable in local}

    def reduced(grads, variables):
        alone_factor = local_factor()
        is_local = [id(variable) in locals_of for variable in variables]
        shared = iter(reduce([grad for grad, alone in zip(grads, is_local) if not alone]))
        return [_times(grad, alone_factor) if alone else next(shared) for grad, alone in zip(grads, is_local)]

    def apply(self, grads, trainable_variables=None):
        grads = list(grads)
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)
        if trainable_variables is not None:
            trainable_variables = variables
            if len(grads) != len(variables):
                raise ArgumentError('apply: there are %d gradients for %d variables' % (len(grads), len(variables)))
        if len(grads) != len(variables):
            return kind.apply(self, grads, None)  # it has not been built, or says what is wrong
        return kind.apply(self, [_times(grad, factor) for grad in reduced(grads, variables)], trainable_variables)

    def apply_gradients(self, grads_and_vars, *arguments, **keywords):
        pairs = list(grads_and_vars)
        grads, variables = [grad for grad, _ in pairs], [variable for _, variable in pairs]
        return kind.apply_gradients(self, list(zip(reduced(grads, variables), variables)), *arguments, **keywords)

    def register_local_var(self, variable):
        """Leaves the gradients of a variable to each worker."""
        locals_of.add(id(variable))

    if hasattr(kind, 'apply'):
        contents = {'apply': apply}
    elif passes == 1:
        contents = {'apply_gradients': apply_gradients}
    else:
        raise UnsupportedError('backward_passes_per_step needs an optimizer of Keras 3')
    contents.update({'register_local_var': register_local_var, '_reduces_gradients': True})
    made = type(kind.__name__, (kind,), dict(contents, __module__=kind.__module__))
    config = optimizer.get_config()
    if passes != 1:
        config['gradient_accumulation_steps'] = passes
    return made.from_config(config)


def _times(gradient, factor):
    return gradient if gradient is None or factor == 1.0 else gradient * factor

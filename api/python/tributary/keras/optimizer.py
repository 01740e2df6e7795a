"""The wrapper of Keras's optimizers, for every backend of Keras 3 and for Keras 2 of TensorFlow 2.13 and newer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..errors import ArgumentError, UnsupportedError
from ..reductions import Sum


def distributed(
    optimizer: Any,
    reduce: Callable[..., list[Any]],
    passes: int = 1,
    factor: float = 1.0,
    local: Iterable[Any] = (),
    local_factor: Callable[[], float] = lambda: 1.0,
) -> Any:
    """Returns an optimizer of a class derived from the optimizer's own, whose gradients go through reduce() first. It
    has the state of one that has been built. reduce: also takes a reduction, in place of the gradients' own. passes: so
    many gradients are averaged before a step; factor: multiplies all gradients then. Those of the variables in `local`
    are multiplied by local_factor() instead of reduced."""
    kind = type(optimizer)
    if hasattr(kind, '_reduces_gradients'):
        return optimizer
    locals_of = {id(variable) for variable in local}

    def exchanged(grads, variables):
        alone_factor = local_factor()
        is_local = [id(variable) in locals_of for variable in variables]
        shared = iter(reduce([grad for grad, alone in zip(grads, is_local) if not alone]))
        grads = [_times(grad, alone_factor) if alone else next(shared) for grad, alone in zip(grads, is_local)]
        return [_times(grad, factor) for grad in grads]

    def apply(self, grads, trainable_variables=None):
        grads = list(grads)
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)
        if trainable_variables is not None:
            trainable_variables = variables
            if len(grads) != len(variables):
                raise ArgumentError('apply: there are %d gradients for %d variables' % (len(grads), len(variables)))
        if len(grads) != len(variables):
            return kind.apply(self, grads, None)  # it has not been built, or says what is wrong
        return kind.apply(self, exchanged(grads, variables), trainable_variables)

    def stateless_apply(self, optimizer_variables, grads, trainable_variables):
        """JAX's way. Keras's scaler of the loss does not come to apply() on it."""
        grads = exchanged(list(grads), list(self.inner_optimizer._trainable_variables))
        return kind.stateless_apply(self, optimizer_variables, grads, trainable_variables)

    def is_zero_on_all(value):
        return reduce([value], Sum)[0] == 0

    def apply_gradients(self, grads_and_vars, *arguments, **keywords):
        """Keras 2's way, which minimize() and fit() take as well."""
        pairs = list(grads_and_vars)
        variables = [variable for _, variable in pairs]
        grads = exchanged([grad for grad, _ in pairs], variables)
        return kind.apply_gradients(self, list(zip(grads, variables)), *arguments, **keywords)

    def register_local_var(self, variable):
        """Leaves the gradients of a variable to each worker."""
        locals_of.add(id(variable))

    way = apply if hasattr(kind, 'apply') else apply_gradients
    contents = {
        way.__name__: way,
        '_is_zero_on_all': staticmethod(is_zero_on_all),
        'register_local_var': register_local_var,
        '_reduces_gradients': True,
    }
    if hasattr(optimizer, 'inner_optimizer') and hasattr(kind, 'stateless_apply'):
        contents['stateless_apply'] = stateless_apply
    made = type(kind.__name__, (kind,), dict(contents, __module__=kind.__module__))
    config = optimizer.get_config()
    if passes != 1:
        if 'gradient_accumulation_steps' not in config:
            raise UnsupportedError("backward_passes_per_step: Keras 2's optimizers do not accumulate gradients")
        config['gradient_accumulation_steps'] = passes
    wrapped = made.from_config(config)
    if way is apply and optimizer.built and passes == 1:
        wrapped.build(optimizer._trainable_variables)
        for variable, value in zip(wrapped.variables, optimizer.variables):
            variable.assign(value)
    return wrapped


def _times(gradient, factor):
    return gradient if gradient is None or factor == 1.0 else gradient * factor

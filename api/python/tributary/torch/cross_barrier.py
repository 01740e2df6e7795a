"""CrossBarrier: a layer waits for its own sums in the next forward pass, and not for all of them at step() (BytePS,
Peng et al., SOSP'19). With priorities by layer the first layers' sums come first, and the rest overlaps with
computing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..errors import UnsupportedError

# Scripts of BytePS's take this module for the whole: import byteps.torch.cross_barrier as bps.
from ..job import local_rank, local_size, rank, shutdown, size  # noqa: F401
from ..reductions import Average
from .byteps_ops import byteps_push_pull  # noqa: F401
from .compression import Compression
from .device import init  # noqa: F401
from .functions import broadcast_optimizer_state, broadcast_parameters  # noqa: F401
from .handles import poll, synchronize  # noqa: F401
from .optimizer import _Exchange, _named

# Optimizers whose update of a parameter depends on nothing but its gradient, its state and its group's options.
_BY_PARAMETER = {
    'ASGD',
    'Adadelta',
    'Adafactor',
    'Adagrad',
    'Adam',
    'AdamW',
    'Adamax',
    'Muon',
    'NAdam',
    'RAdam',
    'RMSprop',
    'Rprop',
    'SGD',
    'SparseAdam',
}


def _is_by_parameter(optimizer):
    """True if the optimizer may update parameters one by one: a class of PyTorch's own whose step nobody watches. A
    hook of step() wants to see all parameters at once."""
    kind = type(optimizer)
    hooks = ('_optimizer_step_pre_hooks', '_optimizer_step_post_hooks')
    return kind is getattr(torch.optim, kind.__name__, None) and (
        kind.__name__ in _BY_PARAMETER and not any(getattr(optimizer, name, None) for name in hooks)
    )


def _options_of(group):
    """A group's options as they are now: a scheduler may change them before a parameter is updated."""
    return {
        name: value.clone() if isinstance(value, torch.Tensor) else value
        for name, value in group.items()
        if name != 'params'
    }


class _Hook:
    """A hook of the model's, which calls a method of the barrier's. A copy of the model, or a pickled one, is trained
    by other optimizers: its hooks do nothing."""

    __slots__ = '_barrier', '_method'

    def __init__(self, barrier=None, method=None):
        self._barrier, self._method = barrier, method

    def __call__(self, *arguments):
        if self._barrier is not None:
            getattr(self._barrier, self._method)(*arguments)

    def __reduce__(self):
        if self._barrier is not None and self._barrier._waiting:
            raise RuntimeError('the model has parameters that wait for their update: call flush() before it is copied')
        return _Hook, ()


class CrossBarrier(torch.optim.Optimizer):
    """Wraps a model and its optimizer. step() returns at once: each parameter is updated when the next forward pass
    gets to its layer, or when flush(), evaluation, or the state of the model or of the optimizer asks for it.

    num_steps: the last step that is announced waits for all sums.

    An optimizer that may look at all gradients together, so every one that is not PyTorch's own, LBFGS, and one with
    hooks of step(), is waited for at step(), as DistributedOptimizer does. So is one whose gradients a GradScaler
    divides, as it looks at all of them."""

    _step_supports_amp_scaling = False  # GradScaler would tell this wrapper the scale, and not the optimizer within

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
        compression: Any = Compression.none,
        backward_passes_per_step: int = 1,
        num_steps: int = 10**6,
    ):
        self._model, self._optimizer, self._steps_left = model, optimizer, num_steps
        if named_parameters is None:
            named_parameters = model.named_parameters()
        self._exchange = _Exchange(
            _named(optimizer, named_parameters), compression, backward_passes_per_step, Average, 1.0, [], True
        )
        self._exchange.awaited = (
            'its update, as its value was used outside of the forward pass of the module that holds it: call flush() '
            'before, or give backward_passes_per_step if step() was not called'
        )
        self._waiting = {}  # parameter -> its gradient and its options, where an update has been asked for
        self._users = {}  # module -> parameters that its forward pass uses
        self._called_root, self._is_unscaled = False, False
        self._called = set()  # modules that the first forward pass has called; None after it
        for module in model.modules():
            self._users[module] = list(module.parameters(recurse=False))
            module.register_forward_pre_hook(_Hook(self, '_before_forward'))
        for register in ('register_state_dict_pre_hook', 'register_load_state_dict_pre_hook'):
            if hasattr(model, register):
                getattr(model, register)(_Hook(self, '_before_state'))

    def __getattr__(self, name):
        if name.startswith('__') or '_optimizer' not in self.__dict__:  # __init__() has not set it yet
            raise AttributeError(name)
        return getattr(self._optimizer, name)

    def __reduce_ex__(self, protocol):
        raise UnsupportedError(
            'optimizer: a CrossBarrier is neither pickled nor copied, as a copy would sum nothing: take its '
            'state_dict()'
        )

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Asks for an update of all parameters, and returns at once. Returns the closure's loss if there is a
        closure."""
        if self._is_unscaled:  # all sums are there, and divided
            self._is_unscaled = False
            self._find_users()
            self._optimizer.step()
            self.zero_grad()
            return None
        if not _is_by_parameter(self._optimizer):
            self.flush()
            return self._exchange.step(self._optimizer.step, closure)
        loss = closure() if closure is not None else None
        self.flush()  # parameters that no forward pass has used since the last step
        self._find_users()
        for group in self._optimizer.param_groups:
            options = _options_of(group)
            for parameter in group['params']:
                if parameter.requires_grad:
                    if parameter not in self._exchange.handles:
                        self._exchange._submit(parameter)
                    # The gradient is taken away, so that model.zero_grad() does not clear it while it travels.
                    self._waiting[parameter], parameter.grad = (parameter.grad, options), None
        held = {parameter for used in self._users.values() for parameter in used}
        self._update([parameter for parameter in self._waiting if parameter not in held])  # no layer asks for them
        self._steps_left -= 1
        if self._steps_left == 0 or not self._called_root:
            self.flush()
        return loss

    def _finish_for_scaler(self):
        """Waits for all sums: a GradScaler divides them, and leaves a step out where one is infinite."""
        self.flush()
        self._exchange.finish()
        self._is_unscaled = True

    def _find_users(self):
        """After the first forward pass: a parameter whose own module was not called, as those within
        MultiheadAttention's projection, is used by the nearest module around it that was."""
        if self._called is None:
            return
        self._called_root = self._model in self._called
        modules = dict(self._model.named_modules())
        for name, module in modules.items():
            while module not in self._called and name:
                name = name.rpartition('.')[0]
                if modules[name] in self._called:
                    self._users[modules[name]] += self._users[module]
                    break
        self._called = None

    def _before_forward(self, module, _inputs):
        if self._called is not None:
            self._called.add(module)
        if not self._waiting:
            return
        if not self._model.training:  # evaluation may take other ways through a module than training
            self.flush()
            return
        self._update([parameter for parameter in self._users[module] if parameter in self._waiting])

    def _before_state(self, *_unused):
        self.flush()

    def _update(self, parameters):
        """Waits for the gradients of some parameters and lets the optimizer update just those."""
        self._exchange.follow_job()
        groups = {}
        for parameter in parameters:
            gradient, options = self._waiting.pop(parameter)
            if parameter in self._exchange.handles:  # else the job has begun anew, and the step is lost
                parameter.grad = gradient
                self._exchange.finish_one(parameter)
                groups.setdefault(id(options), dict(options, params=[]))['params'].append(parameter)
        if not groups:
            return
        whole, self._optimizer.param_groups = self._optimizer.param_groups, list(groups.values())
        try:
            self._optimizer.step()
        finally:
            self._optimizer.param_groups = whole
            for parameter in parameters:
                parameter.grad = None  # zero_grad() came before this update, and left the gradient for it

    def flush(self) -> None:
        """Waits for all sums and updates all parameters: before they are read, saved or compared."""
        self._update(list(self._waiting))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients; those that an update waits for are kept for it."""
        self._is_unscaled = False
        for parameter in self._exchange.names:
            if parameter not in self._waiting and parameter not in self._exchange.handles:
                parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Updates all parameters and returns the optimizer's state."""
        self.flush()
        return self._optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Updates all parameters and loads the optimizer's state."""
        self.flush()
        self._optimizer.load_state_dict(state)

    def add_param_group(self, group: dict[str, Any]) -> None:
        """Adds parameters, whose gradients are summed from now on, too."""
        self.flush()
        self._optimizer.add_param_group(group)
        self._exchange.add_group(self._optimizer.param_groups)

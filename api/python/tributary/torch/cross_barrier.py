"""CrossBarrier: a layer waits for its own sums in the next forward pass, and not for all of them at step() (BytePS,
Peng et al., SOSP'19). With priorities by layer the first layers' sums come first, and the rest overlaps with
computing."""

# Scripts of BytePS's take this module for the whole: import byteps.torch.cross_barrier as bps.
from ..job import local_rank, local_size, rank, shutdown, size  # noqa: F401
from ..reductions import Average
from .byteps_ops import byteps_push_pull  # noqa: F401
from .compression import Compression
from .device import init  # noqa: F401
from .functions import broadcast_optimizer_state, broadcast_parameters  # noqa: F401
from .handles import poll, synchronize  # noqa: F401
from .optimizer import _Exchange, _named


class CrossBarrier:
    """Wraps a model and its optimizer. step() returns at once: each parameter is updated when the next forward pass
    gets to its layer, or when flush(), state_dict() or the next zero_grad() asks for it.

    num_steps: the last step that is announced waits for all sums.

    The optimizer must treat each parameter by itself, as SGD, Adam, AdamW and RMSprop do. One that looks at all
    gradients together (LBFGS, clipping by the global norm) needs DistributedOptimizer."""

    def __init__(
        self,
        model,
        optimizer,
        named_parameters=None,
        compression=Compression.none,
        backward_passes_per_step=1,
        num_steps=10**6,
    ):
        self._model, self._optimizer, self._steps_left = model, optimizer, num_steps
        if named_parameters is None:
            named_parameters = model.named_parameters()
        self._exchange = _Exchange(
            _named(optimizer, named_parameters), compression, backward_passes_per_step, Average, 1.0, [], True
        )
        self._group_of = {parameter: group for group in optimizer.param_groups for parameter in group['params']}
        self._waiting = {}  # parameters whose step has been asked for; a dict keeps their order
        for module in model.modules():
            if any(True for _ in module.parameters(recurse=False)):
                module.register_forward_pre_hook(self._before_forward)

    def __getattr__(self, name):
        return getattr(self._optimizer, name)

    def step(self, closure=None):
        """Asks for an update of all parameters, and returns at once. Returns the closure's loss if there is a
        closure."""
        loss = closure() if closure is not None else None
        for parameter in self._exchange.names:
            if parameter.requires_grad:
                if parameter not in self._exchange.handles:
                    self._exchange._submit(parameter)
                self._waiting[parameter] = True
        self._steps_left -= 1
        if self._steps_left == 0:
            self.flush()
        return loss

    def _before_forward(self, module, _inputs):
        self._update([parameter for parameter in module.parameters(recurse=False) if parameter in self._waiting])

    def _update(self, parameters):
        """Waits for the gradients of some parameters and lets the optimizer update just those."""
        groups = []
        for parameter in parameters:
            del self._waiting[parameter]
            self._exchange.finish_one(parameter)
            groups.append(dict(self._group_of[parameter], params=[parameter]))
        if not groups:
            return
        whole, self._optimizer.param_groups = self._optimizer.param_groups, groups
        try:
            self._optimizer.step()
        finally:
            self._optimizer.param_groups = whole
        for parameter in parameters:
            parameter.grad = None  # zero_grad() came before this update, and left the gradient for it

    def flush(self):
        """Waits for all sums and updates all parameters: before they are read, saved or compared."""
        self._update(list(self._waiting))

    def zero_grad(self, *arguments, **keywords):
        """Clears the gradients that no update waits for; the others are cleared after it."""
        for parameter in self._exchange.names:
            if parameter not in self._waiting and parameter not in self._exchange.handles:
                parameter.grad = None

    def state_dict(self):
        """Updates all parameters and returns the optimizer's state."""
        self.flush()
        return self._optimizer.state_dict()

    def load_state_dict(self, state):
        """Updates all parameters and loads the optimizer's state."""
        self.flush()
        self._optimizer.load_state_dict(state)

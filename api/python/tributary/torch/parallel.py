"""DistributedDataParallel: wraps a module, so that backward() sums gradients (BytePS's and PyTorch's interface)."""

import contextlib

import torch

from .. import job
from ..reductions import Average
from .compression import Compression
from .functions import broadcast_parameters
from .optimizer import _Exchange


class DistributedDataParallel(torch.nn.Module):
    """Gives all workers rank 0's parameters, and averages the gradients of each backward pass.

    module             the module; its parameters must be the same on all workers
    device_ids         taken for BytePS's scripts, and has no meaning: the module is where it is
    broadcast_buffers  buffers, such as BatchNorm's means, are rank 0's before each forward pass in training
    compression        Compression.none, .fp16, .bf16 or .codec("onebit,ef=vanilla")
    """

    def __init__(self, module, device_ids=None, broadcast_buffers=True, compression=Compression.none, **_unused):
        super().__init__()
        self.module, self.device_ids, self.broadcast_buffers = module, device_ids, broadcast_buffers
        named = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
        self._exchange = _Exchange(named, compression, 1, Average, 1.0, [], True)
        self._is_synchronizing, self._is_queued = True, False
        broadcast_parameters(module.state_dict(), root_rank=0)
        for _, parameter in named:
            parameter.register_hook(self._queue_finish)
        for hook in self._exchange.hooks:
            hook.remove()
        self._exchange.hooks = [
            parameter.register_post_accumulate_grad_hook(self._gradient_is_made) for _, parameter in named
        ]

    def _queue_finish(self, gradient):
        """Makes the backward pass end with a wait for all sums."""
        if self._is_synchronizing and not self._is_queued:
            self._is_queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self.synchronize)
        return gradient

    def _gradient_is_made(self, parameter):
        if self._is_synchronizing:
            self._exchange._gradient_is_made(parameter)

    def synchronize(self):
        """Waits for the sums of all gradients; the backward pass does so itself."""
        self._is_queued = False
        self._exchange.finish()

    @contextlib.contextmanager
    def no_sync(self):
        """Inside, backward() accumulates gradients and sums none."""
        before, self._is_synchronizing = self._is_synchronizing, False
        try:
            yield
        finally:
            self._is_synchronizing = before

    def forward(self, *arguments, **keywords):
        if self.training and self.broadcast_buffers and self._is_synchronizing and job.size() > 1:
            buffers = [(name, buffer) for name, buffer in self.module.named_buffers()]
            broadcast_parameters(buffers, root_rank=0, prefix='buffer.')
        return self.module(*arguments, **keywords)

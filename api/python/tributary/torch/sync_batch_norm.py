"""Batch normalization over the batches of all workers (Ioffe and Szegedy, 2015; statistics summed as in
SyncBatchNorm)."""

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from .. import job
from ..errors import ArgumentError
from ..reductions import Sum
from .ops import allreduce


class SyncBatchNorm(_BatchNorm):
    """BatchNorm whose mean and variance in training are those of all workers' batches together. Batches may differ in
    size. In evaluation, and with one worker, it is BatchNorm."""

    def __init__(self, num_features, eps=1e-5, momentum=0.1, affine=True, track_running_stats=True):
        super().__init__(num_features, eps, momentum, affine, track_running_stats)

    def _check_input_dim(self, input):
        if input.dim() < 2:
            raise ArgumentError('SyncBatchNorm needs an input of at least 2 dimensions, not %d' % input.dim())

    def forward(self, input):
        self._check_input_dim(input)
        is_training = self.training or not self.track_running_stats
        if not is_training or job.size() == 1:
            return super().forward(input)
        job.refuse_continue('SyncBatchNorm')  # its second sum is divided by the first one's number
        momentum = self.momentum
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)
        axes = [0, *range(2, input.dim())]
        view = [1, -1] + [1] * (input.dim() - 2)
        # Two sums: deviations from a mean that is known do not cancel, as E[x^2] - E[x]^2 does. The sums' gradients are
        # those of the reduction, so autograd has the whole backward pass.
        wide = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        local = torch.cat([wide.sum(axes), wide.new_full((1,), input.numel() / self.num_features)])
        total = allreduce(local, op=Sum, name='sync_batch_norm.sum.%d' % _number(self))
        count = total[-1].detach()
        mean = total[:-1] / count
        centred = wide - mean.view(view)
        variance = (
            allreduce((centred * centred).sum(axes), op=Sum, name='sync_batch_norm.square.%d' % _number(self)) / count
        )
        if self.training and self.track_running_stats:
            with torch.no_grad():
                unbiased = variance * (count / (count - 1).clamp(min=1))
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
                self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum)
        result = centred * (variance + self.eps).rsqrt().view(view)
        if self.affine:
            result = result * self.weight.view(view) + self.bias.view(view)
        return result.to(input.dtype)


_numbers = {}


def _number(module):
    """Returns the module's number in the order of first use, which is the same on all workers."""
    if not hasattr(module, '_tributary_number'):
        _numbers[job.generation()] = module._tributary_number = _numbers.get(job.generation(), -1) + 1
    return module._tributary_number

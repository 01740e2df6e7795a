"""Shared parts of the cases of the torch.distributed backend: where their tensors are, and streams there."""

import os

import torch

# On the machines of the GPU tests (tests/gpu/test_gpu.py), and processors elsewhere.
DEVICE = 'cuda' if 'GPU_INDEX' in os.environ else 'cpu'
# torch.cuda, or torch.cpu, whose streams have the same calls and do nothing.
streams = torch.get_device_module(DEVICE)

_LATE_CYCLES = 100_000_000  # of a GPU's clock: tens of milliseconds


def let_stream_be_late():
    """Lets all that is put on the current stream from now on come so late that what does not wait for it is before."""
    if DEVICE == 'cuda':
        torch.cuda._sleep(_LATE_CYCLES)


def drawn(seed, *shape):
    """Returns numbers that are the same wherever they are drawn."""
    numbers = torch.randn(*shape, generator=torch.Generator('cpu').manual_seed(seed), device='cpu')
    return numbers.to(DEVICE)

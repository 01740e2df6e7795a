"""Shared parts of the cases of tributary.torch: tensors that are made from seeds, so that a worker knows those of all
ranks, and a small model."""

import os

import torch
import tributary.torch as trib

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
# Where the tensors are: the GPUs of the device tests, or processors.
DEVICE = os.environ.get('TRIB_DEVICE', 'none').replace('none', 'cpu')


def tensor_of(rank, shape, dtype, seed=0):
    """The tensor of a rank. Values are small integers, so that every sum is exact in every type."""
    generator = torch.Generator('cpu').manual_seed(1000 * seed + rank)
    return torch.randint(0, 5, shape, generator=generator, device='cpu').to(dtype).to(DEVICE)


def of_all(shape, dtype, seed=0):
    return torch.stack([tensor_of(rank, shape, dtype, seed) for rank in range(trib.size())])


def mine(shape, dtype, seed=0):
    return tensor_of(trib.rank(), shape, dtype, seed)


def raises(kind, call, *words):
    try:
        call()
    except kind as problem:
        assert all(word in str(problem) for word in words), (words, str(problem))
        return
    raise AssertionError('no %s was raised' % kind.__name__)


def same_on_all(tensor):
    flat = tensor.detach().flatten().clone()
    return torch.equal(trib.allreduce(flat, op=trib.Min), trib.allreduce(flat, op=trib.Max))


def digits_model():
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))


def batches(count, rows=8):
    """The batches of all ranks: a list by step of a list by rank."""
    generator = torch.Generator('cpu').manual_seed(7)
    return [
        [torch.randn(rows, 16, generator=generator, device='cpu').to(DEVICE) for _ in range(trib.size())]
        for _ in range(count)
    ]


def loss_of(model, batch):
    return torch.nn.functional.mse_loss(model(batch), batch[:, :4].abs())

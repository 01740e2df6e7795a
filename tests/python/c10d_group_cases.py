"""Cases of the torch.distributed backend about reductions with factors and of complex numbers, about names of groups,
and about groups that cannot be made, part of c10d_cases.py."""

import itertools
import os
import unittest.mock

import torch
import torch.distributed as dist
import tributary.torch.c10d
from c10d_bed import DEVICE
from torch.distributed.device_mesh import init_device_mesh


def factors(rank, size):
    """FSDP2 divides by numbers of a program's own with PREMUL_SUM."""
    values = [torch.arange(2.0 * size) + 10 * r for r in range(size)]
    half, own = dist._make_nccl_premul_sum(0.5), dist._make_nccl_premul_sum(float(rank + 1))
    weighted = sum((r + 1) * value for r, value in enumerate(values))
    tensor = values[rank].clone()
    dist.all_reduce(tensor, half)
    assert torch.equal(tensor, sum(values) / 2)
    tensor = values[rank].clone()
    dist.reduce(tensor, size - 1, own)
    assert rank != size - 1 or torch.equal(tensor, weighted)
    part = torch.empty(2)
    dist.reduce_scatter_tensor(part, values[rank], own)
    assert torch.equal(part, weighted[2 * rank : 2 * rank + 2])
    tensor = torch.full((3,), 2.0, dtype=torch.bfloat16)
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(torch.tensor([0.5])))
    assert tensor.dtype == torch.bfloat16 and tensor.tolist() == [size] * 3
    tensor = torch.tensor(2.0)
    dist.reduce(tensor, 0, dist._make_nccl_premul_sum(torch.tensor([0.5])))
    assert rank > 0 or tensor == size
    tensor = torch.eye(3).to_sparse()
    dist.all_reduce(tensor, half)
    assert torch.equal(tensor.to_dense(), torch.eye(3) * size / 2)
    _divided(size)


def _divided(size):
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:  # not in every release
        return
    model = torch.nn.Linear(4, 3, bias=False)
    torch.nn.init.ones_(model.weight)
    fully_shard(model, mesh=init_device_mesh(DEVICE, (size,)))
    model.set_gradient_divide_factor(4.0)
    model(torch.ones(1, 4)).sum().backward()
    assert torch.equal(model.weight.grad.full_tensor(), torch.full((3, 4), size / 4))


# They return a tensor of the same numbers, which are in its memory in another form.


def _conjugate(values):
    return values.conj().resolve_conj().conj()


def _negative(values):
    return torch._neg_view(-values)


def _strided(values):
    return torch.stack([values, values], -1)[..., 0]


_FORMS_OF_COMPLEX = torch.clone, _conjugate, _negative, _strided


def complex_numbers(rank, size):
    """PyTorch leaves it to a backend to reduce their parts, but for all_reduce()."""
    values = [torch.complex(torch.arange(2.0 * size) * (r + 1), torch.full((2 * size,), float(r))) for r in range(size)]
    mine, shares = slice(2 * rank, 2 * rank + 2), list(values[rank].clone().split(2))
    for dtype in torch.complex64, torch.complex128:
        own, total = values[rank].to(dtype), sum(values).to(dtype)
        for form in _FORMS_OF_COMPLEX:
            for inferring in itertools.product((False, True), repeat=2):
                with torch.inference_mode(inferring[0]):
                    source, whole, summed, part = form(own), form(own), form(own), form(torch.zeros(2, dtype=dtype))
                assert source.is_conj() == whole.is_conj() == part.is_conj() == (form is _conjugate)
                assert source.is_neg() == whole.is_neg() == part.is_neg() == (form is _negative)
                with torch.inference_mode(inferring[1]):
                    dist.reduce(whole, 0)
                    dist.reduce_scatter_tensor(part, source)
                    dist.group.WORLD.allreduce(summed).wait()
                assert torch.equal(part, total[mine]) and torch.equal(summed, total), (form, inferring, part, summed)
                assert rank > 0 or torch.equal(whole, total), (form, inferring, whole)
    dist.reduce_scatter(shares[rank], shares, dist.ReduceOp.AVG)
    assert torch.allclose(shares[rank], sum(values)[mine] / size), shares
    scaled = values[rank].clone()
    dist.all_reduce(scaled, dist._make_nccl_premul_sum(0.5))
    assert torch.equal(scaled, sum(values) / 2), scaled
    turned = (torch.eye(3) * (1 + 2j)).to_sparse()
    opts = dist.AllreduceOptions()
    opts.reduceOp = dist._make_nccl_premul_sum(0.5)
    dist.group.WORLD.allreduce([turned], opts).wait()  # all_reduce() gives away a copy of it
    assert torch.equal(turned.to_dense(), torch.eye(3) * (1 + 2j) * size / 2), turned
    try:
        dist.reduce_scatter_tensor(torch.empty(2, dtype=torch.complex64), values[rank], dist.ReduceOp.PRODUCT)
    except ValueError as problem:
        assert 'complex64 cannot be reduced so' in str(problem), problem
    else:
        raise AssertionError('a product of complex numbers was not refused')


def names(rank, size):
    group = dist.new_group(list(range(size)), group_desc='all of them')
    assert group.group_name not in ('', dist.group.WORLD.group_name) and group.group_desc == 'all of them'
    summed = torch.distributed._functional_collectives.all_reduce(torch.ones(3), 'sum', group)
    assert summed.tolist() == [size] * 3
    dist.destroy_process_group(group)
    # init_method='tcp://HOST:PORT' tells where the store is, and the environment need not.
    store = dist.PrefixStore('a', dist.PrefixStore('b', dist.TCPStore('127.0.0.1', 0, 1, True)))
    with unittest.mock.patch.dict(os.environ, MASTER_ADDR='elsewhere'):
        assert tributary.torch.places.host_of(store) == '127.0.0.1'


def attempts():
    """A group that could not be made in the end leaves nothing to the next one."""

    def fail(*arguments):
        tributary.torch.c10d.create(*arguments)
        raise RuntimeError('as where another part of PyTorch fails')

    dist.Backend.register_backend('unlucky', fail, extended_api=True, devices=['cpu'])
    try:
        dist.init_process_group('unlucky')
    except RuntimeError:
        pass
    for turn in range(2):  # groups of one name
        dist.init_process_group('tributary')
        rank, size = dist.get_rank(), dist.get_world_size()
        group = dist.new_group([turn, size - 1])
        if rank in (turn, size - 1):
            tensor = torch.ones(3)
            dist.all_reduce(tensor, group=group)
            assert tensor.tolist() == [2, 2, 2]
        dist.destroy_process_group()

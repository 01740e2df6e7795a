"""Cases of the torch.distributed backend about calls that have no name, which c10d_cases.py runs: those of several
threads, which ranks begin in other orders and wait for afterwards, those of many sizes, and those that differ."""

import collections
import datetime
import threading
import unittest.mock

import torch
import torch.distributed as dist
import tributary.torch.c10d
from c10d_bed import DEVICE
from tributary import TributaryError


def _in_thread(call):
    """Returns what a call returns on a thread beside the main one."""
    results = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    thread.join()
    return results[0]


def _both(rank, main, beside):
    """Returns what both return. Even ranks call the main thread's first."""
    if rank % 2 == 0:
        return main(), _in_thread(beside)
    other = _in_thread(beside)
    return main(), other


def _group(size):
    # Calls that never meet end then. GPUs load kernels at their first use, and processes may share one.
    seconds = 60 if DEVICE == 'cuda' else 8
    return dist.new_group(list(range(size)), timeout=datetime.timedelta(seconds=seconds))


def threads_gather_beside_the_main_one(rank, size):
    group = _group(size)

    def filled(value):  # the default device is the main thread's alone
        return torch.full((size,), value, device=DEVICE)

    def all_gather(value, output):
        return dist.all_gather_into_tensor(output, torch.tensor([value], device=DEVICE), group=group, async_op=True)

    def all_to_all(value, output):
        return dist.all_to_all_single(output, filled(value), group=group, async_op=True)

    def reduce_scatter(value, output):
        return dist.reduce_scatter_tensor(output[:1], filled(value), group=group, async_op=True)

    def reduce(value, output):
        return dist.reduce(output[:1].fill_(value), 0, group=group, async_op=True)

    def gather(value, output):
        listed = list(output.split(1)) if rank == 0 else None
        return dist.gather(torch.tensor([value], device=DEVICE), listed, 0, group=group, async_op=True)

    for kind in all_gather, all_to_all, reduce_scatter, reduce, gather:

        def begin(base, kind=kind):
            output = torch.zeros(size, device=DEVICE)
            return base, output, kind(base + rank, output)

        for base, output, work in _both(rank, lambda: begin(0.0), lambda: begin(100.0)):
            work.wait()
            values = [base + r for r in range(size)]
            if kind in (reduce, reduce_scatter):
                values = [sum(values)] + [0.0] * (size - 1)
            assert output.tolist() == values or rank > 0 and kind in (reduce, gather), (kind, base, output)
    dist.barrier()


def threads_leave_callbacks_their_names(rank, size):
    group, first, second = _group(size), torch.ones(3), torch.full((4,), 2.0)

    def follow(_done):
        return dist.all_reduce(second, group=group, async_op=True).get_future().wait()

    future, beside = _both(
        rank,
        lambda: dist.all_reduce(first, group=group, async_op=True).get_future().then(follow),
        lambda: dist.all_reduce(torch.ones(2, device=DEVICE), group=group, async_op=True),
    )
    beside.wait()
    future.wait()
    assert (first == size).all() and (second == 2 * size).all()
    dist.barrier()


class _Sum(torch.autograd.Function):
    """Gives its input on, and begins to sum the gradient, after as many backward passes within this one as asked."""

    @staticmethod
    def forward(ctx, value, deep, begin):
        ctx.deep, ctx.begin = deep, begin
        return value * 1

    @staticmethod
    def backward(ctx, gradient):
        if ctx.deep:
            with torch.enable_grad():
                _back(ctx.deep - 1, ctx.begin)
        else:
            ctx.begin(gradient)
        return gradient, None, None


def _back(deep, begin):
    _Sum.apply(torch.ones(3, requires_grad=True, device=DEVICE), deep, begin).sum().backward()


def threads_have_backward_passes_of_their_own(rank, size):
    """The main thread's has the order of its calls, even on a thread of PyTorch's, which takes over from the 60th pass
    within another one on. Another thread's has the order of that thread's."""
    group, where = _group(size), set()

    def summed(deep):
        works = []

        def begin(gradient):
            where.add(threading.get_ident())
            total = gradient.clone()
            works.append((total, dist.all_reduce(total, group=group, async_op=True)))

        _back(deep, begin)
        return works[0]

    def main():
        total = torch.ones(3)
        flag = dist.barrier(group, async_op=True)
        return flag, (total, dist.all_reduce(total, group=group, async_op=True)), summed(70)

    (flag, *mains), beside = _both(rank, main, lambda: summed(0))
    assert threading.get_ident() not in where
    flag.wait()
    for total, work in (*mains, beside):
        work.wait()
        assert total.tolist() == [size] * 3, total
    # A main thread that only sums in its backward pass meets one that does so at once.
    total, work = summed(70) if rank == 0 else summed(0)
    work.wait()
    assert total.tolist() == [size] * 3, total
    dist.barrier()


def many_sizes(rank, size):
    """A slot keeps some tensors for calls to come. All sizes go on, also after a failure."""
    group = _group(size)

    def count(length):
        tensor = torch.full((length,), float(rank))
        dist.broadcast(tensor, size - 1, group=group)
        assert tensor.tolist() == [size - 1.0] * length

    with unittest.mock.patch.object(tributary.torch.exchange, '_SLOTS', 1):
        for length in (*range(1, 80), 3, 79, 3):
            count(length)
        kept = tributary.torch.c10d._world['engine']._tensors
        lengths = collections.Counter(group for name, group in kept if name.startswith('broadcast.0.'))
        assert max(lengths.values()) == 64, lengths
        dist.barrier()
        try:
            count(3 if rank == 0 else 90)  # which only some have kept
        except TributaryError:
            for length in 3, 90, 3:
                count(length)
            return
        raise AssertionError('workers that disagree were not told')


def no_sum_is_of_different_calls(rank, size):
    """After calls that differed each sum is of the calls of one number, whenever each worker came to know of it."""
    store = dist.PrefixStore('calls', dist.distributed_c10d._get_default_store())

    def meet(what):  # so that no worker waits in a call while another one waits for a deadline
        store.set('%s.%d' % (what, rank), '')
        store.wait(['%s.%d' % (what, of) for of in range(size)])

    def begin(group, number, length=3):
        tensor = torch.full((length,), float(number))
        return number, tensor, dist.all_reduce(tensor, group=group, async_op=True)

    def is_over(number, tensor, work):
        """Returns whether it has succeeded, and then compares the sum."""
        try:
            work.wait()
        except TributaryError:
            return False
        assert tensor.tolist() == [number * size] * 3, (number, tensor)
        return True

    def goes_on(group, first):
        for number in range(first, first + 40):
            assert is_over(*begin(group, number)), number

    at_once = _group(size)
    first = begin(at_once, 0, 3 + rank)
    known = rank != 0 and is_over(*first)  # rank 0 goes on without it
    calls = [begin(at_once, number) for number in range(1, 18)]
    assert not known and not is_over(*first)
    succeeded = [number for number, *rest in calls if is_over(number, *rest)]
    assert [number for number in succeeded if number != 16] == [*range(1, 16), 17], succeeded
    meet('at once')
    goes_on(at_once, 18)

    late = _group(size)
    for number in range(32):  # both sizes are known
        tensor = torch.full((3 + number // 16,), float(number))
        dist.all_reduce(tensor, group=late)
        assert tensor.tolist() == [number * size] * len(tensor)
    assert not is_over(*begin(late, 32, 3 + (rank == 0)))
    meet('late')
    goes_on(late, 33)

"""Cases of the torch.distributed backend about what ranks send and have room for, and about what one rank alone learns,
which c10d_cases.py runs."""

import os

import torch
import torch.distributed as dist
from c10d_differ_cases import DEADLINE, filled, goes_on
from tributary import ArgumentError, TributaryError, _abi


def _refused(call, words):
    """It is the error of a call that cannot be right, which no other rank hears of."""
    try:
        call()
    except ArgumentError as problem:
        assert words in str(problem), (words, str(problem))
        return
    raise AssertionError('a part that does not fit was taken: %s' % words)


def outputs_lie_anywhere(rank, size):
    """How outputs lie in memory, and whether they are a list, is each rank's own."""
    group, expected = dist.new_group(list(range(size)), timeout=DEADLINE), torch.arange(float(size)).repeat(3, 1).t()
    for dtype in torch.float32, torch.complex64:
        source = filled(3, rank).to(dtype)
        whole = torch.empty(3, size, dtype=dtype).t() if rank == 0 else torch.empty(size, 3, dtype=dtype)
        dist.all_gather_into_tensor(whole, source, group=group)
        assert torch.equal(whole, expected.to(dtype)), whole
        listed = list(torch.zeros(size, 3, dtype=dtype).unbind())
        if rank == 1:
            dist.all_gather(listed, source, group=group)
        else:
            dist.all_gather_into_tensor(whole, source, group=group)
        assert torch.equal(torch.stack(listed) if rank == 1 else whole, expected.to(dtype)), (listed, whole)


def parts_do_not_fit(rank, size):
    """Lengths that add up to those of the outputs, and are others."""
    group = dist.new_group(list(range(size)), timeout=DEADLINE)
    lengths = [3, 2, 4]
    listed = list(torch.empty(3, 3).unbind()) if rank == 0 else None
    gather = lambda: dist.gather(filled(lengths[rank]), listed, 0, group=group)  # noqa: E731
    if rank == 0:
        _refused(gather, 'gather: rank 1 has 2 elements, and the output for them 3')
        _refused(lambda: dist.gather(filled(3), listed[:2], 0, group=group), 'a list of 2 tensors, and there are 3')
    else:
        gather()
    sent = list(torch.empty(9).split(lengths)) if rank == 0 else list(torch.empty(9).split(3))
    _refused(lambda: dist.all_to_all(list(torch.empty(9).split([4, 2, 3])), sent, group=group), 'all_to_all: rank ')
    row, rooms = torch.ones(3 * size, 2), [4, 3, 2] if rank == 0 else [3] * 3
    exchange = lambda: dist.all_to_all_single(torch.empty(9, 2), row, rooms, [3] * 3, group=group)  # noqa: E731
    if rank == 0:
        _refused(exchange, 'all_to_all_single: rank 0 has 6 elements, and the output for them 8')
    else:
        exchange()
    parts = [filled(length) for length in lengths] if rank == 0 else None
    if rank == 0:
        _refused(lambda: dist.scatter(filled(3), parts, 0, group=group), 'does not fit an input of 2')
    scatter = lambda: dist.scatter(filled(lengths[rank]), [filled(3)] * 3 if rank == 0 else None, 0, group=group)  # noqa: E731
    if rank == 0:
        scatter()
    else:
        _refused(scatter, 'scatter: rank 0 has 3 elements, and the output for them %d' % lengths[rank])
    goes_on(group, size)


def reduce_ends_on_the_root_alone(rank, size):
    """The root's deadline may pass when the others have ended well. That moment cannot be met, so the root is told."""
    group = dist.new_group(list(range(size)), timeout=DEADLINE)
    work = dist.reduce(filled(3), 0, group=group, async_op=True)
    if rank == 0:
        operation = work._handle.operations[0][0]
        while not operation.done():
            os.sched_yield()
        operation._complete(_abi.TRIB_TIMEOUT, 'the deadline has passed')
        try:
            work.wait()
        except TributaryError as problem:
            assert problem.status == _abi.TRIB_TIMEOUT, problem
        else:
            raise AssertionError('the root was not told')
    else:
        work.wait()
    for _ in range(20):  # all slots have come by again
        total = filled(3)
        dist.all_reduce(total, group=group)
        assert total.tolist() == [size] * 3, total


def deadlines(rank, size):
    """An operation that fails raises its error in backward(), and from a future. Only rank 0 calls: where all do, what
    the others have sent counts, and the last one's operation may be over before its deadline has been looked at."""
    group = dist.new_group(list(range(size)))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1), process_group=group)
    if rank == 0:
        group._timed_group.timeout_ns = 1
        for call in (
            lambda: model(torch.ones(2, 3)).sum().backward(),
            lambda: dist.all_reduce(torch.ones(5), group=group, async_op=True).get_future().wait(),
            lambda: dist.all_reduce(torch.ones(7), group=group),
        ):
            try:
                call()
            except RuntimeError as problem:
                assert 'deadline' in str(problem), problem
                continue
            raise AssertionError('an operation ended without the others')
        late = dist.all_reduce(torch.ones(9), group=group, async_op=True)
        while not late.is_completed():
            os.sched_yield()
        assert not late.is_success() and 'deadline' in str(late.exception()), late.exception()
    dist.barrier()


CASES = (outputs_lie_anywhere, parts_do_not_fit, reduce_ends_on_the_root_alone, deadlines)

"""Cases of the torch.distributed backend about ranks that begin different collectives, which c10d_cases.py runs: all
hear of it long before the deadline, from a text that says who began what, and go on."""

import datetime
import unittest.mock

import torch
import torch.distributed as dist
from tributary import ArgumentError, MismatchError, UnsupportedError

DEADLINE = datetime.timedelta(seconds=120)  # none of the operations here may end by it


def filled(length, value=1.0):
    return torch.full((length,), value)


def _gather(group, root, size):
    listed = [filled(3) for _ in range(size)] if dist.get_rank() == root else None
    dist.gather(filled(3), listed, root, group=group)


def _scatter(group, root, size):
    dist.scatter(filled(3), [filled(3)] * size if dist.get_rank() == root else None, root, group=group)


_CALLS = {
    'all_reduce': lambda group, size: dist.all_reduce(filled(3), group=group),
    'broadcast': lambda group, size: dist.broadcast(filled(3), 0, group=group),
    'reduce': lambda group, size: dist.reduce(filled(3), 0, group=group),
    'all_gather': lambda group, size: dist.all_gather_into_tensor(filled(3 * size), filled(3), group=group),
    'reduce_scatter': lambda group, size: dist.reduce_scatter_tensor(filled(3), filled(3 * size), group=group),
    'all_to_all': lambda group, size: dist.all_to_all_single(filled(size), filled(size), group=group),
    'gather_to_0': lambda group, size: _gather(group, 0, size),
    'scatter_from_0': lambda group, size: _scatter(group, 0, size),
    'barrier': lambda group, size: dist.barrier(group),
}


def _told(call, *words):
    """All ranks get MismatchError with these words, none by its deadline."""
    try:
        call()
    except MismatchError as problem:
        assert all(word in str(problem) for word in words), (words, str(problem))
        return
    raise AssertionError('ranks that differ were not told')


def goes_on(group, size):
    for number in range(20):  # all names have come by again
        total = filled(3, float(number))
        dist.all_reduce(total, group=group)
        assert total.tolist() == [number * size] * 3, total
        gathered = torch.empty(size)
        dist.all_gather_into_tensor(gathered, filled(1, float(dist.get_rank())), group=group)
        assert gathered.tolist() == list(range(size)), gathered


def kinds_differ(rank, size):
    """Each kind meets another one."""
    group, names = dist.new_group(list(range(size)), timeout=DEADLINE), list(_CALLS)
    for number, (one, other) in enumerate(zip(names[::2], names[1::2] + names[:1])):
        words = 'workers differ in operation %d: ' % number, '("%s.' % one, '("%s.' % other
        _told(lambda: _CALLS[other if rank == 1 else one](group, size), *words)
    goes_on(group, size)


def roots_differ(rank, size):
    """Each rank takes itself for the root."""
    group = dist.new_group(list(range(size)), timeout=DEADLINE)
    for begin in _gather, _scatter:
        _told(lambda: begin(group, rank, size), 'workers differ in operation ')
    _told(lambda: dist.reduce(filled(3), rank, group=group), 'the workers disagree in round 1', ' alone')
    goes_on(group, size)


def slices_differ(rank, size):
    """Each rank has a slice of another length, where all must have one."""
    group, length = dist.new_group(list(range(size)), timeout=DEADLINE), 3 + rank
    _told(lambda: dist.all_gather_into_tensor(filled(length * size), filled(length), group=group), 'float32[1x')
    _told(lambda: dist.reduce_scatter_tensor(filled(length), filled(length * size), group=group), 'float32[1x')
    outputs = [filled(length) for _ in range(size)]
    _told(lambda: dist.all_gather(outputs, filled(length), group=group), 'float32[1x')
    rooms = [filled(3 + r) for r in range(size)] if rank > 0 else [filled(4), filled(3), filled(5)]
    try:
        dist.all_gather(rooms, filled(length), group=group)
    except ArgumentError as problem:
        assert rank == 0 and 'rank 0 has 3 elements, and the output for them 4' in str(problem), problem
    else:
        assert rank > 0, rooms
    goes_on(group, size)


def _on_another_gpu(tensor, gpu):
    raise ArgumentError('a tensor on another GPU')


def _refused_calls(group, size):
    """They are refused where they are made."""
    yield ArgumentError, lambda: dist.all_gather_into_tensor(filled(3 * size + 1), filled(3), group=group)
    for op in dist.ReduceOp.BAND, dist.ReduceOp.BXOR:
        for call in (
            lambda op=op: dist.all_reduce(filled(3), op, group=group),
            lambda op=op: dist.reduce(filled(3), 0, op, group=group),
            lambda op=op: dist.reduce_scatter_tensor(filled(3), filled(3 * size), op, group=group),
        ):
            yield UnsupportedError, call
    for root in -7, size:
        opts = dist.BroadcastOptions()
        opts.rootRank = root
        yield ArgumentError, lambda opts=opts: group.broadcast([filled(3)], opts)
    for name in _CALLS:
        if name != 'reduce':  # on devices only groups reduce to one worker
            yield ArgumentError, lambda name=name: _with_another_gpu(lambda: _CALLS[name](group, size))


def _with_another_gpu(call):
    with unittest.mock.patch('tributary.torch.exchange.stream_of', _on_another_gpu):
        call()


def one_call_raises(rank, size):
    """A call that is refused where it is made does not count. The rank may call again, or is told if it goes on."""
    group = dist.new_group(list(range(size)), timeout=DEADLINE)
    for error, call in _refused_calls(group, size) if rank == 1 else ():
        try:
            call()
        except error:
            continue
        raise AssertionError('a call was not refused')
    _CALLS['all_gather'](group, size)
    _told(lambda: _CALLS['barrier' if rank == 1 else 'all_gather'](group, size), 'operation 1: ', '"barrier.1.')
    goes_on(group, size)


def one_rank_calls_more(rank, size):
    group = dist.new_group(list(range(size)), timeout=DEADLINE)
    works = [dist.all_reduce(filled(3), group=group, async_op=True) for _ in range(2 + (rank == 1))]
    if rank != 1:
        works.append(dist.all_gather_into_tensor(torch.empty(3 * size), filled(3), group=group, async_op=True))
    for work in works[:2]:
        work.wait()
    _told(works[2].wait, 'workers differ in operation 2: ', 'an all-gather of float32[3]', 'a sum of float32[3]')
    goes_on(group, size)


CASES = (kinds_differ, roots_differ, slices_differ, one_call_raises, one_rank_calls_more)

"""Cases of the torch.distributed backend about what PyTorch asks of any: forms of arguments, timeouts, groups that are
split, that end and that are aborted. c10d_cases.py runs them.

Those of a GPU have fakes in its place: they show what is asked of streams and of PyTorch's allocator, in which order
and on which stream, and not what a GPU does."""

import contextlib
import datetime
import gc
import logging
import os
import threading
import types
import unittest.mock
import weakref

import torch
import torch.distributed as dist
import tributary.torch.c10d
from tributary import TributaryError
from tributary._library import lib
from tributary.engine import Engine, _open_engines
from tributary.torch import elements, exchange, futures, handles, hooks, work


_IS_2_11 = torch.__version__.startswith('2.11.')


def _told(call):
    try:
        call()
    except RuntimeError as problem:
        return problem
    raise AssertionError('nothing was raised')


def forms(rank, size):
    """A tensor, a root or an operation may stand where a list or options do."""
    group, own = dist.group.WORLD, torch.full((2,), rank + 1.0)
    total, first = own.clone(), own.clone()
    group.allreduce(total).wait()
    group.broadcast(first, root=0).wait()
    assert total.tolist() == [sum(range(1, size + 1))] * 2 and first.tolist() == [1, 1], (total, first)
    group.allreduce([total], op=dist.ReduceOp.MAX).wait()
    group.allreduce_coalesced([own.clone()]).wait()
    parts, part, largest = [torch.empty(2) for _ in range(size)], torch.empty(2), own.clone()
    group.allgather(parts, own).wait()
    assert [each[0] for each in parts] == list(range(1, size + 1)), parts
    group.reduce_scatter(part, parts).wait()
    assert part.tolist() == [size * (rank + 1)] * 2, part
    try:
        group.reduce(largest, 0, dist.ReduceOp.MAX).wait()
    except RuntimeError as problem:  # PyTorch 2.11 does not call back with what it has made of these
        assert _IS_2_11 and 'No backend type' in str(problem), problem
    else:
        assert rank > 0 or largest.tolist() == [size] * 2, largest
        group.gather(parts if rank == 0 else [], own, 0).wait()
        group.scatter(part, parts if rank == 0 else [], 0).wait()
        assert part.tolist() == own.tolist(), part
    group.barrier(timeout=datetime.timedelta(seconds=100)).wait()
    _keyword_forms(group, rank, size)
    if hasattr(dist, 'gather_single'):
        whole = torch.empty(2 * size)
        dist.gather_single(own, whole if rank == 0 else None, dst=0)
        assert rank > 0 or torch.equal(whole, torch.cat(parts)), whole


def _keyword_forms(group, rank, size):
    """What is made of them tells its end, too."""
    own, sent, received = torch.full((2,), rank + 1.0), torch.arange(1.0 * size), torch.empty(size)
    works = [
        group.allreduce(tensors=[own], opts=dist.AllreduceOptions()),
        group.broadcast([torch.ones(1)]),
        group.allreduce(torch.ones(2)),
        group.alltoall_base(received, sent, [], [], timeout=datetime.timedelta(seconds=100)),
    ]
    for each in works:
        while not each.is_completed():
            os.sched_yield()
        assert each.is_success()
    assert own.tolist() == [sum(range(1, size + 1))] * 2 and received.tolist() == [rank] * size, (own, received)


def coalesced(rank, size):
    """As programs for NCCL do."""
    tensors = [torch.full((length,), 1.0) for length in (2, 3)]
    for device in None, torch.device('cpu'):
        with dist._coalescing_manager(device=device, async_ops=True) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor)
        manager.wait()
    with dist._coalescing_manager(device=torch.device('cpu'), async_ops=True) as manager:
        for tensor in tensors:
            dist.broadcast(tensor, 0)
    while not manager.works[0].is_completed():
        os.sched_yield()
    assert [tensor.tolist() for tensor in tensors] == [[size**2] * 2, [size**2] * 3], tensors


def coalesced_on_another_thread(rank, size):
    """One that does not come to the end keeps nothing of what other threads begin."""
    group, tensor = dist.group.WORLD, torch.ones(3)
    other = threading.Thread(target=group._start_coalescing, args=(torch.device('cpu'),))
    other.start()
    other.join()
    summed = dist.all_reduce(tensor, async_op=True)
    summed.wait()
    kept = weakref.ref(summed)
    del summed
    gc.collect()
    assert kept() is None and tensor.tolist() == [size] * 3


def coalesced_with_an_error(rank, size):
    """A call that raises ends it, as PyTorch does not, and the thread's next calls keep nothing."""
    group, tensor, opts = dist.group.WORLD, torch.ones(3), dist.AllreduceOptions()
    opts.reduceOp = dist.ReduceOp.BAND
    for call in (
        lambda: group.allreduce([tensor], opts),
        lambda: group.all_gather_single(torch.empty(1), tensor),
        lambda: group.reduce_scatter_single(torch.empty(1), tensor[:1]),
        lambda: group.all_to_all_single(tensor, tensor, [1]),
        lambda: group.send([tensor], 0, 0),
    ):
        group._start_coalescing(torch.device('cpu'))
        _told(call)
        assert not vars(group._coalescing), vars(group._coalescing)
    assert 'after an error' in str(_told(lambda: group._end_coalescing(torch.device('cpu'))))


def split(rank, size):
    first, second = list(range(size - 1, 0, -1)), [0]
    try:
        timeout = datetime.timedelta(seconds=100)
        group = dist.split_group(split_ranks=[first, second], timeout=timeout, group_desc='a part')
    except RuntimeError as problem:
        assert _IS_2_11 and 'No device associated' in str(problem), problem  # which wants one
    else:
        assert group.group_desc == 'a part' and group._timed_group.timeout_ns == 100 * 10**9
        place = (first if rank > 0 else second).index(rank)
        total = torch.full((2,), float(rank))
        dist.broadcast(total, group_src=0, group=group)
        assert (group.rank(), total[0]) == (place, (size - 1 if rank > 0 else 0)), total
        dist.destroy_process_group(group)
    one, other = (dist.group.WORLD.split_group(list(range(size))) for _ in range(2))
    one.shutdown()
    other.allreduce([torch.ones(3)]).wait()
    other.shutdown()


def timeouts(rank, size):
    """The group's may change, and a call may have one of its own."""
    group, short = dist.new_group(list(range(size))), datetime.timedelta(milliseconds=1)
    store = dist.PrefixStore('timeouts', dist.distributed_c10d._get_default_store())

    def ends(begin):
        """Only rank 0 calls."""
        if rank == 0:
            assert 'deadline' in str(_told(begin))
            store.set(str(begin), '')
        dist.barrier()

    dist.all_reduce(torch.ones(3), group=group)
    ends(lambda: group.barrier(timeout=short).wait())
    ends(lambda: dist.monitored_barrier(group, short))
    group.set_timeout(short)
    ends(lambda: dist.all_reduce(torch.ones(3), group=group))


def many_groups(rank, size):
    """A job has 1023 groups at one time, and those that were destroyed are none of them."""
    engine = tributary.torch.c10d._world['engine']
    groups = {key[1] for key in engine._tensors}
    for _ in range(3):
        group = dist.new_group(list(range(size)))
        dist.all_reduce(torch.ones(1), group=group)
        dist.destroy_process_group(group)
    assert {key[1] for key in engine._tensors} == groups
    group, store = dist.new_group(list(range(size))), dist.distributed_c10d._get_default_store()
    if rank > 0:  # for rank 0 the operation is under way when the group ends
        store.wait(['many groups'])
    group.allreduce([torch.ones(1)])
    if rank == 0:
        store.set('many groups', '')
    dist.destroy_process_group(group)
    assert {key[1] for key in engine._tensors} == groups
    assert 'handle' in str(_told(lambda: group.allreduce([torch.ones(1)])))
    dist.barrier()


def worlds(rank, size):
    """Programs that train and infer make one of more processes beside that of each, as a group without ranks."""
    store, helper = dist.distributed_c10d._get_default_store(), dist.distributed_c10d._new_process_group_helper
    store = dist.PrefixStore('worlds', store)
    group, _ = helper(size, rank, [], 'tributary', store, group_name='worlds', timeout=datetime.timedelta(seconds=100))
    for turn in range(2):
        total, other = torch.ones(3), torch.ones(3)
        group.allreduce([total]).wait()
        dist.all_reduce(other)
        assert total.tolist() == other.tolist() == [size] * 3
        if turn == 0:
            part = dist.new_group(list(range(size)))
            assert part._group.engine is tributary.torch.c10d._world['engine']
            dist.destroy_process_group(part)
    group.shutdown()
    dist.barrier()


def joins_that_fail(rank, size):
    """They leave no engine."""
    options = types.SimpleNamespace(
        store=dist.PrefixStore('join %d' % rank, dist.distributed_c10d._get_default_store()),
        group_rank=0,
        group_size=1,
        global_ranks_in_group=[],
        timeout=datetime.timedelta(seconds=100),
    )
    before = set(_open_engines)
    with unittest.mock.patch.object(Engine, 'wait_ready', side_effect=KeyboardInterrupt):
        try:
            tributary.torch.c10d.create(options)
        except KeyboardInterrupt:
            pass
    assert _open_engines == before
    dist.barrier()


def bound_to_a_device(rank, size):
    """PyTorch does not have new_group() split a group for that."""
    dist.group.WORLD.bound_device_id = torch.device('cpu', 0)
    group, tensor = dist.new_group(list(range(size))), torch.ones(1)
    dist.all_reduce(tensor, group=group)
    dist.destroy_process_group(group)
    dist.barrier()


def aborted(rank, size):
    """Operations end on all workers, and a group may be aborted that has ended."""
    group, tensor = dist.new_group(list(range(size))), torch.ones(3)
    engine, inner = tributary.torch.c10d._world['engine'], group._group
    works = [group.allreduce([tensor]), engine._submit(lib.trib_barrier, group=inner._group)] if rank == 0 else []
    dist.barrier()
    dist.distributed_c10d._abort_process_group(group)
    assert all('cancelled' in str(_told(each.wait)) for each in works)
    assert not any(key[1] == inner._group for key in engine._tensors)
    group.abort()
    dist.barrier()


class _Stream:
    """Takes note of what it is asked to wait for."""

    def __init__(self, name, log):
        self.name, self.log, self.cuda_stream, self.device = name, log, name, 'cuda:0'

    def wait_stream(self, other):
        self.log.append('%s waits for %s' % (self.name, other.name))


def _fake_operation(log, name, done=True, error=None):
    """Is over when is_done becomes true."""
    call = unittest.mock.Mock(side_effect=error, return_value=None)
    operation = unittest.mock.Mock(wait=lambda *_: (log.append('a thread waits for %s' % name), call())[1])
    operation.done = lambda: operation.is_done
    operation.is_done = done
    operation.stream_wait = lambda stream: log.append('%s waits for %s' % (stream, name))
    operation.run_apart = lambda function, wait: (wait(), function())
    return operation


@contextlib.contextmanager
def _fake_gpu(log):
    """PyTorch's streams, and futures that call back on a stream of their own."""
    local = threading.local()
    streams = {name: _Stream(name, log) for name in ('main', 'side', 'pool')}

    def current(_device=None):
        return streams[getattr(local, 'name', 'main')]

    @contextlib.contextmanager
    def on(stream):
        before, local.name = current().name, stream.name
        try:
            yield
        finally:
            local.name = before

    class Future(torch._C.Future):
        """Calls back on the stream `pool`."""

        def __init__(self, devices=None):
            super().__init__([])
            self.devices = devices

        def then(self, callback):
            def run(done):
                with on(streams['pool']) if self.devices else contextlib.nullcontext():
                    return callback(done)

            return super().then(run)

    with (
        unittest.mock.patch('torch.cuda.current_stream', current),
        unittest.mock.patch('torch.cuda.stream', on),
        unittest.mock.patch('torch.cuda.Stream', lambda _device: _Stream('new', log)),
        unittest.mock.patch('torch.futures.Future', Future),
    ):
        yield streams, on


def gpu_works_that_fail_late(rank, size):
    """Fakes: a stream waits for an operation that is not over, and hears of no error. The work does, and no other."""
    log = []
    with _fake_gpu(log):
        late = _fake_operation(log, 'sum', done=False, error=TributaryError('late', -1))
        one = work.Work(handles.Handle([(late, 'cuda:0')], lambda: 0), [], futures.Line('x'))
        assert one.wait() and log == ['main waits for sum']
        assert not one.is_completed() and not one.is_success() and one.exception() is None
        late.is_done = True
        assert one.is_completed() and not one.is_success() and str(one.exception()) == 'late'
        assert str(_told(one.wait)) == 'late'
        assert not handles._unseen
        slow = _fake_operation(log, 'slow', done=False, error=TimeoutError('not complete'))
        other = work.Work(handles.Handle([(slow, 'cuda:0')], lambda: 0), [], futures.Line('x'))
        assert 'not complete' in str(_told(lambda: other.wait(datetime.timedelta(seconds=1))))
        slow.wait, slow.is_done = lambda: None, True
        assert other.wait() and other.is_success() and other.exception() is None


def gpu_works_of_a_job_that_was_left(rank, size):
    """Fakes: what has failed in it is no error of the next one."""
    gone = _fake_operation([], 'gone', error=TributaryError('gone', -1))
    gone.is_current = lambda: False
    handles._unseen[gone] = None
    handles.raise_unseen()
    assert not handles._unseen


def gpu_results_on_streams(rank, size):
    """Fakes: a result is made on the stream that waits first, and other streams wait for that one. A future makes it on
    the stream of who asked for it, and callbacks run on another one that waits for that."""
    log = []
    with _fake_gpu(log) as (streams, on):

        def gathered(name):  # as all_gather() does: a thread waits, and the result goes to the GPU
            operation = _fake_operation(log, name)
            return handles.Handle(
                [(operation, None)], lambda: log.append('copied on %s' % torch.cuda.current_stream().name), 'cuda:0'
            )

        handle = exchange.merged([gathered('gather')], lambda: None)
        with on(streams['side']):
            handle.wait()
        handle.wait()
        assert log == ['a thread waits for gather'] * 2 + ['copied on side', 'main waits for side'], log
        log.clear()
        one = work.Work(gathered('gather'), [], futures.Line('x'))
        with on(streams['side']):
            future = one.get_future()
        future.wait()
        assert log[-2:] == ['copied on side', 'pool waits for side'], log
        log.clear()
        sum_in_place = handles.Handle([(_fake_operation(log, 'sum', done=False), 'cuda:0')], lambda: 0)
        work.Work(sum_in_place, [], futures.Line('x'), is_in_place=True).get_future().wait()
        assert log == ['new waits for sum', 'pool waits for sum'], log
        handles._unseen.clear()


def gpu_backward_pass_beside_sums(rank, size):
    """Fakes: the stream of a backward pass does not wait for sums of its buckets, nor for what the engine gathers and
    scatters where it belongs."""
    log, own = [], types.SimpleNamespace(name='', turns={})
    bucket = types.SimpleNamespace(buffer=lambda: torch.ones(3), index=lambda: 0)

    def begin(*_unused, **_also_unused):
        return handles.Handle([(_fake_operation(log, 'sum', done=False), 'cuda:0')], lambda: 0)

    names = ('all_reduce', 'all_gather_into', 'reduce_scatter')
    with contextlib.ExitStack() as patches:
        patches.enter_context(_fake_gpu(log))
        patches.enter_context(unittest.mock.patch('tributary.job.engine', lambda: own))
        for name in names:
            patches.enter_context(unittest.mock.patch.object(exchange, name, begin))
        hooks.allreduce_hook(None, bucket).wait()
        dist.group.WORLD.all_gather_single(torch.empty(3 * size), torch.ones(3)).get_future().wait()
        dist.group.WORLD.reduce_scatter_single(torch.empty(3), torch.ones(3 * size)).get_future().wait()
    assert log == ['new waits for sum', 'pool waits for sum'] * 3, log
    handles._unseen.clear()


def end_without_a_result(rank, size):
    """A stream may have gone on with what has failed, and nothing else tells the program."""
    group = dist.new_group(list(range(size)), timeout=datetime.timedelta(milliseconds=1))
    if rank == 0:
        late = group.allreduce([torch.ones(3)])
        late._handle.operations[0][0].is_awaited = True
    dist.barrier()
    with unittest.mock.patch.object(logging.getLogger('tributary'), 'warning') as told:
        dist.destroy_process_group()
    assert [str(call.args[1]).count('deadline') for call in told.mock_calls] == ([1] if rank == 0 else []), (
        told.mock_calls
    )


def gpu_memory_of_copies(rank, size):
    """Fakes: memory that an operation has filled is read by the stream that waits, and was taken for another."""
    made = unittest.mock.Mock(is_cuda=True, device='cuda:0')
    with _fake_gpu([]) as (streams, on), on(streams['side']):
        assert elements.used_here(made) is made
    made.record_stream.assert_called_once_with(streams['side'])


ON_GPUS = [forms, coalesced, coalesced_on_another_thread, coalesced_with_an_error, split, many_groups, worlds]
HOST_CASES = [
    timeouts,
    joins_that_fail,
    bound_to_a_device,
    aborted,
    gpu_works_that_fail_late,
    gpu_works_of_a_job_that_was_left,
    gpu_results_on_streams,
    gpu_backward_pass_beside_sums,
    gpu_memory_of_copies,
]

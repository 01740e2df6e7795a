"""Cases of the torch.distributed backend, started by torchrun: each process compares with what it computes by
itself. The GPU tests start it, too, with tensors on GPUs: `streams` runs only the cases about these."""

import functools
import os
import shutil
import sys
import tempfile
import threading
import types
import unittest.mock

import c10d_contract_cases
import c10d_differ_cases
import c10d_fit_cases
import c10d_group_cases
import c10d_name_cases
import c10d_stream_cases
import torch
import torch.distributed as dist
import tributary.torch.c10d
from c10d_bed import DEVICE, drawn
from torch.multiprocessing.reductions import StorageWeakRef
from tributary import MismatchError, TributaryError


def collectives(rank, size):
    values = [torch.arange(6.0) + 10 * r for r in range(size)]
    tensor = values[rank].clone()
    dist.all_reduce(tensor)
    assert torch.equal(tensor, sum(values))
    for op, expected in ((dist.ReduceOp.MIN, values[0]), (dist.ReduceOp.MAX, values[-1])):
        tensor = values[rank].clone()
        dist.all_reduce(tensor, op)
        assert torch.equal(tensor, expected)
    bits = [torch.tensor([3, 5, 1 << 20, -1], dtype=torch.int32) + r for r in range(size)]
    for op, combine in (
        (dist.ReduceOp.PRODUCT, torch.mul),
        (dist.ReduceOp.BAND, torch.bitwise_and),
        (dist.ReduceOp.BOR, torch.bitwise_or),
        (dist.ReduceOp.BXOR, torch.bitwise_xor),
    ):
        tensor = bits[rank].clone()
        dist.all_reduce(tensor, op)
        assert torch.equal(tensor, functools.reduce(combine, bits)), op
    tensor = values[rank].clone()
    dist.broadcast(tensor, size - 1)
    assert torch.equal(tensor, values[-1])
    gathered = [torch.empty(6) for _ in range(size)]
    dist.all_gather(gathered, values[rank])
    assert all(torch.equal(a, b) for a, b in zip(gathered, values))
    flat = torch.empty(6 * size)
    dist.all_gather_into_tensor(flat, values[rank])
    assert torch.equal(flat, torch.cat(values))
    tensor = values[rank].clone()
    dist.reduce(tensor, size - 1)
    assert rank != size - 1 or torch.equal(tensor, sum(values))
    part = torch.empty(6)
    dist.reduce_scatter_tensor(part, torch.cat(values))
    assert torch.equal(part, values[rank] * size)
    dist.scatter(part, values if rank == 0 else None, 0)
    assert torch.equal(part, values[rank])
    listed = [torch.empty(6) for _ in range(size)] if rank == 0 else None
    dist.gather(values[rank], listed, 0)
    assert listed is None or all(torch.equal(a, b) for a, b in zip(listed, values))
    received = torch.empty(size)
    dist.all_to_all_single(torch.empty(size, 0), torch.empty(size, 0))
    dist.all_to_all_single(received, torch.arange(float(size)) + 10 * rank)
    assert received.tolist() == [rank + 10.0 * r for r in range(size)]
    objects = [None] * size
    dist.all_gather_object(objects, {'rank': rank})
    assert objects == [{'rank': r} for r in range(size)]
    dist.barrier()


def groups(rank, size):
    group = dist.new_group(list(range(size - 1)) or [0])
    if rank < max(size - 1, 1):
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=group)
        assert torch.equal(tensor, torch.full((3,), float(max(size - 1, 1))))
    dist.barrier()


def data_parallel(rank, size):
    def trained(parallel, inputs):
        optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
        for step in range(8):
            optimizer.zero_grad()
            for batch in inputs(step):
                torch.nn.functional.mse_loss(parallel(batch), batch[:, :4]).div(len(inputs(step))).backward()
            optimizer.step()
        return torch.cat([parameter.detach().flatten() for parameter in parallel.parameters()])

    def batch(step, of):
        return drawn(100 * step + of, 8, 16)

    def model():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))

    expected = trained(model(), lambda step: [batch(step, r) for r in range(size)])
    # A compiled model calls the group from within compiled code, when it has made its buckets.
    for compiled in lambda wrapped: wrapped, lambda wrapped: torch.compile(wrapped, backend='eager'):
        parallel = compiled(torch.nn.parallel.DistributedDataParallel(model()))
        got = trained(parallel, lambda step: [batch(step, rank)])
        assert torch.allclose(got, expected, atol=1e-5)
        least, most = got.clone(), got.clone()
        dist.all_reduce(least, dist.ReduceOp.MIN)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        assert torch.equal(least, most)


def sparse(rank, size):
    """Sums of sparse tensors are those of dense ones, and DistributedDataParallel takes sparse gradients."""

    def part(of):
        return torch.zeros(6, 2).index_fill_(0, torch.tensor([of, of + 1]), of + 1.0).to_sparse(1)

    tensor = part(rank)
    dist.all_reduce(tensor)
    assert torch.equal(tensor.to_dense(), sum(part(of).to_dense() for of in range(size)))
    nothing = torch.zeros(6, 2).to_sparse()
    dist.all_reduce(nothing)
    assert nothing.to_dense().sum() == 0

    def gradient(model, of):
        model(torch.tensor([[of, of + 1, 0]])).sum().backward()
        return next(model.parameters()).grad.to_dense()

    alone = [gradient(torch.nn.EmbeddingBag(6, 2, mode='sum', sparse=True), of) for of in range(size)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.EmbeddingBag(6, 2, mode='sum', sparse=True))
    assert torch.allclose(gradient(model, rank), sum(alone) / size)
    try:
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
    except NotImplementedError:
        return
    raise AssertionError('a maximum of sparse tensors was not refused')


def sharded(rank, size):
    """Trains a model whose parameters are spread, saves it, and brings it back from rank 0's memory and from files."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
    from torch.distributed.fsdp import fully_shard

    def batch(of):
        return drawn(of, 4, 8)

    def model(seed):
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))

    def step(model, batches):
        for one in batches:
            model(one).square().mean().div(len(batches)).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()

    def whole_of(model):
        return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))

    plain, spread = model(0), fully_shard(model(0))
    step(plain, [batch(r) for r in range(size)])
    step(spread, [batch(rank)])
    expected, whole = plain.state_dict(), whole_of(spread)
    kept = {name: value.clone() for name, value in whole.items()}
    assert rank != 0 or all(torch.allclose(whole[name], expected[name], atol=1e-6) for name in expected)
    again = fully_shard(model(1))
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(again, whole if rank == 0 else {}, options=options)
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, 0)
    checkpoint.async_save({'model': get_model_state_dict(again)}, checkpoint_id=folder[0]).result()
    last = fully_shard(model(2))
    state = {'model': get_model_state_dict(last)}
    checkpoint.load(state, checkpoint_id=folder[0])
    got = whole_of(last)
    assert rank != 0 or all(torch.equal(got[name], kept[name]) for name in kept)
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder[0])


def places(rank, size):
    """Where processes run, from what they told each other: machines and GPUs that programs have chosen."""
    find = tributary.torch.places.find
    pair = ['a x', 'a -', 'b y', 'b x']
    assert [find(pair, r)[:5] for r in (0, 1)] == [(0, 2, True, True, 0), (1, 2, True, False, 0)]
    assert find(pair, 2)[:4] == (0, 2, True, True) and find(pair, 1).taken == {'x'}
    first = ['a x', 'a x', 'a z', 'a x']  # three have used CUDA's first GPU, one has chosen
    assert [find(first, r)[3:5] for r in range(4)] == [(False, 0), (False, 1), (True, 2), (False, 2)]
    uneven, mixed = ['a x', 'a y', 'b x'], ['a x', 'b x', 'a y', 'b y']
    assert [find(uneven, r).is_even for r in range(3)] == [False] * 3
    assert find(mixed, 2)[:4] == (1, 2, False, True)
    store = dist.PrefixStore('places', dist.distributed_c10d._get_default_store())
    assert tributary.torch.places.exchange(store, 'first', rank, size)[:3] == (rank, size, True)


def futures(rank, size):
    """A future's callback and the caller wait for an operation at the same time."""
    for number in range(300):
        value = torch.full((4,), float(rank + number))
        work = dist.all_reduce(value, async_op=True)
        future = work.get_future()
        work.wait()
        future.wait()
        assert (value == sum(range(size)) + number * size).all(), value
    first, second = torch.ones(4), torch.full((4,), 2.0)

    def follow(done):  # as PyTorch's PowerSGD does
        return dist.all_reduce(second, async_op=True).get_future().wait()

    dist.all_reduce(first, async_op=True).get_future().then(follow).wait()
    assert (first == size).all() and (second == 2 * size).all()
    start = threading.Thread.start

    def refuse(thread):
        if thread.name == 'tributary callbacks':
            raise RuntimeError("can't start new thread")
        start(thread)

    threading.Thread.start = refuse
    try:
        dist.all_reduce(first, async_op=True).get_future().wait()
    finally:
        threading.Thread.start = start
    assert (first == size**2).all()


def memory_replaced(rank, size):
    """An operation under way keeps the memory that it uses, whatever its tensor gets meanwhile."""
    store = dist.PrefixStore('memory replaced', dist.distributed_c10d._get_default_store())
    tensors = [torch.full((1000 * size,), 1.0) for _ in range(4)]
    kept = [StorageWeakRef(tensor.untyped_storage()) for tensor in tensors]
    if rank == size - 1:  # the others' operations are under way until it begins its own
        store.wait([str(other) for other in range(rank)])
    works = [
        dist.all_reduce(tensors[0], async_op=True),
        dist.broadcast(tensors[1], size - 1, async_op=True),
        dist.all_gather_into_tensor(torch.empty(1000 * size**2), tensors[2], async_op=True),
        dist.reduce_scatter_tensor(torch.empty(1000), tensors[3], async_op=True),
    ]
    for tensor in tensors:
        tensor.data = torch.empty(0)
    if rank < size - 1:
        gone = [memory.expired() for memory in kept]
        store.set(str(rank), '')
        assert not any(gone), gone
    for work in works:
        work.wait()


def polled(rank, size):
    """A program that has seen the end of a collective reads its result, and does not wait."""
    own, parts = torch.full((3,), rank + 1.0), torch.arange(2.0 * size) + rank
    columns, listed = torch.empty(2, size)[:, ::2], [torch.empty(3) for _ in range(size)]
    total, numbers, whole = own.clone(), torch.full((2,), 5 * rank), torch.empty(3 * size)
    part, received, strided = torch.empty(2), torch.empty(2 * size), columns.copy_(torch.ones_like(columns) + rank)
    works = [
        dist.reduce(total, 0, async_op=True),
        dist.all_reduce(numbers, dist.ReduceOp.AVG, async_op=True),
        dist.all_reduce(strided, async_op=True),
        dist.all_gather(listed, own, async_op=True),
        dist.all_gather_into_tensor(whole, own, async_op=True),
        dist.reduce_scatter_tensor(part, parts, async_op=True),
        dist.all_to_all_single(received, parts, async_op=True),
    ]
    for work in works:
        while not work.is_completed():
            os.sched_yield()
        assert work.is_success() and work.exception() is None
    every = [torch.arange(2.0 * size) + r for r in range(size)]
    mine = slice(2 * rank, 2 * rank + 2)
    assert total.tolist() == [sum(range(1, size + 1)) if rank == 0 else total[0]] * 3, total
    assert numbers.tolist() == [sum(5 * r for r in range(size)) // size] * 2, numbers
    assert (strided == sum(range(1, size + 1))).all(), strided
    assert torch.stack(listed)[:, 0].tolist() == list(range(1, size + 1)), listed
    assert torch.equal(whole, torch.cat(listed)) and torch.equal(part, sum(every)[mine])
    assert torch.equal(received, torch.cat([each[mine] for each in every]))


def polled_on_a_gpu(rank, size):
    """Streams wait for fakes, and hear of no error: exception() has it, and wait() raises it. That of an operation that
    ends later is raised by the next wait, and taken for nobody else's."""

    def fake(error, *done):
        found, wait = iter(done), unittest.mock.Mock(side_effect=error, return_value=None)
        call = unittest.mock.Mock(wait=wait, done=lambda: next(found, True))
        return tributary.torch.c10d.Work(tributary.torch.handles.Handle([(call, 'cuda:0')], lambda: 0), None, None)

    def told(wait):
        try:
            wait()
        except TributaryError as problem:
            return problem

    own, others = TributaryError('own', -1), TributaryError('others', -1)
    with unittest.mock.patch('torch.cuda.current_stream', lambda device: types.SimpleNamespace(cuda_stream=0)):
        polled, waited, right = fake(own), fake(own), fake(None)
        assert polled.is_completed() and not polled.is_success() and polled.exception() is own
        assert told(fake(others, False, False).wait) is None
        assert right.is_success()
        assert told(waited.wait) is others and waited.exception() is None
        assert told(waited.wait) is own and waited.exception() is own and not waited.is_success()
        call = unittest.mock.Mock(wait=unittest.mock.Mock(side_effect=own), done=unittest.mock.Mock(return_value=False))
        inner = tributary.torch.handles.Handle([(call, 'cuda:0')], lambda: 0)
        tributary.torch.exchange.merged([inner, inner], lambda: 0).take()
        call.done.return_value = True
        assert told(right.wait) is own and told(right.wait) is None


def callbacks(rank, size):
    """Callbacks of several futures submit operations of the same size, in another order on each worker."""
    for number in range(20):
        told = [threading.Event(), threading.Event()]
        first = (rank + number) % 2  # the bucket whose callback is first here
        parts = [torch.full((6,), float(bucket + 1)) for bucket in (0, 1)]

        def follow(bucket, step):
            def run(done):
                assert (done.value()[0] == (bucket + 1) * 10**step * size ** (step + 1)).all(), (bucket, step, done)
                if step == 0 and bucket != first:
                    assert told[first].wait(100)
                work = dist.all_reduce(parts[bucket].mul_(10), async_op=True)
                told[bucket].set()
                return work.get_future().wait()

            return run

        works = [dist.all_reduce(part, async_op=True) for part in parts]
        futures = [work.get_future() for work in works]
        if rank == 1 and number % 4 == 3:
            futures[first].wait()  # its callback runs on the thread that gives it, as it is complete
        ends = {}

        def attach(bucket):
            ends[bucket] = futures[bucket].then(follow(bucket, 0)).then(follow(bucket, 1))

        # A future that is complete calls back on the thread that gives it the callback, and that waits for the others.
        threads = [threading.Thread(target=attach, args=(bucket,)) for bucket in (first, 1 - first)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for bucket in (0, 1):
            assert (ends[bucket].wait()[0] == (bucket + 1) * 100 * size**3).all(), parts


def end(group, size):
    """A group that ends waits for callbacks and for what they submit."""
    values, may_go_on, has_ended = [torch.ones(3), torch.ones(3)], threading.Event(), []

    def follow(_done):
        if threading.current_thread() is not threading.main_thread():  # where the future was complete already
            may_go_on.wait()
        group.allreduce([values[1]]).wait()
        group.allgather([[torch.empty(3) for _ in range(size)]], [values[1]]).get_future().wait()
        has_ended.append(values[1].tolist())

    work = group.allreduce([values[0]])
    attach = threading.Thread(target=lambda: work.get_future().then(follow))  # which may call it at once
    attach.start()
    work.wait()
    may_go_on.set()
    attach.join()
    group.shutdown()
    assert has_ended == [[size] * 3], has_ended


def disagreements(rank, size):
    """Workers that call with different sizes, types or reductions all get an error, and the group goes on. A size that
    one of them has had before is no other one's."""
    known = dist.new_group(list(range(size)))
    for _ in range(16):
        dist.all_reduce(torch.ones(9), group=known)
    try:
        dist.all_reduce(torch.ones(7 + rank), group=known)
    except MismatchError as problem:
        assert 'operation 16' in str(problem), problem
    else:
        raise AssertionError('workers that disagree were not told')
    mine = [torch.ones(7 + rank), torch.ones(5, dtype=[torch.float32, torch.int32][rank % 2]), torch.ones(3)]
    op = [dist.ReduceOp.SUM, dist.ReduceOp.MAX][rank % 2]
    calls = [lambda tensor=tensor: dist.all_reduce(tensor, op) for tensor in mine]
    calls += [lambda: dist.reduce(torch.ones(7 + rank), 0), lambda: dist.broadcast(torch.ones(3), rank)]
    calls += [lambda: dist.broadcast(torch.ones(7 + rank), 0)]
    calls += [lambda: dist.barrier() if rank else dist.broadcast(torch.ones(3), 0)]
    calls += [lambda: dist.all_reduce(torch.ones(3)) if rank else dist.broadcast(torch.ones(3), 0)]
    for call in calls:
        try:
            call()
        except MismatchError:
            continue
        raise AssertionError('workers that disagree were not told')
    for _ in range(40):
        total = torch.ones(3)
        dist.all_reduce(total)
        dist.broadcast(total, 0)
        assert total.tolist() == [size] * 3


def refusals(rank, size):
    wide, rows = torch.zeros(2 * size, dtype=torch.float64), torch.ones(size + 1)
    for call in (
        lambda: dist.all_to_all_single(torch.empty(9), torch.ones(size), [3] * size, [3] * size),
        lambda: dist.all_to_all_single(torch.empty(size + 1), rows),
        lambda: dist.all_gather_into_tensor(wide, torch.ones(2)),
        lambda: dist.reduce_scatter_tensor(torch.zeros(1), rows),
        lambda: dist.send(torch.ones(1), (rank + 1) % size),
        lambda: dist.all_reduce(torch.ones(1), dist.ReduceOp.BAND),
    ):
        try:
            call()
        except (NotImplementedError, ValueError, RuntimeError):
            continue
        raise AssertionError('it was not refused')


def _main():
    dist.init_process_group('tributary')
    on_host, on_gpus = (HOST_CASES, ON_GPUS) if sys.argv[1:] != ['streams'] else ([], c10d_stream_cases.ON_GPUS)
    if DEVICE == 'cuda':
        torch.set_default_device('cuda')
    for case in [*on_gpus, *(on_host if DEVICE == 'cpu' else ())]:
        case(dist.get_rank(), dist.get_world_size())
        print('rank %d: %s is right' % (dist.get_rank(), case.__name__), flush=True)
    end(dist.group.WORLD, dist.get_world_size())
    _store = dist.distributed_c10d._get_default_store()  # kept, so that nobody meets a server that is about to end
    dist.destroy_process_group()
    # A second group in the same store has an engine of its own. It may be bound to a device.
    dist.init_process_group('tributary', device_id=torch.device(DEVICE, 0))
    again = torch.ones(3)
    dist.all_reduce(again)
    assert again.tolist() == [dist.get_world_size()] * 3
    if DEVICE == 'cuda':
        dist.destroy_process_group()
        return
    c10d_contract_cases.end_without_a_result(dist.get_rank(), dist.get_world_size())
    c10d_group_cases.attempts()


ON_GPUS = [
    collectives,
    c10d_group_cases.factors,
    c10d_group_cases.complex_numbers,
    groups,
    data_parallel,
    sparse,
    sharded,
    futures,
    memory_replaced,
    polled,
    callbacks,
    refusals,
    c10d_name_cases.threads_gather_beside_the_main_one,
    c10d_name_cases.threads_leave_callbacks_their_names,
    c10d_name_cases.threads_have_backward_passes_of_their_own,
    *c10d_contract_cases.ON_GPUS,
    *c10d_stream_cases.ON_GPUS,
]
# Some have fakes of GPUs. In the others wait() raises the error of its own operation: on a GPU a stream waits.
HOST_CASES = [
    c10d_group_cases.names,
    places,
    polled_on_a_gpu,
    disagreements,
    c10d_name_cases.many_sizes,
    c10d_name_cases.no_sum_is_of_different_calls,
    *c10d_differ_cases.CASES,
    *c10d_fit_cases.CASES,
    *c10d_contract_cases.HOST_CASES,
    *c10d_stream_cases.HOST_CASES,
]

if __name__ == '__main__':
    _main()

"""Cases of the torch.distributed backend about streams: on which its inputs are awaited and its results are seen, and
how long memory is kept. c10d_cases.py runs them, on GPUs too: only there a stream may come late.

Numbers are small and whole, so every sum is exact. A call that waits for a stream too little reads numbers below zero.
"""

import contextlib
import datetime
import os
import threading
import types
import unittest.mock

import torch
import torch.distributed as dist
import tributary.torch.c10d
from c10d_bed import DEVICE, let_stream_be_late, streams
from tributary import ArgumentError
from tributary.torch import device, elements, hooks
from tributary.torch.places import Place

# Elements of each rank: small ones end at once, and of large ones the last copy to a GPU takes its time.
COUNTS = 3, 4_000_001 if DEVICE == 'cuda' else 5001


def _numbers(rank, count):
    return torch.arange(count, device=DEVICE, dtype=torch.float32) % 1000 + 10 * rank


def _empty(count):
    return torch.full((count,), -1.0, device=DEVICE)


def _coalesced(tensor):
    with dist._coalescing_manager(device=torch.device(DEVICE), async_ops=True) as manager:
        dist.all_reduce(tensor)
    return manager


class _Call:
    """A collective on a tensor of `count` elements for each rank. begin(source, output) returns its work; expected() is
    what the output has then, made of all ranks' tensors. Without a length the source is the output."""

    def __init__(self, name, begin, expected, length=None, only=None):
        self.name, self.begin, self.expected, self.length, self.only = name, begin, expected, length, only


def _calls(rank, size, count):
    last, mine, pieces = size - 1, slice(rank * count, (rank + 1) * count), [count] * size
    return [
        _Call('all_reduce', lambda x, _: dist.all_reduce(x, async_op=True), sum),
        _Call('coalesced', lambda x, _: _coalesced(x), sum),
        _Call('maximum', lambda x, _: dist.all_reduce(x, dist.ReduceOp.MAX, async_op=True), lambda all: all[-1]),
        _Call('broadcast', lambda x, _: dist.broadcast(x, last, async_op=True), lambda all: all[-1]),
        _Call('reduce', lambda x, _: dist.reduce(x, 0, async_op=True), sum, only=0),
        _Call(
            'all_gather_into_tensor',
            lambda x, out: dist.all_gather_into_tensor(out, x, async_op=True),
            torch.cat,
            count * size**2,
        ),
        _Call(
            'all_gather',
            lambda x, out: dist.all_gather(list(out.chunk(size)), x, async_op=True),
            torch.cat,
            count * size**2,
        ),
        _Call(
            'reduce_scatter_tensor',
            lambda x, out: dist.reduce_scatter_tensor(out, x, async_op=True),
            lambda all: sum(all)[mine],
            count,
        ),
        _Call(
            'all_to_all_single',
            lambda x, out: dist.all_to_all_single(out, x, pieces, pieces, async_op=True),
            lambda all: torch.cat([each[mine] for each in all]),
            count * size,
        ),
        _Call(
            'gather',
            lambda x, out: dist.gather(x, list(out.chunk(size)) if rank == 0 else None, 0, async_op=True),
            torch.cat,
            count * size**2,
            only=0,
        ),
        _Call(
            'scatter',
            lambda x, out: dist.scatter(out, list(x.chunk(size)) if rank == 0 else None, 0, async_op=True),
            lambda all: all[0][mine],
            count,
        ),
    ]


def _each_call(rank, size):
    """Yields each collective with its source, which a stream of its own fills late, its output, that stream, and what
    is expected; each rank is the late one now and then."""
    for turn, count in enumerate(COUNTS):
        for number, call in enumerate(_calls(rank, size, count)):
            every = [_numbers(r, count * size) for r in range(size)]
            source = _empty(count * size)
            output = source if call.length is None else _empty(call.length)
            streams.synchronize()
            filling = streams.Stream()
            with streams.stream(filling):
                if (turn + number) % size == rank:
                    let_stream_be_late()
                source.copy_(every[rank])
            expected = call.expected(every) if call.only in (None, rank) else None
            yield call, source, output, filling, expected


def _check(call, what, got, expected):
    streams.synchronize()
    assert expected is None or torch.equal(got, expected), (call.name, what, len(got), got[:3], got[-3:], expected[:3])


def waits_on_streams(rank, size):
    """An input is awaited on the stream that was the current one, and a result is there for each stream that waits."""
    for call, source, output, filling, expected in _each_call(rank, size):
        with streams.stream(filling):
            work = call.begin(source, output)
        seen = []
        for _ in range(2):
            waiting = streams.Stream()
            with streams.stream(waiting):
                work.wait()
                seen.append(output.flip(0))  # its end comes last, and is read first
        for number, got in enumerate(seen):
            _check(call, 'stream %d' % number, got.flip(0), expected)


def waits_on_threads(rank, size):
    """A thread that did not begin a collective waits for it with its own stream."""
    for call, source, output, filling, expected in _each_call(rank, size):
        with streams.stream(filling):
            work = call.begin(source, output)
        seen = []

        def wait(work=work, output=output, seen=seen):
            work.wait()
            seen.append(output.flip(0))

        thread = threading.Thread(target=wait)
        thread.start()
        thread.join()
        _check(call, 'thread', seen[0].flip(0), expected)


def futures_on_streams(rank, size):
    """A callback's stream has the result, and a stream that waits for the future has what the callback made."""
    for call, source, output, filling, expected in _each_call(rank, size):
        if call.name == 'coalesced':
            continue  # a manager has no future
        with streams.stream(filling):
            future = call.begin(source, output).get_future()
        doubled = future.then(lambda _done, output=output: output.flip(0) * 2)
        with streams.stream(streams.Stream()):
            got = doubled.wait() / 2
        _check(call, 'future', got.flip(0), expected)


def memory_used_again(rank, size):
    """Memory that a program lets go while an operation uses it is not given out again meanwhile."""
    count = COUNTS[-1]
    expected = torch.cat([_numbers(r, count) for r in range(size)])
    whole = sum(_numbers(r, 2 * count) for r in range(size))
    allocating, waiting = streams.Stream(), streams.Stream()
    for number in range(8):
        gathered = _empty(count * size)
        streams.synchronize()
        with streams.stream(allocating):
            if number % size == rank:
                let_stream_be_late()
            source = _numbers(rank, count)
            work = dist.all_gather_into_tensor(gathered, source, async_op=True)
            del source
            poison = [_empty(count) for _ in range(3)]
        work.wait()
        assert torch.equal(gathered, expected), number
        # Other layouts go through copies, which are made on one stream and read on another, late one.
        columns = torch.empty(count, 2, device=DEVICE).t()
        streams.synchronize()
        with streams.stream(allocating):
            columns.copy_(_numbers(rank, 2 * count).view(2, count))
            work = dist.all_reduce(columns, async_op=True)
        with streams.stream(waiting):
            let_stream_be_late()
            work.wait()
            del work
        with streams.stream(allocating):
            poison += [_empty(2 * count) for _ in range(3)]
        with streams.stream(waiting):
            assert torch.equal(columns.reshape(-1), whole), number
        streams.synchronize()
        del poison


def tensors_of_all_kinds(rank, size):
    """Views, strides, nothing at all, and memory that starts anywhere."""
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.uint8, torch.int64):
        whole = torch.ones(1001, dtype=dtype, device=DEVICE)
        dist.all_reduce(whole[3:])
        dist.broadcast(whole[:2], 0)
        assert whole.tolist() == [1] * 3 + [size] * 998, dtype
    images = torch.ones(2, 3, 5, 7, device=DEVICE).contiguous(memory_format=torch.channels_last)
    every_other, negative = torch.ones(100, device=DEVICE)[::2], torch.ones(4, dtype=torch.cfloat, device=DEVICE).conj()
    for tensor in images, every_other, negative.imag:
        expected = tensor * size
        dist.all_reduce(tensor)
        assert torch.equal(tensor, expected), tensor
    leaf = torch.ones(5, device=DEVICE, requires_grad=True)
    with torch.inference_mode():
        inferred = torch.ones(5, device=DEVICE)
    for tensor in leaf, inferred:
        dist.all_reduce(tensor)
        assert tensor.tolist() == [size] * 5
    strided, whole = torch.empty(size, 2, device=DEVICE).t(), torch.empty(size * 3, device=DEVICE)
    gathered = torch.zeros(size, 3, device=DEVICE)
    gathered = gathered.t().contiguous().t() if rank == 0 else gathered  # ranks may differ in it
    dist.all_gather_into_tensor(gathered, torch.full((3,), float(rank), device=DEVICE))
    assert gathered.tolist() == [[float(r)] * 3 for r in range(size)], gathered
    dist.reduce_scatter_tensor(strided[0], torch.ones(size * size, device=DEVICE))
    assert strided[0].tolist() == [size] * size
    own = whole.fill_(-1.0)[3 * rank : 3 * rank + 3].fill_(float(rank))  # in place
    dist.all_gather_into_tensor(whole, own)
    assert whole.view(size, 3)[:, 0].tolist() == list(range(size))
    dist.reduce_scatter_tensor(own, whole)
    assert own.tolist() == [rank * size] * 3
    nothing = torch.empty(0, device=DEVICE)
    for begin in (
        lambda: dist.all_reduce(nothing, async_op=True),
        lambda: dist.broadcast(nothing, 0, async_op=True),
        lambda: dist.all_gather_into_tensor(torch.empty(0, device=DEVICE), nothing, async_op=True),
        lambda: dist.reduce_scatter_tensor(torch.empty(0, device=DEVICE), nothing, async_op=True),
        lambda: dist.all_reduce(nothing, async_op=True).get_future(),
    ):
        begin().wait()


def factors_on_streams(rank, size):
    """A factor in a tensor is read behind the stream that fills it."""
    factor, tensor = torch.full((1,), -1.0, device=DEVICE), _numbers(rank, 3000)
    part, columns = _empty(3000 // size), tensor.clone().view(-1, 2).t()
    streams.synchronize()
    with streams.stream(streams.Stream()):
        let_stream_be_late()
        factor.fill_(0.5)
        half = dist._make_nccl_premul_sum(factor)
        works = [
            dist.reduce_scatter_tensor(part, tensor[: 3000 // size * size].clone(), half, async_op=True),
            dist.all_reduce(columns, half, async_op=True),
            dist.all_reduce(tensor, half, async_op=True),
        ]
    for work in works:
        work.wait()
    expected = sum(_numbers(r, 3000) for r in range(size)) / 2
    mine = slice(rank * (3000 // size), (rank + 1) * (3000 // size))
    assert torch.equal(tensor, expected) and torch.equal(part, expected[mine])
    assert torch.equal(columns.t().reshape(-1), expected)


def barriers_wait_for_streams(rank, size):
    """As with NCCL, a worker's stream has done its part when the worker's barrier ends. It has even before the barrier
    begins, as gpu_barriers() shows, so those of all workers have when a barrier ends."""
    with streams.stream(streams.Stream()):
        if rank == size - 1:
            let_stream_be_late()
        done = streams.current_stream().record_event()
        dist.barrier()
        assert done is None or done.query()


def groups_end_with_work_under_way(rank, size):
    for number in range(4):
        group, tensor, whole = dist.new_group(list(range(size))), _empty(COUNTS[-1]), _empty(3 * size)
        streams.synchronize()
        filling = streams.Stream()
        with streams.stream(filling):
            if number % size == rank:
                let_stream_be_late()
            tensor.copy_(_numbers(rank, COUNTS[-1]))
            dist.all_reduce(tensor, group=group, async_op=True)
            dist.all_gather_into_tensor(whole, tensor[:3].clone(), group=group, async_op=True)
        dist.destroy_process_group(group)
        assert torch.equal(tensor, sum(_numbers(r, COUNTS[-1]) for r in range(size))), number


def messages_are_refused(rank, size):
    """The next collective goes on, also after messages that a program wanted to send together."""
    tensor = torch.ones(3, device=DEVICE)
    peer = (rank + 1) % size
    for begin in (
        lambda: dist.batch_isend_irecv([dist.P2POp(dist.isend, tensor, peer), dist.P2POp(dist.irecv, tensor, peer)]),
        lambda: dist.send(tensor, peer),
        lambda: dist.irecv(tensor, peer),
    ):
        with contextlib.suppress(NotImplementedError):
            begin()
            raise AssertionError('it was not refused')
        dist.all_reduce(tensor)
        assert tensor.tolist() == [size] * 3
        tensor.fill_(1)


def errors_of_streams(rank, size):
    """A stream that waits hears of no error. The work tells it, and other groups go on."""
    group, tensor = dist.new_group(list(range(size))), torch.ones(1000, device=DEVICE)
    if rank == 0:  # nobody else calls
        group.set_timeout(datetime.timedelta(milliseconds=1))
        work = group.allreduce([tensor])
        while not work.is_completed():
            pass
        assert not work.is_success() and 'deadline' in str(work.exception()), work.exception()
    dist.barrier()
    dist.destroy_process_group(group)
    for number in range(20):
        total = torch.full((1000,), float(number), device=DEVICE)
        dist.all_reduce(total)
        assert total.tolist() == [number * size] * 1000


class _Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        # Their buckets are apart, and the second layer's gradient comes first.
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(64, 64, bias=False, device=DEVICE) for _ in range(2)))
        for layer in self.layers:
            torch.nn.init.eye_(layer.weight)

    def forward(self, rows):
        return self.layers(rows)


def backward_passes_go_on(rank, size):
    """A backward pass waits for no sum before its end: rank 0 computes all of its gradients before the others begin,
    whose part the sums of the first buckets need."""
    store = dist.PrefixStore('backward passes', dist.distributed_c10d._get_default_store())
    engine = tributary.torch.c10d._world['engine']
    for hook in None, hooks.allreduce_hook:
        model = torch.nn.parallel.DistributedDataParallel(_Model(), bucket_cap_mb=0.01)
        with unittest.mock.patch('tributary.job.engine', lambda: engine):
            if hook is not None:
                model.register_comm_hook(None, hook)
            # DistributedDataParallel makes its buckets in the first pass.
            model(torch.ones(4, 64, device=DEVICE)).sum().backward()
            model.zero_grad()
            key = 'with a hook' if hook else 'without'

            def tell(_gradient, key=key):
                streams.current_stream().synchronize() if DEVICE == 'cuda' else None
                store.set(key, '')

            total = model(torch.full((4, 64), 2.0 * (rank + 1), device=DEVICE)).sum()
            if rank == 0:
                model.module.layers[0].weight.register_hook(tell)
            else:
                store.wait([key])
            total.backward()
        mean = 8.0 * sum(range(1, size + 1)) / size
        for layer in model.module.layers:
            assert torch.equal(layer.weight.grad, torch.full((64, 64), mean, device=DEVICE)), layer.weight.grad


def sums_in_backward_passes(rank, size):
    """On GPUs they begin on threads and streams of PyTorch's, between those of the main thread."""
    for number in range(10):
        totals = []

        def begin(gradient, totals=totals):
            total = gradient.clone()
            totals.append((total, dist.all_reduce(total, async_op=True)))

        filling = streams.Stream()
        leaf = torch.ones(1000, device=DEVICE, requires_grad=True)
        leaf.register_hook(begin)
        before, after = torch.ones(1000, device=DEVICE), torch.ones(1000, device=DEVICE)
        streams.synchronize()
        with streams.stream(filling):  # PyTorch runs a backward pass on the streams of its forward pass
            if number % size == rank:
                let_stream_be_late()
            totals.append((before, dist.all_reduce(before, async_op=True)))
            (leaf * (rank + 1)).sum().backward()
            totals.append((after, dist.all_reduce(after, async_op=True)))
        for (total, work), expected in zip(totals, (size, size * (size + 1) // 2, size)):
            work.wait()
            assert total.tolist() == [expected] * 1000, (number, total, expected)


def gpus_are_chosen(rank, size):
    """Where the environment says how many processes a machine has with a GPU, and where it does not. On GPUs what has
    been chosen for this process is seen, and elsewhere fakes."""
    engine = tributary.torch.c10d._world['engine']
    if DEVICE == 'cuda':
        assert engine.has_device and engine.gpu == torch.cuda.current_device()
        assert torch.cuda.device_count() == 1  # the GPU tests say which
        return
    assert engine.gpu is None

    def chosen(place, count, **environment):
        """Returns settings, the GPU, and what the library finds in the environment."""
        foreign, taken = ('TRIB_DEVICE', 'CUDA_'), []
        others = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        with (
            unittest.mock.patch.dict('os.environ', dict(others, **environment), clear=True),
            unittest.mock.patch.object(device, '_is_usable', lambda: True),
            unittest.mock.patch('torch.cuda.device_count', lambda: count),
            unittest.mock.patch('torch.cuda.set_device', taken.append),
            unittest.mock.patch.object(device.places, 'name_of', str),
        ):
            settings = device.choose_at(place)
            return settings, taken, os.environ.get('TRIB_DEVICE')

    second = Place(1, 2, True, False, 1, frozenset())
    assert chosen(second, 2) == ({'device': 'cuda', 'local_rank': 1, 'local_size': 2}, [1], None)
    assert chosen(second, 1) == ({}, [], None)  # two processes cannot have one GPU
    shared = dict(TRIB_DEVICE_COUNT='1', TRIB_DEVICE_RANK='0')
    assert chosen(second, 1, **shared) == ({}, [0], 'cuda')  # but those of two machines can, as the tests have it
    assert chosen(second, 4, TRIB_DEVICE='none', **shared) == ({}, [], 'none')
    uneven = second._replace(is_even=False, has_own_gpu=True)
    assert chosen(uneven, 2) == ({'device': 'cuda'}, [], None)
    beside = second._replace(taken=frozenset('1'), turn=0)
    assert chosen(beside, 2)[1] == [0]


def gpu_barriers(rank, size):
    """Fakes: the stream comes before the barrier begins."""
    log, group = [], dist.group.WORLD
    stream = types.SimpleNamespace(synchronize=lambda: log.append('the stream has come'))
    begin = unittest.mock.Mock(side_effect=lambda *_, **__: log.append('the barrier begins'))
    with (
        unittest.mock.patch('torch.cuda.is_initialized', lambda: True),
        unittest.mock.patch('torch.cuda.current_stream', lambda: stream),
        unittest.mock.patch.object(tributary.torch.c10d.exchange, 'all_reduce', begin),
        unittest.mock.patch.object(tributary.torch.c10d, 'Work', unittest.mock.Mock()),
    ):
        group.barrier(dist.BarrierOptions())
    assert log == ['the stream has come', 'the barrier begins'], log


def gpu_of_another_process(rank, size):
    """Fakes: a tensor on another GPU than the engine's is refused, as its stream is none of that GPU's."""
    tensor = types.SimpleNamespace(is_cuda=True, device=torch.device('cuda', 1))
    with unittest.mock.patch('torch.cuda.current_stream', lambda _device: types.SimpleNamespace(cuda_stream=7)):
        assert elements.stream_of(tensor, 1) == elements.stream_of(tensor) == 7
        try:
            elements.stream_of(tensor, 0)
        except ArgumentError as problem:
            assert 'a tensor on cuda:1, and this process joined the job with cuda:0' in str(problem)
            return
    raise AssertionError('it was not refused')


ON_GPUS = [
    waits_on_streams,
    waits_on_threads,
    futures_on_streams,
    memory_used_again,
    tensors_of_all_kinds,
    factors_on_streams,
    barriers_wait_for_streams,
    groups_end_with_work_under_way,
    messages_are_refused,
    errors_of_streams,
    backward_passes_go_on,
    sums_in_backward_passes,
    gpus_are_chosen,
]
HOST_CASES = [gpu_barriers, gpu_of_another_process]  # with fakes

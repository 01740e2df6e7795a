"""Cases that every worker of a job runs: `torch_cases.py NAME`. A case compares with what a worker computes by itself,
from the inputs of all ranks, which are made from seeds."""

import copy
import os
import pickle
import sys
import weakref

import numpy
import python_bed
import torch
import tributary
import tributary.torch as trib
import tributary.torch.hooks
import torch_training_cases as training
from torch_bed import DEVICE, FLOATS, INTEGERS, digits_model, loss_of, mine, of_all, raises, same_on_all, tensor_of

SHAPES = ((), (1,), (17,), (3, 5, 7), (0, 4), (70001,))


def reductions():
    for dtype in FLOATS + INTEGERS:
        for shape in SHAPES:
            whole, wide = of_all(shape, dtype), of_all(shape, dtype).double()
            assert torch.equal(trib.allreduce(mine(shape, dtype), op=trib.Sum), wide.sum(0).to(dtype)), (dtype, shape)
            assert torch.equal(
                trib.allreduce(mine(shape, dtype), op=trib.Min), whole.amin(0) if whole.numel() else mine(shape, dtype)
            )
            assert torch.equal(
                trib.allreduce(mine(shape, dtype), op=trib.Max), whole.amax(0) if whole.numel() else mine(shape, dtype)
            )
            assert torch.equal(trib.allreduce(mine(shape, dtype), op=trib.Product), whole.prod(0).to(dtype)), (
                dtype,
                shape,
            )
        if dtype in FLOATS:
            expected = (of_all((17,), dtype).double().sum(0) / trib.size()).to(dtype)
            assert torch.equal(trib.allreduce(mine((17,), dtype)), expected)


def other_types():
    truth = tensor_of(trib.rank(), (1000,), torch.int32) > 2
    whole = of_all((1000,), torch.int32) > 2
    for op, expected in ((trib.Sum, whole.any(0)), (trib.Max, whole.any(0)), (trib.Product, whole.all(0))):
        assert torch.equal(trib.allreduce(truth, op=op), expected), op
    raises(NotImplementedError, lambda: trib.allreduce(truth), 'avg of bool')
    for name in 'float8_e4m3fn', 'float8_e5m2', 'uint16', 'uint32', 'uint64':
        dtype = getattr(torch, name, None)
        if dtype is None or trib.size() > 8:
            continue
        expected = of_all((777,), torch.float32).sum(0).to(dtype)
        found = trib.allreduce(tensor_of(trib.rank(), (777,), torch.float32).to(dtype), op=trib.Sum)
        assert torch.equal(found.to(torch.float32), expected.to(torch.float32)), name


def in_place_and_strided():
    for tensor in (
        torch.zeros(6, 4),
        torch.zeros(4, 6).t(),
        torch.zeros(12, 4)[::2],
        torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last),
    ):
        tensor.copy_(tensor_of(trib.rank(), tensor.shape, tensor.dtype))
        expected = of_all(tensor.shape, tensor.dtype).sum(0)
        assert trib.allreduce_(tensor, op=trib.Sum) is tensor and torch.equal(tensor, expected)
        tensor.copy_(tensor_of(trib.rank(), tensor.shape, tensor.dtype))
        trib.broadcast_(tensor, trib.size() - 1)
        assert torch.equal(tensor, tensor_of(trib.size() - 1, tensor.shape, tensor.dtype))


def views_of_complex_numbers():
    """PyTorch keeps the signs of these apart from their memory."""
    values = torch.tensor([1 + 2j, 3 + 4j])
    mine = values.conj().imag[:] if trib.rank() == 0 else torch.tensor([-2.0, -4.0])
    for negative in mine, torch._neg_view(-mine.clone()):
        expected = torch.tensor([-2.0, -4.0])
        assert torch.equal(trib.allreduce(negative), expected)
        assert torch.equal(trib.allgather(negative), expected.repeat(trib.size()))
        assert torch.equal(trib.broadcast(negative, trib.size() - 1), expected)
        in_place = torch._neg_view(torch.tensor([2.0, 4.0]))
        assert torch.equal(trib.allreduce_(in_place, op=trib.Sum), expected * trib.size())
    conjugate = torch.tensor([2j, 1.0]).conj()
    assert torch.equal(trib.broadcast(conjugate, 0), conjugate)
    assert torch.equal(trib.broadcast_(torch.tensor([2j, 1.0]).conj(), 0), conjugate)
    assert torch.equal(trib.allgather(conjugate), conjugate.repeat(trib.size()))


def scaling():
    # The scaled values are not whole: the reference rounds where the operation rounds, before the sum and after it.
    for dtype in FLOATS:
        parts = [(tensor_of(rank, (50,), dtype).float() * 0.5).to(dtype) for rank in range(trib.size())]
        expected = (sum(part.double() for part in parts).to(dtype).float() * 4.0).to(dtype)
        for before, after in (0.5, 4.0), (torch.tensor(0.5), numpy.array(4)):
            got = trib.allreduce(mine((50,), dtype), op=trib.Sum, prescale_factor=before, postscale_factor=after)
            assert torch.equal(got, expected), (dtype, before)


def many_at_once():
    handles = [
        trib.allreduce_async(mine((100 + i,), torch.float32, i), name='many.%d' % i, op=trib.Sum) for i in range(50)
    ]
    if trib.rank() % 2:
        handles.reverse()  # names decide, not the order of waiting
    results = [trib.synchronize(handle) for handle in handles]
    assert all(trib.poll(handle) for handle in handles)
    for i, result in enumerate(reversed(results) if trib.rank() % 2 else results):
        assert torch.equal(result, of_all((100 + i,), torch.float32, i).sum(0))
    tensors = [mine((i,), torch.float64, i) for i in range(1, 9)]
    for i, result in enumerate(trib.grouped_allreduce(tensors, op=trib.Sum), 1):
        assert torch.equal(result, of_all((i,), torch.float64, i).sum(0))


def bucket_callbacks():
    """A callback of a bucket's future waits for another bucket."""

    class Bucket:
        def __init__(self, index):
            self.number, self.values = index, mine((9,), torch.float64, index)

        def index(self):
            return self.number

        def buffer(self):
            return self.values

    for _ in range(20):

        def follow(done):
            assert torch.equal(done.value(), of_all((9,), torch.float64, 0).mean(0))
            return trib.hooks.allreduce_hook(None, Bucket(1)).wait()

        last = trib.hooks.allreduce_hook(None, Bucket(0)).then(follow)
        assert torch.equal(last.wait(), of_all((9,), torch.float64, 1).mean(0))


def gathers():
    size, rank = trib.size(), trib.rank()
    for dtype in (torch.float32, torch.int64, torch.bool, torch.int16):
        part = lambda r: tensor_of(r, (r % 3 + 1, 4), dtype)  # noqa: E731
        assert torch.equal(trib.allgather(part(rank)), torch.cat([part(r) for r in range(size)])), dtype
    empty, counts = trib.allgather(torch.ones(rank + 1, 0)), list(range(1, size + 1))
    assert empty.shape == (sum(counts), 0), empty.shape
    empty, received = trib.alltoall(torch.ones(sum(counts), 2, 0), counts)
    assert empty.shape == (size * (rank + 1), 2, 0) and received.tolist() == [rank + 1] * size, empty.shape
    assert trib.allgather_object({'rank': rank, 'text': 'x' * rank}) == [
        {'rank': r, 'text': 'x' * r} for r in range(size)
    ]
    splits = torch.tensor([(rank + r) % 3 for r in range(size)])
    sent = torch.arange(int(splits.sum())) + 100 * rank
    received, counts = trib.alltoall(sent, splits)
    expected = []
    for r in range(size):
        lengths = [(r + other) % 3 for other in range(size)]
        begin = sum(lengths[:rank])
        expected.append(torch.arange(begin, begin + lengths[rank]) + 100 * r)
    assert torch.equal(received, torch.cat(expected)) and counts.tolist() == [len(part) for part in expected]
    rows = 2 * size + 1  # the first worker gets one row more
    whole = of_all((rows, 3), torch.float32).sum(0)
    begin = 2 * rank + min(rank, 1)
    assert torch.equal(
        trib.reducescatter(mine((rows, 3), torch.float32), op=trib.Sum), whole[begin : begin + 2 + (rank == 0)]
    )


def sparse():
    dense = mine((8, 3), torch.float32)
    handle = trib.sparse_allreduce_async(dense.to_sparse(1), op=trib.Sum)
    assert torch.equal(handle().to_dense(), of_all((8, 3), torch.float32).sum(0))


def uneven_data():
    trib.allreduce(torch.ones(4))
    for _ in range(trib.rank()):
        total = trib.allreduce(torch.full((4,), 2.0), op=trib.Sum)
        assert torch.all(total % 2 == 0) and 2 <= total[0] <= 2 * (trib.size() - 1)
    assert trib.join() == trib.size() - 1
    assert trib.allgather_object(trib.rank()) == list(range(trib.size()))
    assert torch.equal(trib.allreduce(torch.ones(4), op=trib.Sum), torch.full((4,), float(trib.size())))


def gradients_flow():
    tensor = torch.ones(5, requires_grad=True)
    trib.allreduce(tensor, op=trib.Sum).sum().backward()
    assert torch.equal(tensor.grad, torch.full((5,), float(trib.size())))
    tensor = torch.ones(trib.rank() + 1, 2, requires_grad=True)
    trib.allgather(tensor).sum().backward()
    assert torch.equal(tensor.grad, torch.ones(trib.rank() + 1, 2))


def wrong_use_is_told():
    model = digits_model()
    raises(
        ValueError,
        lambda: trib.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1), [('a', next(model.parameters()))]),
        'lacks',
    )
    optimizer = trib.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    raises(ValueError, lambda: trib.DistributedOptimizer(optimizer, model.named_parameters()), 'already')
    for take in copy.deepcopy, copy.copy, pickle.dumps:
        raises(NotImplementedError, lambda: take(optimizer), 'take its state_dict()')
    batch = torch.ones(2, 16)
    loss_of(model, batch).backward()
    raises(RuntimeError, lambda: loss_of(model, batch).backward(), 'backward_passes_per_step')
    raises(RuntimeError, optimizer.zero_grad, 'a sum would be lost')
    optimizer.step()
    raises(ValueError, lambda: trib.allreduce(torch.ones(3, dtype=torch.complex64)), 'complex64')
    raises(ValueError, lambda: trib.broadcast(torch.ones(3), trib.size()), 'root_rank')
    raises(NotImplementedError, lambda: trib.allreduce(torch.ones(3), op=trib.Adasum), 'Adasum')
    operations = (trib.allreduce, trib.allreduce_, trib.allgather, trib.alltoall, trib.reducescatter)
    for function in (*operations, lambda value: trib.broadcast(value, 0)):
        raises(ValueError, lambda: function([1.0]), 'must be a torch.Tensor, and is list')
        raises(ValueError, lambda: function(torch.eye(3).to_sparse()), 'it is sparse')
    raises(ValueError, lambda: trib.synchronize(None), 'handle')
    for factor in '2', 2j, None, torch.ones(2):
        raises(ValueError, lambda: trib.allreduce(torch.ones(3), prescale_factor=factor), 'is not a number')
    raises(ValueError, lambda: trib.allgather(torch.ones(3), process_set=5), 'is not a ProcessSet')
    raises(ValueError, lambda: trib.barrier(5), 'is not a ProcessSet')
    raises(ValueError, lambda: trib.grouped_allreduce_([torch.ones(2)] * 2), 'one memory')
    nested = torch.nested.nested_tensor([torch.ones(2, device='cpu'), torch.ones(3, device='cpu')])
    raises(ValueError, lambda: trib.allreduce(nested), 'it is nested')
    moved = torch.ones(3, device='cpu')
    handle = trib.allreduce_async_(moved, name='moved')
    while not handle.done():
        pass
    moved.resize_(1000000)
    raises(ValueError, handle.wait, 'was freed or replaced')
    python_bed.refused(tributary.ArgumentError, *python_bed.wrong_arguments(trib, torch.ones(3)))
    for function in trib.allreduce, trib.allreduce_async:
        raises(ValueError, lambda: function(torch.ones(3), compression='fp16'), 'fp16')
    for function in trib.grouped_allreduce, trib.grouped_allgather, trib.grouped_reducescatter:
        raises(ValueError, lambda: function([torch.ones(3)], name=5), 'name: it must be a str, and is int')
    for function in trib.byteps_push_pull, trib.push_pull, trib.push_pull_async:
        raises(ValueError, lambda: function(torch.ones(3), name=5), 'name: it must be a str, and is int')
    if trib.size() > 1:
        raises(ValueError, lambda: trib.alltoall(torch.ones(trib.size() + 1)), 'splits')
        raises(tributary.MismatchError, lambda: trib.allreduce(torch.ones(3 + trib.rank()), name='differs'), 'differs')
        for count in 3, 4, 5:  # workers would number further shapes of that name differently
            raises(tributary.MismatchError, lambda: trib.allreduce(torch.ones(count), name='differs'), 'differs')
        for count in 3, 4:
            trib.allreduce(torch.ones(count), name='used before')
        mine_differs = torch.ones(3 + trib.rank() % 2)
        words = 'used before', 'use 3 of this name', 'a sum of float32[3]', 'a sum of float32[4]'
        raises(tributary.MismatchError, lambda: trib.allreduce(mine_differs, name='used before'), *words)
        trib.broadcast(torch.ones(3), 0, name='kinds')
        trib.allreduce(torch.ones(3), name='kinds')
        begin = (lambda x, name: trib.broadcast(x, 0, name)) if trib.rank() == 0 else trib.allreduce
        words = 'use 3 of this name', 'a sum of float32[3]', 'a broadcast of float32[3]'
        raises(tributary.MismatchError, lambda: begin(torch.ones(3), name='kinds'), *words)
        op = trib.Max if trib.rank() == 0 else trib.Sum
        raises(tributary.MismatchError, lambda: trib.allreduce(torch.ones(3), name='one call', op=op), 'one call')
        for count in 3, 4, 3:
            assert trib.allreduce(torch.ones(count), name='one call').tolist() == [1] * count
        turned = torch.ones(2, 3) if trib.rank() == 0 else torch.ones(3, 2)
        raises(tributary.MismatchError, lambda: trib.allreduce(turned, name='turned'), 'turned')
        raises(tributary.MismatchError, lambda: trib.broadcast(turned, 0, name='turned too'), 'turned too')
    assert torch.equal(
        trib.allreduce(torch.ones(3), op=trib.Sum), torch.full((3,), float(trib.size()))
    )  # the job goes on


def nothing_is_kept():
    """Results and gradients live as long as the caller's, and a tensor of an operation without a name as long as it."""

    def operations():
        leaf = torch.ones(5, requires_grad=True)
        trib.allreduce(leaf).sum().backward()
        trib.grouped_allreduce([leaf, leaf])
        trib.broadcast_object('an object')
        trib.allgather_object('an object')
        results = [trib.allreduce(leaf), trib.allreduce(leaf, name='named'), trib.push_pull(leaf), leaf.grad]
        results += [trib.broadcast(leaf, 0), trib.allgather(leaf), trib.allgather(leaf, name='named')]
        return [weakref.ref(result) for result in results]

    operations()
    engine = tributary.engine()
    before = len(engine._tensors)
    assert not [result() for result in operations() if result() is not None]
    assert len(engine._tensors) == before, sorted(engine._tensors)


def sets():
    size, rank = trib.size(), trib.rank()
    assert trib.global_process_set.ranks == list(range(size)), trib.global_process_set
    if size == 1:
        raises(ValueError, lambda: trib.add_process_set([0]), 'already')
        return
    even = trib.add_process_set(range(0, size, 2))
    alone = trib.add_process_set([size - 1])
    if rank % 2 == 0:
        total = trib.allreduce(torch.ones(4) * rank, op=trib.Sum, process_set=even)
        assert torch.equal(total, torch.full((4,), float(sum(range(0, size, 2))))), total
        assert even.rank() == rank // 2 and even.included()
    else:
        raises(ValueError, lambda: trib.allreduce(torch.ones(4), process_set=even), 'does not belong')
    assert trib.remove_process_set(even)
    assert trib.remove_process_set(alone)


def codecs():
    rank, size, count = trib.rank(), trib.size(), 30001
    parts = [torch.randn(count, generator=torch.Generator('cpu').manual_seed(r), device='cpu') for r in range(size)]
    halves = sum(part.half().double() for part in parts)
    got = trib.allreduce(parts[rank], op=trib.Sum, name='halves', compression=trib.Compression.codec('fp16'))
    assert torch.allclose(got.double(), halves, atol=1e-5) and not torch.equal(got, sum(parts))
    small = slice(0, 1000)
    onebit = trib.Compression.codec('onebit', min_bytes=0)
    got = trib.allreduce(parts[rank][small], op=trib.Sum, name='signs', compression=onebit)
    # Of one chunk: the mean magnitude with each sign.
    signs = [part[small].sign() * part[small].abs().mean() for part in parts]
    assert torch.allclose(got, sum(signs), atol=1e-5)
    exact = trib.allreduce(parts[rank][small], op=trib.Max, name='exact', compression=onebit)
    assert torch.equal(exact, torch.stack(parts)[:, small].amax(0))  # only sums are encoded
    of_byteps = trib.Compression.codec({'compressor': 'topk', 'k': 0.05, 'ef': 'vanilla'}, min_bytes=0)
    assert of_byteps.text == 'compressor=topk,k=0.05,ef=vanilla,two_way'
    raises(tributary.ArgumentError, lambda: trib.Compression.codec({'compressor': 'topk', 'levels': 3}), 'levels')
    before = tributary.engine().stats().bytes_pushed
    target, weight = torch.linspace(-1, 1, count), torch.nn.Parameter(torch.zeros(count))
    optimizer = trib.DistributedOptimizer(torch.optim.SGD([weight], lr=0.05), [('w', weight)], compression=of_byteps)
    for _ in range(400):
        optimizer.zero_grad()
        ((weight - target) ** 2).sum().backward()
        optimizer.step()
    assert same_on_all(weight) and (weight - target).abs().max() < 0.05
    assert tributary.engine().stats().bytes_pushed - before < 400 * count * 4 / 5
    whole = torch.ones(100, dtype=torch.int32)
    raises(tributary.TributaryError, lambda: trib.allreduce(whole, name='whole', compression=onebit), 'whole', 'onebit')


def begins_anew():
    for _ in range(4):
        assert torch.equal(trib.allreduce(torch.ones(4), op=trib.Sum), torch.full((4,), float(trib.size())))
        trib.barrier()
        trib.shutdown()
        raises(ValueError, trib.rank, 'init()')
        trib.init()
        if trib.rank() > 0:  # rank 0 joins before it has counted anything in this job
            trib.allreduce(torch.ones(4))
        trib.join()


def suspended_and_resumed():
    """The last worker stays away for a while: the others are a job of their own meanwhile."""
    rank, size = trib.rank(), trib.size()
    for workers in size - 1, size:
        trib.suspend()
        assert not trib.is_initialized() and trib.local_size() == trib.size() and trib.rank() == rank
        if rank < workers:
            trib.resume(workers, 0, rank)
            assert (trib.rank(), trib.size()) == (rank, workers)
            total = trib.allreduce(torch.ones(3), op=trib.Sum)
            assert torch.equal(total, torch.full((3,), float(workers))), total


def functions_have_type_hints():
    """Editors and type checkers know the arguments and results of all public functions."""
    count, untyped = python_bed.untyped(trib)
    assert count > 60 and not untyped, (count, untyped)


CASES = [
    reductions,
    other_types,
    in_place_and_strided,
    views_of_complex_numbers,
    scaling,
    many_at_once,
    bucket_callbacks,
    gathers,
    sparse,
    uneven_data,
    gradients_flow,
    training.optimizer_equals_one_process,
    training.scaler_of_gradients_waits_for_sums,
    training.scaler_of_gradients_in_other_scripts,
    training.cross_barrier,
    training.closures,
    training.accumulation_and_unused,
    wrong_use_is_told,
    training.checkpoints,  # after workers have differed, which keeps none of them from a boundary
    nothing_is_kept,
    training.scheduler_of_the_inner_optimizer,
    training.batch_norm_over_all,
    training.parallel_module,
    sets,
    codecs,
    functions_have_type_hints,
    begins_anew,
    suspended_and_resumed,
]


if __name__ == '__main__':
    if DEVICE == 'cuda':
        torch.cuda.set_device(int(os.environ.get('TRIB_LOCAL_RANK', '0')) % torch.cuda.device_count())
    torch.set_default_device(DEVICE)
    trib.init()
    for case in CASES:
        if case.__name__ in sys.argv[1:]:
            case()
            print('worker %d of %d: %s is right' % (trib.rank(), trib.size(), case.__name__), flush=True)
    trib.shutdown()

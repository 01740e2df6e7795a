"""Cases that every worker of a job runs: `torch_cases.py NAME`. A case compares with what a worker computes by itself,
from the inputs of all ranks, which are made from seeds."""

import os
import shutil
import sys
import tempfile
import warnings
import weakref

import python_bed
import torch
import tributary
import tributary.torch as trib
import tributary.torch.hooks
from torch_attentive import Attentive, attentive_run

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
# Where the tensors are: the GPUs of the device tests, or processors.
DEVICE = os.environ.get('TRIB_DEVICE', 'none').replace('none', 'cpu')
SHAPES = ((), (1,), (17,), (3, 5, 7), (0, 4), (70001,))


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


def scaling():
    # The scaled values are not whole: the reference rounds where the operation rounds, before the sum and after it.
    for dtype in FLOATS:
        parts = [(tensor_of(rank, (50,), dtype).float() * 0.5).to(dtype) for rank in range(trib.size())]
        expected = (sum(part.double() for part in parts).to(dtype).float() * 4.0).to(dtype)
        assert torch.equal(
            trib.allreduce(mine((50,), dtype), op=trib.Sum, prescale_factor=0.5, postscale_factor=4.0), expected
        ), dtype


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


def trained_alone(make_optimizer, steps):
    """The parameters that one process gets from the batches of all ranks, whose gradients it averages itself."""
    torch.manual_seed(3)
    model = digits_model()
    optimizer = make_optimizer(model)
    for step in batches(steps):
        optimizer.zero_grad()
        for batch in step:
            (loss_of(model, batch) / trib.size()).backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


OPTIMIZERS = (
    lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
)


def train(wrap, make_optimizer, steps=12):
    torch.manual_seed(3 if trib.rank() == 0 else 4)  # others begin with other values, and get rank 0's
    model = digits_model()
    optimizer = make_optimizer(model)
    trib.broadcast_parameters(model.state_dict(), root_rank=0)
    trib.broadcast_optimizer_state(optimizer, root_rank=0)
    assert not any(parameter.grad.any() for parameter in model.parameters())  # they are there, and 0
    optimizer = wrap(model, optimizer)
    for step in batches(steps):
        optimizer.zero_grad()
        loss_of(model, step[trib.rank()]).backward()
        optimizer.step()
    getattr(optimizer, 'flush', lambda: None)()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def optimizer_equals_one_process():
    for make in OPTIMIZERS:
        expected = trained_alone(make, 12)
        for options in ({}, {'groups': 2}, {'gradient_predivide_factor': 2.0}):
            got = train(
                lambda model, optimizer: trib.DistributedOptimizer(optimizer, model.named_parameters(), **options), make
            )
            assert same_on_all(got) and torch.allclose(got, expected, rtol=1e-4, atol=1e-5), options
        got = train(trib.CrossBarrier, make)
        assert same_on_all(got) and torch.allclose(got, expected, rtol=1e-4, atol=1e-5)
    got = train(
        lambda model, optimizer: trib.DistributedOptimizer(
            optimizer, model.named_parameters(), compression=trib.Compression.fp16
        ),
        OPTIMIZERS[0],
    )
    assert same_on_all(got)


def cross_barrier():
    """Each layer waits for its own sums, and nothing else differs: bit for bit as with the barrier."""
    for make in (*OPTIMIZERS, lambda model: torch.optim.RMSprop(model.parameters(), lr=torch.tensor(0.01))):
        for clears_by_model in False, True:
            barred = attentive_run(
                lambda model, optimizer: trib.DistributedOptimizer(optimizer, model.named_parameters()), make, False
            )
            got = attentive_run(trib.CrossBarrier, make, clears_by_model)
            assert len(got) == len(barred)
            for index, (mine_, theirs) in enumerate(zip(got, barred)):
                assert torch.equal(mine_, theirs), (index, clears_by_model)
    model = Attentive()
    optimizer = trib.CrossBarrier(model, torch.optim.SGD(model.parameters(), lr=0.1))
    words = torch.ones(2, 3, dtype=torch.long)
    model(words).sum().backward()
    optimizer.step()
    raises(RuntimeError, lambda: (model.extra.weight * 2).sum().backward(), 'extra.weight', 'flush()')


def closures():
    """Sums within a closure: an optimizer that calls it several times, and one that calls it once."""

    def make(model):
        return torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5, line_search_fn='strong_wolfe')

    parts = batches(1, 64)[0]
    models = [digits_model() for _ in range(3)]
    for model in models:
        model.load_state_dict(models[0].state_dict())
        trib.broadcast_parameters(model.state_dict(), 0)
    distributed = trib.DistributedOptimizer(make(models[0]), models[0].named_parameters())
    alone, barrier = make(models[1]), trib.CrossBarrier(models[2], make(models[2]))

    def closure(model, optimizer, mine_):
        optimizer.zero_grad()
        loss = sum(loss_of(model, part) for part in mine_) / len(mine_)
        loss.backward()
        return loss

    for _ in range(3):
        alone.step(lambda: closure(models[1], alone, parts))
        for optimizer, model in (distributed, models[0]), (barrier, models[2]):
            optimizer.step(lambda: closure(model, optimizer, parts[trib.rank() :][:1]))
    values = [torch.cat([value.detach().flatten() for value in model.parameters()]) for model in models]
    assert same_on_all(values[0]) and torch.equal(values[0], values[2])
    assert torch.allclose(values[0], values[1], rtol=1e-2, atol=1e-3), (values[0] - values[1]).abs().max()


def accumulation_and_unused():
    torch.manual_seed(trib.rank())
    model = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)])
    optimizer = trib.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), backward_passes_per_step=2
    )
    trib.broadcast_parameters(model.state_dict(), root_rank=0)
    for step in range(4):
        optimizer.zero_grad()
        for _ in range(2):
            model[0](torch.ones(2, 4) * (trib.rank() + 1)).sum().backward()
        if trib.rank() == 0 and step % 2:  # only one worker uses the second layer, in some steps
            for _ in range(2):
                model[1](torch.ones(2, 4)).sum().backward()
        optimizer.step()
        assert torch.equal(
            model[0].weight.grad, torch.full((4, 4), 4.0 * sum(r + 1 for r in range(trib.size())) / trib.size())
        )
        assert torch.equal(model[1].weight.grad, torch.full((4, 4), 4.0 / trib.size() if step % 2 else 0.0))
    assert same_on_all(torch.cat([parameter.flatten() for parameter in model.parameters()]))


def wrong_use_is_told():
    model = digits_model()
    raises(
        ValueError,
        lambda: trib.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1), [('a', next(model.parameters()))]),
        'lacks',
    )
    optimizer = trib.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    raises(ValueError, lambda: trib.DistributedOptimizer(optimizer, model.named_parameters()), 'already')
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
        for count in 3, 4, 3:  # on one of the workers the name has had that size before
            assert trib.allreduce(torch.ones(count), name='differs').tolist() == [1] * count
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


def scheduler_of_the_inner_optimizer():
    """It gives the optimizer that it was made for a step() of its own, which must not take the wrapper's place."""
    model = digits_model()
    trib.broadcast_parameters(model.state_dict(), root_rank=0)
    inner = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(inner, 1, gamma=0.5)
    optimizer = trib.DistributedOptimizer(inner, model.named_parameters())
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        for expected in 0.25, 0.125:
            optimizer.zero_grad()
            loss_of(model, torch.full((2, 16), float(trib.rank()))).backward()
            optimizer.step()
            scheduler.step()
            assert optimizer.param_groups[0]['lr'] == expected, optimizer.param_groups
    assert all(same_on_all(parameter) for parameter in model.parameters())


def batch_norm_over_all():
    torch.manual_seed(0)
    inputs = [torch.randn(4 + rank, 3, 5) for rank in range(trib.size())]
    reference, mine_ = torch.nn.BatchNorm1d(3), trib.SyncBatchNorm(3)
    whole = torch.cat(inputs).requires_grad_()
    own = inputs[trib.rank()].clone().requires_grad_()
    begin = sum(len(part) for part in inputs[: trib.rank()])
    expected, got = reference(whole), mine_(own)
    assert torch.allclose(got, expected[begin : begin + len(own)], atol=1e-5)
    (expected**3).sum().backward()
    (got**3).sum().backward()
    assert torch.allclose(own.grad, whole.grad[begin : begin + len(own)], atol=1e-3)
    assert torch.allclose(mine_.running_var, reference.running_var, atol=1e-5) and torch.allclose(
        mine_.running_mean, reference.running_mean, atol=1e-5
    )


def parallel_module():
    torch.manual_seed(trib.rank())
    model = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 4))
    parallel = trib.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    for step in batches(6):
        with parallel.no_sync():
            loss_of(parallel, step[trib.rank()]).backward()
        loss_of(parallel, step[trib.rank()]).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert same_on_all(torch.cat([parameter.flatten() for parameter in model.parameters()]))


def sets():
    size, rank = trib.size(), trib.rank()
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


def checkpoints():
    """A training that is saved and loaded goes on as one that was not; a file is whole, or an error says what it is."""
    folder = trib.broadcast_object(tempfile.mkdtemp() if trib.rank() == 0 else None)
    path = folder + '/training'

    def begin():
        torch.manual_seed(5)
        model = digits_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer = trib.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        return model, optimizer, trib.elastic.ElasticSampler(list(range(48)), shuffle=False)

    def steps(model, optimizer, sampler, numbers):
        for number in numbers:
            optimizer.zero_grad()
            loss_of(model, batches(20)[number][trib.rank()]).backward()
            optimizer.step()
            sampler.record_batch(number, 2)

    whole = begin()
    steps(*whole, range(6))
    broken = begin()
    assert trib.load_checkpoint(path, *broken) is None
    steps(*broken, range(3))
    boundary = trib.save_checkpoint(path, 3, *broken, seed=[1, 2])
    assert boundary.step == 3 and boundary.number >= 1 and boundary.worker_count == trib.size(), boundary
    fresh = begin()
    assert trib.load_checkpoint(path, *fresh) == (3, {'seed': [1, 2]})
    assert fresh[2].processed_num == 6 * trib.size(), fresh[2].processed_indices
    steps(*fresh, range(3, 6))
    for mine, other in zip(whole[0].state_dict().values(), fresh[0].state_dict().values()):
        assert torch.equal(mine, other)
    if trib.size() > 1:
        raises(trib.MismatchError, lambda: trib.save_checkpoint(path, 4 + trib.rank(), *fresh), 'step')
    good = open(path, 'rb').read() if trib.rank() == 0 else b''
    if trib.rank() == 0:
        os.symlink('/dev/full', path + '.new')
    raises(trib.CheckpointError, lambda: trib.save_checkpoint(path, 4, *fresh), 'No space left', 'as it was')
    assert trib.load_checkpoint(path) == (3, {'seed': [1, 2]})

    def refused(content, *words):
        if trib.rank() == 0:
            with open(path, 'wb') as file:
                file.write(content)
        raises(trib.CheckpointError, lambda: trib.load_checkpoint(path), *words)

    refused(good[:-100], 'cut off')
    refused(good[:500] + bytes([good[500] ^ 1]) + good[501:] if good else b'', 'damaged')
    refused(b'', '0 bytes')
    raises(
        trib.CheckpointError, lambda: trib.save_checkpoint(folder + '/none/there', 5, *fresh), 'could not be written'
    )
    if trib.rank() == 0:
        shutil.rmtree(folder)


def functions_have_type_hints():
    """Editors and type checkers know the arguments and results of all public functions."""
    count, untyped = python_bed.untyped(trib)
    assert count > 60 and not untyped, (count, untyped)


CASES = [
    reductions,
    other_types,
    in_place_and_strided,
    scaling,
    many_at_once,
    bucket_callbacks,
    gathers,
    sparse,
    uneven_data,
    gradients_flow,
    optimizer_equals_one_process,
    cross_barrier,
    closures,
    accumulation_and_unused,
    wrong_use_is_told,
    nothing_is_kept,
    scheduler_of_the_inner_optimizer,
    batch_norm_over_all,
    parallel_module,
    sets,
    codecs,
    checkpoints,
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

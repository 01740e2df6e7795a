"""Cases of torch_cases.py that train: distributed optimizers and their kin, compared with one process that has the
batches of all workers."""

import contextlib
import copy
import itertools
import os
import pickle
import shutil
import tempfile
import warnings

import torch
import tributary.torch as trib
from torch_attentive import Attentive, attentive_run
from torch_bed import batches, digits_model, loss_of, raises, same_on_all


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


def scaler_of_gradients_waits_for_sums():
    """It divides gradients by its scale in place, and all workers leave a step out that is infinite on one of them.
    Fused optimizers do the dividing themselves. A script may clip in between."""
    for make in OPTIMIZERS + (lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, fused=True),):
        expected = trained_alone(make, 6)
        for clips, crosses in itertools.product((False, True), repeat=2):
            torch.manual_seed(3)
            model = digits_model()
            if crosses:
                optimizer = trib.CrossBarrier(model, make(model))
            else:
                optimizer = trib.DistributedOptimizer(make(model), model.named_parameters())
            scaler = torch.amp.GradScaler(torch.get_default_device().type, init_scale=1024.0)
            for step in batches(6):
                for factor in float('inf') if trib.rank() == 0 else 1.0, 1.0:
                    optimizer.zero_grad()
                    scaler.scale(loss_of(model, step[trib.rank()]) * factor).backward()
                    if clips:
                        scaler.unscale_(optimizer)
                        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e4)
                    scaler.step(optimizer)
                    scaler.update()
            assert scaler.get_scale() == 1024.0 / 2**6, scaler.get_scale()
            got = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
            assert same_on_all(got) and torch.allclose(got, expected, rtol=1e-4, atol=1e-5), (make, clips, crosses)


def scaler_of_gradients_in_other_scripts():
    """Each worker makes one of two gradients, so that no hook sends their group; the model clears them, and not the
    optimizer. The script may wait for the sums itself."""
    for waits in False, True:
        model = torch.nn.ModuleDict({name: torch.nn.Linear(2, 2, bias=False) for name in 'ab'})
        used = model['ab'[trib.rank() % 2]]
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer = trib.DistributedOptimizer(optimizer, model.named_parameters(), op=trib.Sum, groups=1)
        scaler = torch.amp.GradScaler(torch.get_default_device().type, init_scale=4.0)
        for factor in float('inf'), 1.0:
            model.zero_grad()
            scaler.scale(used(torch.ones(1, 2)).sum() * factor).backward()
            scaler.unscale_(optimizer)
            with optimizer.skip_synchronize() if waits else contextlib.nullcontext():
                if waits:
                    optimizer.synchronize()
                scaler.step(optimizer)
            scaler.update()
        for index, name in enumerate('ab'):
            count = len(range(index, trib.size(), 2))
            assert torch.equal(model[name].weight.grad, torch.full((2, 2), float(count))), (waits, name, count)


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
    optimizer.flush()
    for take in copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model)):
        assert torch.equal(take(model)(words), model(words))
    model.zero_grad()
    model(words).sum().backward()
    optimizer.step()
    raises(RuntimeError, lambda: copy.deepcopy(model), 'flush()')
    raises(NotImplementedError, lambda: copy.deepcopy(optimizer), 'take its state_dict()')


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

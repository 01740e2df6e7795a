#!/usr/bin/env python3
"""examples/pytorch.py on processors, where PyTorch is installed (tests/gpu runs it on GPUs). Prints `ok NAME` / `not ok
NAME: why`, or one `skip NAME: why` and exits with 77.
"""
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import run_cases  # noqa: E402

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(SOURCE, os.environ.get('TRIB_BUILD', 'build/release'))
EXAMPLE = SOURCE + '/examples/pytorch.py'


def run(ranks, *arguments):
    env = {k: v for k, v in os.environ.items() if not k.startswith('TRIB_')}
    return subprocess.run([BUILD + '/tributary', 'run', '-n', str(ranks), '--', sys.executable, EXAMPLE, *arguments], timeout=180,
                          env=dict(env, LD_LIBRARY_PATH=BUILD, OMP_NUM_THREADS='1'), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ranks_train_alike():
    result = run(3)
    assert result.returncode == 0, result.stdout[-1500:]
    for rank in range(3):
        assert 'worker %d of 3, processors' % rank in result.stdout, result.stdout[-1500:]


def a_loss_that_does_not_fall_is_told():
    result = run(1, '1')
    assert result.returncode != 0 and 'the loss did not fall' in result.stdout, result.stdout[-1500:]


# Gradients of a linear layer under a sum are the sums of its inputs: small whole numbers, so means of two ranks are exact.
MISTAKES = """
import sys
import torch
sys.path.insert(0, %r)
import binding, pytorch

engine = binding.Engine()
rank = engine.rank

def inputs(rank, step):
    return torch.full((2, 4), float(2 * rank + 4 * step + 2))

def expect(grad, value):
    assert torch.equal(grad, torch.full_like(grad, value)), (rank, grad, value)

def refuses(error, words, function, *arguments, **named):
    try:
        function(*arguments, **named)
    except error as problem:
        assert words in str(problem), problem
        return
    raise AssertionError('nothing was raised: ' + words)

def plain():
    return torch.nn.Linear(4, 3, bias=False)

model = plain()
parallel = pytorch.DataParallel(engine, model)
refuses(ValueError, "a model 'model' on this engine", pytorch.DataParallel, engine, plain())
other = plain()
second = pytorch.DataParallel(engine, other, 'second')

# Several backward passes a step, added up first.
with parallel.no_sync():
    model(inputs(rank, 0)).sum().backward()
model(inputs(rank, 1)).sum().backward()
other(inputs(rank, 5)).sum().backward()
refuses(RuntimeError, 'model.weight got a second gradient before wait()', model(inputs(rank, 2)).sum().backward)
second.wait()
expect(other.weight.grad, 2 * (2 + 20 + 1))
parallel.futures[0].result()

# A gradient that is missing on one rank counts as zeros, and the next step's is not taken for it.
both = torch.nn.ModuleList([plain(), plain()])
parallel = pytorch.DataParallel(engine, both, 'both')
for step in range(4):
    for parameter in both.parameters():
        parameter.grad = None
    loss = both[0](inputs(rank, step)).sum()
    if rank == 0 or step %% 2 == 1:
        loss = loss + both[1](inputs(rank, step)).sum()
    loss.backward()
    parallel.wait()
    expect(both[0].weight.grad, 2 * (2 + 4 * step + 1))
    expect(both[1].weight.grad, 2 * (2 + 4 * step + 1) if step %% 2 == 1 else 2 + 4 * step)

# Tensors without gaps are summed as they lie; the others are refused by name.
image = torch.nn.Conv2d(3, 5, 3, bias=False).to(memory_format=torch.channels_last)
parallel = pytorch.DataParallel(engine, image, 'image')
image(torch.full((1, 3, 3, 3), float(2 * rank)).to(memory_format=torch.channels_last)).sum().backward()
parallel.wait()
assert image.weight.grad.is_contiguous(memory_format=torch.channels_last)
expect(image.weight.grad, 1)
words = torch.nn.Embedding(10, 4, sparse=True)
parallel = pytorch.DataParallel(engine, words, 'words')
refuses(ValueError, 'sparse=False', words(torch.tensor([1, 2])).sum().backward)
gaps = torch.nn.Linear(4, 3, bias=False)
gaps.weight = torch.nn.Parameter(torch.zeros(3, 8)[:, ::2])
refuses(ValueError, 'gaps.weight has gaps', pytorch.DataParallel, engine, gaps, 'gaps')

# Running means are rank 0's on all ranks, before and after a step; frozen parameters are rank 0's, too.
norm = torch.nn.BatchNorm1d(4)
norm.weight.requires_grad_(False)
norm.running_mean.fill_(rank + 7)
norm.register_buffer('mask', torch.tensor([rank == 0]))
parallel = pytorch.DataParallel(engine, norm, 'norm')
expect(norm.running_mean, 7)
assert norm.mask.item() is True
norm(inputs(rank, 0)).sum().backward()
parallel.wait()
mean = torch.nn.BatchNorm1d(4)
mean.running_mean.fill_(7)
mean(inputs(0, 0))
assert torch.equal(norm.running_mean, mean.running_mean) and norm.num_batches_tracked == 1, norm.running_mean
print('rank %%d is right' %% rank, flush=True)
engine.close()
"""


def mistakes_are_mended_or_named():
    env = {k: v for k, v in os.environ.items() if not k.startswith('TRIB_')}
    result = subprocess.run([BUILD + '/tributary', 'run', '-n', '2', '--', sys.executable, '-c', MISTAKES % (SOURCE + '/examples')], timeout=180,
                            env=dict(env, LD_LIBRARY_PATH=BUILD, OMP_NUM_THREADS='1', TRIB_OP_TIMEOUT='30'), stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)
    assert result.returncode == 0, result.stdout[-1500:]
    assert all('rank %d is right' % rank in result.stdout for rank in range(2)), result.stdout[-1500:]


def main():
    if subprocess.run([sys.executable, '-c', 'import torch'], stderr=subprocess.DEVNULL).returncode != 0:
        print('skip pytorch: PyTorch is not installed')
        return 77
    if os.path.basename(BUILD).startswith(('asan', 'tsan')):
        print('skip pytorch: a library with a sanitizer cannot be loaded into Python')
        return 77
    return run_cases([('ranks_train_alike', ranks_train_alike), ('mistakes_are_mended_or_named', mistakes_are_mended_or_named),
                      ('loss_that_stays', a_loss_that_does_not_fall_is_told)])


if __name__ == '__main__':
    sys.exit(main())

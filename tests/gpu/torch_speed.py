#!/usr/bin/env python3
"""Times training steps of whole models, as one worker of a job: DistributedOptimizer beside PyTorch's
DistributedDataParallel, in turns, so that both have the same weather. On GPUs DDP goes over NCCL. Where there are none
it goes over Gloo, and timed gaps stand in for computing, as `tributary step` has them:

    tools/cluster/hosts up --hosts 8 --rate 125mbit
    STEP_MODELS=vgg16,bert-large STEP_SHRINK=8 GLOO_SOCKET_IFNAME=eth0 PYTHONPATH=api/python \\
        tools/cluster/hosts job -n 4 -s 4 -- build/frameworks/torch/bin/python tests/gpu/torch_speed.py

STEP_MODELS says which models: of resnet50, vgg16, gpt2 and bert_large on GPUs (they need torchvision and
transformers), else of tools/models. STEP_COUNT is how many steps of each kind are timed, STEP_SHRINK a number that the
tensors' lengths are divided by: on links that are as much slower a step takes as long, and less of the processor.
Rank 0 prints the medians, and those of steps without an exchange.
"""

import csv
import os
import re
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist

import tributary.torch as hvd

BATCH = {'resnet50': 32, 'vgg16': 32, 'gpt2': 4, 'bert_large': 8}
TURN = 5  # steps of one kind in a row; the first one is not timed
ON_GPU = torch.cuda.is_available()
LISTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'tools', 'models')
SHRINK = int(os.environ.get('STEP_SHRINK', '1'))


class _Gap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, ahead, back, *parameters):
        ctx.back, ctx.shapes = back, [parameter.shape for parameter in parameters]
        time.sleep(ahead)
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.back)
        return (gradient, None, None, *(torch.zeros(shape) for shape in ctx.shapes))


class _Layer(torch.nn.Module):
    """Tensors of a model's list that belong to one layer, and as much time as it computed."""

    def __init__(self, lengths, ahead, back):
        super().__init__()
        self.tensors = torch.nn.ParameterList(torch.zeros(length) for length in lengths)
        self.ahead, self.back = ahead, back

    def forward(self, value):
        return _Gap.apply(value, self.ahead, self.back, *self.tensors)


class _Pause(torch.optim.Optimizer):
    """An optimizer that takes a time and leaves the parameters as they are."""

    def __init__(self, parameters, seconds):
        super().__init__(parameters, {})
        self._seconds = seconds

    def step(self, closure=None):
        time.sleep(self._seconds)


def stand_in(name):
    """Returns a model with the tensors of a list and gaps of its times, and how long its optimizer takes."""
    with open(os.path.join(LISTS, name + '.csv'), encoding='ascii') as file:
        comment = file.readline()
        rows = list(csv.DictReader(line for line in file if not line.startswith('#')))
    ahead, back, update = (
        float(re.search(word + r' (\d+) us', comment).group(1)) for word in ('forward', 'backward', 'optimizer')
    )
    layers, began = [], 0.0
    for row in rows:  # in the order in which the backward pass makes them
        layer = row['tensor'].rpartition('.')[0]
        if not layers or layers[-1][0] != layer:
            layers.append((layer, [], []))
        layers[-1][1].append(-(-int(row['elements']) // SHRINK))
        layers[-1][2].append(float(row['ready_us']))
    made = []
    for _, lengths, ready in layers:
        seconds = (ready[-1] - began) * 1e-6
        made.append(_Layer(lengths, seconds * ahead / back, seconds))
        began = ready[-1]
    return torch.nn.Sequential(*reversed(made)), update * 1e-6


def image_model(name):
    import torchvision

    model = getattr(torchvision.models, name)().cuda()
    samples = torch.randn(BATCH[name], 3, 224, 224, device='cuda')
    labels = torch.randint(0, 1000, (BATCH[name],), device='cuda')
    return model, lambda wrapped: torch.nn.functional.cross_entropy(wrapped(samples), labels)


def text_model(name):
    import transformers

    if name == 'gpt2':
        config, length = transformers.GPT2Config(), 512
        model = transformers.GPT2LMHeadModel(config).cuda()
    else:
        sizes = {'hidden_size': 1024, 'num_hidden_layers': 24, 'num_attention_heads': 16, 'intermediate_size': 4096}
        config, length = transformers.BertConfig(**sizes), 128
        model = transformers.BertForMaskedLM(config).cuda()
    words = torch.randint(0, config.vocab_size, (BATCH[name], length), device='cuda')
    return model, lambda wrapped: wrapped(input_ids=words, labels=words).loss


def synchronize():
    if ON_GPU:
        torch.cuda.synchronize()


def model_of(name):
    """Returns a model, a function of what wraps it that returns the loss, and its optimizer."""
    if not ON_GPU:
        model, seconds = stand_in(name)
        sample = torch.zeros(1, requires_grad=True)
        return model, lambda wrapped: wrapped(sample).sum(), _Pause(model.parameters(), seconds)
    torch.manual_seed(1)
    model, loss_of = (image_model if name in ('resnet50', 'vgg16') else text_model)(name)
    return model, loss_of, torch.optim.SGD(model.parameters(), lr=0.001)


def trainer_of(name, how):
    """Returns a function that trains one step."""
    model, loss_of, optimizer = model_of(name)
    wrapped = model
    if how == 'ddp':
        devices = {'device_ids': [0]} if ON_GPU else {'init_sync': False}
        wrapped = torch.nn.parallel.DistributedDataParallel(model, **devices)
    elif how == 'tributary':
        names = [('%s.%s' % (name, key), value) for key, value in model.named_parameters()]
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=names)

    def step():
        optimizer.zero_grad()
        loss_of(wrapped).backward()
        optimizer.step()

    return step


def median_steps(name, steps):
    """Returns the median duration of a step in seconds, for each kind."""
    trainers = {how: trainer_of(name, how) for how in ('alone', 'ddp', 'tributary')}
    times = {how: [] for how in trainers}
    for step in trainers.values():
        for _ in range(2):
            step()
    while len(times['ddp']) < steps:
        for how, step in trainers.items():
            synchronize()
            hvd.barrier()
            for index in range(TURN):
                began = time.perf_counter()
                step()
                synchronize()
                if index > 0:
                    times[how].append(time.perf_counter() - began)
    return {how: statistics.median(some) for how, some in times.items()}


def begin_ddp():
    place = {}
    if not ON_GPU:  # all hosts of the test see the same folder
        name = tempfile.mktemp() if hvd.rank() == 0 else None
        place = {'init_method': 'file://' + hvd.broadcast_object(name, 0)}
    dist.init_process_group('nccl' if ON_GPU else 'gloo', rank=hvd.rank(), world_size=hvd.size(), **place)


def main():
    hvd.init()
    begin_ddp()
    names = os.environ.get('STEP_MODELS', 'resnet50,vgg16,gpt2,bert_large' if ON_GPU else 'vgg16,bert-large')
    under = 'NCCL' if ON_GPU else 'Gloo'
    for name in names.split(','):
        middle = median_steps(name, int(os.environ.get('STEP_COUNT', '16')))
        if hvd.rank() == 0:
            text = 'steps: %s alone %.1f ms, DDP over %s %.1f ms, Tributary %.1f ms: %.2f of %s'
            alone, ddp, ours = (middle[how] * 1e3 for how in ('alone', 'ddp', 'tributary'))
            print(text % (name, alone, under, ddp, ours, ddp / ours, under), flush=True)
        if ON_GPU:
            torch.cuda.empty_cache()
    hvd.shutdown()
    dist.destroy_process_group()


if __name__ == '__main__':
    sys.exit(main())

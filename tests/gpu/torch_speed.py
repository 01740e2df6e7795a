#!/usr/bin/env python3
"""Times training steps of whole models on GPUs, as one worker of a job: DistributedOptimizer beside PyTorch's
DistributedDataParallel over NCCL, in turns, so that both have the same weather.

GPU_MODELS says which of resnet50, vgg16, gpt2 and bert_large (they need torchvision and transformers), GPU_STEPS how many steps of
each kind are timed. Rank 0 prints the medians, and those of steps without an exchange.
"""

import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

import tributary.torch as hvd

BATCH = {'resnet50': 32, 'vgg16': 32, 'gpt2': 4, 'bert_large': 8}
TURN = 5  # steps of one kind in a row; the first one is not timed


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


def trainer_of(name, how):
    """Returns a function that trains one step."""
    torch.manual_seed(1)
    model, loss_of = (image_model if name in ('resnet50', 'vgg16') else text_model)(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    wrapped = model
    if how == 'ddp':
        wrapped = torch.nn.parallel.DistributedDataParallel(model, device_ids=[0])
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
            torch.cuda.synchronize()
            hvd.barrier()
            for index in range(TURN):
                began = time.perf_counter()
                step()
                torch.cuda.synchronize()
                if index > 0:
                    times[how].append(time.perf_counter() - began)
    return {how: statistics.median(some) for how, some in times.items()}


def main():
    hvd.init()
    dist.init_process_group('nccl', rank=hvd.rank(), world_size=hvd.size())
    for name in os.environ.get('GPU_MODELS', 'resnet50,vgg16,gpt2,bert_large').split(','):
        middle = median_steps(name, int(os.environ.get('GPU_STEPS', '16')))
        if hvd.rank() == 0:
            text = 'steps: %s alone %.1f ms, DDP over NCCL %.1f ms, Tributary %.1f ms: %.2f of NCCL'
            print(text % (name, middle['alone'] * 1e3, middle['ddp'] * 1e3, middle['tributary'] * 1e3,
                          middle['ddp'] / middle['tributary']), flush=True)
        torch.cuda.empty_cache()
    hvd.shutdown()
    dist.destroy_process_group()


if __name__ == '__main__':
    sys.exit(main())

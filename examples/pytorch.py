#!/usr/bin/env python3
"""pytorch.py - data parallel training in PyTorch: each gradient is sent while the backward pass computes the next ones.

    tributary run -n 4 -- python3 pytorch.py [STEPS]
    TRIB_DEVICE=cuda torchrun --nproc-per-node 2 pytorch.py         a GPU for each process of a machine (docs/gpu.md)

The program builds on binding.py. On a GPU the engine is told the stream that computes a gradient, and no thread waits
for that stream.
"""
import ctypes
import os
import sys

import torch

import binding
from binding import TRIB_AVG, TRIB_MAX, TRIB_MIN, lib

TRIB_TENSOR_DEVICE = 1
DTYPES = {torch.float32: binding.TRIB_FLOAT32, torch.float64: binding.TRIB_FLOAT64, torch.float16: binding.TRIB_FLOAT16,
          torch.bfloat16: binding.TRIB_BFLOAT16}
lib.trib_op_stream_wait.argtypes = [ctypes.c_void_p] * 3
lib.trib_op_release.argtypes, lib.trib_op_release.restype = [ctypes.c_void_p], None


class DataParallel:
    """Gives all ranks rank 0's parameters, and from then on the mean of all ranks' gradients. All parameters must take
    part in every backward pass, on all ranks: the others wait for an operation that a rank does not submit, until its
    deadline."""

    def __init__(self, engine, model):
        self.engine, self.pending, self.futures, self.earlier = engine, [], [], []
        for index, (name, parameter) in enumerate(model.named_parameters()):
            # The first layers come last in the backward pass, and are needed first in the next forward pass.
            handle = engine.declare_as(name, DTYPES[parameter.dtype], parameter.numel(), -index,
                                       TRIB_TENSOR_DEVICE if parameter.is_cuda else 0)
            self.exchange(lib.trib_broadcast, handle, parameter.data)
            parameter.register_post_accumulate_grad_hook(self._hook(handle))
        self.wait()

    def _hook(self, handle):
        return lambda parameter: self.exchange(lib.trib_push_pull, handle, parameter.grad, reduce=TRIB_AVG)

    def exchange(self, function, handle, tensor, output=None, **fields):
        """Begins an operation on a whole tensor, in place unless there is an output."""
        output = tensor if output is None else output
        if not tensor.is_contiguous() or not output.is_contiguous():
            raise ValueError('a tensor must be contiguous')
        op = ctypes.c_void_p()
        if tensor.is_cuda:
            fields['stream'] = torch.cuda.current_stream(tensor.device).cuda_stream
        self.futures.append(self.engine.submit(function, handle, tensor.data_ptr(), output.data_ptr(), (output, tensor),
                                               ctypes.byref(op) if tensor.is_cuda else None, **fields))
        if tensor.is_cuda:
            self.pending.append((op, tensor.device))

    def wait(self):
        """Call this after the whole backward pass, before the gradients are used. On processors the call waits; on a
        GPU the later work on its stream does, and the call may wait until the last copy has been launched. Raises
        errors. A GPU's errors are raised by the wait after the one in which they came, because a stream goes on in any
        case."""
        pending, self.pending = self.pending, []
        for op, device in pending:
            binding.call(lib.trib_op_stream_wait, op, torch.cuda.current_stream(device).cuda_stream)
            lib.trib_op_release(op)
        earlier, self.earlier, self.futures = (self.earlier + (self.futures if not pending else []),
                                               self.futures if pending else [], [])
        for future in earlier:
            future.result()

    def finish(self):
        """Waits as wait does, and processors wait for GPUs as well."""
        self.wait()
        self.wait()


def train(engine, device, steps):
    torch.manual_seed(engine.rank)
    width = 64
    layers = torch.nn.Linear(width, width), torch.nn.GELU(), torch.nn.LayerNorm(width), torch.nn.Linear(width, 8)
    model = torch.nn.Sequential(*layers).to(device)
    parallel = DataParallel(engine, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    losses = []
    for _ in range(steps):
        samples = torch.randn(64, width, device=device)
        loss = torch.nn.functional.mse_loss(model(samples), samples[:, :8].abs())
        optimizer.zero_grad()
        loss.backward()  # submits each gradient as soon as it is there
        parallel.wait()
        optimizer.step()
        losses.append(loss.detach())
    parallel.finish()
    return model, parallel, torch.stack(losses).tolist()


def differs(engine, parallel, model):
    """True if the parameters are not the same on all ranks."""
    values = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    handle = engine.declare_as('values', DTYPES[values.dtype], values.numel(), 0,
                               TRIB_TENSOR_DEVICE if values.is_cuda else 0)
    least, most = torch.empty_like(values), torch.empty_like(values)
    for output, reduce in (least, TRIB_MIN), (most, TRIB_MAX):
        parallel.exchange(lib.trib_push_pull, handle, values, output, reduce=reduce)
    parallel.finish()
    return not torch.equal(least, most)


def main():
    on_gpu, settings = os.environ.get('TRIB_DEVICE') == 'cuda', {}
    if on_gpu:  # before the engine is created, because it takes the thread's present GPU
        settings = {'local_size': int(os.environ.get('LOCAL_WORLD_SIZE', '1')),
                    'local_rank': int(os.environ.get('LOCAL_RANK', '0'))}
        torch.cuda.set_device(settings['local_rank'] % torch.cuda.device_count())
        torch.zeros(1, device='cuda')
    with binding.Engine(**settings) as engine:
        model, parallel, losses = train(engine, 'cuda' if on_gpu else 'cpu',
                                        int(sys.argv[1]) if len(sys.argv) > 1 else 200)
        if differs(engine, parallel, model):
            raise RuntimeError('the parameters are not the same on all ranks')
        first, last = sum(losses[:5]) / 5, sum(losses[-5:]) / 5
        if not last < first / 2:
            raise RuntimeError('the loss did not fall: %.4f, then %.4f' % (first, last))
        print('worker %d of %d, %s: loss %.4f, then %.4f; the same parameters on all ranks' % (
            engine.rank, engine.worker_count, 'GPU %d' % torch.cuda.current_device() if on_gpu else 'processors',
            first, last), flush=True)


if __name__ == '__main__':
    main()

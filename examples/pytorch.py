#!/usr/bin/env python3
"""pytorch.py - data parallel training in PyTorch: each gradient is sent while the backward pass computes the next ones.

    tributary run -n 4 -- python3 pytorch.py [STEPS]
    TRIB_DEVICE=cuda torchrun --nproc-per-node 2 pytorch.py         a GPU for each process of a machine (docs/gpu.md)

The program builds on binding.py. On a GPU the engine is told the stream that computes a gradient, and no thread waits
for that stream.
"""
import contextlib
import ctypes
import os
import sys

import torch

import binding
from binding import TRIB_AVG, TRIB_MAX, TRIB_MIN, lib

TRIB_TENSOR_DEVICE = 1
DTYPES = {torch.float32: binding.TRIB_FLOAT32, torch.float64: binding.TRIB_FLOAT64, torch.float16: binding.TRIB_FLOAT16,
          torch.bfloat16: binding.TRIB_BFLOAT16, torch.int8: binding.TRIB_INT8, torch.uint8: binding.TRIB_UINT8,
          torch.int32: binding.TRIB_INT32, torch.int64: binding.TRIB_INT64}
lib.trib_op_stream_wait.argtypes = [ctypes.c_void_p] * 3
lib.trib_op_release.argtypes, lib.trib_op_release.restype = [ctypes.c_void_p], None


def order_of(name, tensor):
    """Returns the dimensions in the order in which they lie in memory, the widest stride first. A tensor without gaps
    is summed as it lies there, also in channels_last."""
    if tensor.is_sparse:
        raise ValueError('%s is sparse: only dense tensors are summed (torch.nn.Embedding(..., sparse=False))' % name)
    order = sorted(range(tensor.dim()), key=lambda axis: (-tensor.stride(axis), axis))
    if not tensor.permute(order).is_contiguous():
        raise ValueError('%s has gaps or overlaps in memory (an expanded or sliced tensor): make it .contiguous() before '
                         'DataParallel gets the model' % name)
    return order


class DataParallel:
    """Gives all ranks rank 0's parameters and buffers, and from then on the mean of all ranks' gradients.

    All ranks call wait() equally often, once after each step's backward pass. A parameter that got no gradient on a
    rank takes part with zeros. For several backward passes a step put all but the last one into no_sync(). Models of
    one engine need different names."""

    def __init__(self, engine, model, name='model'):
        self.engine, self.model, self.name = engine, model, name
        self.pending, self.futures, self.earlier, self.sent, self.is_off = [], [], [], {}, False
        names = engine.__dict__.setdefault('model_names', set())
        if name in names:
            raise ValueError('there is a model %r on this engine: give each a name, DataParallel(engine, model, name)' % name)
        names.add(name)
        # The first layers come last in the backward pass, and are needed first in the next forward pass.
        self.parameters = {own: (parameter, self._declare(own, parameter, -index))
                           for index, (own, parameter) in enumerate(model.named_parameters())}
        self.buffers = {own: self._declare(own, self._plain(buffer), 0) for own, buffer in model.named_buffers() if buffer.numel() > 0}
        for own, (parameter, handle) in self.parameters.items():
            self.exchange(lib.trib_broadcast, handle, parameter.data)
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(lambda parameter, own=own: self._send(own, parameter))
        self._share_buffers()
        self._settle()

    def _declare(self, own, tensor, priority):
        name = '%s.%s' % (self.name, own)
        order = order_of(name, tensor)
        if order != list(range(tensor.dim())):  # ranks whose tensors lie otherwise must not be summed with this one
            name += '[%s]' % ','.join(map(str, order))
        if tensor.dtype not in DTYPES:
            raise TypeError('%s: elements of type %s cannot be summed' % (name, tensor.dtype))
        return self.engine.declare_as(name, DTYPES[tensor.dtype], tensor.numel(), priority, TRIB_TENSOR_DEVICE if tensor.is_cuda else 0)

    @staticmethod
    def _plain(buffer):
        return buffer.view(torch.uint8) if buffer.dtype == torch.bool else buffer

    def _share_buffers(self):
        """Gives all ranks rank 0's buffers, such as the running means of BatchNorm, which each rank makes of its own
        samples."""
        for own, buffer in self.model.named_buffers():
            if buffer.numel() > 0:
                self.exchange(lib.trib_broadcast, self.buffers[own], self._plain(buffer.data))

    def _send(self, own, parameter):
        if self.is_off:
            return
        if own in self.sent:
            raise RuntimeError('%s.%s got a second gradient before wait(): a step has one backward pass, or several of which all '
                               'but the last are inside no_sync()' % (self.name, own))
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if order_of(own + '.grad', parameter.grad) != order_of(own, parameter):
            parameter.grad = torch.empty_like(parameter).copy_(parameter.grad)
        self.sent[own] = True
        self.exchange(lib.trib_push_pull, self.parameters[own][1], parameter.grad, reduce=TRIB_AVG)

    @contextlib.contextmanager
    def no_sync(self):
        """Gradients that are made inside are only added up; the next backward pass outside sends them."""
        before, self.is_off = self.is_off, True
        try:
            yield
        finally:
            self.is_off = before

    def exchange(self, function, handle, tensor, output=None, **fields):
        """Begins an operation on a whole tensor, in place unless there is an output."""
        output = tensor if output is None else output
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
        for own, (parameter, _) in self.parameters.items():
            if parameter.requires_grad and own not in self.sent:
                self._send(own, parameter)  # the other ranks wait for it
        self._share_buffers()
        self._settle()
        self.sent = {}

    def _settle(self):
        pending, self.pending = self.pending, []
        for op, device in pending:
            binding.call(lib.trib_op_stream_wait, op, torch.cuda.current_stream(device).cuda_stream)
            lib.trib_op_release(op)
        earlier, self.earlier, self.futures = (self.earlier + (self.futures if not pending else []),
                                               self.futures if pending else [], [])
        for future in earlier:
            future.result()

    def finish(self):
        """Waits for what has been submitted, on processors and on GPUs."""
        self._settle()
        self._settle()


def train(engine, device, steps):
    torch.manual_seed(engine.rank)
    width = 64
    layers = torch.nn.Linear(width, width), torch.nn.GELU(), torch.nn.BatchNorm1d(width), torch.nn.Linear(width, 8)
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

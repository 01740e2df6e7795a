"""A case of the GPU that an engine has, with fakes: PyTorch tells a current GPU, and engines are made without one."""

import unittest.mock

import torch
import tributary
from tributary import Engine, job
from tributary._library import call, lib


def made(function, *arguments):
    """Calls a function of the library; an engine is made without the device that its settings name."""
    if function is not lib.trib_engine_create:
        return call(function, *arguments)
    config = arguments[0]._obj
    device, config.device = config.device, None
    try:
        return call(function, *arguments)
    finally:
        config.device = device


def at(gpu):
    return unittest.mock.patch.multiple(torch.cuda, is_available=lambda: True, current_device=lambda: gpu)


def each_engine_knows_its_gpu():
    with at(1):
        tributary.init(device='cuda')
    with at(0):
        import tributary.torch as hvd

        assert job.engine().gpu == 1
        job.advance()
        assert job.engine().gpu == 1
    with at(2):
        job.begin_anew()
        assert job.engine().gpu == 2
    hvd.suspend()
    with at(3):
        hvd.resume(1, 0, 0)
        assert job.engine().gpu == 3
        hvd.shutdown()
        hvd.init(device='cuda', device_index=1)
        assert job.engine().gpu == 1
        hvd.shutdown()
        with Engine(device='none') as without, Engine(device='cuda', device_index=2) as third:
            assert without.gpu is None and third.gpu == 2


if __name__ == '__main__':
    with unittest.mock.patch.dict(Engine.__init__.__globals__, call=made):
        each_engine_knows_its_gpu()

"""A plugin of pytest for peer_suites.py: parts of another library that its tests import, and that are not what they
test."""

import os
import sys
import threading
import types

LIBRARY = os.environ['PEER_LIBRARY']


def module(name, **contents):
    """Makes a module of Horovod's with those names."""
    made = sys.modules['horovod.' + name] = types.ModuleType('horovod.' + name)
    made.__path__ = []
    vars(made).update(contents)


def in_thread(target, args=(), name=None, daemon=True, silent=False):
    thread = threading.Thread(target=target, args=args, daemon=daemon)
    thread.start()
    return thread


def rank_and_size():
    return int(os.environ['HOROVOD_RANK']), int(os.environ['HOROVOD_SIZE'])


def is_version_greater_equal_than(version, wanted):
    from packaging.version import parse

    return parse(version) >= parse(wanted)


def prepare_horovod():
    """Its launcher, and functions that tell versions."""
    import horovod  # noqa: F401

    from tributary import job

    for name in ('runner.util', 'runner.common', 'runner.common.util'):
        module(name)
    module('runner.util.threads', in_thread=in_thread)
    module('runner.common.util.env', get_env_rank_and_size=rank_and_size)
    module(
        'common.util',
        is_version_greater_equal_than=is_version_greater_equal_than,
        gloo_built=lambda verbose=False: job.gloo_built(),
        mpi_built=lambda verbose=False: job.mpi_built(),
    )


def prepare_byteps(folder):
    """The processor in place of a GPU, and images and a network that it trains in seconds. Each tensor of the network
    fits into a chunk, so that it has one scale, as a partition of BytePS's."""
    import mxnet

    mxnet.gpu = mxnet.cpu
    sys.path.insert(0, folder)
    import utils

    make = utils.fake_data
    utils.fake_data = lambda batch_size=32: make(batch_size=batch_size, height=32, width=32, num_classes=10)
    zoo = types.ModuleType('gluoncv.model_zoo')
    zoo.get_model = lambda name: mxnet.gluon.model_zoo.vision.get_model('mobilenet0.25', classes=10)
    sys.modules.update({'gluoncv': types.ModuleType('gluoncv'), 'gluoncv.model_zoo': zoo})


if LIBRARY == 'horovod':
    prepare_horovod()
elif LIBRARY == 'byteps':
    prepare_byteps(os.environ['PEER_FOLDER'])

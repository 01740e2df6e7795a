"""PyTorch's own tests of a backend of torch.distributed, for peer_suites.py: the ones in its wheel, with this backend.

Which of them a backend gets is decided by its name when they are imported, and here they are taken for gloo's. They
start processes for each test: these are forked, as spawned ones would all import PyTorch again."""

import os
import tempfile

os.environ.update(BACKEND='gloo', WORLD_SIZE='4', TEMP_DIR=tempfile.gettempdir())

import torch.multiprocessing  # noqa: E402
import tributary.torch.c10d  # noqa: E402, F401
from torch.testing._internal.distributed import distributed_test  # noqa: E402


class Name(str):
    """The backend's name, which the tests take for gloo's where they ask for that."""

    def __eq__(self, other):
        return other == 'gloo' or str.__eq__(self, other)

    def __ne__(self, other):
        return not self == other

    __hash__ = str.__hash__


distributed_test.BACKEND = Name('tributary')


class TestBackend(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context('fork').Process)

"""Horovod's place of the collectives: scripts import names from horovod.torch.mpi_ops."""

from ..job import *  # noqa: F401,F403
from ..reductions import *  # noqa: F401,F403
from .gather_ops import *  # noqa: F401,F403
from .handles import poll, synchronize  # noqa: F401
from .ops import *  # noqa: F401,F403

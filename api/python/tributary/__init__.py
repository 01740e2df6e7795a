"""Tributary for Python: sums of arrays over many machines.

    import tributary
    tributary.init()
    tensor = tributary.engine().declare_like('gradient', array)
    tensor.push_pull(array, reduce=tributary.AVG).wait()

The bindings of frameworks are packages inside: tributary.torch and others, with the names of Horovod and BytePS.
"""

from ._library import lib as _lib
from .bootstrap import unique_id
from .engine import Engine
from .errors import (
    ArgumentError,
    JobLostError,
    MembershipChangedError,
    MismatchError,
    NotInitializedError,
    TributaryError,
    UnsupportedError,
)
from .job import (
    cross_rank,
    cross_size,
    engine,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from .operation import Operation
from .runner import run
from .tensor import AVG, MAX, MIN, SUM, Tensor

__version__ = _lib.trib_version().decode()
__all__ = [
    'AVG',
    'MAX',
    'MIN',
    'SUM',
    'ArgumentError',
    'Engine',
    'JobLostError',
    'MembershipChangedError',
    'MismatchError',
    'NotInitializedError',
    'Operation',
    'Tensor',
    'TributaryError',
    'UnsupportedError',
    'cross_rank',
    'cross_size',
    'engine',
    'init',
    'is_homogeneous',
    'is_initialized',
    'local_rank',
    'local_size',
    'rank',
    'run',
    'shutdown',
    'size',
    'start_timeline',
    'stop_timeline',
    'unique_id',
]

"""Objects that pickle can take, given to all workers without a framework."""

import array
import pickle

from . import job
from ._library import lib
from .buffers import buffer_of


def _broadcast(name, data, root):
    buffer = buffer_of(data)
    tensor = job.engine().declare_once(name, buffer.dtype, buffer.count)
    tensor.submit(
        lib.trib_broadcast, buffer.address, buffer.address, (data, buffer.owner), root=root, is_once=True
    ).wait()


def broadcast_object(obj, root_rank=0, name='object'):
    """Returns the root's object on every worker."""
    is_root = job.rank() == root_rank
    data = bytearray(pickle.dumps(obj)) if is_root else bytearray()
    length = array.array('q', [len(data)])
    _broadcast(name + '.length', length, root_rank)
    if not is_root:
        data = bytearray(length[0])
    _broadcast(name + '.data', data, root_rank)
    return obj if is_root else pickle.loads(data)

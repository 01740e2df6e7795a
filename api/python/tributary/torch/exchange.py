"""Collectives on contiguous tensors of one engine: what ops.py (Horovod's names) and c10d.py (PyTorch's) are built on.

Each function submits and returns a Handle. A name of None takes one that is counted for each kind, type and size, so
workers must submit operations without names in the same order."""
import torch

from .. import _abi
from .._library import lib
from .elements import bits_of, dtype_of, stream_of
from .handles import Handle

# Operations without a name share this many tensors of each kind, type and size, so that they overlap without growing in number.
_SLOTS = 16


def _tensor(engine, kind, name, source, priority=0, count=None):
    dtype, count = dtype_of(source, name or kind), source.numel() if count is None else count
    if name is None:
        key = (kind, dtype, count, source.is_cuda)
        turn = engine.turns[key] = engine.turns.get(key, -1) + 1
        name = '%s.%d.%d.%d' % (kind, dtype, count, turn % _SLOTS)
    return engine.declare(name, dtype, count, priority, source.is_cuda)


def _device(tensor):
    return tensor.device if tensor.is_cuda else None


def all_reduce(engine, source, landing, reduce, name=None, priority=0, value=None):
    """landing = reduction of all workers' sources. They may be the same tensor."""
    tensor = _tensor(engine, 'all_reduce.%d' % reduce, name, source, priority)
    operation = tensor.submit(lib.trib_push_pull, source.data_ptr(), landing.data_ptr(), (source, landing), reduce=reduce,
                              stream=stream_of(source), priority=priority)
    return Handle([(operation, _device(source))], lambda: landing if value is None else value)


def broadcast(engine, tensor, root, name=None, value=None):
    """Every worker's tensor becomes the root's. Any type will do: the bytes are sent."""
    flat = bits_of(tensor)
    declared = _tensor(engine, 'broadcast', name, flat)
    operation = declared.submit(lib.trib_broadcast, flat.data_ptr(), flat.data_ptr(), (tensor, flat), root=root,
                                stream=stream_of(tensor))
    return Handle([(operation, _device(tensor))], lambda: tensor if value is None else value)


def all_gather(engine, outputs, source, name=None, value=None):
    """outputs[r] = rank r's source. The outputs' sizes may differ, each is the same on all workers."""
    if source.numel():
        bits_of(outputs[engine.rank]).copy_(bits_of(source))
    handles = [broadcast(engine, output, root, name and '%s.%d' % (name, root)) for root, output in enumerate(outputs) if output.numel()]
    return merged(handles, lambda: outputs if value is None else value)


def merged(handles, finish):
    """Returns one handle for several; `finish` makes its result when all are complete."""
    def finish_all():
        for handle in handles:
            handle.wait()
        return finish()

    return Handle([pair for handle in handles for pair in handle.operations], finish_all)


def all_gather_lengths(engine, length, name=None):
    """Returns every worker's length, by rank. Waits."""
    lengths = torch.zeros(engine.size, dtype=torch.int64, device='cpu')
    lengths[engine.rank] = length
    return all_reduce(engine, lengths, lengths, _abi.TRIB_SUM, name and name + '.lengths').wait().tolist()


def reduce_scatter(engine, output, sources, reduce, name=None, value=None):
    """output = reduction of all workers' sources[this rank]. The sources' sizes may differ, each is the same on all workers."""
    whole = torch.cat([source.reshape(-1) for source in sources])
    begin = sum(source.numel() for source in sources[:engine.rank])
    handle = all_reduce(engine, whole, whole, reduce, name)

    def finish():
        output.view(-1).copy_(whole[begin:begin + output.numel()])
        return output if value is None else value

    return merged([handle], finish)


def all_to_all(engine, outputs, sources, name=None, value=None):
    """outputs[r] = rank r's sources[this rank]. Waits for the table of sizes first."""
    size, rank = engine.size, engine.rank
    table = torch.zeros(size * size, dtype=torch.int64, device='cpu')
    table[rank * size:(rank + 1) * size] = torch.tensor([source.numel() for source in sources], device='cpu')
    table = all_reduce(engine, table, table, _abi.TRIB_SUM, name and name + '.sizes').wait().view(size, size)
    totals = table.sum(1).tolist()
    gathered = [torch.cat([source.reshape(-1) for source in sources]) if r == rank else sources[0].new_empty(total)
                for r, total in enumerate(totals)]
    handle = all_gather(engine, gathered, gathered[rank], name)

    def finish():
        made = []
        for r in range(size):
            begin = int(table[r, :rank].sum())
            part = gathered[r][begin:begin + int(table[r, rank])]
            if outputs is not None:
                outputs[r].view(-1).copy_(part)
            made.append(part)
        return made if value is None else value

    return merged([handle], finish)

"""Cases of the torch.distributed backend about groups that could not be made, part of c10d_cases.py."""

import torch
import torch.distributed as dist
import tributary.torch.c10d


def attempts():
    """A group that could not be made in the end leaves nothing to the next one."""

    def fail(*arguments):
        tributary.torch.c10d.create(*arguments)
        raise RuntimeError('as where another part of PyTorch fails')

    dist.Backend.register_backend('unlucky', fail, extended_api=True, devices=['cpu'])
    try:
        dist.init_process_group('unlucky')
    except RuntimeError:
        pass
    for turn in range(2):  # groups of one name
        dist.init_process_group('tributary')
        rank, size = dist.get_rank(), dist.get_world_size()
        group = dist.new_group([turn, size - 1])
        if rank in (turn, size - 1):
            tensor = torch.ones(3)
            dist.all_reduce(tensor, group=group)
            assert tensor.tolist() == [2, 2, 2]
        dist.destroy_process_group()

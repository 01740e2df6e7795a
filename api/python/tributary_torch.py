"""Gives torch.distributed the name of the backend. PyTorch 2.5 and newer call register() as they are imported (entry
point torch.backends), so a script that says init_process_group('tributary') imports nothing of the package.

It is no part of the package, because that loads the library: every import of PyTorch in the environment comes here, and
must succeed where the library does not load."""


def _create(*arguments):
    from tributary.torch import c10d

    return c10d.create(*arguments)


def register():
    """Makes 'tributary' a backend of torch.distributed, where PyTorch has that; a second call changes nothing."""
    import torch.distributed as dist

    if not dist.is_available() or 'tributary' in dist.Backend.backend_list:
        return
    # PyTorch's flight recorder looks for a backend within a group, and this one is the group. The engine has its own
    # trace.
    getattr(dist.distributed_c10d, '_FR_SELF_RECORDING_BACKENDS', set()).add('tributary')
    dist.Backend.register_backend('tributary', _create, extended_api=True, devices=['cpu', 'cuda'])

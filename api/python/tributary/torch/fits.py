"""Checks that what workers send fits where it goes, and copies it there."""

from ..errors import ArgumentError


def check_fit(output, source, has_room=True):
    """Raises ArgumentError for an output that cannot hold what is made of the source."""
    if output.dtype != source.dtype or not has_room:
        raise ArgumentError(
            'an output of %d elements of %s does not fit an input of %d of %s'
            % (output.numel(), output.dtype, source.numel(), source.dtype)
        )


def check_parts(call, parts, size):
    """Refuses a list that does not have a tensor for each worker."""
    if len(parts) != size:
        raise ArgumentError('%s: a list of %d tensors, and there are %d ranks' % (call, len(parts), size))


def check_received(call, rooms, lengths):
    """Raises ArgumentError if a worker has sent another number of elements than this one has room for."""
    for rank, (room, length) in enumerate(zip(rooms, lengths)):
        if room != length:
            raise ArgumentError(
                '%s: rank %d has %d elements, and the output for them %d: ranks must expect what the others have'
                % (call, rank, length, room)
            )


def deal(call, outputs, received):
    """Copies what all workers have sent to an output for each of them. received: it, and how long each part is."""
    flat, lengths = received
    check_received(call, [output.numel() for output in outputs], lengths)
    for output, part in zip(outputs, flat.split(lengths)):
        output.detach().copy_(part.view(output.shape))

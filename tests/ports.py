"""Free ports for tests. They lie below the kernel's ephemeral ports, so each is still free when it is needed. A port
that one test program holds is given to no other; tests/loop/job.c claims ports in the same way.
"""

import itertools
import os
import socket

FIRST, COUNT = 10000, 22000
_tried = itertools.count(os.getpid() * 7919)
_claims = []


def _claim(port):
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind("\0port %d of tributary's tests" % port)
    except OSError:
        claim.close()
        return False
    _claims.append(claim)
    return True


def free_port():
    for tried in itertools.islice(_tried, COUNT):
        port = FIRST + tried % COUNT
        with socket.socket() as probe:
            try:
                probe.bind(('127.0.0.1', port))
            except OSError:
                continue
        if _claim(port):
            return port
    raise AssertionError('no free port')

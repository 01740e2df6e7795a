"""Ports for tests: below those that the kernel gives to whoever does not care, so that none is gone again when it is wanted.
What one program of the tests has been given no other is (tests/loop/job.c claims them in the same way)."""
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

"""Ports for tests: below those that the kernel gives to whoever does not care, so that none is gone again when it is wanted."""
import itertools
import os
import socket

FIRST, COUNT = 10000, 22000
_tried = itertools.count(os.getpid() * 7919)


def free_port():
    for tried in itertools.islice(_tried, COUNT):
        port = FIRST + tried % COUNT
        with socket.socket() as probe:
            try:
                probe.bind(('127.0.0.1', port))
                return port
            except OSError:
                continue
    raise AssertionError('no free port')

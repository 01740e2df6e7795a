"""Checkpoint files that are whole, or not there.

A file is written under another name beside its place, brought to the disk, and then renamed: whatever happens
meanwhile, the file of before stays. Its end says how long the rest is, with a CRC-32, so that one that is damaged or
cut off is told from a good one."""

from __future__ import annotations

import os
import struct
import zlib
from typing import Any, Callable

from .errors import TributaryError

_END = struct.Struct('<QI8s')
_MAGIC = b'TRIBCKP1'
_PART = 1 << 24


class CheckpointError(TributaryError):
    """A checkpoint could not be written, or a file is no whole checkpoint."""


class _Sink:
    """A file for writers that want write() alone."""

    def __init__(self, file):
        self._file, self.length, self.sum = file, 0, 0

    def write(self, data):
        self._file.write(data)
        data = memoryview(data).cast('B')
        self.length, self.sum = self.length + len(data), zlib.crc32(data, self.sum)
        return len(data)

    def flush(self):
        self._file.flush()


def _sync_folder(path):
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_file(path: str, fill: Callable[[Any], Any]) -> None:
    """Writes what fill(file) writes. The file of before stays if anything goes wrong: CheckpointError says what."""
    path = os.fspath(path)
    fresh = path + '.new'  # one name, so that processes that were killed leave one file at most
    try:
        with open(fresh, 'wb') as file:
            sink = _Sink(file)
            fill(sink)
            file.write(_END.pack(sink.length, sink.sum, _MAGIC))
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
        _sync_folder(path)
    except OSError as problem:
        try:
            os.unlink(fresh)  # no space is left for others either
        except OSError:
            pass
        text = '%s: the checkpoint could not be written, and the one of before is as it was: %s'
        raise CheckpointError(text % (path, problem.strerror or problem)) from problem


def read_file(path: str) -> bytes:
    """Returns what write_file's fill wrote. CheckpointError: the file is not whole, or cannot be read."""
    path = os.fspath(path)
    try:
        with open(path, 'rb') as file:
            data = file.read()
    except OSError as problem:
        raise CheckpointError('%s: cannot be read: %s' % (path, problem.strerror or problem)) from problem
    if len(data) < _END.size:
        raise CheckpointError('%s: no checkpoint: it has %d bytes only' % (path, len(data)))
    length, checksum, magic = _END.unpack_from(data, len(data) - _END.size)
    if magic != _MAGIC or length != len(data) - _END.size:
        raise CheckpointError('%s: no checkpoint, or one that was cut off: its end is not that of one' % path)
    payload = data[:length]
    if zlib.crc32(payload) != checksum:
        raise CheckpointError('%s: the checkpoint is damaged: its checksum is another one' % path)
    return payload

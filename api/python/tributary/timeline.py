"""Recordings of what an engine does, for start_timeline(), stop_timeline() and HOROVOD_TIMELINE."""

import os
import subprocess
import tempfile

from ._library import beside
from .errors import ArgumentError, TributaryError


def checked(path):
    """Returns the path of a timeline's file; ArgumentError if it cannot be one."""
    folder = os.path.dirname(os.path.abspath(os.fsdecode(path)))
    if not os.path.isdir(folder):
        raise ArgumentError('timeline %s: there is no folder %s: make it first' % (path, folder))
    return os.path.abspath(os.fsdecode(path))


def of_environment():
    """Returns the file that HOROVOD_TIMELINE names, or None. DYNAMIC stands for a program that starts it itself."""
    path = os.environ.get('HOROVOD_TIMELINE')
    return path if path and path.upper() != 'DYNAMIC' else None


def write(engine, path):
    """Ends the recording, and writes it beside that file; rank 0's into the file, too, in Chrome's format."""
    recording = '%s.rank%d.trib' % (path, engine.rank)
    try:
        # The engine names files of its own: a name has something of the process in it, and of its first membership.
        with tempfile.TemporaryDirectory(prefix='.timeline-', dir=os.path.dirname(path)) as folder:
            engine.trace_write(folder.replace('%', '%%') + '/%r.trib')
            (name,) = os.listdir(folder)
            os.replace(os.path.join(folder, name), recording)
    finally:
        engine.trace_stop()
    if engine.rank != 0:
        return
    command = [beside('tributary'), 'trace', '--chrome', path, recording]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors='replace')
    if result.returncode != 0:
        raise TributaryError('%s: not written: %s' % (path, (result.stderr or result.stdout).strip()))

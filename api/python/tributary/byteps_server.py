"""Stands for byteps.server, whose import runs a server, or the scheduler, in place of the program: BytePS's launcher
calls `python3 -c 'import byteps.server'`."""

import os
import sys

from ._library import beside

_COMMANDS = {'server': 'server', 'scheduler': 'coordinator'}

_role = os.environ.get('DMLC_ROLE', 'worker')
if _role not in _COMMANDS:
    raise ImportError(
        'byteps.server: its import runs a server in place of the program, and DMLC_ROLE is %s: set it to server or '
        'scheduler' % _role
    )
sys.stdout.flush()
sys.stderr.flush()
os.execv(beside('tributary'), ['tributary', _COMMANDS[_role]])

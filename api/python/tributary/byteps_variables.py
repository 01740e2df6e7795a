"""BytePS's variables that tune it: those that mean something here, and a line about the others."""

import ctypes
import logging
import os

from . import _abi
from ._library import call, initialised, lib
from .errors import ArgumentError, UnsupportedError

_READ = (
    'BYTEPS_ENABLE_ASYNC',
    'BYTEPS_LOCAL_RANK',
    'BYTEPS_LOCAL_SIZE',
    'BYTEPS_MIN_COMPRESS_BYTES',
    'BYTEPS_PARTITION_BYTES',
)


def settings():
    """Returns fields of trib_config for BytePS's variables. This package's own variables come first."""
    if os.environ.get('BYTEPS_ENABLE_ASYNC', '0') not in ('', '0'):
        raise UnsupportedError('BYTEPS_ENABLE_ASYNC: asynchronous training is not supported; unset it')
    text = os.environ.get('BYTEPS_PARTITION_BYTES')
    if not text or 'TRIB_PARTITION_BYTES' in os.environ:
        return {}
    if not text.isdecimal() or not 0 < int(text) < 1 << 30:
        raise ArgumentError('BYTEPS_PARTITION_BYTES="%s": must be a number of bytes, less than 1 GiB' % text)
    config = initialised(_abi.trib_config(), lib.trib_config_init)
    call(lib.trib_config_from_env, ctypes.byref(config))
    chunk = config.chunk_bytes
    return {'partition_bytes': -(-int(text) // chunk) * chunk}  # partitions are whole chunks


def tell_unread():
    """Says once in a job which of BytePS's variables are set and have no effect."""
    unread = sorted(name for name in os.environ if name.startswith('BYTEPS_') and name not in _READ)
    if unread:
        logging.getLogger('tributary').warning('tributary: these variables have no effect: %s', ', '.join(unread))

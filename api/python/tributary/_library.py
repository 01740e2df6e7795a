"""Finds and loads the shared library, and turns its statuses into exceptions."""

import array
import ctypes
import hashlib
import os

from . import _abi, errors

_NAME = 'libtributary.so.0'
NAME_BYTES = 220  # of names that a binding puts a kind before, and a number behind


def _load():
    here = os.path.dirname(os.path.abspath(__file__))
    tree = os.path.dirname(os.path.dirname(os.path.dirname(here)))
    named = os.environ.get('TRIBUTARY_LIBRARY')
    # A package that was installed brings the library; a package in the source tree uses the build beside it.
    places = (
        [named] if named else [os.path.join(here, 'lib', _NAME), _NAME, os.path.join(tree, 'build', 'release', _NAME)]
    )
    problems = []
    for place in places:
        try:
            # CDLL releases the interpreter's lock in each call; PyDLL would keep it while a call waits.
            return ctypes.CDLL(place)
        except OSError as problem:
            problems.append(str(problem))
    raise ImportError(
        'tributary: the shared library cannot be loaded: %s. Install the wheel, build the tree with scons, or '
        'name the file in TRIBUTARY_LIBRARY' % '; '.join(problems)
    )


lib = _load()


def beside(name):
    """Returns the path of a native part of a binding, which lies beside the library."""
    here = os.path.dirname(os.path.abspath(__file__))
    places = [os.path.dirname(os.path.realpath(lib._name))] if os.path.sep in lib._name else []
    places += [
        os.path.join(here, 'lib'),
        os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(here))), 'build', 'release'),
    ]
    for place in places:
        if os.path.exists(os.path.join(place, name)):
            return os.path.join(place, name)
    raise ImportError(
        'tributary: %s is not in %s: install the wheel, or build the tree with scons' % (name, ', '.join(places))
    )


# These run for each operation. They get references and pointers alone, which need no conversion: it would cost as much
# as the rest of the call.
_SUBMITTING = (
    'trib_push_pull',
    'trib_broadcast',
    'trib_all_gather',
    'trib_reduce_scatter',
    'trib_all_to_all',
    'trib_reduce_to',
)

for _function, (_result, *_arguments) in _abi.FUNCTIONS.items():
    try:
        _entry = getattr(lib, _function)
    except AttributeError:
        raise ImportError(
            'tributary: %s has no %s: the library and this package are of different versions' % (lib._name, _function)
        ) from None
    _entry.restype, _entry.argtypes = _result, None if _function in _SUBMITTING else _arguments

_CLASSES = {
    _abi.TRIB_INVALID: errors.ArgumentError,
    _abi.TRIB_MISMATCH: errors.MismatchError,
    _abi.TRIB_EPOCH_CHANGED: errors.MembershipChangedError,
    _abi.TRIB_UNSUPPORTED: errors.UnsupportedError,
}


def error_of(status, text):
    """Returns the exception that stands for a status."""
    kind = _CLASSES.get(status, errors.JobLostError if status <= _abi.TRIB_PEER_LOST else errors.TributaryError)
    if isinstance(text, bytes):
        text = text.decode(errors='replace')
    return kind(text or lib.trib_status_text(status).decode(), status, lib.trib_status_name(status).decode())


def call(function, *arguments):
    """Calls a function whose last parameter is a trib_error, and raises what it returns if that is an error."""
    error = _abi.trib_error()
    status = function(*arguments, ctypes.byref(error))
    if status < 0:
        raise error_of(status, error.text)
    return status


def initialised(struct, initialise):
    """Fills a struct with the library's defaults and returns it."""
    initialise(ctypes.byref(struct), ctypes.sizeof(struct))
    return struct


_CONTROLS = bytes([*range(32), 127])  # which the library refuses in names


def encoded(name, most=_abi.TRIB_TENSOR_NAME_MAX):
    """Returns a name as the library takes it. One of more bytes than `most` is cut, and gets a hash of all of it."""
    if not isinstance(name, str):
        raise errors.ArgumentError('name: it must be a str, and is %s' % type(name).__name__)
    if '\0' in name:
        raise errors.ArgumentError('%r: a name must not contain a NUL' % name)
    try:
        whole = name.encode()
    except UnicodeEncodeError:
        raise errors.ArgumentError('%r: a name must not contain half a character (a surrogate)' % name) from None
    if whole.translate(None, _CONTROLS) != whole:
        raise errors.ArgumentError('%r: a name must not contain a control character' % name)
    if len(whole) <= most:
        return whole
    return b'%s~%s' % (name[:40].encode(), hashlib.sha256(whole).hexdigest()[:32].encode())


def numbers(code, values, what):
    """Returns an array of integers. Those that do not fit are refused; ctypes would cut them off."""
    try:
        return array.array(code, values)
    except (OverflowError, TypeError) as problem:
        raise errors.ArgumentError('%s %s: %s' % (what, list(values), problem)) from None

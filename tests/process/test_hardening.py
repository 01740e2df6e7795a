#!/usr/bin/env python3
"""Checks that what the build makes is hardened, as the linked files themselves say.

A library that other programs load must not weaken them: stack protector, checked calls of the C library, and nothing
that a linker resolves is writable while the program runs. Programs can be loaded anywhere.

Prints `ok NAME` / `not ok NAME: why` / `skip NAME: why`.
"""

import glob
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, 'tests'))
from cases import run_cases  # noqa: E402

BUILD = os.path.join(ROOT, os.environ.get('TRIB_BUILD', 'build/release'))
VARIANT = os.path.basename(BUILD).split('-')[0]


def read(path):
    done = subprocess.run(
        ['readelf', '--wide', '--file-header', '--program-headers', '--dynamic', '--dyn-syms', path],
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, 'readelf cannot read ' + path
    return done.stdout


def check(path):
    text, name = read(path), os.path.basename(path)
    assert re.search(r'^\s*GNU_RELRO ', text, re.MULTILINE), name + ' has no RELRO'
    assert re.search(r'BIND_NOW|\bNOW\b', text), name + ' binds lazily, so its table of functions stays writable'
    stack = re.search(r'^\s*GNU_STACK\s+(\S+\s+){5}(\w+)', text, re.MULTILINE)
    assert stack and 'E' not in stack.group(2), name + ' wants an executable stack'
    assert re.search(r'Type:\s+DYN', text), name + ' has a fixed address'
    assert '__stack_chk_fail' in text, name + ' has no stack protector'
    if VARIANT == 'release':
        assert re.search(r'__\w+_chk@', text.replace('__stack_chk_fail', '')), (
            name + ' calls no checked function (FORTIFY)'
        )


def libraries():
    found = glob.glob(BUILD + '/libtributary*.so.*[0-9]')
    assert found, 'no library in ' + BUILD
    for path in found:
        check(path)


def programs():
    for path in [BUILD + '/tributary'] + [
        p for p in glob.glob(BUILD + '/examples/*') if os.access(p, os.X_OK) and os.path.isfile(p)
    ]:
        text = read(path)
        assert re.search(r'Type:\s+DYN', text), os.path.basename(path) + ' has a fixed address'
        assert re.search(r'BIND_NOW|\bNOW\b', text), os.path.basename(path) + ' binds lazily'
    check(BUILD + '/tributary')


if __name__ == '__main__':
    if shutil.which('readelf') is None:
        print('skip hardening: readelf (binutils) is missing')
        sys.exit(0)
    sys.exit(run_cases([('libraries', libraries), ('programs', programs)]))

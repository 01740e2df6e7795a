#!/usr/bin/env python3
"""Packs the Python package, the library, the tools and what these need of others into a wheel: `scons wheel`.

The wheel needs no compiler and no package of the system. It is made with the standard library alone.
"""

import argparse
import base64
import glob
import hashlib
import os
import re
import sys
import tempfile
import zipfile

import dist

SOURCE = 'api/python/tributary'
METADATA = '''Metadata-Version: 2.1
Name: tributary
Version: {version}
Summary: Sums gradients between machines, for PyTorch and other frameworks
Requires-Python: >=3.9
License: see LICENSE
'''
WHEEL = '''Wheel-Version: 1.0
Generator: tributary
Root-Is-Purelib: false
Tag: {tag}
'''
ENTRY_POINTS = '''[console_scripts]
tributary = tributary.command:main
[torch.backends]
tributary = tributary_torch:register
'''


def platform_tag(paths):
    """Returns the tag of the oldest glibc whose symbols the libraries ask for."""
    asked = {(2, 17)}
    for path in paths:
        with open(path, 'rb') as file:
            asked.update((int(a), int(b)) for a, b in re.findall(rb'GLIBC_(\d+)\.(\d+)', file.read()))
    return 'py3-none-manylinux_%d_%d_%s' % (*max(asked), os.uname().machine)


def collect(build, version, scratch):
    """Returns pairs of a name in the wheel and a file, after copies were stripped."""
    pairs, binaries, others = [('tributary_torch.py', 'api/python/tributary_torch.py')], [], {}
    for folder, _, files in os.walk(SOURCE):
        if '__pycache__' not in folder:
            pairs += [
                (os.path.join(os.path.relpath(folder, 'api/python'), name), os.path.join(folder, name))
                for name in files
                if name.endswith(('.py', '.pyi', '.typed'))
            ]
    wanted = {'libtributary.so.0': build + '/dist/libtributary.so.' + version, 'tributary': build + '/tributary'}
    for pattern in '/libtributary-*.so.0', '/libtributary-*.so':  # modules, native parts of bindings
        wanted.update((os.path.basename(path), path) for path in glob.glob(build + pattern))
    for name, path in wanted.items():
        copy = os.path.join(scratch, name)
        dist.put(path, copy, True)
        binaries.append((name, copy))
        plain = path.replace('/dist/', '/')  # what was linked for the tree finds its dependencies there
        others.update({n: p for n, p in dist.needed(plain).items() if not n.startswith('libtributary')})
    binaries += [(name, os.path.realpath(path)) for name, path in sorted(others.items())]
    pairs += [('tributary/lib/' + name, path) for name, path in binaries]
    for _, path in sorted(others.items()):
        package, licence = dist.licence_of(path)
        if licence:
            pairs.append(('tributary-%s.dist-info/licenses/%s' % (version, package), licence))
    pairs.append(('tributary-%s.dist-info/licenses/LICENSE' % version, 'LICENSE'))
    return sorted(set(pairs)), platform_tag([path for _, path in binaries])


def write(target, version, pairs, tag):
    info = 'tributary-%s.dist-info/' % version
    texts = {
        info + 'METADATA': METADATA.format(version=version),
        info + 'WHEEL': WHEEL.format(tag=tag),
        info + 'entry_points.txt': ENTRY_POINTS,
    }
    record = []
    with zipfile.ZipFile(target, 'w', zipfile.ZIP_DEFLATED) as wheel:

        def add(name, data, mode):
            entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, (0o100000 | mode) << 16
            wheel.writestr(entry, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()
            record.append('%s,sha256=%s,%d' % (name, digest, len(data)))

        for name, path in pairs:
            with open(path, 'rb') as file:
                add(name, file.read(), 0o755 if os.access(path, os.X_OK) else 0o644)
        for name, text in texts.items():
            add(name, text.encode(), 0o644)
        record.append(info + 'RECORD,,')
        wheel.writestr(zipfile.ZipInfo(info + 'RECORD', (2020, 1, 1, 0, 0, 0)), '\n'.join(record) + '\n')


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--build', default='build/release')
    parser.add_argument('--version', required=True)
    arguments = parser.parse_args()
    folder = arguments.build + '/wheel'
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        pairs, tag = collect(arguments.build, arguments.version, scratch)
        for old in glob.glob(folder + '/*.whl'):
            os.remove(old)
        target = '%s/tributary-%s-%s.whl' % (folder, arguments.version, tag)
        write(target, arguments.version, pairs, tag)
    print('%s: %.1f MB' % (target, os.path.getsize(target) / 1e6))


if __name__ == '__main__':
    sys.exit(main())

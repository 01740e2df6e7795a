#!/usr/bin/env python3
"""Packs a build into a tarball that runs where nothing can be installed: `scons dist`.

In it: the tools, the library with what it takes to build against it, the documents and the small examples, the CUDA module if it was
built, the GPU tests, and every shared library that these need and that is not part of glibc or gcc's runtime, found with ldd. Programs
find their libraries by paths relative to themselves, and so does pkg-config.
"""
import argparse
import glob
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

GLIBC = re.compile(r'^(linux-vdso|ld-linux|libc|libm|libdl|librt|libpthread|libresolv|libutil|libnsl|libanl|libgcc_s)[.-]')


def needed(path):
    """Returns names and paths of the shared libraries that a file needs, without glibc's."""
    listing = subprocess.run(['ldd', path], capture_output=True, text=True, check=True).stdout
    found = {}
    for line in listing.splitlines():
        match = re.match(r'\s*(\S+) => (\S+) \(', line)
        if 'not found' in line:
            sys.exit('dist: %s needs %s, which is not found' % (path, line.split()[0]))
        if match and not GLIBC.match(match.group(1)):
            found[match.group(1)] = match.group(2)
    return found


def licence_of(path):
    """Returns the package of a library and its copyright file, where the system has them."""
    owner = shutil.which('dpkg') and subprocess.run(['dpkg', '-S', os.path.realpath(path)], capture_output=True, text=True).stdout
    package = (owner or '').split(':')[0].strip()
    place = '/usr/share/doc/%s/copyright' % package
    return (package, place) if package and os.path.exists(place) else ('', '')


def put(source, target, strip):
    os.makedirs(os.path.dirname(target), exist_ok=True)
    shutil.copy(os.path.realpath(source), target)
    os.chmod(target, 0o755 if os.access(source, os.X_OK) else 0o644)
    if strip:
        subprocess.run(['strip', '--strip-unneeded', target], check=True)


def put_pc(target, version):
    """Writes a file with relative paths. The library finds its own dependencies beside it, so a program does not name them."""
    with open('api/tributary.pc.in', encoding='utf-8') as template:
        text = template.read().replace('@PREFIX@', '${pcfiledir}/../..').replace('@VERSION@', version)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, 'w', encoding='utf-8') as file:
        file.write(re.sub(r'Libs\.private:.*\n', '', text))


def fill(build, root, version):
    lib = os.path.join(root, 'lib')
    put(build + '/tributary', root + '/bin/tributary', True)
    put(build + '/dist/libtributary.so.' + version, lib + '/libtributary.so.' + version, True)
    for name in ('libtributary.so.0', 'libtributary.so'):
        os.symlink('libtributary.so.' + version, os.path.join(lib, name))
    for module in glob.glob(build + '/libtributary-*.so.0'):
        put(module, os.path.join(lib, os.path.basename(module)), True)
    if os.path.exists(build + '/tests/gpu_worker'):
        put(build + '/tests/gpu_worker', root + '/tests/gpu_worker', True)
        put('tests/gpu/test_gpu.py', root + '/tests/test_gpu.py', False)
        put('tools/cluster/cluster.py', root + '/tests/cluster.py', False)
        put('tests/ports.py', root + '/tests/ports.py', False)
    put('api/tributary.h', root + '/include/tributary.h', False)
    for source in ['LICENSE', 'README.md'] + sorted(glob.glob('docs/**/*.md', recursive=True) + glob.glob('examples/*.c') +
                                                   glob.glob('examples/*.py')):
        put(source, os.path.join(root, source), False)
    put_pc(lib + '/pkgconfig/tributary.pc', version)
    others = {}
    for path in [build + '/tributary', build + '/libtributary.so.' + version] + glob.glob(build + '/libtributary-*.so.0'):
        others.update({n: p for n, p in needed(path).items() if not n.startswith('libtributary')})
    for name, path in sorted(others.items()):
        put(path, os.path.join(lib, name), False)
        package, licence = licence_of(path)
        if licence:
            put(licence, os.path.join(root, 'licences', package), False)
    return sorted(others)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--build', default='build/release')
    parser.add_argument('--version', required=True)
    parser.add_argument('target')
    args = parser.parse_args()
    name = os.path.basename(args.target)[:-len('.tar.gz')]
    with tempfile.TemporaryDirectory() as scratch:
        root = os.path.join(scratch, name)
        others = fill(args.build, root, args.version)

        def plain(entry):
            entry.uid = entry.gid = entry.mtime = 0
            entry.uname = entry.gname = 'root'
            return entry

        with tarfile.open(args.target, 'w:gz') as tar:
            tar.add(root, arcname=name, filter=plain)
    print('%s: %.1f MB, with %s' % (args.target, os.path.getsize(args.target) / 1e6, ' '.join(others) or 'nothing of others'))


if __name__ == '__main__':
    main()

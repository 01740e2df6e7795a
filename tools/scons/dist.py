#!/usr/bin/env python3
"""Packs a build into a tarball that runs where nothing can be installed: `scons dist`.

In it: the tools, the library with what it takes to build against it, the documents and the small examples, the CUDA
module if it was built, the GPU tests, and every shared library that these need and that is not part of glibc or gcc's
runtime, found with ldd. Programs find their libraries by paths relative to themselves, and so does pkg-config.
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

GLIBC = re.compile(
    r'^(linux-vdso|ld-linux|libc|libm|libdl|librt|libpthread|libresolv|libutil|libnsl|libanl|libgcc_s)[.-]'
)


TRY_IT = """## Try it

    bin/tributary run -n 4 -s 2 -- bin/digits      # four workers learn to read digits; two servers sum
    bin/tributary bench -n 4 -s 2                  # how fast gradients are exchanged on this machine
    bin/tributary sim --model resnet50 -n 8        # a cluster that is not there
    man -M share/man tributary

Nothing has to be installed, and the folder may lie anywhere.

"""


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
    owner = (
        shutil.which('dpkg')
        and subprocess.run(['dpkg', '-S', os.path.realpath(path)], capture_output=True, text=True).stdout
    )
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
    """Writes a file with relative paths. The library finds its own dependencies beside it, so a program does not name
    them."""
    with open('api/tributary.pc.in', encoding='utf-8') as template:
        text = template.read().replace('@PREFIX@', '${pcfiledir}/../..').replace('@VERSION@', version)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, 'w', encoding='utf-8') as file:
        file.write(re.sub(r'Libs\.private:.*\n', '', text))


def put_readme(target):
    """Writes the README with the commands of the tarball: what it says of the source tree, from which it was built, is
    left out."""
    with open('README.md', encoding='utf-8') as file:
        text = file.read()
    text, tried = re.subn(r'## Try it\n.*?(?=## Embed it\n)', TRY_IT, text, flags=re.DOTALL)
    text, built = re.subn(r'## Build and install\n.*?(?=^## )', '', text, flags=re.DOTALL | re.MULTILINE)
    text, map_ = re.subn(r'## The tree\n.*?(?=^## |\Z)', '', text, flags=re.DOTALL | re.MULTILINE)
    text = text.replace(
        '    cc hello.c ',
        '    export PKG_CONFIG_PATH=$PWD/lib/pkgconfig LD_LIBRARY_PATH=$PWD/lib PATH=$PWD/bin:$PATH\n'
        '    cd examples\n    cc hello.c ',
    )
    if not (tried and built and map_):
        sys.exit('dist: README.md has not the sections that the tarball replaces')
    with open(target, 'w', encoding='utf-8') as file:
        file.write(text)


def fill(build, root, version):
    lib = os.path.join(root, 'lib')
    put(build + '/tributary', root + '/bin/tributary', True)
    put(build + '/examples/digits', root + '/bin/digits', True)
    put('examples/digits/digits.csv', root + '/share/tributary/digits.csv', False)
    for model in glob.glob('tools/models/*.csv'):
        put(model, os.path.join(root, 'share', 'tributary', 'models', os.path.basename(model)), False)
    for page in glob.glob(build + '/man/*.[17]'):
        put(page, os.path.join(root, 'share', 'man', 'man' + page[-1], os.path.basename(page)), False)
    put(build + '/dist/libtributary.so.' + version, lib + '/libtributary.so.' + version, True)
    for name in ('libtributary.so.0', 'libtributary.so'):
        os.symlink('libtributary.so.' + version, os.path.join(lib, name))
    for module in glob.glob(build + '/libtributary-*.so.0') + glob.glob(build + '/libtributary-*.so'):
        put(module, os.path.join(lib, os.path.basename(module)), True)
    for source in glob.glob('api/python/tributary/**/*.py', recursive=True) + ['api/python/tributary_torch.py']:
        put(source, os.path.join(root, 'python', os.path.relpath(source, 'api/python')), False)
    os.symlink('../../lib', root + '/python/tributary/lib')
    if os.path.exists(build + '/tests/gpu_worker'):
        put(build + '/tests/gpu_worker', root + '/tests/gpu_worker', True)
        put('tests/gpu/test_gpu.py', root + '/tests/test_gpu.py', False)
        for script in glob.glob('tests/gpu/torch_*.py') + glob.glob('tests/python/c10d_*.py'):
            put(script, os.path.join(root, 'tests', os.path.basename(script)), False)
        put('tools/cluster/cluster.py', root + '/tests/cluster.py', False)
        put('tests/ports.py', root + '/tests/ports.py', False)
    put('api/tributary.h', root + '/include/tributary.h', False)
    patterns = (
        'docs/**/*.md',
        'examples/*.c',
        'examples/*.py',
        'examples/python/*.py',
        'examples/digits/*.[chm]*',
        'examples/own_codec/*.[ch]',
    )
    found = [path for pattern in patterns for path in glob.glob(pattern, recursive=True)]
    for source in ['LICENSE', 'CHANGELOG.md'] + sorted(found):
        put(source, os.path.join(root, source), False)
    put_readme(root + '/README.md')
    put_pc(lib + '/pkgconfig/tributary.pc', version)
    others = {}
    for path in [build + '/tributary', build + '/libtributary.so.' + version] + glob.glob(
        build + '/libtributary-*.so.0'
    ):
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
    name = os.path.basename(args.target)[: -len('.tar.gz')]
    with tempfile.TemporaryDirectory() as scratch:
        root = os.path.join(scratch, name)
        others = fill(args.build, root, args.version)

        def plain(entry):
            entry.uid = entry.gid = entry.mtime = 0
            entry.uname = entry.gname = 'root'
            return entry

        with tarfile.open(args.target, 'w:gz') as tar:
            tar.add(root, arcname=name, filter=plain)
    print(
        '%s: %.1f MB, with %s'
        % (args.target, os.path.getsize(args.target) / 1e6, ' '.join(others) or 'nothing of others')
    )


if __name__ == '__main__':
    main()

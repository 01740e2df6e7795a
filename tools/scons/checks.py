"""Finds the dependencies of the build, tells what a missing one costs, and writes build_config.h."""

import os
import shutil
import subprocess
import sys


class Dependency:
    def __init__(self, name, use, package, cost, header=None, libs='', pc=None, macro=None):
        self.name, self.use, self.package, self.cost = name, use, package, cost
        self.header, self.libs, self.pc = header, libs, pc
        self.macro = macro or 'TRIB_HAVE_' + name.upper().replace(' ', '_').replace('-', '_')
        self.present, self.version, self.where, self.flags = False, '', '', ''


# use: 'library' = linked and required, 'tools' = required by the tools, 'option' = works without it, at a cost.
def dependencies():
    return [
        Dependency('libev', 'library', 'libev-dev', 'nothing works', 'ev.h', '-lev'),
        Dependency('libsodium', 'library', 'libsodium-dev', 'nothing works', 'sodium.h', '-lsodium', 'libsodium'),
        Dependency('hwloc', 'library', 'libhwloc-dev', 'nothing works', 'hwloc.h', '-lhwloc', 'hwloc'),
        Dependency('uthash', 'header', 'uthash-dev', 'nothing works', 'uthash.h'),
        Dependency('jansson', 'tools', 'libjansson-dev', 'no tools', 'jansson.h', '-ljansson', 'jansson'),
        Dependency('cmocka', 'option', 'libcmocka-dev', 'no unit tests', 'cmocka.h', '-lcmocka', 'cmocka'),
        Dependency('libuv', 'option', 'libuv1-dev', 'one example is left out', 'uv.h', '-luv', 'libuv'),
        Dependency(
            'ibverbs', 'option', 'libibverbs-dev', 'no RDMA transport', 'infiniband/verbs.h', '-libverbs', 'libibverbs'
        ),
        Dependency(
            'rdmacm', 'option', 'librdmacm-dev', 'no RDMA transport', 'rdma/rdma_cma.h', '-lrdmacm', 'librdmacm'
        ),
        Dependency(
            'libcurl', 'option', 'libcurl4-openssl-dev', 'no store (TRIB_STORE)', 'curl/curl.h', '-lcurl', 'libcurl'
        ),
        Dependency('CUDA', 'option', 'CUDA Toolkit', 'no GPU stages; training on CPUs works', 'cuda_runtime_api.h'),
        Dependency('NCCL', 'option', 'libnccl-dev', 'no GPU stages; training on CPUs works', 'nccl.h'),
    ]


def ask_pkg_config(dependency):
    if not dependency.pc or not shutil.which('pkg-config'):
        return ''
    done = subprocess.run(['pkg-config', '--modversion', dependency.pc], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ''


def find_header(header):
    places = [
        '/usr/include',
        '/usr/local/include',
        '/usr/local/cuda/include',
        os.path.join(os.environ.get('CUDA_HOME', '/usr/local/cuda'), 'include'),
    ]
    triplet = '/usr/include/' + os.uname().machine + '-linux-gnu'
    for place in places + [triplet] + os.environ.get('CPATH', '').split(':'):
        if place and os.path.exists(os.path.join(place, header)):
            return place
    return ''


def probe(env, build, version, variant, quiet=False):
    found = dependencies()
    for dependency in found:
        dependency.where = find_header(dependency.header)
        dependency.present = bool(dependency.where)
        dependency.version = ask_pkg_config(dependency)
        dependency.flags = dependency.libs
    if write_config(build, found, version, variant) and not quiet:
        print_table(found)
    return found


def write_config(build, found, version, variant):
    """Returns whether the file changed, which is when the table is printed."""
    lines = [
        '/* Written by the build: what was found on this machine. */',
        '#ifndef TRIB_BUILD_CONFIG_H',
        '#define TRIB_BUILD_CONFIG_H',
        '#define TRIB_BUILD_VERSION "%s"' % version,
        '#define TRIB_BUILD_VARIANT "%s"' % variant,
    ]
    lines += ['#define %s %d' % (d.macro, d.present) for d in found]
    text = '\n'.join(lines + ['#endif', ''])
    path = os.path.join(build, 'build_config.h')
    if os.path.exists(path) and open(path).read() == text:
        return False
    os.makedirs(build, exist_ok=True)
    with open(path, 'w') as out:
        out.write(text)
    return True


def print_table(found):
    print('%-10s %-8s %-10s %s' % ('needs', 'found', 'version', 'where, or what its lack costs'))
    for d in found:
        print(
            '%-10s %-8s %-10s %s'
            % (
                d.name,
                'yes' if d.present else 'NO',
                d.version or '-',
                d.where if d.present else d.cost + ' (package %s)' % d.package,
            )
        )
    sys.stdout.flush()


def cuda_runtime(found):
    """Returns the path of CUDA's static runtime, '' where the GPU module cannot be built."""
    if not (has(found, 'CUDA') and has(found, 'NCCL')):
        return ''
    include = next(d.where for d in found if d.name == 'CUDA')
    places = [
        os.path.join(os.path.dirname(include), lib)
        for lib in ('lib64', 'lib', 'lib/' + os.uname().machine + '-linux-gnu')
    ]
    return next((p + '/libcudart_static.a' for p in places if os.path.exists(p + '/libcudart_static.a')), '')


def nvcc():
    """Returns the path of CUDA's compiler, '' where there is none: the GPU module has no codecs then."""
    places = (os.environ.get('CUDA_HOME', '/usr/local/cuda') + '/bin', *os.environ.get('PATH', '').split(':'))
    return next((p + '/nvcc' for p in places if os.access(p + '/nvcc', os.X_OK)), '')


def has(found, name):
    return any(d.name == name and d.present for d in found)


def require(found):
    missing = [d for d in found if d.use != 'option' and not d.present]
    if missing:
        print(
            'scons: missing: %s. Install: %s (tools/install-deps does).'
            % (', '.join(d.name for d in missing), ' '.join(d.package for d in missing))
        )
        sys.exit(2)

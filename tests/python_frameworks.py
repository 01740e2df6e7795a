#!/usr/bin/env python3
"""Makes a virtual environment with a framework of PyPI, for tests on machines without a GPU, and prints its
interpreter.

  tests/python_frameworks.py torch [FOLDER]      FOLDER: build/frameworks by default

PyTorch's wheel wants several GB of CUDA's libraries to be imported. None of them is called without a GPU, so this
program builds empty ones in their place: a function that fails for each name that the wheel's libraries do not define
themselves. An environment that is complete is left as it is.
"""

import collections
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Packages that pip is asked for: first what comes without its dependencies, then what is needed of them.
FRAMEWORKS = {
    'torch': (
        ['torch==2.15.0'],
        [
            'filelock',
            'typing-extensions',
            'sympy',
            'networkx',
            'jinja2',
            'fsspec',
            'numpy',
            'setuptools',
            'cloudpickle',
            'keras',
        ],
    ),
    'jax': ([], ['jax==0.10.2', 'jaxlib==0.10.2', 'optax', 'keras']),
    'tensorflow': ([], ['tensorflow-cpu==2.21.0']),
    'mxnet': ([], ['mxnet==1.9.1', 'numpy==1.23.5']),
    'mxnet2': ([], ['mxnet==2.0.0b1', 'numpy==1.23.5']),
}
SYSTEM = re.compile(r'(lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|gomp|z|quadmath)|ld-linux.*)\.so')
NO_DEVICE = 100  # cudaErrorNoDevice


def read(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Libraries:
    """The shared libraries of a folder: what they need of others, and what they define."""

    def __init__(self, folder):
        self.names = sorted(name for name in os.listdir(folder) if '.so' in name)
        self.needed, self.defined, self.wanted = set(), set(), set()
        self.versions = collections.defaultdict(set)  # library -> versions that are asked of it
        for name in self.names:
            path = os.path.join(folder, name)
            self.needed.update(re.findall(r'\(NEEDED\).*\[(.*)\]', read('readelf', '-d', path)))
            library = None
            for line in read('readelf', '-V', '-W', path).splitlines():
                found = re.search(r'File: (\S+)', line)
                library = found.group(1) if found else library
                asked = re.search(r'Name: (\S+)\s+Flags', line)
                if asked and library:
                    self.versions[library].add(asked.group(1))
            for line in read('nm', '-D', path).splitlines():
                words = line.split()
                if len(words) == 3:
                    self.defined.add(words[2].split('@')[0])
                elif words[0] == 'U':
                    self.wanted.add(words[1].replace('@@', '@'))

    def missing(self):
        return sorted(name for name in self.needed - set(self.names) if not SYSTEM.match(name))


def make_stubs(folder):
    """Puts an empty library beside the wheel's for each that is missing."""
    libraries = Libraries(folder)
    plain = {name for name in libraries.wanted if '@' not in name and name not in libraries.defined}
    plain = {name for name in plain if re.match(r'(cu|nccl|nvrtc|nvshmem|nvtx|nvJit|__cuda)', name)}
    for name in libraries.missing():
        nodes = {
            version: sorted(symbol.split('@')[0] for symbol in libraries.wanted if symbol.endswith('@' + version))
            for version in sorted(libraries.versions.get(name, ()))
        }
        symbols = sorted(set().union(*nodes.values(), plain))
        plain = set()  # one library is enough for names without a version
        source, script = os.path.join(folder, name + '.c'), os.path.join(folder, name + '.map')
        with open(source, 'w', encoding='ascii') as file:
            file.writelines('long %s(void) { return %d; }\n' % (symbol, NO_DEVICE) for symbol in symbols)
        with open(script, 'w', encoding='ascii') as file:
            file.writelines(
                '%s { global: %s };\n' % (version, ' '.join(symbol + ';' for symbol in listed) or '*;')
                for version, listed in nodes.items()
            )
        command = [
            'gcc',
            '-shared',
            '-fPIC',
            '-O1',
            '-fno-builtin',
            '-w',
            '-Wl,-soname,' + name,
            '-o',
            os.path.join(folder, name),
            source,
        ]
        subprocess.run(command + (['-Wl,--version-script=' + script] if nodes else []), check=True)
        os.remove(source)
        os.remove(script)


def make(framework, folder):
    """Returns the interpreter of the framework's environment, which is made if it is not there."""
    alone, rest = FRAMEWORKS[framework]
    where = os.path.join(folder, framework)
    python, complete = os.path.join(where, 'bin', 'python'), os.path.join(where, 'complete')
    stamp = ' '.join(alone + rest)
    if os.path.exists(complete) and open(complete, encoding='ascii').read() == stamp:
        return python
    subprocess.run([sys.executable, '-m', 'venv', where], check=True)
    # Python compiles what is imported, which is little of what there is.
    pip = [python, '-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', '--no-compile']
    if alone:
        subprocess.run(pip + ['--no-deps'] + alone, check=True)
    subprocess.run(pip + rest, check=True, stderr=subprocess.DEVNULL)  # it warns of what is left out on purpose
    if framework == 'torch':
        make_stubs(
            os.path.join(
                read(python, '-c', 'import sysconfig; print(sysconfig.get_path("purelib"))').strip(), 'torch', 'lib'
            )
        )
    subprocess.run([python, '-c', 'import ' + framework.rstrip('2')], check=True)
    with open(complete, 'w', encoding='ascii') as file:
        file.write(stamp)
    return python


def main():
    if not 2 <= len(sys.argv) <= 3 or sys.argv[1] not in FRAMEWORKS:
        sys.exit(__doc__)
    print(make(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else os.path.join(ROOT, 'build', 'frameworks')))


if __name__ == '__main__':
    main()

"""Builds the measured programs (tools/bench/peers) and tells which systems can run on this machine, and their
versions."""

import os
import shutil
import subprocess

WARNINGS = ['-Wall', '-Wextra', '-Werror']
AGENT = 'tools/bench/peers/agent.c'


class Missing(Exception):
    """The reason why a system cannot be measured on this machine."""


def compile_with(words):
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise Missing('does not compile: %s\n%s' % (' '.join(words), done.stdout[-2000:]))


def first_line(*words):
    try:
        done = subprocess.run(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=30
        )
    except OSError:
        return 'unknown'
    return done.stdout.strip().splitlines()[0] if done.stdout.strip() else 'unknown'


def build_tributary(out, build):
    library = os.path.join(build, 'libtributary.so')
    if not os.path.exists(library):
        raise Missing('%s is not there: build it with scons' % library)
    compile_with(
        [
            'cc',
            '-std=gnu11',
            '-O2',
            '-g',
            '-D_GNU_SOURCE',
            *WARNINGS,
            '-I.',
            '-pthread',
            'tools/bench/peers/tributary.c',
            AGENT,
            '-o',
            out,
            '-L' + build,
            '-Wl,-rpath,' + os.path.abspath(build),
            '-ltributary',
            '-lev',
        ]
    )
    return first_line(os.path.join(build, 'tributary'), '--version')


def build_openmpi(out, _):
    if shutil.which('mpicc') is None or shutil.which('mpirun') is None:
        raise Missing('mpicc and mpirun are not there: tools/install-deps --bench')
    version = first_line('mpirun', '--version')
    if 'Open MPI' not in version:
        raise Missing('mpirun is not Open MPI\'s but "%s"' % version)
    compile_with(
        [
            'mpicc',
            '-std=gnu11',
            '-O2',
            '-g',
            '-D_GNU_SOURCE',
            *WARNINGS,
            '-I.',
            'tools/bench/peers/openmpi.c',
            AGENT,
            '-o',
            out,
        ]
    )
    return version


def build_gloo(out, _):
    if not any(os.path.exists(root + '/gloo/allreduce.h') for root in ('/usr/include', '/usr/local/include')):
        raise Missing('Gloo\'s headers are not there: tools/install-deps --bench')
    compile_with(
        ['cc', '-std=gnu11', '-O2', '-g', '-D_GNU_SOURCE', *WARNINGS, '-I.', '-c', AGENT, '-o', out + '-agent.o']
    )
    # Gloo's own headers cause warnings.
    compile_with(
        [
            'c++',
            '-std=c++17',
            '-O2',
            '-g',
            '-I.',
            '-pthread',
            'tools/bench/peers/gloo.cc',
            out + '-agent.o',
            '-o',
            out,
            '-lgloo',
        ]
    )
    version = first_line('dpkg-query', '-W', '-f', '${Version}', 'libgloo-dev')
    return 'Gloo ' + (version if version[:1].isdigit() else 'of an unknown version')


BUILDERS = {'tributary': build_tributary, 'openmpi': build_openmpi, 'gloo': build_gloo}


def prepare(folder, build, wanted):
    """Returns ({family: program}, {family: version}, {family: reason why it is missing}) of the wanted families."""
    os.makedirs(folder, exist_ok=True)
    programs, versions, missing = {}, {}, {}
    for family in wanted:
        program = os.path.join(os.path.abspath(folder), family)
        try:
            versions[family] = BUILDERS[family](program, build)
            programs[family] = program
        except Missing as why:
            missing[family] = str(why)
    return programs, versions, missing

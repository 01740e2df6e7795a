#!/usr/bin/env python3
"""Counts the cost of an exchange and compares it with stored figures (counters.json beside this file).

The counts are system calls, copies, bytes on the wire, wake-ups and allocations (tests/bench/count_exchange.c), and
instructions under callgrind. A figure above the stored one by more than its tolerance fails; so does an exchange that
allocates. A lower figure passes; store it with

    tests/process/test_counters.py --update

which is also how a deliberate change is accepted, so that the commit shows the difference. Virtual scenes count the
same in every run. Real scenes depend on the kernel, hence the wider tolerance: each figure is the least of several
repetitions. Wake-ups depend on other load and may double.
"""

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import PIPES, run_cases  # noqa: E402

BUILD = os.environ.get('TRIB_BUILD', 'build/release')
PROGRAM = BUILD + '/tests/count_exchange'
STORED = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'counters.json')
# A figure fails above the stored one times this factor plus this amount.
VIRTUAL, REAL, REAL_WAKEUPS = (1.01, 0.001), (1.35, 0.05), (2.0, 0.5)
INSTRUCTIONS, OTHER_COMPILER = 1.10, 1.30
MEANT = '; if that is meant, tests/process/test_counters.py --update stores it'
INSTRUCTION_SCENES = {'virtual small': (3, 8), 'virtual servers': (1, 3)}


def measure():
    lines = subprocess.run([PROGRAM], stdout=subprocess.PIPE, text=True, timeout=150, check=True).stdout.splitlines()
    scenes = [json.loads(line) for line in lines]
    return {scene.pop('scene'): scene for scene in scenes}


def instructions_of(scene):
    """Returns the instructions of one step: the difference between a longer and a shorter run, divided by the extra
    steps."""
    totals = []
    for steps in INSTRUCTION_SCENES[scene]:
        run = subprocess.run(
            ['valgrind', '--tool=callgrind', '--callgrind-out-file=/dev/null', PROGRAM, scene, str(steps)],
            timeout=150,
            **PIPES,
        )
        found = re.search(r'Collected : (\d+)', run.stdout)
        assert run.returncode == 0 and found, run.stdout[-400:]
        totals.append(int(found.group(1)))
    few, many = INSTRUCTION_SCENES[scene]
    return (totals[1] - totals[0]) // (many - few)


def compiler():
    """Returns the compiler that built the library, with its major version."""
    text = subprocess.run(['readelf', '-p', '.comment', PROGRAM], stdout=subprocess.PIPE, text=True, timeout=60).stdout
    found = re.search(r'(GCC|clang)[^\n]*?(\d+)\.\d+', text)
    return '%s %s' % found.groups() if found else 'unknown'


def reads_other_processes():
    """Returns whether the kernel lets shared memory read a peer's own memory. A container may forbid it; payloads are
    copied then."""
    libc = ctypes.CDLL(None, use_errno=True)
    source, target = ctypes.create_string_buffer(b'x'), ctypes.create_string_buffer(1)

    class Vector(ctypes.Structure):
        _fields_ = [('base', ctypes.c_void_p), ('size', ctypes.c_size_t)]

    vectors = [Vector(ctypes.addressof(buffer), 1) for buffer in (target, source)]
    return libc.process_vm_readv(os.getpid(), ctypes.byref(vectors[0]), 1, ctypes.byref(vectors[1]), 1, 0) == 1


def compare(scene, stored, seen):
    def bound(name):
        factor, slack = VIRTUAL if scene.startswith('virtual') else REAL_WAKEUPS if 'wakeups' in name else REAL
        return stored[name] * factor + slack

    assert set(stored) == set(seen), 'other figures are stored; run with --update'
    too_much = [
        '%s is %.4g, stored is %.4g' % (name, seen[name], stored[name]) for name in stored if seen[name] > bound(name)
    ]
    assert not too_much, '; '.join(too_much) + MEANT


def compare_instructions(scene, stored):
    tolerance = INSTRUCTIONS if compiler() == stored['compiler'] else OTHER_COMPILER
    seen = instructions_of(scene)
    assert seen <= stored[scene] * tolerance, '%d instructions a step, stored are %d (%s; this is %s)%s' % (
        seen,
        stored[scene],
        stored['compiler'],
        compiler(),
        MEANT,
    )


def store(figures):
    with open(STORED, 'w') as file:
        json.dump(figures, file, indent=1, sort_keys=True)
        file.write('\n')


def update():
    with open(STORED) as file:
        figures = json.load(file)
    figures['counters'] = measure()
    figures['instructions'] = dict({s: instructions_of(s) for s in INSTRUCTION_SCENES}, compiler=compiler())
    store(figures)


def main():
    if sys.argv[1:] == ['--update']:
        return update()
    with open(STORED) as file:
        stored = json.load(file)
    seen = measure()
    cases = []
    for scene in sorted(stored['counters']):
        name = 'counters_' + scene.replace(' ', '_')
        if scene == 'shm large' and not reads_other_processes():
            print('skip %s: the kernel does not let a process read another' % name)
            continue
        cases.append((name, lambda s=scene: compare(s, stored['counters'][s], seen[s])))
    for scene in INSTRUCTION_SCENES:
        if shutil.which('valgrind'):
            cases.append(
                (
                    'counters_instructions_' + scene.replace(' ', '_'),
                    lambda s=scene: compare_instructions(s, stored['instructions']),
                )
            )
        else:
            print('skip counters_instructions_%s: there is no valgrind' % scene.replace(' ', '_'))
    return run_cases(cases)


if __name__ == '__main__':
    sys.exit(main())

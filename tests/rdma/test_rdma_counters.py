#!/usr/bin/env python3
"""Counts the cost of an exchange over RDMA and compares it with stored figures (tests/process/counters.json).

    tests/rdma/test_rdma_counters.py             # the test
    tests/rdma/test_rdma_counters.py --update    # stores the present counts
    tests/rdma/test_rdma_counters.py --show      # RDMA and TCP side by side

A worker and a server, both in one process on one loop, exchange 16 MiB (tests/bench/count_exchange.c, "rdma pair" and
"tcp pair") in a guest whose time counts instructions (tools/cluster/verbs-guest --count). Three figures result for each
MiB that goes there and comes back, for both ends together: instructions in user space (callgrind, the difference of two
runs), processor time (all instructions, the kernel's included), and the loop's system calls. A real device does in
hardware what soft-RoCE does in the kernel. So RDMA's cost is its user space, compared with all of TCP's.

The kernel decides how often soft-RoCE wakes a waiting process: Linux 6.12 does so six times as often as 6.1. So counts
are compared only if the guest's kernel is the one that they were stored with.
"""

import functools
import json
import os
import re
import subprocess
import sys

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [TESTS, os.path.join(TESTS, 'process')]
from cases import PIPES, run_cases  # noqa: E402
import test_counters as counters  # noqa: E402

VALGRIND = '/usr/libexec/valgrind'
CANNOT_RUN = 77
counters.MEANT = '; if that is meant, tests/rdma/test_rdma_counters.py --update stores it'
MIB, SHORT, LONG = 16, 1, 3
MOVED = 2 * (1 << 20) / 1e6  # MB moved per exchanged MiB: there and back
TENTH = 0.1
REPORT = './count_exchange "%s pair" 0 $RDMA_IP\n'
COUNT = (
    'for steps in %d %d; do VALGRIND_LIB=%s ./valgrind.bin --tool=callgrind --callgrind-out-file=/dev/null '
    './count_exchange "%s pair" $steps $RDMA_IP 2>&1 | grep Collected; done\n'
)


class CannotRun(Exception):
    """The test cannot run here; the text says why."""


def guest(command, has_valgrind):
    carried = ['--program', counters.PROGRAM]
    if has_valgrind:
        carried += ['--program', '/usr/bin/valgrind.bin']
        for name in sorted(os.listdir(VALGRIND)):
            if name in ('callgrind-amd64-linux', 'default.supp') or re.match(r'vgpreload_(core|callgrind)-amd64', name):
                carried += ['--file', '%s/%s=%s/%s' % (VALGRIND, name, VALGRIND, name)]
    done = subprocess.run(
        ['tools/cluster/verbs-guest', '--count', '--timeout', '240', *carried, '--', command], **PIPES
    )
    if done.returncode == CANNOT_RUN:
        raise CannotRun(done.stdout.strip().splitlines()[-1])
    assert done.returncode == 0, 'status %d\n%s' % (done.returncode, done.stdout[-2000:])
    return done.stdout


@functools.lru_cache(maxsize=1)
def measure(*counted):
    """Returns count_exchange's figures by transport, with the instructions in user space for each MiB of those in
    `counted`, and the guest's kernel version."""
    has_valgrind = os.path.exists(VALGRIND + '/callgrind-amd64-linux')
    command = 'echo "kernel $(cat /proc/sys/kernel/osrelease)"\n' + ''.join(
        REPORT % transport for transport in ('tcp', 'rdma')
    )
    if has_valgrind:
        command += ''.join(
            'echo "## %s"\n' % transport + COUNT % (SHORT, LONG, VALGRIND, transport) for transport in counted
        )
    output = guest(command, has_valgrind)
    seen = {scene['scene'].split()[0]: scene for scene in map(json.loads, re.findall(r'^\{"scene".*\}', output, re.M))}
    assert len(seen) == 2, output[-2000:]
    for scene in seen.values():
        del scene['scene']
        scene['all'] = scene.pop('processor_us_per_mb') * 1000 * MOVED
    for part in output.split('## ')[1:]:
        few, many = map(int, re.findall(r'Collected : (\d+)', part))
        seen[part.split()[0]]['user'] = (many - few) / (MIB * (LONG - SHORT))
    return seen, re.search(r'^kernel (\d+\.\d+)', output, re.M).group(1)


def figures(scene):
    return {name: value for name, value in scene.items() if name not in ('all', 'user')}


def stored():
    with open(counters.STORED) as file:
        return json.load(file)


def costs_what_is_stored():
    counters.compare('rdma pair', stored()['rdma']['counters'], figures(measure('rdma')[0]['rdma']))


def copies_and_allocates_nothing():
    scene = measure('rdma')[0]['rdma']
    assert scene['copied_per_byte'] < 1e-4 and scene['allocations_per_step'] == 0, scene


def instructions():
    kept, seen = stored()['rdma'], measure('rdma')[0]['rdma']['user']
    tolerance = counters.INSTRUCTIONS if counters.compiler() == kept['compiler'] else counters.OTHER_COMPILER
    assert seen <= kept['instructions_per_mib'] * tolerance, (
        '%.0f in user space for each MiB, stored are %d (%s; this is %s)%s'
        % (seen, kept['instructions_per_mib'], kept['compiler'], counters.compiler(), counters.MEANT)
    )


def a_tenth_of_tcp():
    seen, _ = measure('rdma')
    assert seen['rdma']['user'] <= TENTH * seen['tcp']['all'], seen


def update():
    everything, (seen, kernel) = stored(), measure('rdma')
    everything['rdma'] = {
        'counters': figures(seen['rdma']),
        'instructions_per_mib': round(seen['rdma']['user']),
        'compiler': counters.compiler(),
        'kernel': kernel,
    }
    counters.store(everything)


def show():
    seen, _ = measure('rdma', 'tcp')
    for transport, scene in seen.items():
        print(
            '%-5s for each MiB there and back: %8.0f instructions in user space, '
            '%9.0f with the kernel, %4.1f system calls, '
            '%.4f bytes copied for each moved, %.0f allocations a step'
            % (
                transport,
                scene['user'],
                scene['all'],
                scene['system_calls_per_mb'] * MOVED,
                scene['copied_per_byte'],
                scene['allocations_per_step'],
            )
        )
    print(
        'rdma in user space: %.3f of all of tcp, %.2f of tcp in user space'
        % (seen['rdma']['user'] / seen['tcp']['all'], seen['rdma']['user'] / seen['tcp']['user'])
    )


def main():
    if sys.argv[1:]:
        return {'--update': update, '--show': show}[sys.argv[1]]()
    try:
        seen, kernel = measure('rdma')
    except (CannotRun, AssertionError) as why:
        verdict = 'skip' if isinstance(why, CannotRun) else 'not ok'
        print('%s rdma_counters: %s' % (verdict, ' | '.join(str(why).splitlines())))
        return verdict != 'skip'
    cases = [
        ('rdma_costs_what_is_stored', costs_what_is_stored),
        ('rdma_copies_and_allocates_nothing', copies_and_allocates_nothing),
        ('rdma_instructions', instructions),
        ('rdma_instructions_are_a_tenth_of_tcp', a_tenth_of_tcp),
    ]
    skipped = {}
    if kernel != stored()['rdma']['kernel']:
        reason = 'stored for Linux %s, the guest has %s' % (stored()['rdma']['kernel'], kernel)
        skipped = dict.fromkeys(('rdma_costs_what_is_stored', 'rdma_instructions'), reason)
    if 'user' not in seen['rdma']:
        skipped.update(
            dict.fromkeys(('rdma_instructions', 'rdma_instructions_are_a_tenth_of_tcp'), 'there is no valgrind')
        )
    for name, reason in skipped.items():
        print('skip %s: %s' % (name, reason))
    return run_cases([case for case in cases if case[0] not in skipped])


if __name__ == '__main__':
    sys.exit(main())

#!/usr/bin/env python3
"""Counts the functions and files that one all-reduce of one partition runs, from trib_push_pull to the callback.

    scons variant=hops build/hops/tests/count_hops
    tools/dev/hops.py [--transport tcp|shm] [--list] [--json]

It is a record of real operations over sockets and not a graph of what may call what: tests/bench/count_hops.c. A
function counts if each of twenty operations ran it, so that timers and heartbeats do not. Inlined functions count as
well; loops over single elements (stages/kernels) and the system's libraries do not. A crossing is a call whose caller
is in another file; it is the median of the operations.
"""

import argparse
import collections
import json
import os
import statistics
import subprocess
import sys

PROGRAM = 'build/hops/tests/count_hops'
LIBRARY = ('api/', 'engine/', 'numa/', 'stages/', 'transports/')
INNER_LOOPS = ('stages/kernels/sum_', 'stages/kernels/crc32c', 'stages/kernels/copy_')
MEMBERS = ('worker', 'server')


def names_of(offsets):
    """Returns {offset from main: (file, function)}."""
    symbols = subprocess.run(['nm', PROGRAM], check=True, capture_output=True, text=True).stdout.splitlines()
    main = next(int(line.split()[0], 16) for line in symbols if line.endswith(' T main'))
    order = sorted(offsets)
    lines = subprocess.run(
        ['addr2line', '-f', '-e', PROGRAM],
        input=''.join('%x\n' % (main + o) for o in order),
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    root = os.getcwd() + '/'
    files = [os.path.normpath(line.rsplit(':', 1)[0]).replace(root, '') for line in lines[1::2]]
    return dict(zip(order, zip(files, lines[0::2])))


def record(transport):
    """Returns the calls as (operation, member, depth, offset)."""
    done = subprocess.run([PROGRAM, transport], check=True, capture_output=True, text=True, timeout=60)
    lines = done.stdout.split('\n')
    return [(int(a), member, int(b), int(c)) for a, member, b, c in (line.split() for line in lines if line)]


def count(calls, names, member):
    """Returns what each operation ran on the member, and how often control went to another file."""
    seen, crossings, above = collections.defaultdict(set), collections.Counter(), {}
    for operation, at, depth, offset in calls:
        name = names[offset]
        counts = at == member and name[0].startswith(LIBRARY) and not name[0].startswith(INNER_LOOPS)
        above[depth] = name[0] if counts else None
        if counts:
            seen[operation].add(name)
            crossings[operation] += above.get(depth - 1) not in (None, name[0])
    always = sorted(set.intersection(*seen.values()))
    return {
        'functions': len(always),
        'files': len({file for file, _ in always}),
        'crossings': statistics.median(crossings.values()),
        'names': always,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--transport', choices=('tcp', 'shm'), default='tcp')
    parser.add_argument('--list', action='store_true', help='also print the functions')
    parser.add_argument('--json', action='store_true', help='print JSON')
    options = parser.parse_args()
    if not os.path.exists(PROGRAM):
        print('tools/dev/hops.py: no %s: build it with `scons variant=hops %s`' % (PROGRAM, PROGRAM), file=sys.stderr)
        return 2
    calls = record(options.transport)
    names = names_of({offset for _, _, _, offset in calls})
    members = {member: count(calls, names, member) for member in MEMBERS}
    both = set(members['worker']['names']) | set(members['server']['names'])
    members['both'] = {
        'functions': len(both),
        'files': len({file for file, _ in both}),
        'crossings': sum(members[m]['crossings'] for m in MEMBERS),
        'names': sorted(both),
    }
    if options.json:
        print(json.dumps({'transport': options.transport, **members}, indent=1))
        return 0
    for member, counts in members.items():
        print(
            '%-7s %4d functions in %3d files, %4d crossings'
            % (member, counts['functions'], counts['files'], counts['crossings'])
        )
        if options.list:
            print(''.join('    %s %s\n' % name for name in counts['names']), end='')
    return 0


if __name__ == '__main__':
    sys.exit(main())

#!/usr/bin/env python3
"""A short soak (soak.py) of each policy: members are killed, drained, stopped, cut off and restarted at random while
every result is checked. For longer ones: tests/process/soak.py --minutes 60.

Prints `ok NAME` / `not ok NAME: why`.
"""

import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
from cases import PIPES, run_cases  # noqa: E402


def soak(policy, *options):
    """One job at least; others begin within 15 s."""
    command = [sys.executable, HERE + '/soak.py', '--policy', policy, '--changes', '5', *options, '--minutes', '0.25']
    done = subprocess.run(command, timeout=400, **PIPES)
    assert done.returncode == 0 and ' results checked' in done.stdout, done.stdout


CASES = [
    ('survives_%s' % policy, lambda p=policy, s=seed: soak(p, '--seed', s))
    for policy, seed in (('servers', '2'), ('workers', '3'), ('continue', '1'))
]


if __name__ == '__main__':
    sys.exit(run_cases(CASES))

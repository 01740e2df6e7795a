"""Shared parts of the scripts that test launchers, ours and others'."""

import os
import subprocess

BUILD = os.environ.get('TRIB_BUILD', 'build/release')
HELLO = os.path.abspath(BUILD + '/examples/hello')
TOOL = os.path.abspath(BUILD + '/tributary')
N = 3


def clean_env(**more):
    env = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(('TRIB_', 'OMPI_', 'PMI', 'SLURM_', 'DMLC_', 'BYTEPS_', 'TORCHELASTIC_'))
    }
    return dict(env, **{k: str(v) for k, v in more.items()})


def run_cases_or_skip(cases):
    """As run_cases, but a case that cannot run here returns the reason; without a function its launcher is missing."""
    failed = 0
    for name, case in cases:
        if case is None:
            print('skip %s: the launcher is not installed' % name)
            continue
        try:
            why_not = case()
            print('skip %s: %s' % (name, why_not) if why_not else 'ok ' + name, flush=True)
        except (AssertionError, subprocess.TimeoutExpired) as problem:
            failed += 1
            print('not ok %s: %s' % (name, ' | '.join(str(problem).splitlines())), flush=True)
    return 1 if failed else 0

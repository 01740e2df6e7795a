#!/usr/bin/env python3
"""Kills workers of an elastic job at random, for as long as it is asked to, while every worker checks every sum:

    python3 tests/process/elastic_soak.py --minutes 60 [--seed N] [--workers N]

Each run is a job of its own with some kills, also several at once and while the job forms. A seed gives the same
choices; what they meet depends on time. Ends with status 1 at the first wrong sum, hang or process that is left.
"""

import argparse
import os
import random
import re
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import elastic_bed  # noqa: E402


def run(seed, changes, workers):
    """Runs one job through so many changes and returns how many workers were killed."""
    draw = random.Random(seed)
    gate = os.path.join(elastic_bed.FOLDER.name, 'gate-of-soak-%d' % seed)
    job = elastic_bed.Job(
        '--elastic',
        '1:%d' % workers,
        '--host-failures',
        '0',
        '--',
        sys.executable,
        elastic_bed.WORKER,
        '1',
        '0.05',
        gate,
    )
    killed = set()
    try:
        for _ in range(changes):
            before = {pid: each[0] for pid, each in job.steps().items()}
            # A step of a job of two or more, by workers that live: one of them may go.
            job.comes_to(
                lambda now, before=before: (
                    len(now) > 1 and any(each[0] > before.get(pid, 0) for pid, each in now.items())
                ),
                'a step of two workers',
            )
            time.sleep(draw.random() ** 2)
            living = sorted(job.steps())
            if len(living) < 2:
                continue
            for pid in draw.sample(living, draw.randint(1, len(living) - 1)):
                try:
                    job.kill(pid)
                    killed.add(pid)
                except ProcessLookupError:
                    pass
        job.comes_to(lambda now: not killed & set(now), 'the end of the killed')
        job.has_size(workers)
        elastic_bed.open_gate(gate)
        output = job.end(seconds=180)
    finally:
        job.stop()
    assert 'WRONG' not in output, output[-3000:]
    totals = re.findall(r'finished after .* with total (\d+)', output)
    assert len(totals) == workers and len(set(totals)) == 1, output[-3000:]
    return len(killed)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--minutes', type=float, default=1)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--workers', type=int, default=3)
    parser.add_argument('--changes', type=int, default=5, help='of one job')
    arguments = parser.parse_args()
    end, seed, jobs, killed = time.monotonic() + 60 * arguments.minutes, arguments.seed, 0, 0
    while jobs == 0 or time.monotonic() < end:
        try:
            killed += run(seed, arguments.changes, arguments.workers)
        except AssertionError as problem:
            print('seed %d: %s' % (seed, problem))
            return 1
        jobs, seed = jobs + 1, seed + 1
    print('%d jobs, %d workers killed: every sum was right' % (jobs, killed))
    return 0


if __name__ == '__main__':
    sys.exit(main())

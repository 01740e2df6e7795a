#!/usr/bin/env python3
"""What recording a trace costs: `tributary bench` with and without it, run by run in turn, medians of all.

    python3 tests/bench/trace_cost.py                      20 pairs of 2 workers and 1 server
    python3 tests/bench/trace_cost.py --pairs 40 --sizes 64K,16M -n 3 -s 0

Of each pair it takes the ratio with / without, of the exchange's median time and of the CPU time; shown are the medians of these
ratios, and the quartiles, which say how far to trust them. A pair changes places each time: with first, without first.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def measure(args, trace):
    tool = os.path.join(ROOT, args.build, 'tributary')
    env = {k: v for k, v in os.environ.items() if not k.startswith('TRIB_')}
    if trace is not None:
        env['TRIB_TRACE'] = trace
    command = [tool, 'run', '-n', str(args.n), '-s', str(args.s), '--', tool, 'bench', '--sizes', args.sizes, '--iters', str(args.iters), '--json']
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=True, timeout=300)
    rows = json.loads(done.stdout[done.stdout.index('{'):])['rows']
    return {row['bytes']: (row['p50_us'], row['worker_cpu_s_per_gb']) for row in rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--pairs', type=int, default=20)
    parser.add_argument('--sizes', default='64K,1M')
    parser.add_argument('--iters', type=int, default=2000)
    parser.add_argument('-n', type=int, default=2)
    parser.add_argument('-s', type=int, default=1)
    parser.add_argument('--build', default='build/release')
    args = parser.parse_args()
    folder = tempfile.mkdtemp(prefix='trace_cost')
    ratios = {}
    try:
        for pair in range(args.pairs):
            both = {}
            for on in ((False, True) if pair % 2 == 0 else (True, False)):
                both[on] = measure(args, os.path.join(folder, 't') if on else None)
            for size, (time_off, cpu_off) in both[False].items():
                time_on, cpu_on = both[True][size]
                ratios.setdefault(size, []).append((time_on / time_off, cpu_on / cpu_off if cpu_off else 1.0))
            for name in os.listdir(folder):
                os.unlink(os.path.join(folder, name))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print('%12s %28s %28s' % ('bytes', 'time with / without', 'CPU with / without'))
    for size, pairs in sorted(ratios.items()):
        cells = []
        for values in zip(*pairs):
            low, middle, high = statistics.quantiles(values, n=4)
            cells.append('%7.4f (%6.4f .. %6.4f)' % (middle, low, high))
        print('%12d %28s %28s' % (size, cells[0], cells[1]))


if __name__ == '__main__':
    main()

#!/usr/bin/env python3
"""Measures the error of `tributary replay`. The program records training steps once, on hosts in network namespaces
with shaped links. Then it predicts them at other rates and with other numbers of workers and servers, and measures
those too. It needs root and iproute2.

    python3 tests/bench/replay_error.py
    python3 tests/bench/replay_error.py --model vgg16 --base 3+1@1gbit --cases 3+1@2gbit,4+0@1gbit --iters 4
    python3 tests/bench/replay_error.py --base 4+0@1gbit/2 --cases 4+0@1gbit/2:off,4+0@2gbit/2,8+0@2gbit/4

A case W+S@RATE/P has W workers, P on each host (1), and S servers on hosts of their own. With :off every worker pushes
its own tensors; with :on or :auto (the default) the workers of a host sum first.
"""

import argparse
import glob
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HOSTS = os.path.join(ROOT, 'tools/cluster/hosts')


def run(words, **more):
    env = {k: v for k, v in os.environ.items() if not k.startswith('TRIB_')}
    done = subprocess.run(
        words, env=dict(env, **more), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError('%s: %s' % (' '.join(words[:3]), done.stdout.strip()[-400:]))
    return done.stdout


def case_of(text):
    match = re.fullmatch(r'(\d+)\+(\d+)@(\w+)(?:/(\d+))?(?::(auto|on|off))?', text)
    if match is None:
        raise ValueError('"%s" is not W+S@RATE/P:WHEN' % text)
    return int(match.group(1)), int(match.group(2)), match.group(3), int(match.group(4) or 1), match.group(5) or 'auto'


def measure(args, case, **more):
    workers, servers, rate, each, local_sum = case
    name = 'replay%d' % (os.getpid() % 10000)
    tool = os.path.join(ROOT, args.build, 'tributary')
    run([HOSTS, 'up', '--name', name, '--hosts', str(workers // each + servers), '--rate', rate])
    try:
        output = run(
            [
                HOSTS,
                'job',
                '--name',
                name,
                '-n',
                str(workers),
                '-s',
                str(servers),
                '--per-host',
                str(each),
                '--build',
                os.path.join(ROOT, args.build),
                '--',
                tool,
                'step',
                '--model',
                args.model,
                '--iters',
                str(args.iters),
                '--json',
            ],
            TRIB_LOCAL_SUM=local_sum,
            **more,
        )
    finally:
        run([HOSTS, 'down', '--name', name])
    return json.loads(output[output.index('{') : output.rindex('}') + 1])['step_ms']


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--model', default='resnet50')
    parser.add_argument('--base', default='3+1@1gbit', type=case_of)
    parser.add_argument('--cases', default='3+1@500mbit,3+1@1500mbit,3+1@2gbit,3+0@1gbit,3+3@1gbit,4+2@1gbit,2+1@2gbit')
    parser.add_argument('--iters', type=int, default=6)
    parser.add_argument(
        '--repeat', type=int, default=3, help='measure each case so often, and take the median (%(default)s)'
    )
    parser.add_argument('--build', default='build/release')
    args = parser.parse_args()
    tool, folder, errors = os.path.join(ROOT, args.build, 'tributary'), tempfile.mkdtemp(prefix='replay_error'), []
    try:
        step = measure(args, args.base, TRIB_TRACE=folder + '/%r')
        traces = sorted(glob.glob(folder + '/*'))
        print('recorded %d+%d@%s/%d:%s: %.1f ms' % (*args.base, step))
        print('%-14s %12s %12s %12s %9s' % ('case', 'simulated ms', 'predicted ms', 'measured ms', 'error %'))
        for text in args.cases.split(','):
            case = case_of(text)
            said = json.loads(
                run(
                    [
                        tool,
                        'replay',
                        '--quiet',
                        '--json',
                        '-n',
                        str(case[0]),
                        '-s',
                        str(case[1]),
                        '--rate',
                        case[2],
                        '--per-machine',
                        str(case[3]),
                        '--local-sum',
                        case[4],
                        *traces,
                    ]
                )
            )
            seen = statistics.median(measure(args, case) for _ in range(args.repeat))
            expected = said['predicted']['step_ms']
            errors.append(abs(100 * (expected / seen - 1)))
            print(
                '%-14s %12.1f %12.1f %12.1f %9.2f'
                % (text, said['predicted']['simulated_ms'], expected, seen, 100 * (expected / seen - 1)),
                flush=True,
            )
    except (RuntimeError, ValueError) as error:
        print('replay_error.py: %s' % error, file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print('error: median %.2f %%, worst %.2f %% of %d' % (statistics.median(errors), max(errors), len(errors)))
    return 0


if __name__ == '__main__':
    sys.exit(main())

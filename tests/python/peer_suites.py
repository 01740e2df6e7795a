#!/usr/bin/env python3
"""Runs the tests of another library against this package, from a checkout of that library.

  tests/python/peer_suites.py horovod FOLDER [-n WORKERS] [--tests test_torch.py] [-k EXPRESSION] [--timeout SECONDS]
  tests/python/peer_suites.py byteps FOLDER --tests test_onebit.py
  tests/python/peer_suites.py torch

Each worker runs pytest with the same tests, and `import horovod` gets tributary (`tributary run --as horovod`). The
counts of the first worker are printed, and the names of what failed; the exit status is 1 if anything failed. Nothing
of the other library is part of this tree. BytePS's tests are for one worker; those of its compressors train a network
for GPUs, and get a smaller one (peer_plugin.py). PyTorch's tests of a backend of torch.distributed are in its package,
and start four processes each (torch_backend_suite.py). Needs the environment that tests/python_frameworks.py makes,
and the packages of NEEDED in it, which are installed.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import python_bed  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
NEEDED = {
    'horovod': ['pytest', 'pytest-timeout', 'mock', 'parameterized', 'packaging', 'psutil', 'cloudpickle'],
    'byteps': ['pytest', 'pytest-timeout', 'parameterized', 'numba', 'tqdm'],
    'torch': ['pytest', 'pytest-timeout', 'expecttest'],
}
TEST_TIMEOUT = 60  # seconds; ends a test that waits for a worker that has failed
# Tests that say nothing about this package, and would leave workers out of step for all that follow.
NOT_APPLICABLE = {
    'horovod': {
        'test_horovod_%s_duplicate_name_error' % kind: 'it wants the first of two operations to take a millisecond'
        for kind in ('allgather', 'allreduce', 'broadcast', 'reducescatter')
    },
    'byteps': {},
    'torch': {
        'send_recv': 'send and recv are refused with a text',
        'isend': 'send and recv are refused with a text',
        'irecv': 'send and recv are refused with a text',
        'test_monitored_barrier_gloo': "it wants gloo's words",
        'test_barrier_timeout_full_group': "it wants gloo's words",
    },
}
# BytePS's tests start a scheduler and a server themselves, by the command of its launcher.
LAUNCHER = '''#!/bin/sh
[ "$DMLC_ROLE" = scheduler ] && exec %s coordinator
exec %s server
'''
WORKER = '''
import os, subprocess, sys
names = {'RANK': 'RANK', 'SIZE': 'WORKERS', 'LOCAL_RANK': 'LOCAL_RANK', 'LOCAL_SIZE': 'LOCAL_COUNT'}
env = dict(os.environ, **{'HOROVOD_' + theirs: os.environ['TRIB_' + ours] for theirs, ours in names.items()
                          if 'TRIB_' + ours in os.environ})
rank = os.environ.get('TRIB_RANK', '0')
with open('%s/%s.log' % (sys.argv[1], rank), 'w') as log:
    sys.exit(subprocess.call([sys.executable, '-m', 'pytest', '-p', 'peer_plugin', '-p', 'no:cacheprovider', '-q',
                              '--tb=short', '--junitxml', '%s/%s.xml' % (sys.argv[1], rank),
                              '--timeout', sys.argv[2], *sys.argv[3:]], env=env, stdout=log, stderr=subprocess.STDOUT))
'''


def read_results(report, log):
    """Returns pairs of a test and how it ended, and the lines that say why some failed."""
    if not os.path.exists(report):
        with open(log, encoding='utf-8', errors='replace') as file:
            return [], file.read().splitlines()[-20:]
    results, lines = {}, {}
    for case in xml.etree.ElementTree.parse(report).iter('testcase'):
        kinds = {child.tag for child in case}
        name = case.get('name')
        kind = 'failed' if kinds & {'failure', 'error'} else 'skipped' if 'skipped' in kinds else 'passed'
        if results.get(name) != 'failed':
            results[name] = kind
        for child in case:
            if child.tag in ('failure', 'error'):
                lines.setdefault(name, (child.get('message') or '').splitlines()[:1])
    return list(results.items()), ['  %s: %s' % (name, line[:160]) for name, found in lines.items() for line in found]


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('peer', metavar='LIBRARY', choices=sorted(NEEDED))
    parser.add_argument('folder', nargs='?', help='a checkout of the library; not of PyTorch')
    parser.add_argument('-n', type=int, metavar='WORKERS', help='Horovod\'s; by default 2, and 1 for test/single')
    parser.add_argument('--framework', help='torch, tensorflow, mxnet, mxnet2; by default what the tests are for')
    parser.add_argument('--tests', help='a file of test/parallel, or of a folder of test: single/test_torch_elastic.py')
    parser.add_argument('-k', metavar='EXPRESSION', default='', help='only tests that it selects, as pytest has it')
    parser.add_argument('--timeout', type=int, default=TEST_TIMEOUT, metavar='SECONDS', help='for one test')
    arguments = parser.parse_args()
    is_horovod, is_torch = arguments.peer == 'horovod', arguments.peer == 'torch'
    if not is_torch and arguments.folder is None:
        parser.error('FOLDER is missing: a checkout of the library')
    first = {'horovod': 'test_torch.py', 'byteps': 'test_mxnet.py', 'torch': 'torch_backend_suite.py'}
    arguments.tests = arguments.tests or first[arguments.peer]
    arguments.n = arguments.n or (1 if arguments.tests.startswith('single/') else 2)
    arguments.framework = arguments.framework or next(
        (name for name in ('tensorflow', 'torch', 'mxnet2') if name in arguments.tests), 'mxnet'
    )
    return arguments, is_horovod, is_torch


def main():
    arguments, is_horovod, is_torch = read_arguments()
    left_out = NOT_APPLICABLE[arguments.peer]
    python, reason = python_bed.interpreter(arguments.framework)
    if python is None:
        print('skip %s: %s' % (arguments.peer, reason))
        return 77
    subprocess.run([python, '-m', 'pip', 'install', '-q', *NEEDED[arguments.peer]], check=True)
    with tempfile.TemporaryDirectory() as folder:
        with open(folder + '/bpslaunch', 'w', encoding='ascii') as file:
            file.write(LAUNCHER % ((python_bed.BUILD + '/tributary',) * 2))
        os.chmod(folder + '/bpslaunch', 0o755)
        tests = HERE if is_torch else arguments.folder + ('/test' if is_horovod else '/tests')
        within = 'parallel' if is_horovod and '/' not in arguments.tests else ''
        launcher = [python_bed.BUILD + '/tributary', 'run', '-n', str(arguments.n), '--as', 'horovod', '--']
        command = [
            *(launcher if is_horovod else []),
            python,
            '-c',
            WORKER,
            folder,
            str(arguments.timeout),
            os.path.join(tests, within, arguments.tests),
            '-k',
            ' and '.join(['not ' + name for name in left_out] + ['(%s)' % arguments.k] * bool(arguments.k)),
        ]
        names = {'PEER_LIBRARY': arguments.peer, 'PEER_FOLDER': tests}
        stand_in = python_bed.SOURCE + '/api/python/tributary/alias/' + arguments.peer
        path = folder + os.pathsep + os.environ['PATH']
        if arguments.peer == 'byteps':
            names.update(TRIB_CHUNK_BYTES='1M', TRIB_PARTITION_BYTES='1M')
        names['DISTRIBUTED_TESTS_DEFAULT_TIMEOUT'] = str(arguments.timeout)  # PyTorch's own
        env = python_bed.environment(HERE, stand_in, TRIB_TOKEN='token of a test', PATH=path, **names)
        subprocess.run(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        results, lines = read_results(folder + '/0.xml', folder + '/0.log')
    counts = {kind: sum(1 for _, result in results if result == kind) for kind in ('passed', 'failed', 'skipped')}
    for name, reason in left_out.items():
        print('not applicable %s: %s' % (name, reason))
    for name, kind in results:
        if kind == 'failed':
            print('failed %s' % name)
    for line in lines:
        print(line)
    print('%d passed, %d failed, %d skipped' % (counts['passed'], counts['failed'], counts['skipped']))
    return 0 if results and counts['failed'] == 0 else 1


if __name__ == '__main__':
    sys.exit(main())

#!/usr/bin/env python3
"""Runs the tests of another library against this package, from a checkout of that library.

  tests/python/peer_suites.py horovod FOLDER [-n WORKERS] [--tests test_torch.py] [-k EXPRESSION] [--timeout SECONDS]

Each worker runs pytest with the same tests, and `import horovod` gets tributary (`tributary run --as horovod`). The counts of
the first worker are printed, and the names of what failed; the exit status is 1 if anything failed. Nothing of the other
library is part of this tree. Needs the environment that tests/python_frameworks.py makes, and pytest, pytest-timeout, mock,
parameterized, packaging and psutil in it, which are installed.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import python_bed  # noqa: E402

NEEDED = ['pytest', 'pytest-timeout', 'mock', 'parameterized', 'packaging', 'psutil', 'cloudpickle']
TEST_TIMEOUT = 60  # seconds; ends a test that waits for a worker that has failed
# Tests that say nothing about this package, and would leave workers out of step for all that follow.
NOT_APPLICABLE = {
    'test_horovod_%s_duplicate_name_error' % kind: 'it wants the first of two operations to take a millisecond'
    for kind in ('allgather', 'allreduce', 'broadcast', 'reducescatter')
}
# Parts of Horovod's launcher that its tests' utilities import.
PLUGIN = '''
import os
import sys
import threading
import types


def in_thread(target, args=(), name=None, daemon=True, silent=False):
    thread = threading.Thread(target=target, args=args, daemon=daemon)
    thread.start()
    return thread


import horovod  # noqa: E402

def module(name, **contents):
    made = sys.modules['horovod.' + name] = types.ModuleType('horovod.' + name)
    made.__path__ = []
    vars(made).update(contents)


def rank_and_size():
    return int(os.environ['HOROVOD_RANK']), int(os.environ['HOROVOD_SIZE'])


def is_version_greater_equal_than(version, wanted):
    from packaging.version import parse

    return parse(version) >= parse(wanted)


def executing_eagerly():
    import tensorflow

    return tensorflow.executing_eagerly()


for name in ('runner', 'runner.util', 'runner.common', 'runner.common.util'):
    module(name)
module('runner.util.threads', in_thread=in_thread)
module('runner.common.util.env', get_env_rank_and_size=rank_and_size)
module('common.util', is_version_greater_equal_than=is_version_greater_equal_than)
module('tensorflow.util', _executing_eagerly=executing_eagerly)
if os.environ['PEER_FRAMEWORK'] == 'tensorflow':
    import tributary.tensorflow

    tributary.tensorflow._executing_eagerly = executing_eagerly
    tributary.tensorflow.util = sys.modules['horovod.tensorflow.util']
'''
WORKER = '''
import os, subprocess, sys
env = dict(os.environ, HOROVOD_RANK=os.environ['TRIB_RANK'], HOROVOD_SIZE=os.environ['TRIB_WORKERS'],
           HOROVOD_LOCAL_RANK=os.environ['TRIB_LOCAL_RANK'], HOROVOD_LOCAL_SIZE=os.environ['TRIB_LOCAL_COUNT'])
with open('%s/%s.log' % (sys.argv[1], os.environ['TRIB_RANK']), 'w') as log:
    sys.exit(subprocess.call([sys.executable, '-m', 'pytest', '-p', 'peer_plugin', '-p', 'no:cacheprovider', '-q',
                              '--tb=short', '--junitxml', '%s/%s.xml' % (sys.argv[1], os.environ['TRIB_RANK']),
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('library', choices=['horovod'])
    parser.add_argument('folder', help='a checkout of the library')
    parser.add_argument('-n', type=int, default=2, metavar='WORKERS')
    parser.add_argument('--framework', default='torch', help='torch (default), tensorflow')
    parser.add_argument('--tests', default='test_torch.py', help='a file of test/parallel')
    parser.add_argument('-k', metavar='EXPRESSION', default='', help='only tests that it selects, as pytest has it')
    parser.add_argument('--timeout', type=int, default=TEST_TIMEOUT, metavar='SECONDS', help='for one test')
    arguments = parser.parse_args()
    python, reason = python_bed.interpreter(arguments.framework)
    if python is None:
        print('skip %s: %s' % (arguments.library, reason))
        return 77
    subprocess.run([python, '-m', 'pip', 'install', '-q', *NEEDED], check=True)
    with tempfile.TemporaryDirectory() as folder:
        with open(folder + '/peer_plugin.py', 'w', encoding='ascii') as file:
            file.write(PLUGIN)
        command = [
            python_bed.BUILD + '/tributary',
            'run',
            '-n',
            str(arguments.n),
            '--as',
            arguments.library,
            '--',
            python,
            '-c',
            WORKER,
            folder,
            str(arguments.timeout),
            os.path.join(arguments.folder, 'test', 'parallel', arguments.tests),
            '-k',
            ' and '.join(['not ' + name for name in NOT_APPLICABLE] + ['(%s)' % arguments.k] * bool(arguments.k)),
        ]
        env = python_bed.environment(folder, PEER_FRAMEWORK=arguments.framework)
        subprocess.run(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        results, lines = read_results(folder + '/0.xml', folder + '/0.log')
    counts = {kind: sum(1 for _, result in results if result == kind) for kind in ('passed', 'failed', 'skipped')}
    for name, reason in NOT_APPLICABLE.items():
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

#!/usr/bin/env python3
"""Runs the tests of another library against this package, from a checkout of that library.

  tests/python/peer_suites.py horovod FOLDER [-n WORKERS] [--tests test_torch.py] [-k EXPRESSION]

Each worker runs pytest with the same tests, and `import horovod` gets tributary (`tributary run --as horovod`). The counts of
the first worker are printed, and the names of what failed; the exit status is 1 if anything failed. Nothing of the other
library is part of this tree. Needs the environment that tests/python_frameworks.py makes, and pytest, pytest-timeout, mock,
parameterized, packaging and psutil in it, which are installed.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import python_bed  # noqa: E402

NEEDED = ['pytest', 'pytest-timeout', 'mock', 'parameterized', 'packaging', 'psutil', 'cloudpickle']
TEST_TIMEOUT = 60  # seconds; a test that waits for a worker that has failed
# Parts of Horovod's launcher that its tests' utilities import.
PLUGIN = '''
import sys
import threading
import types


def in_thread(target, args=(), name=None, daemon=True, silent=False):
    thread = threading.Thread(target=target, args=args, daemon=daemon)
    thread.start()
    return thread


import horovod  # noqa: E402

for name in ('runner', 'runner.util', 'runner.util.threads', 'runner.common', 'runner.common.util'):
    module = sys.modules['horovod.' + name] = types.ModuleType('horovod.' + name)
    module.__path__ = []
sys.modules['horovod.runner.util.threads'].in_thread = in_thread
'''
WORKER = '''
import os, subprocess, sys
env = dict(os.environ, HOROVOD_RANK=os.environ['TRIB_RANK'], HOROVOD_SIZE=os.environ['TRIB_WORKERS'],
           HOROVOD_LOCAL_RANK=os.environ['TRIB_LOCAL_RANK'], HOROVOD_LOCAL_SIZE=os.environ['TRIB_LOCAL_COUNT'])
with open('%s/%s.log' % (sys.argv[1], os.environ['TRIB_RANK']), 'w') as log:
    sys.exit(subprocess.call([sys.executable, '-m', 'pytest', '-p', 'peer_plugin', '-p', 'no:cacheprovider', '-v', '--tb=short',
                              '--timeout', sys.argv[2], *sys.argv[3:]], env=env, stdout=log, stderr=subprocess.STDOUT))
'''


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('library', choices=['horovod'])
    parser.add_argument('folder', help='a checkout of the library')
    parser.add_argument('-n', type=int, default=2, metavar='WORKERS')
    parser.add_argument('--framework', default='torch', help='torch (default), tensorflow')
    parser.add_argument('--tests', default='test_torch.py', help='a file of test/parallel')
    parser.add_argument('-k', metavar='EXPRESSION', default='', help='only tests that it selects, as pytest has it')
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
            str(TEST_TIMEOUT),
            os.path.join(arguments.folder, 'test', 'parallel', arguments.tests),
            '-k',
            arguments.k,
        ]
        subprocess.run(
            command, env=python_bed.environment(folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        with open(folder + '/0.log', encoding='utf-8', errors='replace') as file:
            text = file.read()
    results = re.findall(r'::(\w+) (PASSED|FAILED|SKIPPED|ERROR)', text)
    counts = {
        kind: sum(1 for _, result in results if result == kind) for kind in ('PASSED', 'FAILED', 'SKIPPED', 'ERROR')
    }
    for name, kind in results:
        if kind in ('FAILED', 'ERROR'):
            print('%s %s' % (kind.lower(), name))
    for line in sorted(set(re.findall(r'^E   .*', text, re.M)))[:30]:
        print(line[:200])
    print(
        '%d passed, %d failed, %d skipped' % (counts['PASSED'], counts['FAILED'] + counts['ERROR'], counts['SKIPPED'])
    )
    return 1 if counts['FAILED'] + counts['ERROR'] else 0


if __name__ == '__main__':
    sys.exit(main())

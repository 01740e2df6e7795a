#!/usr/bin/env python3
"""Runs a small tools/bench/suite over the installed systems: every system takes its turns, results are checked, files
are written.

Prints `ok NAME` / `not ok NAME: why` / `skip NAME: why`.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile

BUILD = os.environ.get('TRIB_BUILD', 'build/release')
MODEL = """# a small one; forward 1 us
tensor,elements,ready_us
last.weight,70000,10.0
last.bias,3,20.5
first.weight,1,21.0
"""


def suite(folder, *arguments):
    words = [
        'tools/bench/suite',
        '--quick',
        '--turns',
        '2',
        '--no-install',
        '--build',
        BUILD,
        '--out',
        folder,
        *arguments,
    ]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=150)
    return done.returncode, done.stdout, done.stderr


def measures(folder):
    """Measures the installed default systems with two ranks, two sizes and a list of tensors."""
    model = os.path.join(folder, 'small.csv')
    with open(model, 'w') as out:
        out.write(MODEL)
    status, table, errors = suite(folder, '--scenes', 'tcp:2', '--sizes', '4K,96K', '--models', model, '--gaps', '1')
    assert status == 0, errors[-1500:]
    with open(os.path.join(folder, 'suite.json')) as lines:
        result = json.load(lines)
    (scene,) = result['scenes']
    assert [row['bytes'] for row in scene['rows']] == [4096, 98304, 4 * 70004], scene['rows']
    assert scene['systems'][0] == 'tributary' and len(scene['systems']) == 4 - len(result['missing']), scene['systems']
    for row in scene['rows']:
        for name, of in row['systems'].items():
            assert 0 < of['seconds']['q1'] <= of['seconds']['median'] <= of['seconds']['q3'] < 30, (name, of)
            assert of['ratio']['median'] > 0 and of['samples'] >= 2, (name, of)
        assert row['systems']['tributary']['ratio']['median'] == 1.0
    # Gradients that become ready over time cannot all be summed before the last one is ready.
    assert scene['rows'][2]['systems']['tributary']['seconds']['q1'] > 21e-6
    assert 'loopback TCP, 2 ranks' in table and '96 KiB' in table, table


def refuses(folder):
    """The suite rejects wrong arguments before it starts anything."""
    for words, expected in (
        (['--scenes', 'moon:2'], 'moon:2'),
        (['--systems', 'nccl'], 'nccl'),
        (['--scenes', 'tcp:1'], 'two ranks'),
        (['--sizes', '3'], 'one element'),
        (['--set', 'PATH=/'], 'TRIB_NAME'),
    ):
        status, _, errors = suite(folder, *words)
        assert status == 2 and expected in errors, (status, errors)


def tells_failures(folder):
    """A job that cannot start ends the scene with its own error text, and the status is not 0."""
    status, _, errors = suite(
        folder, '--scenes', 'tcp:2', '--sizes', '4K', '--systems', 'tributary', '--set', 'TRIB_CHUNK_BYTES=5'
    )
    assert status == 1 and 'TRIB_CHUNK_BYTES="5"' in errors, (status, errors)


def main():
    failed = 0
    for name, case in (
        ('the suite measures', measures),
        ('the suite refuses', refuses),
        ('the suite tells failures', tells_failures),
    ):
        folder = tempfile.mkdtemp(prefix='test-suite-')
        try:
            case(folder)
            print('ok ' + name)
        except (AssertionError, subprocess.TimeoutExpired, OSError, ValueError, KeyError) as why:
            failed += 1
            print('not ok %s: %s' % (name, str(why).replace('\n', ' ')[-1500:]))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())

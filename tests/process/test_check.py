#!/usr/bin/env python3
"""Runs tools/check, mostly with --quick, in a temporary tree with its own test programs, and checks the summary at the
end.

Prints `ok NAME` / `not ok NAME: why`.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, 'w') as out:
        out.write(text)
    os.chmod(path, 0o755)


def prepare(folder, programs, scons='exit 0'):
    """Returns the environment of a check. `scons` is a shell script in place of the build, and `programs` are the built
    files and scripts."""
    for path in ('tools/check', 'tools/scons/run_tests.py'):
        os.makedirs(os.path.join(folder, os.path.dirname(path)), exist_ok=True)
        shutil.copy(os.path.join(ROOT, path), os.path.join(folder, path))
    write(os.path.join(folder, 'tools/install-deps'), '#!/bin/sh\n')
    write(os.path.join(folder, 'bin/scons'), '#!/bin/sh\n' + scons)
    for name, text in programs.items():
        write(os.path.join(folder, name), text)
    return dict(os.environ, PATH=os.path.join(folder, 'bin') + ':' + os.environ['PATH'])


def check(folder, programs, scons='exit 0', words=('--quick',)):
    """Returns the status and output lines of a check; the rest is as of prepare()."""
    env = prepare(folder, programs, scons)
    done = subprocess.run(
        [os.path.join(folder, 'tools/check'), *words], env=env, stdout=subprocess.PIPE, text=True, timeout=300
    )
    return done.returncode, done.stdout.splitlines()


def program(lines, status):
    return '#!/bin/sh\ncat <<END\n' + lines + 'END\nexit %d\n' % status


def what_failed_stands_at_the_end(folder):
    status, lines = check(
        folder,
        {
            'build/release/tests/test_bad': program('1..2\nok 1 - whole\nnot ok 2 - broken\n', 1),
            'build/release/tests/test_dies': program('1..2\nok 1 - whole\n', 9),
            'build/release/tests/test_good': program('1..1\nok 1 - FAILED: no\n', 0),
            'tests/process/test_script.py': 'print("ok one")\nprint("not ok two: it is cold")\n',
        },
        'echo cannot build; exit 2',
    )
    assert status == 1, status
    assert lines[-5:] == [
        'FAILED: build: release, gcc',
        'FAILED: test_bad: broken (in tests: release)',
        'FAILED: test_dies: test_dies (exit status 9) (in tests: release)',
        'FAILED: test_script.py: two (it is cold) (in tests: release)',
        '4 passed, 4 failed, 0 skipped',
    ], lines[-6:]
    assert not lines[-6].startswith('FAILED'), lines[-6:]


def steps_behind_others_count(folder):
    """Each step that runs behind tests passes, fails or is skipped by itself."""
    status, lines = check(
        folder,
        {
            'build/release/tests/test_good': program('1..1\nok 1 - whole\n', 0),
            'build/asan/tests/test_bad': program('1..1\nnot ok 1 - broken\n', 1),
            'build/tsan/tests/test_good': program('1..1\nok 1 - whole\n', 0),
            'tests/rdma/test_guest.py': 'print("ok guest")\n',
            'tests/unit/codec/golden_codecs.py': '',
            'tools/dev/apidoc.py': '',
            'tools/dev/settingsdoc.py': '',
            'tools/dev/pyabi.py': 'raise SystemExit("api/python is old")\n',
            'tools/dev/format': program('no clang-format here\n', 77),
            'tools/dev/fuzz': program('ok fuzz_wire\n1 passed, 0 failed, 0 skipped\n', 0),
            'tools/dev/tidy': program('', 0),
            'tools/lint': program('api/x.c: too long\n', 1),
        },
        'exit 1',
        words=(),
    )
    failed = [line[len('FAILED: ') :] for line in lines if line.startswith('FAILED: ')]
    assert failed == [
        'build: release, gcc',
        'build: address and undefined-behaviour sanitizers',
        'build: thread sanitizer',
        'install into an empty root',
        'install into a prefix that is relative, and remove that',
        'install into a prefix with a space',
        'tests that are gone do not stay in the build',
        'a tarball that runs where it is unpacked',
        'test_bad: broken (in tests: asan)',
        'documentation is up to date',
        'layers and house rules',
    ], lines
    assert 'api/python is old' in lines and 'api/x.c: too long' in lines, lines
    assert '   skipped: no clang-format here' in lines, lines
    table = lines[[line.startswith('== where the time went') for line in lines].index(True) + 1 :]
    stages = {line[:59].strip(): line[59:].split() for line in table if line.startswith('   ')}
    assert len(stages) == 22 and all(len(figures) == 3 for figures in stages.values()), table
    assert stages['tests: RDMA'][2] == '1' and stages['in all'][2] == '20', table
    # Three programs, a script, the fuzz targets, the options, the golden chunks and clang-tidy.
    assert status == 1 and lines[-1] == '8 passed, 11 failed, 1 skipped', lines


def read_all(pipe, least=None):
    """Returns what comes until all writers have ended, or until that many bytes are there."""
    text = b''
    while least is None or len(text) < least:
        assert select.select([pipe], [], [], 120)[0], 'a process goes on; so far: %r' % text
        part = os.read(pipe, 4096)
        if not part:
            break
        text += part
    return text


def nothing_outlives_an_interrupted_check(folder):
    """It is interrupted while a program is tested in front of an install, each with a child of its own."""
    os.mkfifo(os.path.join(folder, 'alive'))
    waits = 'exec 3>alive; echo %s >&3; sleep 1000; echo went on >&3\n'
    good = program('1..1\nok 1 - whole\n', 0)
    programs = {'build/%s/tests/test_good' % variant: good for variant in ('release', 'asan')}
    programs.update({'build/tsan/tests/test_waits': '#!/bin/sh\n' + waits % 'tests', 'tools/dev/tidy': good})
    env = prepare(folder, programs, 'test "$2" != install || { ' + waits % 'built' + '}\n')
    os.mkdir(os.path.join(folder, 'tmp'))
    env['TMPDIR'] = os.path.join(folder, 'tmp')
    with subprocess.Popen([os.path.join(folder, 'tools/check')], env=env, stdout=subprocess.DEVNULL) as running:
        alive = os.open(os.path.join(folder, 'alive'), os.O_RDONLY | os.O_NONBLOCK)
        try:
            assert sorted(read_all(alive, len('tests\nbuilt\n')).split()) == [b'built', b'tests']
            running.send_signal(signal.SIGTERM)
            assert read_all(alive) == b''
            assert running.wait(120) != 0
            assert os.listdir(env['TMPDIR']) == [], os.listdir(env['TMPDIR'])
        finally:
            running.kill()
            os.close(alive)


def a_program_is_done_when_it_has_ended(folder):
    """What it started in a session of its own, and has its output, does not hold up the tests."""
    leaves = 'import subprocess\nleft = subprocess.Popen(["sleep", "1000"], start_new_session=True)\n'
    leaves += 'with open("left", "w") as out:\n    out.write(str(left.pid))\nprint("ok one")\n'
    try:
        status, lines = check(folder, {'tests/process/test_leaves.py': leaves})
        assert status == 0 and lines[-1] == '2 passed, 0 failed, 0 skipped', lines
    finally:
        with open(os.path.join(folder, 'left')) as left:
            os.kill(int(left.read()), signal.SIGKILL)


def arguments_are_looked_at(folder):
    """Unknown arguments and --help run nothing."""
    for tool, words, status, text in (
        ('check', ['--quik'], 2, "not '--quik'"),
        ('check', ['--quick', 'x'], 2, "not '--quick x'"),
        ('check', ['--help'], 0, 'tools/check [--quick|--long]'),
        ('install-deps', ['--test'], 2, "not '--test'"),
        ('install-deps', ['--help'], 0, 'tools/install-deps [--tests|--bench]'),
        ('quickstart', ['--epochs', '3', 'x'], 2, 'unknown option x'),
        ('quickstart', ['--epochs'], 2, 'needs a value'),
        ('quickstart', ['--epochs=3'], 2, 'unknown option --epochs=3'),
        ('quickstart', ['--help'], 0, 'tools/quickstart [--epochs N]'),
        ('lint', ['api/config/config.c'], 2, 'Usage: tools/lint'),
    ):
        done = subprocess.run(
            [os.path.join(ROOT, 'tools', tool)] + words,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            cwd=folder,
        )
        assert done.returncode == status and text in done.stdout and '==' not in done.stdout, (tool, words, done)


def all_is_well(folder):
    status, lines = check(folder, {'build/release/tests/test_good': program('1..1\nok 1 - whole\n', 0)})
    assert status == 0 and lines[-1] == '2 passed, 0 failed, 0 skipped', lines
    assert not [line for line in lines if 'FAILED' in line], lines


def what_is_skipped_says_why(folder):
    status, lines = check(
        folder,
        {
            'build/release/tests/test_some': program(
                '1..3\n# too cold\nnot ok 1 # SKIP one\nok 2 - two\nnot ok 3 # SKIP three\n', 0
            )
        },
    )
    assert status == 0 and lines[-1] == '2 passed, 0 failed, 2 skipped', lines
    assert '  skipped one: too cold' in lines and '  skipped three: no reason given' in lines, lines


def main():
    failed = 0
    for case in (
        what_failed_stands_at_the_end,
        steps_behind_others_count,
        nothing_outlives_an_interrupted_check,
        a_program_is_done_when_it_has_ended,
        arguments_are_looked_at,
        all_is_well,
        what_is_skipped_says_why,
    ):
        with tempfile.TemporaryDirectory() as folder:
            try:
                case(folder)
                print('ok ' + case.__name__)
            except (AssertionError, OSError, subprocess.SubprocessError) as why:
                print('not ok %s: %s' % (case.__name__, str(why).replace('\n', ' ')))
                failed += 1
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())

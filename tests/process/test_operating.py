#!/usr/bin/env python3
"""What operators of jobs rely on: no process is left behind, outputs stay apart, an unwritten result is a failure, and
the log reports each problem once, and in time. Prints `ok NAME` / `not ok NAME: why`.
"""

import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import alive, comes_true, run_cases  # noqa: E402
from ports import free_port  # noqa: E402

BUILD = os.environ.get('TRIB_BUILD', 'build/release')
TOOL, HELLO = BUILD + '/tributary', BUILD + '/examples/hello'
UTC = r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z'
PIPES = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors='replace')


def environment(**more):
    return dict({k: v for k, v in os.environ.items() if not k.startswith('TRIB_')}, **more)


def tool(*words, **settings):
    return subprocess.run([TOOL] + list(words), timeout=60, check=False, **{**PIPES, 'env': environment(), **settings})


def streams_apart():
    done = tool('run', '-n', '3', '--tag-output', '--', 'sh', '-c', 'echo out; echo err >&2')
    assert sorted(done.stdout.split('\n')) == [''] + ['[rank %d] out' % i for i in range(3)], done.stdout
    assert sorted(done.stderr.split('\n')) == [''] + ['[rank %d] err' % i for i in range(3)], done.stderr


LONG_LINES = """
import os, random, sys
rank = int(os.environ['TRIB_RANK'])
line = bytes(byte for byte in random.Random(rank).randbytes(300000) if byte != 10)
for first in range(0, len(line), 5000):
    os.write(1, line[first:first + 5000])
os.write(1, b'\\n\\n' + b'a\\0b\\n' + b'not finished')
"""


def every_byte_through():
    """Long lines, empty ones, lines with a NUL and without an end: one prefix each, and every byte."""
    done = tool('run', '-n', '2', '--tag-output', '--', sys.executable, '-c', LONG_LINES, text=False, errors=None)
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        line = bytes(byte for byte in random.Random(rank).randbytes(300000) if byte != 10)
        tag = b'[rank %d] ' % rank
        its = [text for text in done.stdout.split(b'\n') if text.startswith(tag)]
        assert its == [tag + line, tag, tag + b'a\0b', tag + b'not finished'], [text[:40] for text in its]
    assert done.stdout.count(b'\n') == 8, done.stdout.count(b'\n')


def statuses_of_servers():
    """Like mistakes have like statuses: 2 for an option or a setting, whoever finds it; 1 for a job that fails."""

    def status(*words, **settings):
        return subprocess.run([TOOL, *words], env=environment(**settings), timeout=60, check=False, **PIPES).returncode

    port = free_port()
    for command in ('server', 'coordinator'):
        here = dict(TRIB_WORKERS='1', TRIB_SERVERS='1', TRIB_COORDINATOR='127.0.0.1:%d' % port)
        assert status(command, '--nonsense') == 2
        assert status(command, **dict(here, TRIB_REACTORS='many')) == 2
        assert status(command, **dict(here, TRIB_REACTORS='17')) == 2
        assert status(command, **dict(here, TRIB_CHUNK_BYTES='5000')) == 2
        assert status(command, **dict(here, TRIB_COORDINATOR='127.0.0.1:0')) == 2
        assert status(command, **dict(here, TRIB_COORDINATOR='192.0.2.1:5')) == 2  # no token
        assert status(command, **dict(here, TRIB_LISTEN='localhost')) == 2
        assert status(command, **dict(here, TRIB_JOIN_TIMEOUT='0.2')) == 1


def left_behind_is_ended():
    """A worker's child that outlives it and holds its output open neither outlives the job nor delays run."""
    mark = 'MARK_OF_A_TEST=left%d' % os.getpid()
    done = tool('run', '-n', '2', '--', 'env', mark, 'sh', '-c', 'sleep 3000 & exit 0')
    assert done.returncode == 0 and re.search(
        r'2 processes that the workers have started are still there: .*sleep \(\d+\)', done.stderr
    ), done
    assert comes_true(lambda: not alive(mark)), 'still there: %s' % alive(mark)


def full_disk():
    with open('/dev/full', 'w') as full:
        for words in (['info'], ['info', '--json'], ['bench', '--sizes', '4K', '--iters', '2', '--json']):
            done = tool(*words, stdout=full)
            assert done.returncode == 1 and 'No space left' in done.stderr, (words, done)
        # The output of other processes counts too, even though run has made many system calls by its end.
        done = tool('run', '-n', '3', '--', 'sh', '-c', 'echo lost; sleep 0.3', stdout=full)
        assert done.returncode == 1 and done.stderr.count('No space left') == 1 and 'No child' not in done.stderr, done


def options_are_named():
    for words, wants in (
        (['bench', '--iters', '0'], '--iters 0: must be a number from 1 to'),
        (['bench', '--sizes', '4K,,8K'], '--sizes 4K,,8K: must be'),
        (['bench', '--sizes', '4K,'], '--sizes 4K,: must be'),
        (['bench', '-n', '0'], 'tributary bench: -n 0: must be a number from 1 to 256 (tributary bench --help)'),
        (['bench', '-n', '2', '-s', '-1'], 'tributary bench: -s -1: must be'),
        (['bench', '--op', 'none'], '--op none: must be push_pull, all_reduce, broadcast'),
        (['replay', '--priorities', '--no-priorities', 'file'], '--no-priorities excludes --priorities'),
        (['bench', '-s', '2'], 'tributary bench: -s 2: goes with -n'),
        (['run', '--reactors', '17', '--', 'true'], '--reactors 17: must be a number from 0 to 16'),
        (['run', '--colocate', 'no', '--', 'true'], '--colocate no: must be auto, off or on'),
        (['run', '--log', 'loud', '--', 'true'], '--log loud: must be none, error'),
        (['run', '--host', '0.0.0.0', '--', 'true'], '--host 0.0.0.0: must be an IPv4 address of this machine'),
        (['run', '-n', '2', '--', ''], 'which program? Put it after --'),
        (['bench', 'stray'], 'unexpected "stray"'),
        (['sim', 'stray'], 'unexpected "stray"'),
        (['info', '--json', 'stray'], 'unexpected "stray"'),
        (['sim', '--partition', '1.5M', '--chunk', '1M'], 'a partition a multiple of it'),
        (['step', '--iters', '0'], '--iters 0: must be'),
        (['sim', '--rate', '0'], '--rate 0: must be a rate from 1kbit to 100000gbit'),
        (['sim', '-n', '1.5'], '-n 1.5: must be a whole number from 1 to 2048'),
        (['sim', '--chunk', '2M'], '--chunk 2M: must be a size in bytes from 4K to 1M'),
        (['sim', '--latency', '5'], '--latency 5: must be a time from 0s to 1000000s'),
        (['sim', '--skew', '5'], '--skew 5: must be a time from 0s to 1000000s'),
        (['sim', '--local-sum', 'no'], '--local-sum no: must be auto, off or on'),
        (['sim', '--costs', 'udp'], '--costs udp: must be tcp or rdma'),
        (['sim', '--seed', 'x'], '--seed x: must be a whole number from 0 to'),
        (['sim', '--nonsense'], "tributary sim: unrecognized option '--nonsense'"),
        (['bench', '--iters'], "tributary bench: option '--iters' requires an argument"),
        (['tune', '--live', 'file'], "tributary tune: unrecognized option '--live'"),
        (['sim', '-n', '8', '--per-machine', '3'], '--per-machine 3: 8 workers (-n) cannot be 3 on each machine'),
        (['sim', '-n', '4', '--per-machine', '8'], '4 workers (-n) cannot be 8 on each machine'),
        (['sim', '--trace', '/nonexistent/folder'], '--trace /nonexistent/folder: No such file'),
        (['replay', '--iters', 'x', 'file'], '--iters x: must be a number from 1 to 200'),
    ):
        done = tool(*words)
        assert done.returncode == 2 and wants in done.stderr, (words, done)


def few_descriptors():
    """run reports its own lack of descriptors, with a limit that is enough."""
    command = 'ulimit -n %d; exec ' + TOOL + ' run -n 20 -s 1 -- true'
    done = subprocess.run(['sh', '-c', command % 24], env=environment(), timeout=60, check=False, **PIPES)
    found = re.search(
        r'Too many open files: 21 processes need (\d+), this one may have 24; raise it: ulimit -n \1', done.stderr
    )
    assert done.returncode == 1 and found and int(found.group(1)) <= 60, done
    done = subprocess.run(
        ['sh', '-c', command % int(found.group(1))], env=environment(), timeout=60, check=False, **PIPES
    )
    assert 'Too many open files' not in done.stderr, done


def models_that_cannot_be():
    """A command reports what it cannot read or print, and fails."""
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(folder + '/folder.csv')
        with open(folder + '/latin.csv', 'w', encoding='latin-1') as out:
            out.write(
                '# m\xe9: made up; forward 1 us, backward 1 us, optimizer 1 us\ntensor,elements,ready_us\na,1000,1\n'
            )
        for words, status, said in (
            (['sim', '--model', folder + '/folder.csv'], 1, 'Is a directory'),
            (['sim', '--model', folder + '/none.csv'], 1, 'No such file'),
            (['sim', '--model', folder + '/latin.csv', '-n', '2', '--iters', '1', '--quiet'], 0, ''),
            (['sim', '--model', folder + '/latin.csv', '-n', '2', '--iters', '1', '--json', '--quiet'], 1, 'not UTF-8'),
        ):
            done = tool(*words)
            assert done.returncode == status and said in done.stderr, (words, done)


def manual_pages():
    """Each command has a manual page with all of its help, and troff finds no fault with it."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, 'tools/dev/manpages.py', TOOL, folder], check=True, timeout=60)
        commands = re.findall(r'^  (\w+) ', tool('--help').stdout, re.MULTILINE)
        assert 'run' in commands and sorted(os.listdir(folder)) == sorted(
            ['tributary.1', 'tributary-environment.7'] + ['tributary-%s.1' % c for c in commands]
        )
        with open(os.path.join(folder, 'tributary-environment.7'), encoding='utf-8') as page:
            said = page.read().replace('\\-', '-')
        with open('docs/operating.md', encoding='utf-8') as page:
            variables = re.findall(
                r'^\| `(TRIB_\w+)`', page.read().split('\n## Variables\n')[1].split('\n### ')[0], re.MULTILINE
            )
        assert len(variables) > 30 and all('.B %s' % name in said for name in variables), said
        for command in commands:
            path = os.path.join(folder, 'tributary-%s.1' % command)
            with open(path) as page:
                text = page.read().replace('\\-', '-')
            missing = [line for line in tool(command, '--help').stdout.splitlines()[1:] if line.strip() not in text]
            assert not missing, (command, missing)
            if shutil.which('groff'):
                done = subprocess.run(['groff', '-man', '-Tutf8', '-ww', '-z', path], timeout=60, check=False, **PIPES)
                assert done.returncode == 0 and not done.stderr, (command, done)


def tarball_has_what_its_readme_says():
    """The first commands of the tarball's README run in it, from any folder, without the source tree."""
    sys.path.insert(0, 'tools/scons')
    import dist

    version = tool('--version').stdout.split()[1]
    with tempfile.TemporaryDirectory() as folder:
        build, root = folder + '/build', folder + '/unpacked'
        os.makedirs(build + '/dist')
        for name in ('tributary', 'examples', 'libtributary.so.' + version):
            os.symlink(os.path.abspath(os.path.join(BUILD, name)), os.path.join(build, name))
        os.symlink('../libtributary.so.' + version, build + '/dist/libtributary.so.' + version)
        subprocess.run([sys.executable, 'tools/dev/manpages.py', TOOL, build + '/man'], check=True, timeout=60)
        dist.fill(build, root, version)
        with open(root + '/README.md', encoding='utf-8') as readme:
            commands = re.findall(r'^    (bin/\S.*?)(?: +#.*)?$', readme.read(), re.MULTILINE)
        assert [command.split()[1] for command in commands] == ['run', 'bench', 'sim'], commands
        for command, more in zip(commands, ('--epochs 30', '--sizes 4K --iters 2', '--iters 1 --quiet')):
            done = subprocess.run(
                ('%s %s' % (command, more)).split(), cwd=root, env=environment(), timeout=120, check=False, **PIPES
            )
            assert done.returncode == 0, (command, done)
        there = sorted(
            os.path.relpath(os.path.join(at, name), root) for at, _, names in os.walk(root) for name in names
        )
        for wanted in (
            'share/man/man1/tributary-run.1',
            'share/man/man7/tributary-environment.7',
            'share/tributary/models/resnet50.csv',
            'examples/digits/digits.c',
            'examples/digits/digits.csv',
            'LICENSE',
            'docs/operating.md',
        ):
            assert wanted in there, (wanted, there)


def refused_is_remembered():
    """The last error text names the member that was rejected. A program may print no other text."""
    env = environment(TRIB_COORDINATOR='127.0.0.1:%d' % free_port(), TRIB_JOIN_TIMEOUT='3', TRIB_LOG='error')
    children = [
        subprocess.Popen([HELLO], env=dict(env, TRIB_RANK=str(rank), TRIB_WORKERS=str(2 + rank)), **PIPES)
        for rank in (0, 1)
    ]
    outputs = [child.communicate(timeout=60)[1] for child in children]
    assert all(child.returncode == 1 for child in children), outputs
    wanted = r'missing rank 1; refused was .*: rank 1 \(\S+\) expects 3 workers and 0 servers, the coordinator 2 and 0'
    assert re.search(wanted, outputs[0]), outputs[0]


def loopback_by_name():
    """A machine's own name may stand for 127.0.1.1 (Debian) or 127.0.0.1. The error text says why no member joined."""
    odd = ': see its name in /etc/hosts'
    for host, more in (('127.0.1.1', odd), ('127.0.0.1', ''), ('localhost', ''), ('[::1]', '')):
        env = environment(
            TRIB_COORDINATOR='%s:%d' % (host, free_port()),
            TRIB_TOKEN='of this test',
            TRIB_JOIN_TIMEOUT='1',
            TRIB_WORKERS='2',
            TRIB_RANK='0',
        )
        done = subprocess.run([HELLO], env=env, timeout=60, check=False, **PIPES)
        assert done.returncode == 1 and 'where no other machine reaches it' + more in done.stderr, done


def waiting_is_told():
    """Long before the join timeout the log names the missing members, or an unreachable coordinator."""
    env = environment(TRIB_JOIN_TIMEOUT='11', TRIB_WORKERS='2')
    pairs = [(rank, dict(env, TRIB_RANK=rank, TRIB_COORDINATOR='127.0.0.1:%d' % free_port())) for rank in ('0', '1')]
    children = [subprocess.Popen([HELLO], env=its, **PIPES) for _, its in pairs]
    outputs = [child.communicate(timeout=60)[1] for child in children]
    line = r'^%s warn  tributary rank 0: still missing rank 1; the job waits until 11 s have passed' % UTC
    assert re.search(line, outputs[0], re.MULTILINE), outputs[0]
    assert 'is not reached yet (Connection refused); it is tried until 11 s' in outputs[1], outputs[1]


def strangers_do_not_fill_the_log():
    port = free_port()
    env = environment(TRIB_COORDINATOR='127.0.0.1:%d' % port, TRIB_WORKERS='2', TRIB_REACTORS='1')
    child = subprocess.Popen([HELLO], env=dict(env, TRIB_RANK='0'), **PIPES)
    came = 0
    deadline = time.monotonic() + 50  # the limit on lines is for a minute
    try:
        while came < 60 and time.monotonic() < deadline and child.poll() is None:
            try:
                with socket.create_connection(('127.0.0.1', port), timeout=5) as stranger:
                    stranger.sendall(b'SSH-2.0-other\r\n' + bytes(96))
                    stranger.settimeout(5)
                    while stranger.recv(4096):
                        pass
                came += 1
            except ConnectionResetError:
                came += 1
            except OSError:
                time.sleep(0.05)
        last = subprocess.run([HELLO], env=dict(env, TRIB_RANK='1', TRIB_JOIN_TIMEOUT='30'), timeout=60, **PIPES)
        output = child.communicate(timeout=60)[1]
        assert last.returncode == 0, (last.stderr, output)
    finally:
        child.kill()
        child.wait()
    lines = re.findall('turned away 127', output)
    more = re.search(r'turned away (\d+) more', output)
    assert came == 60 and len(lines) == 5 and more and int(more.group(1)) == came - 5, (came, len(lines), output[-800:])


def probes_are_quiet():
    """A load balancer asks all the time whether the port answers: one line at level info, and the job forms."""
    port = free_port()
    env = environment(TRIB_COORDINATOR='127.0.0.1:%d' % port, TRIB_JOIN_TIMEOUT='60', TRIB_WORKERS='2', TRIB_LOG='info')
    first = subprocess.Popen([HELLO], env=dict(env, TRIB_RANK='0'), **PIPES)
    try:

        def connects():
            try:
                with socket.create_connection(('127.0.0.1', port), timeout=5):
                    return True
            except OSError:
                return False

        assert comes_true(connects)
        for request in [b''] * 10 + [
            b'GET /health HTTP/1.1\r\n\r\n',
            b'HEAD / HTTP/1.0\r\n' + b'Accept: */*\r\n' * 20,
        ] * 10:
            with socket.create_connection(('127.0.0.1', port), timeout=5) as probe:
                probe.sendall(request)
        second = subprocess.run([HELLO], env=dict(env, TRIB_RANK='1'), timeout=60, check=False, **PIPES)
        output = first.communicate(timeout=60)[1]
    finally:
        first.kill()
        first.wait()
    assert first.returncode == 0 and second.returncode == 0, (output, second)
    assert output.count('probes this port') == 1 and 'turned away' not in output and ' warn ' not in output, output


def described_for_programs():
    """Limits are numbers with their units, and what is unlimited says so; no value is a sentence."""
    limited = ['sh', '-c', 'ulimit -n 300; ulimit -l 64; exec "$@"', 'sh', TOOL, 'info']
    said = json.loads(subprocess.run(limited + ['--json'], env=environment(), timeout=60, check=True, **PIPES).stdout)
    assert said['limits']['open_files'] == {
        'unit': 'files',
        'value': 300,
        'unlimited': False,
        'wanted': 4096,
        'enough': False,
    }, said['limits']
    assert said['limits']['locked_memory'] == {
        'unit': 'bytes',
        'value': 65536,
        'unlimited': False,
        'wanted': 1 << 30,
        'enough': False,
    }, said['limits']
    assert isinstance(said['shared_memory']['peers_read_in_place'], bool) and said['transport'] == 'auto', said
    wrong = json.loads(tool('info', '--json', env=environment(TRIB_REACTORS='many')).stdout)
    assert wrong['transport'] is None, wrong['transport']
    assert wrong['settings'] is None and 'TRIB_REACTORS="many"' in wrong['settings_error'], wrong

    def texts(value):
        return (
            [value]
            if isinstance(value, str)
            else sum(map(texts, value.values() if isinstance(value, dict) else value), [])
            if isinstance(value, (dict, list))
            else []
        )

    assert not [text for text in texts(said) if ': ' in text or ';' in text], texts(said)
    people = subprocess.run(limited, env=environment(), timeout=60, check=True, **PIPES).stdout
    assert 'ulimit -n' in people and 'ulimit -l' in people, people


def settings_are_listed():
    """Each setting with its value and where that is from; a token is never shown, and any text stays JSON."""
    env = environment(
        OMPI_COMM_WORLD_RANK='1',
        OMPI_COMM_WORLD_SIZE='2',
        OMPI_COMM_WORLD_LOCAL_SIZE='2',
        TRIB_TOKEN='a secret of many bytes',
        TRIB_TRACE='/a"b\\c\n\xe4',
    )
    output = tool('info', '--json', env=env).stdout
    settings = json.loads(output)['settings']
    assert settings['TRIB_RANK'] == {'value': '1', 'number': 1, 'from': 'launcher'}, settings['TRIB_RANK']
    for name, value, number, unit in (
        ('TRIB_CHUNK_BYTES', '256K', 1 << 18, 'bytes'),
        ('TRIB_CODEC_MIN_BYTES', '64K', 1 << 16, 'bytes'),
        ('TRIB_PEER_TIMEOUT', '10s', 10**10, 'ns'),
        ('TRIB_BANDWIDTH', '0bit', 0, 'bit/s'),
    ):
        assert settings[name] == {'value': value, 'number': number, 'unit': unit, 'from': 'default'}, settings[name]
    assert settings['TRIB_TRACE'] == {'value': '/a"b\\c\n??', 'from': 'environment'}, settings['TRIB_TRACE']
    assert settings['TRIB_TOKEN']['value'] == 'set' and 'secret' not in output, output
    assert re.search(r'TRIB_RANK +1   \(launcher\)', tool('info', env=env).stdout)


def simulation_says_its_assumptions():
    """Options that were not given have values, too, on which the times depend."""
    with tempfile.NamedTemporaryFile('w', suffix='.csv') as model:
        model.write(
            '# tiny: made up; forward 400 us, backward 600 us, optimizer 100 us\ntensor,elements,ready_us\na,3000,500\n'
        )
        model.flush()
        words = ['sim', '--model', model.name, '-n', '2', '--latency', '20us', '--quiet']
        assumed = json.loads(tool(*words, '--json').stdout)['assumptions']
        text = tool(*words).stdout
        apart = json.loads(tool(*words, '--skew', '3ms', '--json').stdout)
    assert (apart['assumptions']['skew_ns'], round(apart['compute_ms'], 3)) == (3000000, 4.1), apart
    assert (assumed['latency_ns'], assumed['cores'], assumed['costs'], assumed['loss']) == (20000, 4, 'tcp', 0), assumed
    for part in ('assumed: ', '20 us to the switch', '4 cores a machine', 'no loss', 'forward 0.40 ms'):
        assert part in text, text


CASES = [
    ('streams_apart', streams_apart),
    ('every_byte_through', every_byte_through),
    ('statuses_of_servers', statuses_of_servers),
    ('left_behind_is_ended', left_behind_is_ended),
    ('full_disk', full_disk),
    ('manual_pages', manual_pages),
    ('tarball_has_what_its_readme_says', tarball_has_what_its_readme_says),
    ('options_are_named', options_are_named),
    ('few_descriptors', few_descriptors),
    ('models_that_cannot_be', models_that_cannot_be),
    ('refused_is_remembered', refused_is_remembered),
    ('loopback_by_name', loopback_by_name),
    ('waiting_is_told', waiting_is_told),
    ('strangers_do_not_fill_the_log', strangers_do_not_fill_the_log),
    ('probes_are_quiet', probes_are_quiet),
    ('described_for_programs', described_for_programs),
    ('settings_are_listed', settings_are_listed),
    ('simulation_says_its_assumptions', simulation_says_its_assumptions),
]


if __name__ == '__main__':
    sys.exit(run_cases(CASES))

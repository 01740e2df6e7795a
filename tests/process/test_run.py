#!/usr/bin/env python3
"""`tributary run` and `bench -n`: exit statuses, servers that end early or late, the cores that ranks may use.

Prints `ok NAME` / `not ok NAME: why` / `skip NAME: why`.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import PIPES, alive, comes_true, read_until  # noqa: E402
from ports import free_port  # noqa: E402
from launch_bed import HELLO, N, TOOL, BUILD, clean_env, run_cases_or_skip  # noqa: E402


def run_passes_status():
    done = subprocess.run(
        [TOOL, 'run', '-n', '2', '--', 'sh', '-c', 'exit $((TRIB_RANK * 7))'], env=clean_env(), timeout=30, **PIPES
    )
    assert done.returncode == 7, 'status %d: %s' % (done.returncode, done.stdout)


def run(options, *program, **more):
    """Returns exit status and output of `tributary run`."""
    done = subprocess.run(
        [TOOL, 'run'] + options.split() + ['--'] + list(program), env=clean_env(**more), timeout=60, **PIPES
    )
    return done.returncode, done.stdout


def run_ends_servers():
    """run ends servers that outlive the workers. Servers that end with their job need no help."""
    status, output = run('-n 2 -s 1', '/nonexistent')
    assert status == 127 and '1 process is still there 1 s after the last worker: ending it' in output, (status, output)
    status, output = run('-n 2 -s 2', '/bin/false')
    assert status == 1 and '2 processes are still there 1 s after the last worker: ending them' in output, (
        status,
        output,
    )
    status, output = run('-n 2 -s 2', HELLO)
    assert status == 0 and 'tributary run:' not in output, (status, output)


def run_hints_at_python():
    """A script that is there and cannot be started: PATH does not lead to it, or it may not run."""
    with tempfile.TemporaryDirectory() as folder:
        script = os.path.join(folder, 'hello.py')
        with open(script, 'w') as file:
            file.write('pass\n')
        for mode, name in (0o644, 'hello.py'), (0o644, './hello.py'), (0o644, script), (0o755, 'none.py'):
            os.chmod(script, mode)
            done = subprocess.run(
                [os.path.abspath(TOOL), 'run', '-n', '1', name], cwd=folder, env=clean_env(), timeout=60, **PIPES
            )
            hint = '; put python3 before the script\n'
            assert done.returncode == 127 and (hint in done.stdout) == (name != 'none.py'), (name, done.stdout)


def run_forgives_servers():
    """Errors of servers after their workers ended with status 0 are only a warning. Earlier errors count."""
    warning = 'warning: every worker ended with status 0, but not the job'
    for program in ('exit 0', '"$0" bench --sizes 1M --iters 10000 & sleep 1; kill -9 $!; exit 0'):
        status, output = run('-n 2 -s 1', 'sh', '-c', program, TOOL)
        assert status == 0 and warning in output, (program, status, output)
    status, output = run('-n 2 -s 1', 'sh', '-c', 'sleep 4', TRIB_JOIN_TIMEOUT='1s')
    assert status == 1 and 'server 0 ended with status 1' in output and warning not in output, (status, output)
    # A worker's status takes precedence, even if a server failed first.
    status, output = run('-n 2 -s 1', 'sh', '-c', 'sleep 4; exit 7', TRIB_JOIN_TIMEOUT='1s')
    assert status == 7 and 'server 0 ended with status 1' in output, (status, output)


def run_counts_crashed_servers():
    """A signal that run did not send kills the server, right before the workers end with 0."""
    if not os.path.exists('/proc/self/task/%d/children' % os.getpid()):
        return 'the kernel does not list children'
    # The server is run's first child.
    status, output = run(
        '-n 1 -s 1', 'sh', '-c', 'sleep 1; set -- $(cat /proc/$PPID/task/$PPID/children); kill -KILL $1; exit 0'
    )
    assert status == 128 + signal.SIGKILL and 'server 0 was ended by signal 9' in output, (status, output)
    assert 'rank 0' not in output, output
    return None


def run_numbers_servers():
    """run numbers the servers as the job does, whose texts and traces use these numbers."""
    if not os.path.exists('/proc/self/task/%d/children' % os.getpid()):
        return 'the kernel does not list children'
    # Servers are run's first children, in order.
    status, output = run(
        '-n 1 -s 8 --log debug', 'sh', '-c', 'echo $(cat /proc/$PPID/task/$PPID/children); exec "$0"', HELLO
    )
    assert status == 0, (status, output)
    pids = re.search(r'^(\d+ ?)+$', output, re.M).group(0).split()[:8]
    joined = dict(re.findall(r'joined: server (\d+) \([^:]*:(\d+)\)', output))
    assert [joined.get(str(i)) for i in range(8)] == pids, (pids, output)
    return None


def run_tells_early():
    """Ranks 1 and 2 end with status 0 before any rank joined. Rank 0 goes on until run has said so."""
    child = subprocess.Popen(
        [TOOL, 'run', '-n', '3', '--', 'sh', '-c', '[ $TRIB_RANK = 0 ] || exit 0; read line'],
        env=clean_env(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    watchdog = threading.Timer(60, child.kill)
    watchdog.start()
    try:
        line = child.stdout.readline()
        output = line + child.communicate('go on\n')[0]
    finally:
        watchdog.cancel()
    assert child.returncode == 0, (child.returncode, output)
    assert line == 'tributary run: rank 1 and 1 more ended with status 0 while 1 worker still runs\n', output


def cores_of(pid):
    """Returns the cores that each of the process's reactors may run on, by thread name."""
    found = {}
    for task in os.listdir('/proc/%d/task' % pid):
        with open('/proc/%d/task/%s/comm' % (pid, task)) as comm:
            name = comm.read().strip()
        if name.startswith('trib-'):
            found[name] = os.sched_getaffinity(int(task))
    return found


def takes_cores(wanted, *settings):
    """Starts one rank for each of the settings, which are added to the job's. Waits until wanted(cores of each rank) is
    true."""
    port, ranks = free_port(), len(settings)
    children = [
        subprocess.Popen(
            [TOOL, 'bench', '--sizes', '1M', '--iters', '10000'],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=clean_env(TRIB_RANK=r, TRIB_WORKERS=ranks, TRIB_COORDINATOR='127.0.0.1:%d' % port, **more),
        )
        for r, more in enumerate(settings)
    ]
    seen, deadline = [], time.monotonic() + 30
    try:
        while time.monotonic() < deadline and not (len(seen) == ranks and wanted(seen)):
            time.sleep(0.02)
            now = [cores_of(c.pid) for c in children]
            seen = now if any(now) else seen  # the last state before a rank ended
    except OSError:
        assert False, 'a rank ended; before that reactors might run on %s' % seen
    finally:
        for child in children:
            child.kill()
            child.communicate()
    assert wanted(seen), 'reactors may run on %s' % seen


def bench_starts_one_job():
    """The options -n and -s must not reach the ranks, however they are written, or each rank would start a job of its
    own."""
    for words in (['-n', '2', '-s', '1'], ['-n2', '-s1']):
        child = subprocess.Popen(
            [TOOL, 'bench', *words, '--sizes', '4K', '--iters', '2'], env=clean_env(), start_new_session=True, **PIPES
        )
        try:
            output = child.communicate(timeout=30)[0]
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
        assert child.returncode == 0 and '2 workers, 1 server,' in output, output[-600:]


def cores_of_their_own():
    everywhere = os.sched_getaffinity(0)
    if len(everywhere) < max(2, os.cpu_count()):
        return 'needs two cores, and no launcher that binds'
    one = {'TRIB_REACTORS': 1}
    takes_cores(lambda seen: all(len(s.get('trib-0', everywhere)) == 1 for s in seen) and seen[0] != seen[1], one, one)
    # More reactors than cores: no rank pins.
    many = min(len(everywhere), 16)
    each = {'TRIB_REACTORS': many}

    def nobody_pins(seen):
        return all(len(s) == many and all(cores == everywhere for cores in s.values()) for s in seen)

    takes_cores(nobody_pins, *[each] * (len(everywhere) // many + 1))
    return None


def jobs_leave_each_other_cores():
    """Two jobs of one rank each pin different cores. `tributary info` lists the cores of other jobs until they end."""
    everywhere = os.sched_getaffinity(0)
    if len(everywhere) < max(2, os.cpu_count()):
        return 'needs two cores, and no launcher that binds'

    def others():
        done = subprocess.run(
            [TOOL, 'info', '--json'], env=clean_env(), stdout=subprocess.PIPE, text=True, timeout=60, check=True
        )
        return set(json.loads(done.stdout)['topology']['cpus_of_other_jobs'])

    others_before = others()
    if len(others_before) > len(everywhere) - 2:
        return 'reactors of other jobs are pinned to all cores but %d' % (len(everywhere) - len(others_before))
    children, cores = [], []
    try:
        for _ in range(2):
            children.append(
                subprocess.Popen(
                    [TOOL, 'bench', '--sizes', '64M', '--iters', '10000'],
                    env=clean_env(TRIB_REACTORS=1, TRIB_RANK=0, TRIB_WORKERS=1),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
            assert comes_true(lambda: len(cores_of(children[-1].pid).get('trib-0', everywhere)) == 1), 'not pinned'
            cores.append(cores_of(children[-1].pid)['trib-0'])
        assert cores[0] != cores[1] and cores[0] | cores[1] <= others(), (cores, others())
    finally:
        for child in children:
            child.kill()
            child.wait()
    assert not others() & (cores[0] | cores[1]) - others_before, (cores, others())
    return None


def beside_a_launcher():
    """The launcher of rank 0 does not count rank 1. Rank 0 keeps its core, and rank 1 gets none of its own."""
    everywhere = os.sched_getaffinity(0)
    if len(everywhere) < max(2, os.cpu_count()):
        return 'needs two cores, and no launcher that binds'
    counted = {'TRIB_REACTORS': 1, 'TRIB_LOCAL_RANK': 0, 'TRIB_LOCAL_COUNT': 1}
    takes_cores(
        lambda seen: [len(s.get('trib-0', [])) for s in seen] == [1, len(everywhere)], counted, {'TRIB_REACTORS': 1}
    )
    # The same holds if all reactors together are too many: the launcher's ranks keep their cores.
    many = {'TRIB_REACTORS': min(len(everywhere), 16)}

    def as_before(seen):
        return all(
            s and all(len(cores) == wanted for cores in s.values()) for s, wanted in zip(seen, (1, len(everywhere)))
        )

    takes_cores(as_before, dict(counted, **many), many)
    return None


def spins_while_there_are_cores():
    """A reactor that should spin learns from the roster that other ranks need the cores."""
    cores = len(os.sched_getaffinity(0))
    if cores < max(2, os.cpu_count()):
        return 'needs two cores, and no launcher that binds'
    reactors = min(cores - 1, 16)
    for ranks in (1, -(-cores // reactors)):
        port = free_port()
        children = [
            subprocess.Popen(
                [HELLO],
                env=clean_env(
                    TRIB_RANK=r,
                    TRIB_WORKERS=ranks,
                    TRIB_COORDINATOR='127.0.0.1:%d' % port,
                    TRIB_REACTORS=reactors,
                    TRIB_BUSY_POLL='yes',
                ),
                **PIPES,
            )
            for r in range(ranks)
        ]
        outputs = [c.communicate(timeout=60)[0] for c in children]
        for child, output in zip(children, outputs):
            assert child.returncode == 0, output[-600:]
            assert output.count('busy_poll is off') == (ranks > 1), output[-600:]
    return None


def run_binds():
    """Ranks divide the cores, and share cores if there are more ranks than cores."""
    cores = sorted(os.sched_getaffinity(0))

    def parts(ranks):
        done = subprocess.run(
            [
                TOOL,
                'run',
                '-n',
                str(ranks),
                '--bind',
                '--',
                sys.executable,
                '-c',
                'import os; cores = " ".join(map(str, sorted(os.sched_getaffinity(0)))); '
                'os.write(1, ("rank %s %s\\n" % (os.environ["TRIB_RANK"], cores)).encode())',
            ],
            env=clean_env(),
            timeout=60,
            **PIPES,
        )
        found = {
            int(rank): [int(core) for core in its.split()]
            for rank, its in re.findall(r'rank (\d+)((?: \d+)+)$', done.stdout, re.MULTILINE)
        }
        assert done.returncode == 0 and len(found) == ranks, 'status %d: %s' % (done.returncode, done.stdout[-600:])
        return [found[rank] for rank in range(ranks)]

    assert parts(1) == [cores], 'one rank may have all cores'
    few, many = min(2, len(cores)), len(cores) + 1
    each = len(cores) // few
    seen = parts(few)
    assert seen == [cores[i * each : (i + 1) * each] for i in range(few)], 'ranks are bound to %s' % seen
    if many <= 64:
        seen = parts(many)
        assert seen == [[cores[i % len(cores)]] for i in range(many)], 'ranks are bound to %s' % seen


def run_keeps_the_membership():
    """run coordinates the job itself, even if the environment names an external coordinator."""
    status, output = run('-n %d' % N, HELLO, TRIB_EXTERNAL_COORDINATOR='yes', TRIB_JOIN_TIMEOUT='20s')
    assert status == 0, (status, output[-600:])


def survives(options, program, policy, arguments, lost, until):
    """Kills the member of that name after rank 0's first line of an epoch, and returns the output of a job that ends
    well."""
    child = subprocess.Popen(
        [TOOL, 'run', *options.split(), '--', os.path.abspath(BUILD + '/examples/' + program), *arguments],
        env=clean_env(TRIB_SURVIVE=policy),
        **PIPES,
    )
    said, number = [], 'TRIB_RANK=' + lost.split()[1]
    try:
        read_until(child, r'^(step .*: )?epoch +\d', said)
        job, is_server = 'TRIB_JOB=run-%d' % child.pid, lost.startswith('server')
        (pid,) = (
            pid
            for pid in alive(job)
            if pid in alive(number) and (os.readlink('/proc/%s/exe' % pid) == os.path.realpath(TOOL)) == is_server
        )
        os.kill(int(pid), signal.SIGKILL)
        read_until(child, until, said)
        said.append(child.communicate(timeout=60)[0])
    finally:
        child.kill()
        child.wait()
    output = ''.join(said)
    assert child.returncode == 0 and 'still there' not in output, (child.returncode, output[-2000:])
    line = 'tributary run: %s was ended by signal 9 (Killed): the others may go on (TRIB_SURVIVE=%s)' % (lost, policy)
    assert line in output, output[-2000:]


def run_survives_losses():
    """A loss that the job survives is told, and is no failure."""
    survives('-n 3', 'shrink', 'workers', ['20000'], 'rank 1', 'epoch 2, rank 0 of 2')
    survives('-n 2 -s 2', 'digits', 'servers', ['--epochs', '20'], 'server 0', 'was ended by signal 9')
    # Nobody is left who could go on: the last one's status counts, and so does a worker's that only servers survive.
    status, output = run('-n 2', 'sh', '-c', 'exit 5', TRIB_SURVIVE='workers')
    assert status == 5 and output.count('the others may go on') == 1, (status, output)
    status, output = run('-n 2', 'sh', '-c', 'exit $((TRIB_RANK * 7))', TRIB_SURVIVE='servers')
    assert status == 7 and 'go on' not in output, (status, output)


def run_without_proc():
    """run starts its own program as the servers, found through /proc. The error names /proc where it is missing."""
    done = subprocess.run(
        [
            'unshare',
            '-m',
            'sh',
            '-c',
            'mount -t tmpfs none /proc && exec "$@"',
            'sh',
            TOOL,
            'run',
            '-n',
            '1',
            '-s',
            '1',
            '--',
            'true',
        ],
        env=clean_env(LD_LIBRARY_PATH=os.path.abspath(BUILD)),
        timeout=60,
        **PIPES,
    )
    if re.match('(unshare|mount): ', done.stdout):
        return 'a mount namespace of its own is needed'
    assert done.returncode == 127 and 'tributary run: /proc/self/exe: ' in done.stdout, done.stdout
    return None


CASES = [
    ('run_passes_status', run_passes_status),
    ('bench_starts_one_job', bench_starts_one_job),
    ('cores_of_their_own', cores_of_their_own),
    ('jobs_leave_each_other_cores', jobs_leave_each_other_cores),
    ('beside_a_launcher', beside_a_launcher),
    ('spins_while_there_are_cores', spins_while_there_are_cores),
    ('run_binds', run_binds),
    ('run_ends_servers', run_ends_servers),
    ('run_hints_at_python', run_hints_at_python),
    ('run_forgives_servers', run_forgives_servers),
    ('run_counts_crashed_servers', run_counts_crashed_servers),
    ('run_numbers_servers', run_numbers_servers),
    ('run_tells_early', run_tells_early),
    ('run_keeps_the_membership', run_keeps_the_membership),
    ('run_survives_losses', run_survives_losses),
    ('run_without_proc', run_without_proc),
]


if __name__ == '__main__':
    sys.exit(run_cases_or_skip(CASES))

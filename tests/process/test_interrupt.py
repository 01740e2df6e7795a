#!/usr/bin/env python3
"""Signals to `tributary run`: the workers may finish, the servers wait for them, and no process is left behind. Prints
`ok NAME` / `not ok NAME: why`.
"""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import alive, comes_true, run_cases  # noqa: E402
from ports import free_port  # noqa: E402

BUILD = os.environ.get('TRIB_BUILD', 'build/release')
TOOL, HELLO = BUILD + '/tributary', BUILD + '/examples/hello'
CTRL_C = b'\x03'
PIPES = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors='replace')


def environment(mark=None):
    env = {k: v for k, v in os.environ.items() if not k.startswith('TRIB_')}
    return dict(env, **({'MARK_OF_A_TEST': mark} if mark else {}))


def at_terminal(options, program, answers, mark=None):
    """Runs `tributary run` in the foreground of a terminal. Each answer is (text, number of times to wait for it, keys
    to type then). Returns the exit status and the output."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(TOOL, [TOOL, 'run'] + options.split() + ['--'] + program, environment(mark))
    output, answers, deadline = b'', list(answers), time.monotonic() + 60
    while time.monotonic() < deadline:
        if answers and output.count(answers[0][0].encode()) >= answers[0][1]:
            os.write(terminal, answers.pop(0)[2])
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                output += os.read(terminal, 4096)
            except OSError:
                break
    os.close(terminal)
    if time.monotonic() >= deadline:
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), output.decode(errors='replace')


# The worker joins the job after it was told to end, so the servers must still be there.
FINISHES = 'trap told=1 INT TERM; echo up; until [ "$told" ]; do sleep 0.05; done; exec "$0"'


def servers_wait_for_workers():
    """Work that the first signal interrupts is finished."""

    def check(status, output, number):
        assert status == 128 + number, (status, output)
        assert all('worker %d of 2: 2 4 6' % rank in output for rank in (0, 1)), output
        assert 'server' not in output and 'ended with' not in output, output

    check(*at_terminal('-n 2 -s 2', ['sh', '-c', FINISHES, HELLO], [('up', 2, CTRL_C)]), signal.SIGINT)
    child = subprocess.Popen(
        [TOOL, 'run', '-n', '2', '-s', '2', '--', 'sh', '-c', FINISHES, HELLO], env=environment(), **PIPES
    )
    try:
        output = child.stdout.readline() + child.stdout.readline()
        child.send_signal(signal.SIGTERM)
        output += child.communicate(timeout=60)[0]
        check(child.returncode, output, signal.SIGTERM)
    finally:
        child.kill()
        child.wait()


def second_ctrl_c_ends_all():
    """A process that does not end is named. The second signal ends all without waiting."""
    mark = 'second%d' % os.getpid()
    stays = 'trap "" INT TERM; echo up; sleep 3000; sleep 3000'
    status, output = at_terminal(
        '-n 2 -s 1', ['sh', '-c', stays], [('up', 2, CTRL_C), ('waiting for rank 0, rank 1,', 1, CTRL_C)], mark
    )
    assert status == 128 + signal.SIGINT, (status, output)
    assert 'a second signal ends all' in output and 'SIGTERM did not end rank 0, rank 1 within' in output, output
    assert comes_true(lambda: not alive(mark)), 'still there: %s' % alive(mark)


def many_signals_are_more_than_one():
    """Signals within the first half second count as one; later ones count however closely they follow each other."""
    child = subprocess.Popen(
        [TOOL, 'run', '-n', '1', '--', 'sh', '-c', 'trap "" TERM; echo up; sleep 3000; sleep 3000'],
        env=environment(),
        **PIPES,
    )
    try:
        assert child.stdout.readline() == 'up\n'
        while child.poll() is None:
            child.send_signal(signal.SIGTERM)
            time.sleep(0.1)
        output = child.communicate(timeout=60)[0]
        assert 'SIGTERM did not end rank 0 within' in output and 'after the signal' not in output, output
    finally:
        child.kill()
        child.wait()


def signals_reach_all():
    """A shell that SIGTERM ends leaves its children behind; run ends them too."""
    for program in ('sleep 3000; true', 'trap "" TERM; sleep 3000; true'):
        mark = 'signal%d' % os.getpid()
        child = subprocess.Popen(
            [TOOL, 'run', '-n', '2', '-s', '1', '--', 'env', 'OWN_' + mark + '=1', 'sh', '-c', program],
            env=environment(mark),
            **PIPES,
        )
        comes_true(lambda: len(alive('OWN_' + mark)) == 4)
        child.send_signal(signal.SIGTERM)
        try:
            output = child.communicate(timeout=60)[0]
            assert child.returncode == 128 + signal.SIGTERM, (child.returncode, output)
            assert comes_true(lambda: not alive(mark)), '%s: still there: %s' % (program, alive(mark))
            assert ('SIGTERM did not end rank 0, rank 1 within' in output) == ('trap' in program), output
        finally:
            child.kill()
            child.wait()


def closed_output_leaves_nobody():
    """The reader closes the output, as `| head` does: the workers get a signal, and their children do not stay behind.
    The same holds for Ctrl-\\."""
    program = '[ "$TRIB_RANK" = 0 ] && exec sleep 3000; sleep 3000 & while sleep 0.1; do echo line; done'
    for number in (signal.SIGPIPE, signal.SIGQUIT):
        mark = 'closed%d' % os.getpid()
        child = subprocess.Popen(
            [TOOL, 'run', '-n', '2', '-s', '1', '--', 'sh', '-c', program], env=environment(mark), **PIPES
        )
        try:
            assert child.stdout.readline() == '[rank 1] line\n'
            if number == signal.SIGPIPE:
                child.stdout.close()
            else:
                child.send_signal(number)
            assert child.wait(timeout=60) == 128 + number, child.returncode
            assert comes_true(lambda: not alive(mark)), 'still there: %s' % alive(mark)
        finally:
            child.kill()
            child.wait()
            subprocess.run(['kill', '-9', *map(str, alive(mark))], stderr=subprocess.DEVNULL, check=False)


def killed_run_leaves_nobody():
    mark = 'killed%d' % os.getpid()
    child = subprocess.Popen([TOOL, 'run', '-n', '2', '-s', '2', '--', 'sleep', '3000'], env=environment(mark), **PIPES)
    try:
        assert comes_true(lambda: len(alive(mark)) == 5), alive(mark)
    finally:
        child.kill()
        child.communicate()
    assert comes_true(lambda: not alive(mark)), 'still there: %s' % alive(mark)


def state_of(pid):
    with open('/proc/%s/stat' % pid) as stat:
        return stat.read().rsplit(')', 1)[1].split()[0]


def stops_and_goes_on_together():
    """Servers stop and go on with the workers, after Ctrl-Z and `fg` or a background read from the terminal. Servers
    that went on alone would take the workers for lost."""
    mark = 'stopped%d' % os.getpid()
    child = subprocess.Popen(
        [TOOL, 'run', '-n', '2', '-s', '2', '--', 'sleep', '3000'],
        env=environment(mark),
        preexec_fn=os.setpgrp,
        **PIPES,
    )
    try:
        assert comes_true(lambda: len(alive(mark)) == 5), alive(mark)
        for number in (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU):
            for sent, stopped in ((number, 5), (signal.SIGCONT, 0)):
                os.killpg(child.pid, sent)
                seen = lambda: [state_of(pid) for pid in alive(mark)]
                assert comes_true(lambda: seen().count('T') == stopped), (number, sent, seen())
    finally:
        child.kill()
        child.communicate()


def survives_a_hangup_under_nohup():
    """Under nohup run ignores SIGHUP when the terminal closes. A signal that is not ignored still ends it later."""
    for ignores, status in ((True, signal.SIGTERM), (False, signal.SIGHUP)):
        child = subprocess.Popen(
            [TOOL, 'run', '-n', '1', '--', 'sh', '-c', 'echo up; exec sleep 3000'],
            env=environment(),
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN if ignores else signal.SIG_DFL),
            **PIPES,
        )
        try:
            assert child.stdout.readline() == 'up\n'
            child.send_signal(signal.SIGHUP)
            child.send_signal(signal.SIGTERM)
            output = child.communicate(timeout=60)[0]
            assert child.returncode == 128 + status, (ignores, child.returncode, output)
        finally:
            child.kill()
            child.wait()


def inherits_nothing_that_harms():
    """The parent ignores or blocks what run, its servers and its workers need; run ends all the same, and at
    SIGTERM."""

    def ignore():
        for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())

    shows = 'grep -E "Sig(Blk|Ign)" /proc/self/status'
    for command in (
        [TOOL, 'run', '-n', '2', '-s', '1', '--', HELLO],
        [TOOL, 'bench', '-n', '2', '-s', '1', '--sizes', '4K', '--iters', '2'],
        [TOOL, 'run', '-n', '1', '--', 'sh', '-c', shows],
    ):
        done = subprocess.run(
            command, env=environment(), preexec_fn=ignore, restore_signals=False, timeout=60, check=False, **PIPES
        )
        assert done.returncode == 0, done
    masks = dict(re.findall(r'(SigBlk|SigIgn):\s*(\w+)', done.stdout))
    # Four may stay ignored, which a parent ignores on purpose.
    meant = sum(1 << number - 1 for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGXFSZ))
    assert int(masks['SigBlk'], 16) == 0 and int(masks['SigIgn'], 16) & ~meant == 0, done.stdout
    child = subprocess.Popen(
        [TOOL, 'run', '-n', '1', '--', 'sh', '-c', 'echo up; exec sleep 3000'],
        env=environment(),
        preexec_fn=ignore,
        restore_signals=False,
        **PIPES,
    )
    try:
        assert child.stdout.readline() == 'up\n'
        child.send_signal(signal.SIGTERM)
        assert child.wait(timeout=60) == 128 + signal.SIGTERM, child.returncode
    finally:
        child.kill()
        child.communicate()


def servers_outlive_other_signals():
    """A terminal that closes, a log rotation or a habit must not end a job that has a server."""
    port = free_port()
    env = dict(environment(), TRIB_WORKERS='1', TRIB_SERVERS='1', TRIB_COORDINATOR='127.0.0.1:%d' % port)
    server = subprocess.Popen([TOOL, 'server'], env=env, **PIPES)
    worker = subprocess.Popen(
        ['sh', '-c', 'read line; exec "$0"', HELLO], env=dict(env, TRIB_RANK='0'), stdin=subprocess.PIPE, **PIPES
    )
    try:
        assert comes_true(lambda: 'trib-0' in threads_of(server.pid)), threads_of(server.pid)
        with open('/proc/%d/comm' % server.pid) as name:  # what ps and top show
            assert name.read() == 'tributary\n'
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGPIPE):
            server.send_signal(number)
        output = worker.communicate('go on\n', timeout=60)[0]
        assert worker.returncode == 0 and 'worker 0 of 1: 1 2 3' in output, output
        output = server.communicate(timeout=60)[0]
        assert server.returncode == 0 and output.count('is ignored; SIGTERM ends this process') == 3, output
    finally:
        for child in (server, worker):
            child.kill()
            child.wait()


def threads_of(pid):
    names = []
    for task in os.listdir('/proc/%d/task' % pid):
        with open('/proc/%d/task/%s/comm' % (pid, task)) as name:
            names.append(name.read().strip())
    return names


def names_of_servers():
    """run starts its own program again as the servers; ps and top show its name."""
    mark = 'names%d' % os.getpid()
    child = subprocess.Popen([TOOL, 'run', '-n', '1', '-s', '2', '--', 'sleep', '3000'], env=environment(mark), **PIPES)
    try:

        def names():
            return sorted(threads_of(int(pid))[0] for pid in alive(mark))

        assert comes_true(lambda: names() == ['sleep', 'tributary', 'tributary', 'tributary']), names()
    finally:
        child.kill()
        child.communicate()


COUNTS_SIGINTS = """
import os, signal, sys, time
count = [0]
def note(number, frame):
    count[0] += 1
signal.signal(signal.SIGINT, note)
if sys.argv[1] == 'apart':
    os.setsid()
print('up', flush=True)
while count[0] == 0:
    time.sleep(0.05)
time.sleep(0.5)
print('%d of them' % count[0], flush=True)
"""


def one_ctrl_c_counts_once():
    """The terminal sends one SIGINT to each of its processes. A process that left the group gets one from run."""
    for where in ('inside', 'apart'):
        _, output = at_terminal('-n 1', [sys.executable, '-c', COUNTS_SIGINTS, where], [('up', 1, CTRL_C)])
        assert '1 of them' in output, (where, output)


CASES = [
    ('servers_wait_for_workers', servers_wait_for_workers),
    ('second_ctrl_c_ends_all', second_ctrl_c_ends_all),
    ('many_signals_are_more_than_one', many_signals_are_more_than_one),
    ('signals_reach_all', signals_reach_all),
    ('closed_output_leaves_nobody', closed_output_leaves_nobody),
    ('killed_run_leaves_nobody', killed_run_leaves_nobody),
    ('stops_and_goes_on_together', stops_and_goes_on_together),
    ('one_ctrl_c_counts_once', one_ctrl_c_counts_once),
    ('survives_a_hangup_under_nohup', survives_a_hangup_under_nohup),
    ('inherits_nothing_that_harms', inherits_nothing_that_harms),
    ('servers_outlive_other_signals', servers_outlive_other_signals),
    ('names_of_servers', names_of_servers),
]


if __name__ == '__main__':
    # A script's background process ignores SIGINT, and a shell's trap would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(run_cases(CASES))

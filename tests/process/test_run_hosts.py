#!/usr/bin/env python3
"""`tributary run` over several hosts: real processes, hosts by a stand-in for ssh. Prints `ok NAME` / `not ok NAME:
why`, or one `skip NAME: why` and exits with 77.
"""

import asyncio
import os
import signal
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), 'python'))
sys.path.insert(0, os.path.join(HERE, '..', '..', 'api', 'python', 'tributary', 'launch'))
import python_bed  # noqa: E402
from cases import alive, comes_true  # noqa: E402
from elastic_bed import AGENT, AWAY, FOLDER, WORKER, Job, write  # noqa: E402
from link import Link  # noqa: E402

HELLO = python_bed.BUILD + '/examples/hello'
PYTHON = sys.executable


def hosts_by_list_and_file():
    listed = '# two hosts\nnear:1\n\nfar slots=2  # as MPI writes it\n'
    for options in ('-H', 'near:1,far:2'), ('--hostfile', write('hosts', listed)):
        for servers in '0', '1':
            output = Job(*options, *AWAY, '-s', servers, '--', HELLO).end()
            for place in '[near rank 0] worker 0', '[far rank 1] worker 1', '[far rank 2] worker 2':
                assert place + ' of 3: 3 6 9' in output, output
    assert 'worker 1 of 2: 2 4 6' in Job('-n', '2', '-H', 'near:1,far:2', *AWAY, '--', HELLO).end()


def token_is_in_no_command_line():
    """The token is in the workers' environment, and in nobody's arguments."""
    job = Job(
        '-H',
        'a:1,b:1',
        *AWAY,
        '--',
        'sh',
        '-c',
        'echo token $TRIB_TOKEN; cat /proc/[0-9]*/cmdline | tr "\\0" " "; echo; sleep 1',
    )
    output = job.end()
    token = output.split('token ')[1].split()[0]
    assert len(token) >= 32 and output.count('token ' + token) == 2, output
    assert output.count(token) == 2, 'a command line has the token'


def wrong_hosts_are_named():
    for options, text in (
        (
            ('-H', 'a:1,nowhere:2', *AWAY),
            'host nowhere cannot be used: the way to it ended with status 255: no route to nowhere',
        ),
        (('-H', 'a:x', *AWAY), 'host "a:x": must be NAME, NAME:SLOTS'),
        (('-H', 'a:1,a:2', *AWAY), 'host "a" is listed twice'),
        (('-n', '4', '-H', 'a:1,b:2', *AWAY), '-n 4: the hosts have 3 slots'),
        (('--hostfile', '/nonexistent', *AWAY), '--hostfile /nonexistent: '),
        (('--discover', '/nonexistent', '--elastic', '1:2', *AWAY), '--discover /nonexistent: '),
        (('--discover', '/nonexistent', *AWAY), '--discover needs --elastic'),
        (('--elastic', '1:2', '--bind'), '--bind: works on this machine alone'),
        (('--elastic', '4:2'), '--elastic 4:2: must be MIN:MAX'),
        (('-H', 'nobody.invalid'), 'host nobody.invalid: '),
    ):
        job = Job(*options, '--', HELLO)
        job.process.wait(60)
        output = job.end(status=job.process.returncode)
        assert job.process.returncode != 0 and text in output, (options, output)


LINES = """
import os
number = int(os.environ['TRIB_RANK'])
with open('/proc/self/status') as status:
    ignored = [line for line in status if line.startswith('SigIgn')]
os.write(1, ignored[0].encode())
for _ in range(60):
    os.write(1, b'%d' % number * 5000)
os.write(1, b'\\n\\nnot finished')
"""


def lines_are_whole_and_signals_work():
    """Each line has one prefix, however long it is and whoever prints meanwhile. Workers ignore no signal that the
    launcher, or an operator, ends them with."""
    output = Job('-H', 'a:1,b:1', *AWAY, '--', PYTHON, '-c', LINES).end().split('\n')
    for rank, host in enumerate('ab'):
        tag = '[%s rank %d] ' % (host, rank)
        its = [line[len(tag) :] for line in output if line.startswith(tag)]
        assert its[1:] == [str(rank) * 300000, '', 'not finished'], [line[:40] for line in its]
        ignored = int(its[0].split()[1], 16)
        assert not ignored & sum(1 << number - 1 for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)), its[0]
    assert len(output) == 8, [line[:40] for line in output]


def failure_ends_all_hosts():
    output = Job('-H', 'a:2,b:2', *AWAY, '--', 'sh', '-c', '[ $TRIB_RANK = 2 ] && exit 7; sleep 100').end(status=7)
    assert 'b rank 2 ended with status 7' in output, output


def survived_loss_ends_no_host():
    """With TRIB_SURVIVE the others go on, and their statuses count."""
    shrink = python_bed.BUILD + '/examples/shrink'
    job = Job('-H', 'a:1,b:2', '-s', '1', *AWAY, '--', shrink, '6000', TRIB_SURVIVE='workers')
    assert comes_true(lambda: 'epoch 1, rank 0 of 3' in job.text()), job.text()
    (pid,) = (pid for pid in alive(job.mark) if b'TRIB_RANK=1\0' in open('/proc/%s/environ' % pid, 'rb').read())
    job.kill(int(pid))
    output = job.end()
    assert 'b rank 1 was ended by signal 9 (Killed): the others may go on (TRIB_SURVIVE=workers)' in output, output
    assert '[b rank 2] rank 1 of 2: y = 3.0' in output and 'ending what is still there' not in output, output
    output = Job('-H', 'a:1,b:1', *AWAY, '--', 'sh', '-c', 'exit 7', TRIB_SURVIVE='workers').end(status=7)
    assert output.count('the others may go on') == 1, output


def interrupt_and_kill_leave_nothing():
    """The program starts a process of its own, which must end, too."""
    program = ('sh', '-c', 'sleep 100 & echo here; wait')
    for number, status in (signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9):
        job = Job('-H', 'a:2,b:1', *AWAY, '--', *program)
        assert comes_true(lambda job=job: job.text().count('here') == 3), job.text()
        job.process.send_signal(number)
        job.end(status=status)


def way_to_a_host_ends():
    """What stands in for ssh is killed: its host's workers end, and all others."""
    job = Job('-H', 'a:1,b:1', *AWAY, '--', 'sh', '-c', 'echo here; exec sleep 100')
    assert comes_true(lambda: job.text().count('here') == 2), job.text()
    agents = [pid for pid in alive(job.mark) if b'agent.py' in open('/proc/%s/cmdline' % pid, 'rb').read()]
    assert len(agents) == 2, agents
    os.kill(int(agents[1]), signal.SIGKILL)
    assert 'host b is lost' in job.end(status=137) or 'host a is lost' in job.text(), job.text()


def hosts_in_network_namespaces():
    """The stand-in for ssh is `ip netns exec`: the workers are in a network of their own, and find the launcher and
    each other."""
    name, near, far = 'trib-%d' % os.getpid(), 'trb%d' % (os.getpid() % 10000), 'trc%d' % (os.getpid() % 10000)
    commands = (
        'ip netns add %s' % name,
        'ip link add %s type veth peer name %s netns %s' % (near, far, name),
        'ip addr add 10.213.9.1/24 dev %s' % near,
        'ip link set %s up' % near,
        'ip -n %s addr add 10.213.9.2/24 dev %s' % (name, far),
        'ip -n %s link set %s up' % (name, far),
        'ip -n %s link set lo up' % name,
    )
    try:
        for command in commands:
            if subprocess.run(command.split(), stderr=subprocess.DEVNULL).returncode != 0:
                print('skip hosts_in_network_namespaces: %s is refused' % command)
                return
        options = ('-H', name + ':2', '--host', '10.213.9.1', '--rsh', 'ip netns exec')
        assert 'TRIB_COORDINATOR=10.213.9.2:' in Job(*options, '--', 'env').end()
        output = Job('--elastic', '1:2', *options, '--', PYTHON, WORKER, '5', '0.05').end()
        assert output.count('with total 15') == 2, output
    finally:
        for command in 'ip netns del ' + name, 'ip link del ' + near:
            subprocess.run(command.split(), stderr=subprocess.DEVNULL)


def loss_without_elastic_is_explained():
    job = Job('-H', 'a:1,b:1', *AWAY, '--', PYTHON, WORKER, '1', '0.05', FOLDER.name + '/no-gate')
    job.has_size(2)
    job.kill(next(iter(job.steps())))
    output = job.end(status=137)
    assert output.count('elastic training goes on after a loss under `tributary run --elastic MIN:MAX`') == 1, output


def silent_host_is_given_up():
    """Output counts as an answer of a host. The agent of one that says nothing can end its workers itself."""
    events = []

    async def ask():
        link = Link('far', [write('agent', AGENT)], lambda _, event: events.append(event))
        await link.open('127.0.0.1')
        await link.check(10)
        assert [event['event'] for event in events] == ['output'], events
        await link.check(0.1)
        await link.close()

    asyncio.run(ask())
    assert 'ended with status 7: no answer within' in events[-1]['text'], events


if __name__ == '__main__':
    sys.exit(
        python_bed.main(
            [
                (case.__name__, case)
                for case in (
                    hosts_by_list_and_file,
                    token_is_in_no_command_line,
                    wrong_hosts_are_named,
                    lines_are_whole_and_signals_work,
                    failure_ends_all_hosts,
                    survived_loss_ends_no_host,
                    interrupt_and_kill_leave_nothing,
                    way_to_a_host_ends,
                    hosts_in_network_namespaces,
                    loss_without_elastic_is_explained,
                    silent_host_is_given_up,
                )
            ]
        )
    )

#!/usr/bin/env python3
"""`tributary run` over several hosts and with --elastic: real processes, hosts by a stand-in for ssh. Prints `ok NAME`
/ `not ok NAME: why`, or one `skip NAME: why` and exits with 77.
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from types import SimpleNamespace

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(HERE, '..', '..', 'api', 'python', 'tributary', 'launch'))
import elastic  # noqa: E402
import elastic_bed  # noqa: E402
import elastic_soak  # noqa: E402
import python_bed  # noqa: E402
from cases import alive, comes_true, run_cases  # noqa: E402
from elastic_bed import WORKER, Job, open_gate  # noqa: E402
from elastic import Elastic  # noqa: E402
from link import Link  # noqa: E402

HELLO = python_bed.BUILD + '/examples/hello'
PYTHON = sys.executable
FOLDER = tempfile.TemporaryDirectory()
RSH = elastic_bed.stand_in(FOLDER.name)
AWAY = ('--host', '127.0.0.1', '--rsh', RSH)  # hosts of any name, all on this machine


def write(name, text):
    path = os.path.join(FOLDER.name, name)
    with open(path + '.new', 'w', encoding='ascii') as file:
        file.write(text)
    os.chmod(path + '.new', 0o755)
    os.replace(path + '.new', path)
    return path


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


def ends_with_a_program_that_never_joins():
    """A program that ends with success has nothing more to do, although it has never asked for a place."""
    output = Job('--elastic', '1:1', '--', 'echo', 'done').end()
    assert output == '[localhost worker 0] done', output[-2000:]


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


def lost_worker_comes_back():
    """It has worked, so its end is not its host's fault."""
    gate = os.path.join(FOLDER.name, 'gate-of-worker')
    job = Job('--elastic', '2:3', '--host-failures', '1', '--', PYTHON, WORKER, '1', '0.05', gate)
    job.comes_to(lambda steps: sum(each[0] > 1 and each[2] == 3 for each in steps.values()) == 3, 'a commit of three')
    victim = next(pid for pid, (_, rank, *_) in job.steps().items() if rank == 0)
    job.kill(victim)
    job.comes_to(
        lambda steps: victim not in steps and sum(each[2] == 3 for each in steps.values()) == 3, 'a third worker'
    )
    open_gate(gate)
    output = job.end()
    assert output.count('finished after') == 3, output[-2000:]


def loss_without_elastic_is_explained():
    job = Job('-H', 'a:1,b:1', *AWAY, '--', PYTHON, WORKER, '1', '0.05', FOLDER.name + '/no-gate')
    job.has_size(2)
    job.kill(next(iter(job.steps())))
    output = job.end(status=137)
    assert output.count('elastic training goes on after a loss under `tributary run --elastic MIN:MAX`') == 1, output


def stopped_worker_is_replaced():
    """Nothing ends a worker that stands still, neither the first nor another one: the launcher sees it, and ends it. A
    host that stands still is given up."""
    gate = os.path.join(FOLDER.name, 'gate-of-stopped')
    options = ('--elastic', '2:4', '-H', 'a:3,b:1', *AWAY)
    job = Job(*options, '--', PYTHON, WORKER, '1', '0.05', gate, TRIB_PEER_TIMEOUT='2s')
    try:
        for ranks in (0,), (2,), (1, 2):
            job.has_size(4)
            stopped = {pid for pid, each in job.steps().items() if each[1] in ranks}
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            job.comes_to(lambda steps, stopped=stopped: not stopped & set(steps), 'the end of ranks %s' % (ranks,), 30)
        job.has_size(4)
        stopped, agent = next(
            (pid, int(open('/proc/%d/stat' % pid).read().rpartition(')')[2].split()[1]))
            for pid, each in job.steps().items()
            if each[3] == 'b'
        )
        os.kill(agent, signal.SIGSTOP)
        os.kill(stopped, signal.SIGSTOP)
        job.comes_to(lambda steps: stopped not in steps, 'the end of the host', 90)
        job.has_size(4)
        open_gate(gate)
        output = job.end()
    finally:
        job.stop()
    assert output.count('others wait for it, and it has been stopped for 3 s: ending it') == 4, output
    assert 'host b is lost' in output and 'no answer within' in output, output[-2500:]
    assert output.count('finished after') == 4, output[-2000:]


BUSY = """
import os, runpy, sys, time
from tributary.rendezvous import Rendezvous

def next_place(self, take=Rendezvous.next_place, mark=sys.argv.pop()):
    if self.rank == 0 and self._attempt == 1:
        with open(mark) as file:
            stopped = '/proc/' + file.read()
        while os.path.exists(stopped):
            time.sleep(0.05)
    return take(self)

worker = sys.argv.pop()
Rendezvous.next_place = next_place
runpy.run_path(worker, run_name='__main__')
"""


def busy_worker_stays():
    """The launcher kills no worker that lives and is late, as rank 0 is, which is busy until the stopped one has been
    ended."""
    gate, mark = os.path.join(FOLDER.name, 'gate-of-busy'), os.path.join(FOLDER.name, 'mark-of-busy')
    job = Job('--elastic', '2:3', '--', PYTHON, '-c', BUSY, '1', '0.05', gate, WORKER, mark, TRIB_PEER_TIMEOUT='2s')
    try:
        job.has_size(3)
        first, stopped = (next(pid for pid, each in job.steps().items() if each[1] == rank) for rank in (0, 1))
        write('mark-of-busy', str(stopped))
        os.kill(stopped, signal.SIGSTOP)
        job.comes_to(lambda steps: stopped not in steps, 'the end of rank 1')
        job.has_size(3)
        assert first in job.steps(), job.text()[-2500:]
        open_gate(gate)
        output = job.end()
    finally:
        job.stop()
    assert output.count('ending it') == 1 and output.count('finished after') == 3, output[-2500:]


AGENT = """#!/bin/sh
echo '{"event": "here"}'
read start; read hello
echo '{"event": "hello", "address": "127.0.0.1"}'
read order
echo '{"event": "output"}'
while read order; do :; done
exit 7
"""


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


def silent_host_of_the_first_rank_is_given_up():
    """An attempt needs a port of the first rank's host. One that says nothing is lost, so that the next attempt does
    without."""

    async def form():
        link = Link('far', [write('agent', AGENT)], lambda _, event: None)
        await link.open('127.0.0.1')
        await link.check(10)
        job = Elastic.__new__(Elastic)
        job.workers, job._members, job._waiting = {7: SimpleNamespace(rank=0, link=link)}, {7}, {7: None}
        await asyncio.wait_for(job._form(), 30)
        assert link.is_lost and not job._is_forming

    seconds, elastic._HOST_SECONDS = elastic._HOST_SECONDS, 0.1
    try:
        asyncio.run(form())
    finally:
        elastic._HOST_SECONDS = seconds


STOPS = """
import os, runpy, signal, sys
from tributary.rendezvous import Rendezvous

def next_place(self, take=Rendezvous.next_place, mark=sys.argv.pop()):
    place = take(self)
    if place['rank'] == 1 and not os.path.exists(mark):
        open(mark, 'x').close()
        os.kill(os.getpid(), signal.SIGSTOP)
    return place

worker = sys.argv.pop()
Rendezvous.next_place = next_place
runpy.run_path(worker, run_name='__main__')
"""


def worker_stopped_while_it_joins_is_replaced():
    gate, mark = os.path.join(FOLDER.name, 'gate-of-joining'), os.path.join(FOLDER.name, 'mark-of-joining')
    job = Job('--elastic', '2:3', '--', PYTHON, '-c', STOPS, '1', '0.05', gate, WORKER, mark)
    try:
        job.has_size(3)
        open_gate(gate)
        output = job.end()
    finally:
        job.stop()
    assert output.count('others wait for it, and it has been stopped for 3 s: ending it') == 1, output[-2500:]
    assert output.count('finished after') == 3, output[-2000:]


def lost_host_comes_back():
    """The way to a host ends; its worker is lost, and another one is started when there is a way again."""
    gate = os.path.join(FOLDER.name, 'gate-of-host')
    job = Job('--elastic', '1:2', '-H', 'a:1,b:1', *AWAY, '--', PYTHON, WORKER, '1', '0.05', gate)
    job.has_size(2)
    lost, host = next((pid, each[3]) for pid, each in job.steps().items() if each[1] == 0)
    os.kill(int(open('/proc/%d/stat' % lost).read().rpartition(')')[2].split()[1]), signal.SIGKILL)
    job.comes_to(
        lambda steps: lost not in steps and sum(each[2] == 2 for each in steps.values()) == 2, 'two workers again'
    )
    open_gate(gate)
    output = job.end()
    assert 'host %s is lost' % host in output and output.count('finished after') == 2, output[-2000:]


def too_few_end_the_job():
    """A program that always fails is not started for ever."""
    output = Job(
        '--elastic', '2:2', '--host-failures', '3', '--', PYTHON, '-c', 'import tributary; tributary.init(); 1 / 0'
    ).end(status=1)
    assert 'localhost is not used for now' in output and '--elastic asks for at least 2' in output, output[-2000:]


def goes_on_without_a_bad_host():
    """Workers on one host always fail; the job goes on with the other."""
    script = write('flaky', '#!/bin/sh\n[ -n "$BAD_HOST" ] && exit 9\nexec %s %s 12 0.05\n' % (PYTHON, WORKER))
    rsh = write('bad-rsh', '#!/bin/sh\n[ "$1" = bad ] && export BAD_HOST=1\nshift\nexec "$@"\n')
    output = Job(
        '--elastic',
        '1:3',
        '-H',
        'good:2,bad:1',
        '--host',
        '127.0.0.1',
        '--rsh',
        rsh,
        '--host-failures',
        '2',
        '--',
        script,
    ).end()
    assert 'host bad is not used for now' in output and output.count('with total 78') == 2, output[-2000:]


def discovery_adds_and_removes():
    gate = os.path.join(FOLDER.name, 'gate-of-discovery')
    script = write('discover', '#!/bin/sh\ncat %s/listed\n' % FOLDER.name)
    write('listed', 'a:1\nb:1\n')
    job = Job('--elastic', '1:4', '--discover', script, *AWAY, '--', PYTHON, WORKER, '1', '0.05', gate)
    job.has_size(2)
    write('listed', 'a:1\nb:1\nc:2\n')
    job.has_size(4)
    write('listed', 'b:1\nc:2\n')  # rank 0's host goes
    job.comes_to(  # the process on a may outlive its place for a moment
        lambda steps: sorted((size, host) for _, _, size, host in steps.values()) == [(3, 'b'), (3, 'c'), (3, 'c')],
        'three workers on b and c',
    )
    open_gate(gate)
    output = job.end()
    assert output.count('finished after') == 3, output[-2000:]


def discovery_ends_with_the_job():
    """The script stands still when the job is over. Neither it nor what it has started is left."""
    waits = FOLDER.name + '/waits'
    script = write(
        'stands', '#!/bin/sh\n[ -e %s.0 ] && touch %s.1 && sleep 100\ntouch %s.0\necho a:1\n' % (3 * (waits,))
    )
    program = 'until [ -e %s.1 ]; do sleep 0.1; done' % waits
    output = Job('--elastic', '1:1', '--discover', script, *AWAY, '--', 'sh', '-c', program).end()
    assert output == '', output[-2000:]


TRAINER = '''
import os, signal, tributary, tributary.elastic

@tributary.elastic.run
def train(state, mark):
    while state.epoch < 4 or tributary.size() < 3:
        if state.epoch == 2 and tributary.rank() == 1 and not os.path.exists(mark):
            open(mark, 'x').close()
            os.kill(os.getpid(), signal.SIGKILL)
        tributary.engine().barrier()
        state.epoch += 1
        state.commit()
    return tributary.rank(), tributary.size(), os.path.exists(mark)

def work(mark):
    tributary.init()
    return train(tributary.elastic.ObjectState(epoch=0), mark)

def no_work():
    pass

def paths():
    return os.environ['PYTHONPATH'].split(os.pathsep)
'''
RUNNER = '''
import os, sys, tributary, trainer
path = os.pathsep.join(('/first', os.environ['PYTHONPATH']))
if sys.argv[1:]:
    print('returned', tributary.run(trainer.work, sys.argv[1:], hosts='localhost:3', min_num_proc=2, max_num_proc=3))
else:
    for text, wrong in (
        ('exclude each other', dict(hosts='a', host_discovery_script='b')),
        ('max_num_proc=2 needs a min_num_proc', dict(max_num_proc=2)),
        ('max_num_proc=2 needs a min_num_proc', dict(min_np=3, max_np=2)),
        ('reset_limit and cooldown_range have no counterpart', dict(min_np=1, reset_limit=2)),
        ('slots=2: the discovery script must print', dict(host_discovery_script='a', slots=2)),
    ):
        try:
            tributary.run(print, **wrong)
        except (ValueError, NotImplementedError) as problem:
            assert text in str(problem), problem
        else:
            raise AssertionError(text)
    (paths,) = tributary.run(trainer.paths, env=dict(os.environ, PYTHONPATH=path))
    assert paths[0] == '/first' and os.path.dirname(os.path.abspath(__file__)) in paths, paths
    assert not any('lib/python' in path for path in paths), paths
    print('all is right so far')
    tributary.run(trainer.no_work, min_num_proc=1)
'''


def function_in_an_elastic_job():
    """tributary.run with min_num_proc gives the results of that many workers; a lost one has come back before. The
    function lies beside the script."""
    write('trainer.py', TRAINER)
    command = [PYTHON, write('runner.py', RUNNER)]
    output = python_bed.run([*command, os.path.join(FOLDER.name, 'mark')], python_bed.environment())
    assert 'returned [(0, 3, True), (1, 3, True)]' in output, output[-2500:]
    output = python_bed.run(command, python_bed.environment(), statuses=(1,))
    assert 'all is right so far' in output and 'the function has not called init()' in output, output[-2500:]


def random_kills():
    elastic_soak.run(seed=3, changes=5, workers=3)


def script_stops_at_its_limit():
    """The soak script itself, for a moment."""
    done = subprocess.run(
        [PYTHON, HERE + '/elastic_soak.py', '--minutes', '0.1', '--seed', '5'],
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0 and 'every sum was right' in done.stdout, done.stdout


def main():
    if os.path.basename(python_bed.BUILD) != 'release':
        print('skip elastic: a library with a sanitizer cannot be loaded into Python')
        return 77
    return run_cases(
        [
            (case.__name__, case)
            for case in (
                hosts_by_list_and_file,
                token_is_in_no_command_line,
                wrong_hosts_are_named,
                lines_are_whole_and_signals_work,
                ends_with_a_program_that_never_joins,
                failure_ends_all_hosts,
                survived_loss_ends_no_host,
                interrupt_and_kill_leave_nothing,
                way_to_a_host_ends,
                hosts_in_network_namespaces,
                lost_worker_comes_back,
                loss_without_elastic_is_explained,
                stopped_worker_is_replaced,
                busy_worker_stays,
                silent_host_is_given_up,
                silent_host_of_the_first_rank_is_given_up,
                worker_stopped_while_it_joins_is_replaced,
                lost_host_comes_back,
                too_few_end_the_job,
                goes_on_without_a_bad_host,
                discovery_adds_and_removes,
                discovery_ends_with_the_job,
                function_in_an_elastic_job,
                random_kills,
                script_stops_at_its_limit,
            )
            if len(sys.argv) < 2 or case.__name__ in sys.argv[1:]
        ]
    )


if __name__ == '__main__':
    sys.exit(main())

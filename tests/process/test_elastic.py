#!/usr/bin/env python3
"""`tributary run --elastic`: real processes, hosts by a stand-in for ssh. Prints `ok NAME` / `not ok NAME: why`, or one
`skip NAME: why` and exits with 77.
"""

import asyncio
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), 'python'))
sys.path.insert(0, os.path.join(HERE, '..', '..', 'api', 'python', 'tributary', 'launch'))
import elastic  # noqa: E402
import elastic_soak  # noqa: E402
import python_bed  # noqa: E402
from elastic_bed import AGENT, AWAY, FOLDER, WORKER, Job, open_gate, write  # noqa: E402
from elastic import Elastic  # noqa: E402
from link import Link  # noqa: E402

PYTHON = sys.executable


def ends_with_a_program_that_never_joins():
    """A program that ends with success has nothing more to do, although it has never asked for a place."""
    output = Job('--elastic', '1:1', '--', 'echo', 'done').end()
    assert output == '[localhost worker 0] done', output[-2000:]


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


if __name__ == '__main__':
    sys.exit(
        python_bed.main(
            [
                (case.__name__, case)
                for case in (
                    ends_with_a_program_that_never_joins,
                    lost_worker_comes_back,
                    stopped_worker_is_replaced,
                    busy_worker_stays,
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
            ]
        )
    )

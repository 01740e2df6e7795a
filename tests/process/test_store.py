#!/usr/bin/env python3
"""Jobs that are kept in a store (TRIB_STORE), with a real etcd: two workers of which either may be killed, workers that
join, a store that is stopped and started, and clear errors where it cannot say who goes on.

Prints `ok NAME` / `not ok NAME: why`.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import PIPES, comes_true, ends_of, read_until, run_cases  # noqa: E402
from ports import free_port  # noqa: E402
from shrink_bed import BUILD, Job  # noqa: E402

ENDLESS = '1000000000'


class Etcd:
    """A server of its own in a folder of its own."""

    def __init__(self):
        self.folder = tempfile.mkdtemp()
        self.port, self.peer, self.process = free_port(), free_port(), None
        self.start()

    def start(self):
        client, peer = 'http://127.0.0.1:%d' % self.port, 'http://127.0.0.1:%d' % self.peer
        command = ['etcd', '--data-dir', self.folder + '/data', '--listen-client-urls', client]
        command += ['--advertise-client-urls', client, '--listen-peer-urls', peer]
        command += ['--initial-advertise-peer-urls', peer, '--initial-cluster', 'default=' + peer]
        with open(self.folder + '/log', 'a') as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        assert comes_true(self.is_up), open(self.folder + '/log').read()[-800:]

    def is_up(self):
        try:
            with urllib.request.urlopen('http://127.0.0.1:%d/health' % self.port, timeout=2) as answer:
                return json.load(answer)['health'] == 'true'
        except (OSError, ValueError, KeyError):
            return False

    def stop(self):
        self.process.kill()
        self.process.wait()

    def lose_all(self):
        shutil.rmtree(self.folder + '/data')

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.stop()
        shutil.rmtree(self.folder)


def open_job(etcd, workers=2, **settings):
    """Nobody is told where the coordinator is."""
    transport = settings.pop('transport', 'tcp')
    job = Job(workers, 0, transport, TRIB_JOB='job of a test', TRIB_PEER_TIMEOUT='3s', **settings)
    job.env['TRIB_STORE'] = 'etcd://127.0.0.1:%d/test' % etcd.port
    del job.env['TRIB_COORDINATOR']
    return job


def start_all(job, workers=2):
    started = [job.start(rank, ENDLESS, '200') for rank in range(workers)]
    for worker in started:
        read_until(worker, 'epoch 1, ')
    return started


def killed(rank, transport):
    """One of two is killed, the other one goes on, and a worker that joins finds it. Then that one goes on alone."""
    with Etcd() as etcd, open_job(etcd, transport=transport) as job:
        workers = start_all(job)
        workers[rank].send_signal(signal.SIGKILL)
        left = workers[1 - rank]
        read_until(left, 'rank 0 of 1 .lost .*rank %d' % rank)
        late = job.start(-1, ENDLESS, '200')
        read_until(late, 'rank 1 of 2')
        left.send_signal(signal.SIGKILL)
        read_until(late, 'rank 0 of 1 .lost .*rank 0')


def two_of_three_killed():
    """One of three is no majority, and goes on."""
    with Etcd() as etcd, open_job(etcd, 3) as job:
        workers = start_all(job, 3)
        for worker in workers[:2]:
            worker.send_signal(signal.SIGKILL)
        read_until(workers[2], 'rank 0 of 1 ')


def paused():
    """Rank 0 stands still and is taken for lost. When it goes on it learns that the other one has gone on, and ends."""
    with Etcd() as etcd, open_job(etcd) as job:
        workers = start_all(job)
        workers[0].send_signal(signal.SIGSTOP)
        read_until(workers[1], 'rank 0 of 1 .lost .*rank 0')
        workers[0].send_signal(signal.SIGCONT)
        ((status, output),) = ends_of(workers[:1])
        assert status == 1 and 'TRIB_PEER_LOST' in output, (status, output[-600:])
        late = job.start(-1, ENDLESS, '200')
        read_until(late, 'rank 1 of 2')


def stopped():
    """While the store is away the steps go on. A change waits for it, and happens when it is back."""
    with Etcd() as etcd, open_job(etcd, TRIB_LOG='warn') as job:
        workers = [job.start(rank, ENDLESS) for rank in range(2)]
        for worker in workers:
            read_until(worker, 'epoch 1, ')
        etcd.stop()
        read_until(workers[0], 'the store .* does not answer, and is asked again')
        assert all(worker.poll() is None for worker in workers)
        workers[0].send_signal(signal.SIGKILL)
        read_until(workers[1], 'the store .* does not answer, and the job waits for it')
        etcd.start()
        read_until(workers[1], 'rank 0 of 1 .lost .*rank 0')


def never_back():
    """The job waits for TRIB_JOIN_TIMEOUT, and says why it ends."""
    with Etcd() as etcd, open_job(etcd, TRIB_JOIN_TIMEOUT='3s') as job:
        workers = start_all(job)
        etcd.stop()
        workers[0].send_signal(signal.SIGKILL)
        ((status, output),) = ends_of(workers[1:])
        assert status == 1 and 'TRIB_PEER_LOST' in output, (status, output[-600:])
        assert 'has not said within 3.0 s (TRIB_JOIN_TIMEOUT) that the job may go on here' in output, output[-600:]


def lost_its_data():
    """An etcd that has lost everything cannot say who goes on."""
    with Etcd() as etcd, open_job(etcd, TRIB_LOG='warn') as job:
        workers = [job.start(rank, ENDLESS) for rank in range(2)]
        for worker in workers:
            read_until(worker, 'epoch 1, ')
        etcd.stop()
        etcd.lose_all()
        etcd.start()
        read_until(workers[0], 'has lost the record of this job')
        workers[0].send_signal(signal.SIGKILL)
        ((status, output),) = ends_of(workers[1:])
        assert status == 1 and 'has no record of this job any more' in output, (status, output[-600:])


def name_twice():
    """Another job of the same name is told where the first one is. It may begin when that has ended."""
    with Etcd() as etcd, open_job(etcd) as first, open_job(etcd, 1, TRIB_JOIN_TIMEOUT='10s') as second:
        workers = start_all(first)
        ((status, output),) = ends_of([second.start(0, '10')])
        assert status == 1 and 'a job of the name "job of a test" is under way' in output, (status, output[-600:])
        read_until(workers[1], 'step ')
    with Etcd() as etcd, open_job(etcd) as first, open_job(etcd, 1, TRIB_JOIN_TIMEOUT='10s') as second:
        assert [status for status, _ in ends_of([first.start(rank, '10') for rank in range(2)])] == [0, 0]
        ((status, output),) = ends_of([second.start(0, '10')])
        assert status == 0, output[-600:]


def not_there():
    """No etcd, something else than etcd, and settings that name none."""
    with Etcd() as etcd:
        etcd.stop()
        with open_job(etcd, TRIB_JOIN_TIMEOUT='1s') as job:
            ended = ends_of([job.start(rank, '10') for rank in range(2)])
            for _, output in ended:
                assert 'TRIB_JOIN_FAILED' in output and 'the store (TRIB_STORE=etcd://' in output, output[-600:]
    with (
        subprocess.Popen([sys.executable, '-u', '-m', 'http.server', '--bind', '127.0.0.1', '0'], **PIPES) as other,
        Job(1, 0, 'tcp', TRIB_JOIN_TIMEOUT='1s') as job,
    ):
        port = other.stdout.readline().split(' port ')[1].split()[0]
        job.env['TRIB_STORE'] = 'etcd://127.0.0.1:%s/x' % port
        ((status, output),) = ends_of([job.start(0, '10')])
        other.kill()
        assert status == 1 and 'HTTP status 501' in output, (status, output[-600:])
    for text in ('redis://127.0.0.1:1/x', 'etcd://', 'etcd://host/x'):
        with Job(1, 0, 'tcp') as job:
            job.env['TRIB_STORE'] = text
            ((status, output),) = ends_of([job.start(0, '10')])
            assert status == 1 and 'TRIB_INVALID' in output and text in output, (status, output[-600:])


CASES = [
    ('killed_rank_%d_%s' % (rank, transport), lambda r=rank, t=transport: killed(r, t))
    for rank, transport in ((0, 'tcp'), (1, 'tcp'), (0, 'shm'))
]
CASES += [
    (case.__name__, case)
    for case in (two_of_three_killed, paused, stopped, never_back, lost_its_data, name_twice, not_there)
]


def main():
    info = json.loads(subprocess.run([BUILD + '/tributary', 'info', '--json'], capture_output=True, text=True).stdout)
    if not info['found_when_built']['libcurl']:
        print('# skipped: built without libcurl')
        return 0
    if shutil.which('etcd') is None:
        print('# skipped: etcd is not installed (package etcd-server; tools/install-deps --tests)')
        return 0
    return run_cases(CASES)


if __name__ == '__main__':
    began = time.monotonic()
    status = main()
    print('# %.0f s' % (time.monotonic() - began))
    sys.exit(status)

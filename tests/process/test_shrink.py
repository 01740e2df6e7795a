#!/usr/bin/env python3
"""Kills workers of a job that goes on without them (TRIB_SURVIVE=workers), and lets others join. examples/shrink must
train on, on all that are left, and all must end with the same weights.

Prints `ok NAME` / `not ok NAME: why`.
"""

import os
import re
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import ends_of, read_until, run_cases  # noqa: E402
from ports import free_port  # noqa: E402
from shrink_bed import Job  # noqa: E402

WORKERS = 4


def check_results(ended, count):
    """All have the same line, which is the right one."""
    lines = []
    for status, output in ended:
        assert status == 0, 'ended with %d: %s' % (status, output[-800:])
        found = re.search(r'rank \d+ of (\d+): (y = \S+ x \+ \S+ after \d+ steps)', output)
        assert found and int(found.group(1)) == count, output[-800:]
        lines.append(found.group(2))
    assert len(set(lines)) == 1 and lines[0].startswith('y = 3.000000 x + 1.000000 '), lines


def killed(transport, servers, deaths):
    """Workers are killed one after the other, each when rank 0 has seen the last change."""
    # each change begins more steps: the training is long enough whatever a step takes
    with Job(WORKERS, servers, transport, TRIB_LOG='warn') as job:
        workers = [job.start(rank, '20000') for rank in range(WORKERS)]
        for number in range(deaths):
            read_until(workers[0], 'epoch %d, rank 0 of %d' % (number + 1, WORKERS - number))
            workers[WORKERS - 1 - number].send_signal(signal.SIGKILL)
        read_until(workers[0], 'epoch %d, rank 0 of %d' % (deaths + 1, WORKERS - deaths))
        ended = ends_of(workers[: WORKERS - deaths])
        check_results(ended, WORKERS - deaths)
        assert [status for status, _ in ends_of(job.servers)] == [0] * servers


def coordinators_killed(transport, servers):
    """Rank 0 is killed, then the rank 0 that takes its place. A worker that joins finds the third one."""
    with Job(WORKERS, servers, transport) as job:
        job.env['TRIB_COORDINATOR'] += ',127.0.0.1:%d' % free_port()
        workers = [job.start(rank, '1000000000', '200') for rank in range(WORKERS)]
        for worker in workers:
            read_until(worker, 'epoch 1, ')
        workers[0].send_signal(signal.SIGKILL)
        read_until(workers[1], r'rank 0 of 3 \(lost .*rank 0')
        workers[1].send_signal(signal.SIGKILL)
        read_until(workers[2], r'rank 0 of 2 \(lost .*rank 0')
        late = job.start(-1, '1000000000', '200')
        read_until(late, 'rank 2 of 3')
        read_until(workers[3], 'rank 1 of 3')


def coordinator_stands_still(transport):
    """Rank 0 still has its port when another one takes its place, and says why workers cannot find it there. Rank 0 is
    gone when a worker joins, which finds the new one."""
    with Job(3, 0, transport, TRIB_PEER_TIMEOUT='3s', TRIB_LOG='info') as job:
        workers = [job.start(rank, '1000000000', '200') for rank in range(3)]
        for worker in workers:
            read_until(worker, 'epoch 1, ')
        workers[0].send_signal(signal.SIGSTOP)
        read_until(workers[1], 'cannot find the coordinator before the next epoch: .*in use')
        workers[0].kill()
        read_until(job.start(-1, '1000000000', '200'), 'rank 2 of 3')


def coordinator_of_two_killed():
    """One of two is no majority: it says so. With a server there is one."""
    with Job(2, 0, 'tcp') as job:
        workers = [job.start(rank, '1000000000') for rank in range(2)]
        for worker in workers:
            read_until(worker, 'epoch 1, ')
        workers[0].send_signal(signal.SIGKILL)
        ((status, output),) = ends_of(workers[1:])
        assert status == 1 and 'TRIB_PEER_LOST' in output and 'rank 0' in output and 'no majority' in output, (
            status,
            output[-600:],
        )
    with Job(2, 1, 'tcp') as job:
        workers = [job.start(rank, '1000000000') for rank in range(2)]
        for worker in workers:
            read_until(worker, 'epoch 1, ')
        workers[0].send_signal(signal.SIGKILL)
        read_until(workers[1], 'rank 0 of 1')


def joined(transport):
    """From two workers to three at a boundary, and back to two when one is killed."""
    with Job(2, 0, transport) as job:
        workers = [job.start(rank, '1000000000', '200') for rank in range(2)]
        late = job.start(-1, '1000000000', '200')
        read_until(late, r'epoch \d+, rank 2 of 3')
        workers[1].send_signal(signal.SIGKILL)
        read_until(late, r'epoch \d+, rank 1 of 2 \(.*rank 1 ')


def server_is_refused(survive):
    """Without the setting a server that comes later is told which one would admit it."""
    with Job(1, 0, 'tcp') as job:
        job.env.update(TRIB_SURVIVE=survive, TRIB_SERVERS='1')
        job.start_server()
        read_until(job.start(0, '1000000000'), 'epoch 1, ')
        job.start_server()
        ((status, output),) = ends_of(job.servers[1:])
        assert status == 1 and 'already begun: with TRIB_SURVIVE=workers on all members' in output, (status, output)


CASES = [
    (
        'killed_%d_of_%d_with_%d_servers_%s' % (deaths, WORKERS, servers, transport),
        lambda t=transport, s=servers, d=deaths: killed(t, s, d),
    )
    for transport, servers, deaths in (('tcp', 0, 2), ('shm', 0, 1), ('tcp', 2, 1), ('shm', 1, 3))
]
CASES += [
    (
        'coordinators_killed_with_%d_servers_%s' % (servers, transport),
        lambda t=transport, s=servers: coordinators_killed(t, s),
    )
    for transport, servers in (('tcp', 0), ('tcp', 2), ('shm', 0))
]
CASES += [('coordinator_stands_still_tcp', lambda: coordinator_stands_still('tcp'))]
CASES += [('coordinator_of_two_killed', coordinator_of_two_killed)]
CASES += [('server_refused_%s' % survive, lambda s=survive: server_is_refused(s)) for survive in ('nothing', 'servers')]
CASES += [('joined_%s' % transport, lambda t=transport: joined(t)) for transport in ('tcp', 'shm')]


if __name__ == '__main__':
    sys.exit(run_cases([case for case in CASES if len(sys.argv) < 2 or case[0] in sys.argv[1:]]))

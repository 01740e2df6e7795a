#!/usr/bin/env python3
"""Kills or drains servers of a job that survives that (TRIB_SURVIVE=servers). The training must go on, fail nothing,
and end with the same weights, bit for bit, as one that nothing happened to.

Prints `ok NAME` / `not ok NAME: why`.
"""

import functools
import os
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import PIPES, job_settings, run_cases  # noqa: E402

BUILD = os.environ.get('TRIB_BUILD', 'build/release')
WORKERS, EPOCHS = 3, 40
BOUND = 60.0  # seconds for a whole training, far above what it takes


def train(servers, deaths, number=signal.SIGKILL, **settings):
    """Returns each worker's exit status and output, and each server's. One server more gets the signal whenever rank 0
    has printed another line of an epoch."""
    env = {k: v for k, v in os.environ.items() if not k.startswith('TRIB_')}
    env.update(job_settings(WORKERS, servers, TRIB_SURVIVE='servers', **settings))
    there = [subprocess.Popen([BUILD + '/tributary', 'server'], env=env, **PIPES) for _ in range(servers)]
    workers = [
        subprocess.Popen(
            [BUILD + '/examples/digits', '--epochs', str(EPOCHS)], env=dict(env, TRIB_RANK=str(i)), **PIPES
        )
        for i in range(WORKERS)
    ]
    try:
        first, killed = [], 0
        for line in workers[0].stdout:
            first.append(line)
            if line.startswith('epoch') and killed < deaths:
                there[killed].send_signal(number)
                killed += 1
        assert killed == deaths, 'only %d servers were killed: %s' % (killed, ''.join(first))
        deadline = time.monotonic() + BOUND
        outputs = [worker.communicate(timeout=max(0.1, deadline - time.monotonic()))[0] for worker in workers]
        outputs[0] = ''.join(first) + outputs[0]
        said = [server.communicate(timeout=max(0.1, deadline - time.monotonic()))[0] for server in there]
        return (
            [(worker.returncode, output) for worker, output in zip(workers, outputs)],
            [(server.returncode, output) for server, output in zip(there, said)],
        )
    finally:
        for process in there + workers:
            process.kill()
            process.wait()


def weights_of(results):
    """Returns the hash of the weights, which rank 0 prints when all workers have the same."""
    for rank, (status, output) in enumerate(results):
        assert status == 0, 'rank %d ended with %d: %s' % (rank, status, output[-600:])
    found = re.search(r'bit-identical: ok \(hash (\w+)\)', results[0][1])
    assert found, results[0][1][-600:]
    return found.group(1)


@functools.lru_cache(maxsize=None)
def weights_undisturbed(transport, servers):
    """Returns the hash of the weights of a training that nothing happens to. They are the same each time."""
    return weights_of(train(servers, 0, TRIB_TRANSPORT=transport)[0])


def killed(transport, servers, deaths):
    results, ended = train(servers, deaths, TRIB_TRANSPORT=transport, TRIB_LOG='warn')
    assert weights_of(results) == weights_undisturbed(transport, servers)
    assert [status for status, _ in ended] == [-signal.SIGKILL] * deaths + [0] * (servers - deaths), ended
    assert all(output.count('the job goes on without a server') == deaths for _, output in results), results[1][1][
        -600:
    ]


def drained(transport, number):
    """One of two servers is told to end, and leaves first: workers say no more than that it leaves."""
    results, ended = train(2, 1, number, TRIB_TRANSPORT=transport, TRIB_LOG='info')
    assert weights_of(results) == weights_undisturbed(transport, 2)
    assert [status for status, _ in ended] == [0, 0], ended
    for _, output in results + ended:
        complaints = re.findall('.*Z (?:warn|error) .*', output)
        assert not complaints, complaints
    for _, output in results:
        told = re.findall('.*the job goes on without a server.*', output)
        assert len(told) == 1 and 'which leaves in good order: ' in told[0], told


def last_one_drained():
    """Nobody else sums, so the server leaves as without the setting, and says why."""
    results, ended = train(1, 1, signal.SIGTERM, TRIB_COLOCATE='off', TRIB_LOG='error')
    assert all(status != 0 for status, _ in results), results
    status, output = ended[0]
    assert status == 1 and 'it could not be drained: nobody else can sum its share' in output, (status, output)


def last_one_killed():
    """Nobody else sums, so the job ends, and says why, and how it would go on."""
    results, _ = train(1, 1, TRIB_COLOCATE='off', TRIB_LOG='warn')
    assert re.search('nobody else can sum .* server 0 .*TRIB_SURVIVE=workers', results[0][1]), results[0][1][-600:]
    for status, output in results:
        assert status != 0 and 'the job is over: lost ' in output and 'server 0' in output, '%d: %s' % (
            status,
            output[-600:],
        )


CASES = [
    ('killed_%d_of_%d_%s' % (deaths, servers, transport), lambda t=transport, s=servers, d=deaths: killed(t, s, d))
    for transport in ('tcp', 'shm')
    for servers, deaths in ((2, 1), (3, 1), (3, 2))
] + [('last_one_killed', last_one_killed)]
CASES += [
    ('drained_%s_%s' % (number.name, transport), lambda t=transport, n=number: drained(t, n))
    for transport, number in (('tcp', signal.SIGTERM), ('shm', signal.SIGTERM), ('tcp', signal.SIGINT))
]
CASES += [('last_one_drained', last_one_drained)]


if __name__ == '__main__':
    sys.exit(run_cases(CASES))

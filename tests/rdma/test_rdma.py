#!/usr/bin/env python3
"""Runs the RDMA tests in a guest with the kernel's software RDMA (tools/cluster/verbs-guest).

Prints `ok NAME` / `not ok NAME: why` / `skip NAME: why`. A guest takes time to boot, so the jobs share one.
"""

import functools
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import PIPES  # noqa: E402

BUILD = os.environ.get('TRIB_BUILD', 'build/release')
GUEST_CANNOT_RUN = 77
# The kernel's warning that it holds a connection, and with it the process that closes it.
KEPT = 'cm_destroy_id_wait_timeout'
TOOLS = (BUILD + '/tributary', BUILD + '/examples/digits', BUILD + '/libtributary.so.0')
CONTRACT = BUILD + '/tests/test_transport_rdma'
REGISTERED = BUILD + '/tests/test_registered'
DIRECT = (BUILD + '/tests/test_direct', BUILD + '/tests/test_direct_ends')
DATA = 'examples/digits/digits.csv'

EPOCHS = 16  # of the job of which a rail fails


class Skip(Exception):
    """The test cannot run here; the text says why."""


def kernel_crashed(output):
    """Returns whether Linux's software RDMA device crashed: sometimes a completion arrives while its queue is closed
    (6.1). No program can do that to a working kernel, so the guest gets a second chance."""
    return (
        'Kernel panic' in output
        and re.search(r'RIP: \S+ \[(ib_uverbs|ib_core|rdma_rxe|rdma_ucm|rdma_cm)\]', output) is not None
    )


def device_stood_still(output):
    """Returns whether the device got stuck: it neither executes nor fails a request. The test that hangs reports this
    (rdma_raw_peer.h)."""
    return 'the device owes an answer' in output


def guest(command, *options, programs=(), timeout=300):
    """Returns exit status and output of a shell command in a guest."""
    missing = [path for path in programs if not os.path.exists(path)]
    if missing:
        raise Skip('not built: %s' % ', '.join(missing))
    carried = [word for path in programs for word in ('--program', path)]
    # Two emulated processors take a third more of this machine's: they wait for each other's locks. Losses, which
    # have the shortest time limits, keep two.
    words = ['tools/cluster/verbs-guest', '--cpus', '1', '--timeout', str(timeout), *carried, *options, '--', command]
    for _ in range(2):
        done = subprocess.run(words, **PIPES)
        fault = (
            'crashed in'
            if kernel_crashed(done.stdout)
            else 'stood still in'
            if device_stood_still(done.stdout)
            else None
        )
        if fault is None:
            break
        print("  # the guest's kernel %s its RDMA driver" % fault)
    if done.returncode == GUEST_CANNOT_RUN:
        raise Skip(done.stdout.strip().splitlines()[-1])
    return done.returncode, done.stdout


def built_with_rdma():
    done = subprocess.run([BUILD + '/tributary', 'info', '--json'], stdout=subprocess.PIPE, text=True, check=True)
    if '"rdma"' not in re.search(r'"transports": \[[^]]*\]', done.stdout).group():
        raise Skip('built without libibverbs and librdmacm')


def parts(output):
    """Returns each job's exit status and output, by name."""
    found, name = {}, None
    for line in output.splitlines():
        begins, ends = re.match(r'== (\w+)$', line), re.match(r'== status (\d+)$', line)
        if ends:
            found[name][0] = int(ends.group(1))
        elif begins:
            name = begins.group(1)
            found[name] = [None, []]
        elif name:
            found[name][1].append(line)
    return {name: (status, '\n'.join(lines)) for name, (status, lines) in found.items()}


@functools.lru_cache
def all_of(script, *options, programs=TOOLS, timeout=400):
    """Runs the jobs of a script once. An error that ends the run early appears in every case's output."""
    built_with_rdma()
    with open('tests/rdma/guest/%s.sh' % script, encoding='ascii') as file:
        command = 'EPOCHS=%d\n' % EPOCHS + file.read()
    options += ('--cpus', '2') if script == 'losses' else ()
    options += '--file', DATA + '=t/digits.csv'
    _, output = guest(command, *options, programs=programs, timeout=timeout)
    return parts(output), output


def job(name, script='jobs'):
    jobs, output = all_of(script)
    assert name in jobs and jobs[name][0] is not None, 'the job did not finish\n%s' % output[-3000:]
    return jobs[name]


def guest_has_a_verbs_device():
    status, output = guest('ibv_devinfo && exit 5')
    assert status == 5, 'status %d\n%s' % (status, output)  # the command's own status
    assert 'hca_id:\trxe0' in output and 'PORT_ACTIVE' in output, output


def guest_ends_at_its_deadline():
    status, output = guest('while true; do sleep 1; done', timeout=5)
    assert status == 124 and 'not done within 5 s' in output, 'status %d\n%s' % (status, output)


def contract():
    built_with_rdma()
    status, output = guest('CMOCKA_MESSAGE_OUTPUT=TAP ./test_transport_rdma', programs=[CONTRACT], timeout=400)
    passed = len(re.findall(r'^ok \d+ - ', output, re.M))
    assert status == 0 and passed >= 60 and 'not ok' not in output, 'status %d, %d passed\n%s' % (
        status,
        passed,
        output,
    )


def program(name, passed):
    jobs, output = all_of('programs', programs=(CONTRACT, REGISTERED, *DIRECT), timeout=700)
    status, words = jobs.get(name, (None, output[-3000:]))
    oks = len(re.findall(r'^ok \d+ - ', words, re.M))
    assert status == 0 and oks == passed and 'not ok' not in words, 'status %s, %d passed\n%s' % (status, oks, words)
    return words


def memory_of_the_caller():
    """Tests the public interface: registered memory is not copied, other memory is; bytes_copied counts."""
    program('memory_of_the_caller', 4)


def gpu_direct():
    """Bytes of device tensors that bypass host memory: which ones do, in which order, and how operations end."""
    program('gpu_direct', 10)


def device_removed():
    """The device goes while one connection is open and another waits for its peer to end. Each is reported once."""
    assert 'ok 1 - is_told_once_when_the_device_goes' in program('device_removed', 1)


def weights_in(output):
    return re.findall(r'bit-identical: ok \(hash (\w+)\)', output)


def weights_over_tcp(servers, epochs=4):
    """Trains on this machine itself, a hundredth of the work of an emulated one. Sums are the same bits on both."""
    command = [TOOLS[0], 'run', '-n', '2', '-s', str(servers), '--', TOOLS[1], '--epochs', str(epochs), '--data', DATA]
    done = subprocess.run(command, env=dict(os.environ, TRIB_TRANSPORT='tcp'), timeout=100, **PIPES)
    assert done.returncode == 0 and weights_in(done.stdout), 'status %d\n%s' % (done.returncode, done.stdout)
    return weights_in(done.stdout)


def digits_as_over_tcp():
    """The same job over RDMA and TCP learns the same weights, bit for bit."""
    status, output = job('digits_over_rdma')
    assert status == 0, 'status %d\n%s' % (status, output)
    assert weights_in(output) == weights_over_tcp(2), output


def auto_chooses_rdma():
    """Processes without shared memory between them use RDMA. The others use shared memory."""
    status, output = job('auto_chooses_rdma')
    assert status == 0, 'status %d\n%s' % (status, output)
    assert len(re.findall(r'rank \d: to 10\.77\.0\.1:\d+ over RDMA', output)) == 2, output
    # One at least: a worker that tried the coordinator's address too early was told that there is no shared memory.
    assert re.search(r'rank \d: to 10\.77\.0\.1:\d+ over shared memory', output), output


def auto_does_without_rdma():
    status, output = job('auto_does_without_rdma')
    assert status == 0, 'status %d\n%s' % (status, output)
    assert 'RDMA is not used: cannot register' in output and 'over RDMA' not in output, output
    assert len(re.findall(r'rank \d: to 10\.77\.0\.1:\d+ over TCP: ', output)) >= 2, output


def two_rails():
    """Reactors listen on one device each, and their connections use it."""
    status, output = job('two_rails')
    assert status == 0, 'status %d\n%s' % (status, output)
    for rail in 77, 78:
        assert len(re.findall(r'rank \d: to 10\.%d\.0\.1:\d+ over RDMA' % rail, output)) == 2, output


def a_rail_is_gone():
    status, output = job('a_rail_is_gone')
    assert status == 0 and 'reactor 1 takes the next listen address: ' in output, 'status %d\n%s' % (status, output)
    assert len(re.findall(r'rank \d: to 10\.77\.0\.1:\d+ over RDMA', output)) == 4, output


def lost(name, victim):
    """Checks that each remaining member ends in time and names the loss."""
    status, output = job(name, 'losses')
    pid = re.search(r'^lost pid (\d*)', output, re.M)
    assert status == 0 and pid, 'status %d\n%s' % (status, output)
    ends = re.findall(r'^member (\w+): status (\w+), after (\d+) s: (.*)$', output, re.M)
    assert len(ends) == (3 if victim else 4), output
    for member, end, seconds, words in ends:
        assert end not in ('0', 'kept') or (end == 'kept' and KEPT in all_of('losses')[1]), '%s: status %s\n%s' % (
            member,
            end,
            output,
        )
        assert end == 'kept' or int(seconds) < 40, '%s ended after %s s\n%s' % (member, seconds, output)
        named = ':%s)' % pid.group(1) in words if victim else re.search('lost the connection|no sign of life', words)
        assert named, '%s does not say what was lost (pid %s): %s' % (member, pid.group(1), words)


def server_killed():
    lost('server_killed', 'server1')


def worker_killed():
    lost('worker_killed', 'rank1')


def server_stopped():
    lost('server_stopped', 'server1')


def network_lost():
    lost('network_lost', None)


def with_two_cables():
    return all_of('two_cables', '--hosts', '2', '--cables', '2')


def a_rail_fails():
    """A rail fails in the middle of a job, on either side. Its work moves to the other rail; sums stay exact."""
    jobs, output = with_two_cables()
    status, words = jobs.get('rails_0', (None, ''))
    assert status == 0 and jobs['rails_1'][0] == 0 and 'never said' not in output, output[-9000:]
    assert re.search(r'connection \w+ 10\.77\.0\.2:\d+ broke \(.*port 1 of rxe0 is down', words), words
    assert re.search(r'connection \w+ 10\.78\.0\.2:\d+ is made again', words), words
    assert len(set(re.findall(r'reactor [01] listens by (\w+)', words))) == 2, words
    second = re.search(r'connection \w+ 10\.78\.0\.2:\d+ broke', words)
    assert second and re.search(r'connection \w+ 10\.77\.0\.2:\d+ is made again', words[second.end() :]), words
    there, here = weights_in(words), weights_over_tcp(1, EPOCHS)
    assert there == here, 'weights %s, on one host over TCP %s' % (there, here)


def no_rail_left():
    jobs, output = with_two_cables()
    status, words = jobs.get('no_rail_left_0', (0, ''))
    seconds = re.search(r'after (\d+) s', words)
    assert status and seconds and int(seconds.group(1)) < 40 and 'TRIB_PEER_LOST' in words, output[-6000:]


def two_hosts():
    """Over a network: the second host has a worker and the server. Then the host falls silent."""
    jobs, output = all_of('two_hosts', '--hosts', '2', timeout=200)
    status, words = jobs.get('learns_0', (None, ''))
    assert status == 0 and len(re.findall(r'rank 0: to 10\.77\.0\.2:\d+ over RDMA', words)) == 2, output[-6000:]
    assert jobs['learns_1'][0] == 0, output[-6000:]
    there, here = weights_in(words), weights_over_tcp(1)
    assert there == here, 'weights %s, on one host over TCP %s' % (there, here)
    status, words = jobs.get('machine_lost_0', (0, ''))
    seconds = re.search(r'after (\d+) s: .*(lost|no sign of life)', words)
    assert status and seconds and int(seconds.group(1)) < 40 and 'TRIB_PEER_LOST' in words, output[-6000:]


def too_little_memory_may_be_locked():
    status, output = job('too_little_memory_may_be_locked')
    assert status != 0, output
    assert 'the limit on locked memory (ulimit -l) is 64 KiB; raise it' in output, output


def no_address_of_a_device():
    status, output = job('no_address_of_a_device')
    assert status != 0 and 'no RDMA device of this machine leads there' in output, 'status %d\n%s' % (status, output)


def no_device():
    status, output = job('no_device')
    assert status != 0 and 'transport rdma: this machine has no RDMA device' in output, 'status %d\n%s' % (
        status,
        output,
    )


TESTS = [
    guest_has_a_verbs_device,
    guest_ends_at_its_deadline,
    contract,
    memory_of_the_caller,
    gpu_direct,
    device_removed,
    digits_as_over_tcp,
    auto_chooses_rdma,
    auto_does_without_rdma,
    two_rails,
    a_rail_is_gone,
    server_killed,
    worker_killed,
    server_stopped,
    network_lost,
    two_hosts,
    a_rail_fails,
    no_rail_left,
    too_little_memory_may_be_locked,
    no_device,
    no_address_of_a_device,
]


def main():
    names, failed = sys.argv[1:], 0
    for test in TESTS:
        if names and test.__name__ not in names:
            continue
        try:
            test()
            print('ok %s' % test.__name__, flush=True)
        except Skip as why:
            print('skip %s: %s' % (test.__name__, why), flush=True)
        except AssertionError as why:
            failed += 1
            print('not ok %s: %s' % (test.__name__, str(why)[-6000:]), flush=True)
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())

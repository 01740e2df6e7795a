#!/usr/bin/env python3
"""Jobs on hosts of their own: network namespaces with shaped links. Sums are exact whatever the servers, every
remaining member names a host that was killed or cut off, and no member hangs.

Needs root, iproute2 and a kernel with namespaces; skipped otherwise. Prints `ok NAME` / `not ok NAME: why`.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, 'tools', 'cluster'))
sys.path.insert(0, os.path.join(ROOT, 'tests'))
import cluster as lab  # noqa: E402
from cases import comes_true  # noqa: E402

BUILD = os.path.abspath(os.environ.get('TRIB_BUILD', 'build/release'))
TOOL = BUILD + '/tributary'
DIGITS = BUILD + '/examples/digits'
PREFIX, PREFIX_LINKS = 'tribtest', 'triblinks'
# On a busy machine a member that lives may stand still for seconds. Only what is cut off is waited for so long.
PEER_TIMEOUT, PEER_TIMEOUT_OF_CUT = 10.0, 3.0
BOUND = 40.0  # seconds for all remaining members to end; far above the time in which a silent one is lost
HOSTS = 6


class Job:
    """A job of workers and servers, each on a host of its own while there are enough hosts."""

    def __init__(self, hosts, workers, servers, command, ipv6=False, per_host=1, **settings):
        worker_hosts, server_hosts = lab.lay_out(list(range(HOSTS)), workers, servers, per_host)
        env = dict(
            lab.clean_environment(),
            **lab.job_environment(workers, servers, worker_hosts[0], ipv6),
            TRIB_PEER_TIMEOUT=str(PEER_TIMEOUT),
            TRIB_LOG='error',
        )
        env.update({key: str(value) for key, value in settings.items() if value is not None})
        for key in [key for key, value in settings.items() if value is None]:
            env.pop(key, None)
        self.hosts, self.members = hosts, {}
        for i, host in enumerate(server_hosts):
            self.start('server %d' % i, host, [TOOL, 'server'], dict(env, **lab.listen_environment(hosts, host, ipv6)))
        for rank, host in enumerate(worker_hosts):
            self.start(
                'rank %d' % rank,
                host,
                command,
                dict(env, TRIB_RANK=str(rank), **lab.listen_environment(hosts, host, ipv6)),
            )

    def start(self, name, host, command, env):
        self.members[name] = (
            host,
            self.hosts.popen(
                host, command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors='replace'
            ),
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for _, member in self.members.values():
            if member.poll() is None:
                member.kill()
            member.wait()
            member.stdout.close()

    def process(self, name):
        return self.members[name][1]

    def host(self, name):
        return self.members[name][0]

    def wait_progress(self):
        for line in self.process('rank 0').stdout:
            if line.startswith('epoch'):
                return
        raise AssertionError('rank 0 ended before its first epoch')

    def finish(self, without=(), bound=BOUND):
        """Returns each member's exit status and output, except for `without`. A member that still runs after the bound
        is an error."""
        deadline, result = time.monotonic() + bound, {}
        for name, (_, member) in self.members.items():
            if name not in without:
                try:
                    output, _ = member.communicate(timeout=max(0.1, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    raise AssertionError('%s is still there %.0f s later' % (name, bound)) from None
                result[name] = (member.returncode, output)
        return result


def last_object(output):
    return json.loads([line for line in output.splitlines() if line.startswith('{')][-1])


def learn(hosts, workers, servers, ipv6=False, per_host=1, **settings):
    with Job(hosts, workers, servers, [DIGITS, '--epochs', '4', '--json'], ipv6, per_host, **settings) as job:
        results = job.finish(bound=60)
        for name, (status, output) in results.items():
            assert status == 0, '%s ended with status %d: %s' % (name, status, output[-400:])
        return last_object(results['rank 0'][1])


def same_bits(hosts):
    """Four workers end with the same weights, bit for bit, whoever sums and whatever the partition size."""
    expected = None
    for servers, settings in (
        (2, {}),
        (0, {}),
        (1, {'TRIB_PARTITION_BYTES': '8K', 'TRIB_CHUNK_BYTES': '4K'}),
        (2, {'TRIB_REACTORS': '2'}),
    ):
        result = learn(hosts, 4, servers, **settings)
        assert result['bit_identical'], result
        expected = expected or result['weights_hash']
        assert result['weights_hash'] == expected, 'with %d servers and %s: %s, not %s' % (
            servers,
            settings,
            result['weights_hash'],
            expected,
        )


def over_ipv6(hosts):
    assert learn(hosts, 3, 1, ipv6=True)['bit_identical']


def sums_first(hosts):
    """Two workers a host get the same bits as if each pushed its own contribution, or used TCP between them."""
    expected = learn(hosts, 4, 0, per_host=2, TRIB_LOCAL_SUM='off')['weights_hash']
    for servers, settings in ((0, {}), (2, {}), (0, {'TRIB_TRANSPORT': 'tcp'}), (0, {'TRIB_REACTORS': '2'})):
        result = learn(hosts, 4, servers, per_host=2, **settings)
        assert result['bit_identical'], result
        assert result['weights_hash'] == expected, 'with %d servers and %s: %s, not %s' % (
            servers,
            settings,
            result['weights_hash'],
            expected,
        )


def one_leaves_a_host(hosts):
    """Four workers on two hosts, measured by the links' own counters: each host's link carries one contribution of what
    the other host sums, and one sum."""
    carried = {}
    for mode in ('off', 'auto'):
        before = [hosts.bytes(host)['tx'] for host in (0, 1)]
        with Job(
            hosts, 4, 0, [TOOL, 'bench', '--sizes', '8M', '--iters', '5', '--json'], per_host=2, TRIB_LOCAL_SUM=mode
        ) as job:
            results = job.finish(bound=90)
        for name, (status, output) in results.items():
            assert status == 0, '%s ended with status %d: %s' % (name, status, output[-400:])
        output = results['rank 0'][1]
        rows = json.loads(output[output.index('{') :])
        assert rows['local_sum'] == (0 if mode == 'off' else 2), rows
        carried[mode] = [hosts.bytes(host)['tx'] - b for host, b in zip((0, 1), before)]
    for off, auto in zip(carried['off'], carried['auto']):
        assert auto < 0.55 * off, 'bytes that left the hosts: %s' % carried


def large_sums(hosts):
    """tributary bench checks each of its sums. The links are so slow that everything queues."""
    with Job(hosts, 4, 2, [TOOL, 'bench', '--sizes', '4K,1M,12M', '--iters', '3', '--json']) as job:
        for name, (status, output) in job.finish(bound=90).items():
            assert status == 0, '%s ended with status %d: %s' % (name, status, output[-400:])


def expect_named(job, victim, results):
    host = job.host(victim)
    for name, (status, output) in results.items():
        assert status != 0, '%s ended with status 0 although %s was lost' % (name, victim)
        named = victim in output or lab.Cluster.address(host) in output or ':%d)' % job.process(victim).pid in output
        named = named or (victim == 'rank 0' and 'coordinator' in output)
        assert named, '%s does not name %s: %s' % (name, victim, output[-400:])


def killed(hosts, victim, per_host=1):
    with Job(hosts, 4, 2, [DIGITS, '--epochs', '300'], per_host=per_host) as job:
        job.wait_progress()
        job.process(victim).send_signal(signal.SIGKILL)
        expect_named(job, victim, job.finish(without=[victim]))


def cut_off(hosts, victim):
    """A member is cut off without a reset. The others end and name it, and the member that was cut off ends too."""
    with Job(hosts, 4, 2, [DIGITS, '--epochs', '300'], TRIB_PEER_TIMEOUT=PEER_TIMEOUT_OF_CUT) as job:
        job.wait_progress()
        hosts.cut(job.host(victim))
        try:
            results = job.finish()
        finally:
            hosts.mend(job.host(victim))
        alone = results.pop(victim)
        assert alone[0] != 0, '%s, which was cut off, ended with status 0' % victim
        expect_named(job, victim, results)


def down_for_a_while(hosts):
    """A link that is down for 0.8 of peer_timeout does not end the job. Connections are made again when the link is up,
    and what was lost is sent again."""
    release = tuple(int(n) for n in re.match(r'(\d+)\.(\d+)', os.uname().release).groups())
    if release < (6, 15):
        raise unittest.SkipTest('Linux %d.%d lets TCP wait as long as it likes between tries; needs 6.15' % release)
    with Job(hosts, 2, 2, [DIGITS, '--epochs', '60']) as job:
        job.wait_progress()
        hosts.cut(job.host('rank 0'))
        time.sleep(8)
        hosts.mend(job.host('rank 0'))
        results = job.finish(bound=60)
    for name, (status, output) in results.items():
        assert status == 0, '%s ended with status %d: %s' % (name, status, output[-400:])


def resets(hosts):
    """Connections of a worker's host are reset again and again. No operation fails, and every bit is right."""
    found = []
    for breaks in (False, True):
        broken = 0
        with Job(hosts, 2, 2, [DIGITS, '--epochs', '60'], TRIB_LOG='warn') as job:
            job.wait_progress()
            while breaks and broken < 10 and job.process('rank 0').poll() is None:
                words = hosts.exec_words(job.host('rank 0'), ['ss', '-K', '-t', 'state', 'established'])
                broken += (
                    subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.count(b'\n') > 1
                )
                time.sleep(0.2)
            results = job.finish(bound=60)
        for name, (status, output) in results.items():
            assert status == 0, '%s ended with status %d: %s' % (name, status, output[-400:])
        if breaks and 'it is made again' not in results['rank 0'][1]:
            raise unittest.SkipTest('this kernel resets no connections on request (ss -K)')
        found.append(re.search('hash ([0-9a-f]+)', results['rank 0'][1]).group(1))
    assert found[0] == found[1], found


def slow_host(hosts):
    """A link of a hundredth of the others' rate delays all workers and changes no result."""
    hosts.rate(1, '10mbit')
    try:
        assert learn(hosts, 4, 2)['bit_identical']
    finally:
        hosts.rate(1, '1gbit')


def becomes_narrow(hosts):
    """Links are slow, not lost, when they become so narrow that their queue takes longer than TCP's retransmission
    interval."""
    with tempfile.NamedTemporaryFile('w', suffix='.csv') as model:
        model.write(
            '# test: a few; forward 1 us, backward 1 us, optimizer 1 us\ntensor,elements,ready_us\n'
            + ''.join('t%d,250000,%d\n' % (i, i) for i in range(8))
        )
        model.flush()
        with Job(hosts, 3, 1, [TOOL, 'step', '--model', model.name, '--iters', '60']) as job:
            narrow = [job.host('rank 1'), job.host('server 0')]
            assert comes_true(lambda: hosts.bytes(narrow[0])['rx'] > 60 << 20), 'the job has not begun'
            for host in narrow:
                hosts.rate(host, '1mbit')
            time.sleep(25)  # a limit that took acknowledged bytes for silence would expire twice in this time
            for host in narrow:
                hosts.rate(host, '1gbit')
            results = job.finish(bound=120)
    for name, (status, output) in results.items():
        assert status == 0, '%s ended with status %d: %s' % (name, status, output[-400:])


def without_token(hosts):
    """Without a token no member listens beyond loopback, so hosts do not find each other. Both sides say why."""
    with Job(hosts, 2, 0, [DIGITS], TRIB_TOKEN=None, TRIB_JOIN_TIMEOUT=2) as job:
        results = job.finish(bound=30)
        assert all(status != 0 for status, _ in results.values()), results
        assert any(re.search('TRIB_TOKEN|token', output) for _, output in results.values()), results


def never_came(hosts):
    with Job(hosts, 3, 1, [DIGITS], TRIB_JOIN_TIMEOUT=3) as job:
        job.process('rank 2').kill()
        results = job.finish(without=['rank 2'], bound=30)
        for name, (status, output) in results.items():
            assert status != 0, '%s ended with status 0' % name
        assert 'rank 2' in results['rank 0'][1], results['rank 0'][1][-400:]


def with_two_links(case):
    """Runs a case on hosts with two links each, in two networks."""

    def run(_):
        lab.remove_stale(PREFIX_LINKS)
        with lab.Cluster(PREFIX_LINKS + str(os.getpid())) as hosts:
            hosts.up(4, '500mbit', links=2)
            case(hosts)

    return run


def each_carries_half(hosts):
    """Each link carries half of the bytes that leave a host or reach it, with the default number of reactors. A link
    that is silent because the machine is busy must not be given up."""
    before = [[hosts.bytes(host, link) for link in (0, 1)] for host in range(4)]
    with Job(hosts, 2, 2, [TOOL, 'bench', '--sizes', '16M', '--iters', '3', '--json'], TRIB_PEER_TIMEOUT=20) as job:
        for name, (status, output) in job.finish(bound=90).items():
            assert status == 0, '%s ended with status %d: %s' % (name, status, output[-400:])
    for host in range(4):
        for way in ('rx', 'tx'):
            carried = [hosts.bytes(host, link)[way] - before[host][link][way] for link in (0, 1)]
            assert sum(carried) > 3 * 16 << 20, 'host %d, %s: %s' % (host, way, carried)
            assert 0.45 < carried[0] / sum(carried) < 0.55, 'host %d, %s: %s' % (host, way, carried)


def one_takes_over(hosts):
    """When a link fails, its bytes take the other one, and the result has the same bits. Partitions are so small that
    every reactor of every server has some, so each link is in use."""
    found = []
    for fails in (False, True):
        with Job(
            hosts,
            2,
            2,
            [DIGITS, '--epochs', '60'],
            TRIB_PEER_TIMEOUT=8,
            TRIB_LOG='warn',
            TRIB_CHUNK_BYTES='4K',
            TRIB_PARTITION_BYTES='4K',
        ) as job:
            job.wait_progress()
            if fails:
                hosts.cut(3, 1)
            results = job.finish(bound=60)
        for name, (status, output) in results.items():
            assert status == 0, '%s ended with status %d: %s' % (name, status, output[-400:])
        assert not fails or 'to %s:' % hosts.address(3, 1) in results['rank 1'][1], results['rank 1'][1][-400:]
        found.append(re.search('hash ([0-9a-f]+)', results['rank 0'][1]).group(1))
    assert found[0] == found[1], found


CASES = [
    ('same_bits_whatever_the_servers', same_bits),
    ('over_ipv6', over_ipv6),
    ('large_sums', large_sums),
    ('workers_of_a_host_sum_first', sums_first),
    ('one_contribution_leaves_a_host', one_leaves_a_host),
    ('slow_host', slow_host),
    ('links_that_become_narrow_are_not_lost', becomes_narrow),
    ('link_down_for_most_of_the_timeout', down_for_a_while),
    ('connections_are_reset', resets),
    ('without_token', without_token),
    ('who_never_came_is_named', never_came),
]
CASES += [
    ('each_of_two_links_carries_half', with_two_links(each_carries_half)),
    ('one_of_two_links_takes_over', with_two_links(one_takes_over)),
]
CASES += [('%s_killed' % v.replace(' ', '_'), lambda h, v=v: killed(h, v)) for v in ('rank 3', 'server 1', 'rank 0')]
CASES += [
    ('%s_of_two_on_a_host_killed' % v.replace(' ', '_'), lambda h, v=v: killed(h, v, 2))
    for v in ('rank 1', 'rank 2', 'server 1')
]
CASES += [('%s_cut_off' % v.replace(' ', '_'), lambda h, v=v: cut_off(h, v)) for v in ('rank 3', 'server 1', 'rank 0')]


def main():
    reason = lab.why_not()
    if reason is not None:
        for name, _ in CASES:
            print('skip %s: %s' % (name, reason))
        return 77
    lab.remove_stale(PREFIX)
    failed, wanted = 0, sys.argv[1:]
    with lab.Cluster(PREFIX + str(os.getpid())) as hosts:
        hosts.up(HOSTS, '1gbit')
        for name, case in [c for c in CASES if not wanted or c[0] in wanted]:
            try:
                case(hosts)
                print('ok ' + name, flush=True)
            except unittest.SkipTest as reason:
                print('skip %s: %s' % (name, reason), flush=True)
            except (AssertionError, subprocess.TimeoutExpired, lab.ClusterError) as problem:
                failed += 1
                print('not ok %s: %s' % (name, ' | '.join(str(problem).splitlines())), flush=True)
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())

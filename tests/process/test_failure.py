#!/usr/bin/env python3
"""Kills and stops members of a running job. Every other member must end by itself, soon, with an error that names the
lost one.

Also sends garbage to a running job's ports, which must change nothing. Prints `ok NAME` / `not ok NAME: why`.
"""

import os
import random
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import PIPES, job_settings, run_cases  # noqa: E402
from ports import free_port  # noqa: E402

BUILD = os.environ.get('TRIB_BUILD', 'build/release')
DIGITS = BUILD + '/examples/digits'
HELLO, TRIBUTARY = BUILD + '/examples/hello', BUILD + '/tributary'
WORKERS, SERVERS = 3, 2
# On a busy machine a member that lives may stand still for seconds. Only what falls silent is waited for so long.
PEER_TIMEOUT, PEER_TIMEOUT_OF_STOPPED = 20.0, 4.0
BOUND = 40.0  # seconds for all members to end; far above the time in which a silent one is lost


class Job:
    def __init__(self, log='error', servers=None, epochs=300, peer_timeout=PEER_TIMEOUT, **settings):
        env = dict(
            os.environ,
            **job_settings(WORKERS, SERVERS),
            TRIB_PEER_TIMEOUT=str(peer_timeout),
            TRIB_LOG=log,
            **settings,
        )
        self.port = int(env['TRIB_COORDINATOR'].rpartition(':')[2])
        self.members = {}
        for i in range(SERVERS):
            self.start('server %d' % i, [BUILD + '/tributary', 'server'], dict(env, **(servers or {})))
        for i in range(WORKERS):
            self.start('rank %d' % i, [DIGITS, '--epochs', str(epochs)], dict(env, TRIB_RANK=str(i)))

    def start(self, name, command, env):
        self.members[name] = subprocess.Popen(command, env=env, **PIPES)

    def wait_progress(self):
        """Waits until rank 0 has printed its first epoch, so that the job is in the middle of its exchanges."""
        for line in self.members['rank 0'].stdout:
            if line.startswith('epoch'):
                return
        raise AssertionError('rank 0 ended before its first epoch')

    def ports(self):
        """Returns the ports on which the job listens."""
        pids = {str(p.pid) for p in self.members.values()}
        inodes = {}
        for pid in pids:
            for fd in os.listdir('/proc/%s/fd' % pid):
                try:
                    target = os.readlink('/proc/%s/fd/%s' % (pid, fd))
                except OSError:
                    continue
                if target.startswith('socket:['):
                    inodes[target[8:-1]] = pid
        found = []
        for line in open('/proc/net/tcp').read().splitlines()[1:]:
            parts = line.split()
            if parts[3] == '0A' and parts[9] in inodes:
                found.append(int(parts[1].split(':')[1], 16))
        return found

    def finish(self, without=(), bound=BOUND):
        """Returns each member's exit status and output, except for `without`. A member that still runs after the bound
        is an error."""
        deadline, result = time.monotonic() + bound, {}
        for name, member in self.members.items():
            if name in without:
                continue
            try:
                output, _ = member.communicate(timeout=max(0.1, deadline - time.monotonic()))
                result[name] = (member.returncode, output)
            except subprocess.TimeoutExpired:
                raise AssertionError('%s is still there %.0f s later' % (name, bound))
        return result

    def clean(self):
        for member in self.members.values():
            if member.poll() is None:
                member.kill()
            member.wait()
            member.stdout.close()


def lose(victim, number):
    job = Job(peer_timeout=PEER_TIMEOUT_OF_STOPPED if number == signal.SIGSTOP else PEER_TIMEOUT)
    try:
        job.wait_progress()
        os.kill(job.members[victim].pid, number)
        for name, (status, output) in job.finish(without=[victim]).items():
            assert status != 0, '%s ended with status 0' % name
            losses = [line for line in output.splitlines() if re.search('TRIB_PEER_LOST: |the job is over: ', line)]
            first = [re.search(r':(\d+)\)', line) for line in losses]
            named = [at and at.group(1) == str(job.members[victim].pid) for at in first]
            assert named and all(named), '%s does not name %s (pid %d) first: %s' % (
                name,
                victim,
                job.members[victim].pid,
                output[-400:],
            )
    finally:
        job.clean()


def server_told_to_leave():
    """A server that gets SIGTERM in the middle of a job reports an error by its status, and so do all others."""
    job = Job()
    try:
        job.wait_progress()
        os.kill(job.members['server 0'].pid, signal.SIGTERM)
        result = job.finish()
        assert 'signal 15' in result['server 0'][1], result['server 0']
        assert all(status == 1 for status, _ in result.values()), result
        assert ' left the job before its workers' in result['server 1'][1], result
    finally:
        job.clean()


def attack(port, rng):
    """Opens one hostile connection: noise, a scan, a wrong version, a corrupt or oversized header, a cut-off frame."""
    with socket.create_connection(('127.0.0.1', port), timeout=5) as peer:
        kind = rng.randrange(6)
        header = bytearray(b'TRIB\x01\x01\x00\x00' + bytes(56))
        if kind == 0:
            peer.sendall(rng.randbytes(rng.randrange(1, 4000)))
        elif kind == 1:
            pass
        elif kind == 2:
            header[4] = 99
            peer.sendall(header)
        elif kind == 3:
            header[8:12] = b'\xff\xff\xff\xff'
            peer.sendall(header)
        elif kind == 4:
            peer.sendall(header[:17])
        else:
            peer.sendall(b'GET / HTTP/1.1\r\nHost: x\r\n\r\n' * 9)


def garbage():
    job = Job(epochs=60)
    try:
        job.wait_progress()
        rng, ports = random.Random(7), job.ports()
        assert len(ports) >= SERVERS + 1, 'found no ports: %s' % ports
        for _ in range(200):
            try:
                attack(rng.choice(ports), rng)
            except OSError:
                pass
        for name, (status, output) in job.finish(bound=100).items():
            assert status == 0, '%s ended with status %d: %s' % (name, status, output[-400:])
        assert job.port
    finally:
        job.clean()


def wrong_token():
    port = free_port()
    env = dict(os.environ, TRIB_WORKERS='2', TRIB_COORDINATOR='127.0.0.1:%d' % port, TRIB_JOIN_TIMEOUT='3')
    first = subprocess.Popen(DIGITS, env=dict(env, TRIB_RANK='0', TRIB_TOKEN='one of them'), **PIPES)
    second = subprocess.run(DIGITS, env=dict(env, TRIB_RANK='1', TRIB_TOKEN='another one'), timeout=30, **PIPES)
    output, _ = first.communicate(timeout=30)
    assert second.returncode != 0 and 'TRIB_TOKEN' in second.stdout, second.stdout
    assert first.returncode != 0 and re.search('missing rank 1', output), output


def shared():
    """Returns the shared files and socket names that other processes could find."""
    files = {n for n in os.listdir('/dev/shm')} if os.path.isdir('/dev/shm') else set()
    names = {line.split()[-1] for line in open('/proc/net/unix').read().splitlines() if '@tributary/' in line}
    return files, names


def crash_leaves_nothing():
    """Processes of a machine find each other and share memory. When all are killed at once, none of it is left."""
    files, names = shared()
    job = Job(TRIB_TRANSPORT='shm')
    try:
        job.wait_progress()
        mapped = open('/proc/%d/maps' % job.members['rank 1'].pid).read()
        assert 'memfd:tributary' in mapped, 'rank 1 shares no memory'
        assert '@tributary/127.0.0.1:%d' % job.port in shared()[1], 'the coordinator does not listen'
        for member in job.members.values():
            member.kill()
    finally:
        job.clean()
    left_files, left_names = shared()
    assert not {n for n in left_files - files if 'trib' in n}, 'left in /dev/shm: %s' % (left_files - files)
    assert '@tributary/127.0.0.1:%d' % job.port not in left_names - names, 'left: %s' % (left_names - names)


def other_transport():
    """A member that offers TCP only is reached over TCP, and the log says so."""
    job = Job(log='info', servers={'TRIB_TRANSPORT': 'tcp'}, epochs=30)
    try:
        job.wait_progress()
        output = ''.join(text for _, text in job.finish(bound=100).values())
    finally:
        job.clean()
    assert re.search(r'to 127\.0\.0\.1:\d+ over TCP: ', output), 'no log line names TCP'
    assert re.search(r'to 127\.0\.0\.1:\d+ over shared memory: ', output), 'no log line names shared memory'


def scarce(who, limit, settings):
    """Runs a job of 8 workers and 2 servers of which one has a low limit of open files. All members must fail. Returns
    their names, pids and outputs."""
    env = dict(
        os.environ,
        TRIB_WORKERS='8',
        TRIB_SERVERS='2',
        TRIB_JOIN_TIMEOUT='4',
        TRIB_REACTORS='1',
        TRIB_COLOCATE='off',
        TRIB_COORDINATOR='127.0.0.1:%d' % free_port(),
        **settings,
    )
    names = ['server %d' % i for i in range(2)] + ['rank %d' % i for i in range(8)]
    members = []
    for name in names:
        few = (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))) if name == who else None
        command = [TRIBUTARY, 'server'] if name.startswith('server') else [HELLO]
        members.append(subprocess.Popen(command, env=dict(env, TRIB_RANK=name[-1]), preexec_fn=few, **PIPES))
    try:
        outputs = [member.communicate(timeout=60)[0] for member in members]
    finally:
        for member in members:
            member.kill()
            member.wait()
    assert all(member.returncode == 1 for member in members), 'the job formed: %s' % [
        member.returncode for member in members
    ]
    return [(name, member.pid, output) for name, member, output in zip(names, members, outputs)]


def too_few_files(transport):
    """A server that may not open a connection for each worker names the limit to raise. All members end with its
    text."""
    result = scarce('server 0', 13, {'TRIB_TRANSPORT': transport})
    pid = result[0][1]
    for name, _, output in result:
        words = (
            r'the job is over: server \d \(\S+:%d\) could let nobody else connect for .*: '
            r'process %d may have 13 \(ulimit -n\)' % (pid, pid)
        )
        assert re.search(words, output), '%s: %s' % (name, output)


def too_few_files_to_gather():
    """The coordinator's process has the low limit. It says so, and so do the members that have reached it."""
    result = scarce('rank 0', 15, {'TRIB_TRANSPORT': 'tcp'})
    for name, _, output in result:
        told = re.search(r'the job is over: .*Too many open files: process %d may have 15 ' % result[2][1], output)
        assert told or (name != 'rank 0' and 'could not reach the coordinator at ' in output), '%s: %s' % (name, output)


def too_few_files_to_connect():
    """The coordinator's process has the low limit when it connects to servers. All members name it."""
    result = scarce('rank 0', 19, {'TRIB_TRANSPORT': 'tcp'})
    pid = result[2][1]
    for name, _, output in result:
        words = 'could not connect to .*: Too many open files: process %d may have 19 ' % pid
        who = '' if name == 'rank 0' else r'rank 0 \(\S+:%d\): ' % pid
        assert re.search('the job is over: ' + who + words, output), '%s: %s' % (name, output)


def no_room_for_threads():
    """The system reports a thread's missing memory as "unavailable". The error names the actual limit."""
    settings = dict(
        env=dict(os.environ, TRIB_COORDINATOR='127.0.0.1:%d' % free_port()),
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    done = subprocess.run(
        ['sh', '-c', 'ulimit -s 8388608 && ulimit -v 4194304 && exec %s server' % TRIBUTARY], **settings
    )
    assert done.returncode == 1 and re.search(
        r'could not start reactor 0: .*4096 MiB of addresses \(ulimit -v\)', done.stderr
    ), done


def await_knock(port):
    """Waits until a member tries to join at the port, where rank 0 can listen afterwards."""
    with socket.create_server(('127.0.0.1', port)) as door:
        door.settimeout(60)
        with door.accept()[0] as peer:
            peer.settimeout(60)
            assert peer.recv(1), 'a member came and went'
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))


def too_little_memory():
    """A server without memory for its sums says so. All members end with its text, long before an operation's
    deadline."""
    port = free_port()
    env = dict(
        os.environ,
        TRIB_WORKERS='2',
        TRIB_SERVERS='1',
        TRIB_REACTORS='1',
        TRIB_COLOCATE='off',
        TRIB_PEER_TIMEOUT='2',
        TRIB_TRANSPORT='tcp',
        TRIB_COORDINATOR='127.0.0.1:%d' % port,
    )
    settings = dict(env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    members = [subprocess.Popen([TRIBUTARY, 'server'], **settings)]
    try:
        await_knock(port)  # a starting reactor allocates memory of its own
        while len(os.listdir('/proc/%d/task' % members[0].pid)) < 4:  # a reactor, its clock, and one that takes signals
            assert members[0].poll() is None, members[0].communicate()[0]
            time.sleep(0.01)
        pages = int(open('/proc/%d/statm' % members[0].pid).read().split()[0])
        limit = pages * resource.getpagesize() + (3 << 20)
        resource.prlimit(members[0].pid, resource.RLIMIT_AS, (limit, limit))
        for rank in range(2):
            members.append(
                subprocess.Popen(
                    [TRIBUTARY, 'bench', '--sizes', '256M', '--iters', '2'],
                    **dict(settings, env=dict(env, TRIB_RANK=str(rank))),
                )
            )
        outputs = [member.communicate(timeout=60)[0] for member in members]
    finally:
        for member in members:
            member.kill()
            member.wait()
    assert 'out of memory for a contribution of' in outputs[0], outputs[0]
    for member, output in zip(members, outputs):
        assert member.returncode == 1 and 'found no memory for contributions' in output, '%d: %s' % (
            member.returncode,
            output,
        )


CASES = [
    ('%s_%s' % (victim.replace(' ', '_'), name), lambda v=victim, n=number: lose(v, n))
    for name, number in (('killed', signal.SIGKILL), ('stopped', signal.SIGSTOP))
    for victim in ('rank 2', 'server 1', 'rank 0')
] + [
    ('server_told_to_leave', server_told_to_leave),
    ('garbage_on_ports', garbage),
    ('wrong_token', wrong_token),
    ('crash_leaves_nothing', crash_leaves_nothing),
    ('other_transport', other_transport),
    ('no_room_for_threads', no_room_for_threads),
    ('too_few_files', lambda: too_few_files('auto')),
    ('too_few_files_tcp', lambda: too_few_files('tcp')),
    ('too_few_files_to_gather', too_few_files_to_gather),
    ('too_few_files_to_connect', too_few_files_to_connect),
    ('too_little_memory', too_little_memory),
]


if __name__ == '__main__':
    sys.exit(run_cases(CASES))

"""A job of tests/process/soak.py: its processes, the lines that its workers print (soak_worker.c), what it must come to
after a fault, and the comparison of all outcomes at its end."""

import collections
import os
import secrets
import signal
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(HERE)), 'tools', 'cluster'))
import cluster as lab  # noqa: E402
from ports import free_port  # noqa: E402

BUILD = os.path.abspath(os.environ.get('TRIB_BUILD', 'build/release'))
WORKER = BUILD + '/tests/soak_worker'
TOOL = BUILD + '/tributary'
SETTLES_S = 90.0  # far above what a change of the membership takes
LOST = 'the job goes on without a server'


class Broken(Exception):
    """Something that must not be; the text says what."""


class Member:
    """A process of the job."""

    def __init__(self, job, kind, number, host, process, joins):
        self.job, self.kind, self.number, self.host, self.process, self.joins = job, kind, number, host, process, joins
        self.name = '%s%d' % (kind[0], number)
        self.hit = None  # the fault that it may not survive
        self.away = False  # it is stopped, or cut off, at the moment
        self.busy_s = 0.0  # when it may be disturbed again
        self.status, self.epoch, self.rank, self.workers, self.servers = None, 0, None, 0, 0
        self.losses = 0  # servers of whose loss it has told
        self.lost_now = 0  # those of the present epoch, which still count as its members
        self.last_ns, self.failure, self.done = 0, None, False
        self.forget_times(0)
        self.log = collections.deque(maxlen=60)
        self.thread = threading.Thread(target=self.read, daemon=True)

    def lives(self):
        return self.process.poll() is None

    def is_in(self):
        """True for a worker that takes part, and for a server that was there from the beginning."""
        return self.epoch > 0 if self.kind == 'worker' else not self.joins

    def read(self):
        for line in self.process.stdout:
            with self.job.lock:
                self.take(line.rstrip('\n'))

    def take(self, line):
        words = line.split(' ', 2)
        kind = words[0]
        if self.kind != 'worker' or len(words) < 3 or len(kind) != 1 or not words[1].isdigit():
            self.log.append(line)
            self.lost(LOST in line, 0)
            return
        at_ns, rest = int(words[1]), words[2]
        if kind == 'o':
            self.take_outcome(at_ns, *rest.split(' '))
            return
        self.log.append('%.3f %s %s' % (at_ns / 1e9, kind, rest))
        if kind == 'm':
            status, epoch, rank, workers, servers = rest.split(' ')[:5]
            self.status, self.epoch, self.rank = status, int(epoch), int(rank)
            self.workers, self.servers = int(workers), int(servers)
            self.lost_now = 0 if status == 'TRIB_OK' else self.lost_now
            self.known_ns = self.known_ns or at_ns
            if status == 'TRIB_OK' and self.epoch > self.epoch_before:
                self.again_ns = self.again_ns or at_ns
        elif kind == 'e':
            self.job.began.setdefault(int(rest.split(' ')[0]), set()).add(self)
        elif kind == 'l':
            self.lost(LOST in rest, at_ns)
        elif kind == 'w':
            self.job.wrong.append('%s: %s' % (self.name, rest))
        elif kind == 'f':
            self.failure = rest
        elif kind == 'd':
            self.done = True

    def lost(self, is_lost, at_ns):
        if is_lost:
            self.losses += 1
            self.lost_now += 1
            self.known_ns, self.again_ns = self.known_ns or at_ns, at_ns
            self.recovered_ns = 0

    def take_outcome(self, at_ns, phase, tensor, round_, status, ranks):
        self.job.outcomes[(int(phase), int(tensor), int(round_))][self] = (status, ranks)
        self.last_ns = at_ns
        if status == 'TRIB_OK':
            self.job.sums += 1
            if self.again_ns and at_ns > self.again_ns and self.recovered_ns == 0:
                self.recovered_ns = at_ns

    def forget_times(self, at_ns):
        """A fault has happened: when it is known (known_ns), the job goes on (again_ns), and an operation succeeds
        then (recovered_ns), is noted from now on."""
        self.fault_ns, self.epoch_before = at_ns, self.epoch
        self.known_ns = self.again_ns = self.recovered_ns = 0


class Job:
    """A job and its settings: policy, workers, servers, colocate, transport, and a cluster of hosts or None."""

    def __init__(self, plan, hosts, gate):
        self.plan, self.hosts, self.gate = plan, hosts, gate
        self.lock = threading.Lock()
        self.members, self.wrong = [], []
        self.outcomes = collections.defaultdict(dict)  # by phase, tensor and round: of each worker
        self.began = {}  # by phase: the workers that have begun it
        self.sums = self.turned_away = 0
        self.env = dict(
            lab.clean_environment(),
            TRIB_WORKERS=str(plan['workers']),
            TRIB_SERVERS=str(plan['servers']),
            TRIB_SURVIVE=plan['policy'],
            TRIB_TOKEN=secrets.token_hex(24),
            TRIB_COLOCATE=plan['colocate'],
            TRIB_TRANSPORT=plan['transport'],
            TRIB_REACTORS=str(plan['reactors']),
            TRIB_PARTITION_BYTES=plan['partition'],
            TRIB_CHUNK_BYTES='16K',
            TRIB_PEER_TIMEOUT=str(plan['timeout']),
            TRIB_LOG='info',
        )
        if hosts:
            self.env['TRIB_COORDINATOR'] = ','.join('%s:7077' % hosts.address(host) for host in hosts.hosts())
        else:
            # A coordinator that is stopped keeps its port, so the next ones need others.
            ports = ['127.0.0.1:%d' % free_port() for _ in range(4)]
            self.env.update(TRIB_COORDINATOR=','.join(ports), TRIB_LISTEN='127.0.0.1')
        for _ in range(plan['servers']):
            self.start('server')
        for rank in range(plan['workers']):
            self.start('worker', rank)

    # ---- Processes ----

    def free_host(self):
        taken = {each.host for each in self.members if each.lives()}
        free = [host for host in self.hosts.hosts() if host not in taken]
        return free[0] if free else None

    def start(self, kind, rank=None):
        """Starts a member, without a rank one that joins. Returns None where there is no host for it."""
        host = self.free_host() if self.hosts else None
        if self.hosts and host is None:
            return None
        joins = kind == 'worker' and rank is None or kind == 'server' and bool(self.living('worker'))
        env = dict(self.env, TRIB_RANK=str(-1 if rank is None else rank)) if kind == 'worker' else self.env
        words = [WORKER, str(self.plan['rounds']), self.gate, '2000'] if kind == 'worker' else [TOOL, 'server']
        how = dict(env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors='replace')
        if self.hosts:
            process = self.hosts.popen(host, words, **how)
        else:
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, **how)
        member = Member(self, kind, len(self.members), host, process, joins)
        self.members.append(member)
        member.thread.start()
        return member

    def living(self, kind=None):
        return [each for each in self.members if each.lives() and (kind is None or each.kind == kind)]

    def stop(self):
        for each in self.members:
            if each.lives():
                each.process.kill()
            each.process.wait()
        for each in self.members:
            each.thread.join(5)
            each.process.stdout.close()

    # ---- What must hold at any time ----

    def look(self):
        """Raises Broken where a result is wrong, or a member has ended that nothing has happened to."""
        with self.lock:
            if self.wrong:
                raise Broken(self.wrong[0])
        for each in self.members:
            if not each.lives() and each.hit is None and not self.is_turned_away(each):
                each.thread.join(5)
                raise Broken('%s has ended with status %s: %s' % (each.name, each.process.returncode, each.failure))

    def is_turned_away(self, member):
        """True for one that has waited to join at a coordinator that was away, and that the others have replaced."""
        member.thread.join(5)
        was_away = any(each.hit in ('stop', 'cut') for each in self.members)
        text = member.failure or ' '.join(member.log)
        turned_away = member.joins and member.epoch == 0 and was_away and 'no majority' in text
        if turned_away:
            member.hit = 'turned away'
            self.turned_away += 1
        return turned_away

    def is_settled(self):
        """True when all that are left have the same membership, with everybody in it, and exchange."""
        workers, servers = self.living('worker'), self.living('server')
        if not workers or any(each.away for each in self.living()):
            return False
        with self.lock:
            if self.plan['policy'] == 'servers':
                lost = sum(each.hit is not None for each in self.members if each.kind == 'server')
                return all(
                    each.losses >= lost and each.last_ns and (lost == 0 or each.recovered_ns) for each in workers
                )
            first = workers[0]
            return all(
                each.status == 'TRIB_OK'
                and each.recovered_ns
                and each.lost_now == 0  # a server that waits to join is not in the place of a lost one
                and (each.epoch, each.workers, each.servers) == (first.epoch, len(workers), len(servers))
                for each in workers
            )

    def settle(self, tick, seconds=SETTLES_S):
        deadline = time.monotonic() + seconds
        while not self.is_settled():
            self.look()
            tick()
            if time.monotonic() > deadline:
                raise Broken('%.0f s after a fault the job has not come together again' % seconds)
            time.sleep(0.02)

    # ---- The end ----

    def end(self, tick, seconds=SETTLES_S):
        """Lets all end together, and compares what they have had."""
        with open(self.gate, 'w', encoding='ascii'):
            pass
        deadline = time.monotonic() + seconds
        while self.living():
            self.look_at_end()
            tick()
            if time.monotonic() > deadline:
                raise Broken('the job does not end: %s are left' % ', '.join(each.name for each in self.living()))
            time.sleep(0.02)
        for each in self.members:
            each.thread.join(10)
        self.look_at_end()
        self.compare([each for each in self.members if each.kind == 'worker' and each.done])

    def look_at_end(self):
        with self.lock:
            if self.wrong:
                raise Broken(self.wrong[0])
        for each in self.members:
            if not each.lives() and each.hit is None and each.process.returncode != 0 and not self.is_turned_away(each):
                each.thread.join(5)
                raise Broken('%s has ended with status %s: %s' % (each.name, each.process.returncode, each.failure))

    def compare(self, survivors):
        """An operation has succeeded on all survivors that were there, with the same contributors, or on none."""
        allowed = {'workers': {'TRIB_EPOCH_CHANGED'}, 'continue': {'TRIB_PEER_LEFT'}}.get(self.plan['policy'], set())
        for key, results in self.outcomes.items():
            there = [each for each in survivors if each in self.began.get(key[0], ())]
            got = {results.get(each, ('nothing', '0')) for each in there}
            succeeded = any(status == 'TRIB_OK' for status, _ in got)
            others = {status for status, _ in got} - {'TRIB_OK', 'nothing'} - allowed
            if others or (succeeded and len(got) > 1):
                raise Broken(
                    'phase %d, tensor %d, round %d: ' % key
                    + ', '.join('%s %s' % (each.name, results.get(each)) for each in there)
                )

    def ends_for_all(self, texts, tick, seconds=SETTLES_S):
        """Every member that lives must end with an error that has one of the texts; a server may do without."""
        deadline = time.monotonic() + seconds
        while self.living() and time.monotonic() < deadline:
            tick()
            time.sleep(0.02)
        if self.living():
            raise Broken('%s go on without a majority' % ', '.join(each.name for each in self.living()))
        for each in self.members:
            each.thread.join(10)
            if each.hit is None and (each.process.returncode == 0 or each.kind == 'worker' and not each.failure):
                raise Broken('%s has ended with status %s and no error' % (each.name, each.process.returncode))
            if each.hit is None and each.kind == 'worker' and not any(text in each.failure for text in texts):
                raise Broken('%s says none of %s: %s' % (each.name, texts, each.failure))

    def describe(self):
        """Everything that is known, for the report of a fault."""
        lines = ['%s' % self.plan]
        for each in self.members:
            lines.append(
                '---- %s (%s), host %s, pid %d, rank %s, epoch %s, hit %s, status %s'
                % (
                    each.name,
                    each.kind,
                    each.host,
                    each.process.pid,
                    each.rank,
                    each.epoch,
                    each.hit,
                    each.process.poll(),
                )
            )
            lines += ['     ' + line for line in list(each.log)[-40:]]
        return '\n'.join(lines)


def signal_member(member, number):
    try:
        os.kill(member.process.pid, number)
    except ProcessLookupError:
        pass


def resume(member):
    signal_member(member, signal.SIGCONT)

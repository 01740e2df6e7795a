#!/usr/bin/env python3
"""Kills, drains, stops, cuts off and restarts members of jobs at random, while every worker checks every result:

    python3 tests/process/soak.py --minutes 60 [--seed N] [--policy servers|workers|continue] [--faults kill,stop,...]

Members of all kinds are hit: workers, servers, the coordinator's process, those that wait to join; one at a time or
several at once, at work and while the membership changes. A seed gives the same choices; what they meet depends on
time. With root, half of the jobs run on hosts of their own (network namespaces), whose links are cut and mended.

Checked are: every result, against a closed form (soak_worker.c); all or nobody: an operation has the same outcome on
all that are left; that nobody ends whom nothing has happened to, and nobody waits for ever; that a job that has lost
its majority says so. Ends with status 1 at the first fault, with the lines of all members.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import soak_job  # noqa: E402
from soak_job import Broken, signal_member  # noqa: E402

HOSTS = 8
# name: whether the member may be lost by it, and what is done
FAULTS = {
    'kill': 'SIGKILL',
    'drain': 'SIGTERM to a server, which leaves in good order',
    'stop': 'SIGSTOP for longer than the peer timeout',
    'pause': 'SIGSTOP for less than the peer timeout',
    'cut': 'its link is down for longer than the peer timeout',
    'blip': 'its link is down for less than the peer timeout',
}
HARMLESS = ('pause', 'blip')


def draw_plan(draw, policy, has_hosts, timeout):
    servers = draw.randint(1, 3) if policy == 'servers' else draw.randint(0, 2)
    on_hosts = has_hosts and draw.random() < 0.5
    return {
        'policy': policy,
        'workers': draw.randint(2, 4) if policy == 'servers' else draw.randint(3, 5),
        'servers': servers,
        'colocate': 'off' if servers and draw.random() < 0.4 else 'on',
        'on_hosts': on_hosts,
        'transport': 'tcp' if on_hosts else draw.choice(('tcp', 'shm')),
        'reactors': draw.randint(1, 2),
        'partition': draw.choice(('32K', '128K')),
        'timeout': timeout,
        'rounds': draw.choice((20, 60)),
    }


class Soak:
    """One job and what happens to it."""

    def __init__(self, seed, plan, hosts, faults, calm, counts):
        self.draw, self.plan, self.counts, self.calm = random.Random(seed), plan, counts, calm
        self.hosts = hosts if plan['on_hosts'] else None
        self.faults = [each for each in faults if self.hosts or each not in ('cut', 'blip')]
        self.folder = tempfile.mkdtemp(prefix='soak')
        self.events = []  # times of what passes: (second, function)
        self.history = []
        self.base = 0  # members of the last membership that all had
        self.hits = 0  # of them and of those that came later, since then
        self.hit_kind, self.hit_ns = None, 0
        self.disturbed = 0  # faults since then, of which one alone is timed
        self.job = soak_job.Job(plan, self.hosts, self.folder + '/gate')

    def note(self, text):
        self.history.append('%.3f %s' % (time.monotonic(), text))

    # ---- Time ----

    def tick(self):
        now = time.monotonic()
        for event in [each for each in self.events if each[0] <= now]:
            self.events.remove(event)
            event[1]()

    def wait(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.tick()
            self.job.look()
            time.sleep(0.02)

    def settle(self):
        self.job.settle(self.tick)
        if self.hit_kind is not None and self.disturbed == 1:
            self.count_recovery()
        self.counts['epochs'] += max((each.epoch for each in self.job.living('worker')), default=0) > 1
        self.hits, self.hit_kind = 0, None
        self.disturbed = sum(each.away for each in self.job.living())
        self.base = len(self.job.living())

    def count_recovery(self):
        # A worker that has come since then may have waited at a coordinator that stands still, and the others go on.
        workers = [each for each in self.job.living('worker') if each.epoch_before > 0]
        known = [each.known_ns for each in workers if each.known_ns > self.hit_ns]
        if len(known) < len(workers):
            return
        done = max(each.recovered_ns for each in workers)
        self.counts['recoveries'].append(
            (self.plan['policy'], self.hit_kind, (done - self.hit_ns) / 1e9, (done - min(known)) / 1e9)
        )

    # ---- Faults ----

    def coordinator(self):
        there = [each for each in self.job.living('worker') if each.rank is not None and each.is_in()]
        return min(there, key=lambda each: each.rank, default=None)

    def group_of(self, member):
        if member.joins and not member.is_in():
            return 'joiner'
        return 'coordinator' if member is self.coordinator() else member.kind

    def may_lose(self, member):
        """True if the job goes on without this one, too."""
        if member.hit or member.away:
            return False
        living = [each for each in self.job.living() if each.hit is None]
        if self.plan['policy'] == 'servers':
            servers = [each for each in living if each.kind == 'server']
            # Workers sum where they are more than the servers are.
            takes_over = self.plan['colocate'] == 'on' and self.plan['workers'] > self.plan['servers']
            return member.kind == 'server' and (takes_over or len(servers) > 1)
        workers = [each for each in living if each.kind == 'worker' and each.is_in()]
        if member.kind == 'worker' and member.is_in() and len(workers) < 3:
            return False
        sums = self.plan['colocate'] == 'on' or len(living) - len(workers) > 1 or member.kind != 'server'
        return sums and 2 * (self.hits + 1) < self.base

    def targets(self, fault):
        living = [each for each in self.job.living() if each.hit is None and not each.away]
        if fault in HARMLESS:
            return [each for each in living if each.busy_s < time.monotonic() and each.is_in()]
        if fault == 'drain':
            living = [each for each in living if each.kind == 'server' and each.is_in()]
        return [each for each in living if self.may_lose(each)]

    def hurt(self):
        """Draws a fault and somebody whom it may hit. Returns False where there is nobody."""
        fault = self.draw.choice(self.faults)
        groups = collections.defaultdict(list)
        for each in self.targets(fault):
            groups[self.group_of(each)].append(each)
        if not groups:
            return False
        group = self.draw.choice(sorted(groups))
        member = self.draw.choice(groups[group])
        self.note('%s %s (%s, rank %s)' % (fault, member.name, group, member.rank))
        self.counts['faults'][fault + ' ' + group] += 1
        timeout = self.plan['timeout']
        self.disturbed += 1
        if fault not in HARMLESS:
            self.hits += 1
            member.hit = fault
            self.hit_kind, self.hit_ns = '%s %s' % (fault, group), time.monotonic_ns()
            if group == 'joiner':
                self.hit_kind = None
            with self.job.lock:
                for each in self.job.living('worker'):
                    each.forget_times(self.hit_ns)
        lasts = timeout * (self.draw.uniform(0.1, 0.6) if fault in HARMLESS else self.draw.uniform(1.5, 3))
        {
            'kill': lambda: signal_member(member, signal.SIGKILL),
            'drain': lambda: signal_member(member, signal.SIGTERM),
            'stop': lambda: self.stop(member, lasts),
            'pause': lambda: self.stop(member, lasts),
            'cut': lambda: self.cut(member, lasts),
            'blip': lambda: self.cut(member, lasts),
        }[fault]()
        return True

    def passes(self, member, seconds, end):
        def over():
            end()
            member.away = False
            self.note('%s is back' % member.name)

        member.away = True
        member.busy_s = time.monotonic() + seconds + self.plan['timeout']
        self.events.append((time.monotonic() + seconds, over))

    def stop(self, member, seconds):
        signal_member(member, signal.SIGSTOP)
        self.passes(member, seconds, lambda: signal_member(member, signal.SIGCONT))

    def cut(self, member, seconds):
        self.hosts.cut(member.host)
        self.passes(member, seconds, lambda: self.hosts.mend(member.host))

    def restart(self):
        """A worker or a server comes where one is missing."""
        if self.plan['policy'] == 'servers':
            return
        for kind in ('worker', 'server'):
            if len(self.job.living(kind)) < self.plan[kind + 's'] and self.draw.random() < 0.7:
                member = self.job.start(kind)
                if member:
                    self.note('%s is started' % member.name)
                    self.counts['started'][kind] += 1

    # ---- The job ----

    def storm(self, deadline, changes):
        """Disturbs the job until it is time, or it has had so many changes."""
        self.settle()
        for _ in range(changes):
            if time.monotonic() > deadline:
                break
            self.wait(self.draw.random() ** 2 * 1.5)
            burst = 1 if self.calm or self.draw.random() < 0.6 else self.draw.randint(2, 3)
            hurt = 0
            for _ in range(burst):
                hurt += self.hurt()
                self.wait(0 if self.calm else self.draw.random() ** 3 * 3)
            if self.calm:
                self.settle()
            self.restart()
            self.wait(self.draw.random() ** 3)
            if self.calm or self.draw.random() < 0.7 or 2 * (self.hits + 1) >= self.base:
                self.settle()
            if not hurt and self.plan['policy'] == 'servers' and not self.targets('kill') and self.hits == 0:
                break
        while self.events:
            self.wait(0.1)
        self.settle()

    def lose_majority(self):
        """Ends the job by more than it can survive: all that are left must say so."""
        living = self.job.living()
        if self.plan['policy'] == 'servers':
            victims, texts = [self.draw.choice(self.job.living('worker'))], ('',)
        else:
            workers = [each for each in living if each.kind == 'worker']
            victims = self.draw.sample([each for each in living if each is not workers[-1]], len(living) // 2 + 1)
            texts = ('no majority', 'this one may be cut off')
        self.note('the last fault kills ' + ', '.join(each.name for each in victims))
        for each in victims:
            each.hit = 'kill'
            signal_member(each, signal.SIGKILL)
        self.job.ends_for_all(texts, self.tick)
        self.counts['majorities lost'] += 1

    def run(self, deadline, changes):
        try:
            self.storm(deadline, changes)
            if self.draw.random() < 0.2 and len(self.job.living()) > 2:
                self.lose_majority()
            else:
                self.job.end(self.tick)
        except Broken as problem:
            raise Broken('%s\n%s\n%s' % (problem, '\n'.join(self.history), self.job.describe())) from None
        finally:
            for each in self.job.living():
                signal_member(each, signal.SIGCONT)
            self.job.stop()
            for _, event in self.events:
                event()
            shutil.rmtree(self.folder)
            self.counts['sums'] += self.job.sums
            self.counts['turned away'] += self.job.turned_away
            self.counts['outcomes'] += len(self.job.outcomes)
            self.counts['jobs'][self.plan['policy']] += 1


def quantile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def recoveries_of(counts):
    """Returns p50 and the longest by policy and fault: from the fault, and from the moment when it was known."""
    groups = collections.defaultdict(list)
    for policy, kind, happened, known in counts['recoveries']:
        groups['%s, %s' % (policy, kind)].append((happened, known))
    return {
        name: {
            'count': len(each),
            'p50_s': round(quantile([h for h, _ in each], 0.5), 3),
            'max_s': round(max(h for h, _ in each), 3),
            'known_p50_s': round(quantile([k for _, k in each], 0.5), 3),
            'known_max_s': round(max(k for _, k in each), 3),
        }
        for name, each in sorted(groups.items())
    }


def show(counts):
    print('jobs: %s; %d boundaries of epochs' % (dict(counts['jobs']), counts['epochs']))
    print('faults: %s' % ', '.join('%d %s' % (count, name) for name, count in sorted(counts['faults'].items())))
    print(
        'started: %s; jobs ended by the loss of a majority: %d' % (dict(counts['started']), counts['majorities lost'])
    )
    print('members that waited at a coordinator that was away, and came too late: %d' % counts['turned away'])
    print('%d operations compared between workers, %d results checked' % (counts['outcomes'], counts['sums']))
    for name, each in recoveries_of(counts).items():
        print(
            '%-34s %4d times: %.3f s at p50, %.3f s at most; %.3f s and %.3f s after it was known'
            % (name, each['count'], each['p50_s'], each['max_s'], each['known_p50_s'], each['known_max_s'])
        )


def run_jobs(arguments, first, hosts, counts):
    """Runs jobs from the first seed on; others have the seeds between. Returns the seed that failed, or None."""
    deadline, seed = time.monotonic() + 60 * arguments.minutes, first
    while seed == first or time.monotonic() < deadline:
        draw = random.Random(seed)
        policies = arguments.policy or ('servers', 'workers', 'continue')
        plan = draw_plan(draw, policies[seed % len(policies)], hosts is not None, arguments.timeout)
        if arguments.calm:
            plan['rounds'] = 10  # so that those that join need not wait for long
        began = time.monotonic()
        try:
            Soak(seed, plan, hosts, arguments.faults, arguments.calm, counts).run(deadline, arguments.changes)
        except Broken as problem:
            print('seed %d: %s' % (seed, problem), flush=True)
            return seed
        if not arguments.json:
            print('seed %d, %s: %.1f s' % (seed, plan, time.monotonic() - began), flush=True)
        seed += arguments.at_once
    return None


def soak(arguments, first):
    """One job after the other. Returns the counts, and the seed that failed or None."""
    counts = collections.defaultdict(int)
    counts.update(faults=collections.Counter(), started=collections.Counter(), jobs=collections.Counter())
    counts['recoveries'] = []
    if arguments.loopback:
        return counts, run_jobs(arguments, first, None, counts)
    with soak_job.lab.Cluster('tribsoak%d' % os.getpid()) as hosts:
        hosts.up(HOSTS)
        return counts, run_jobs(arguments, first, hosts, counts)


def soak_at_once(arguments):
    """Runs as many soaks as asked for, each in a process of its own. Returns all counts, and the seeds that failed."""
    with concurrent.futures.ProcessPoolExecutor(arguments.at_once) as pool:
        soaks = [pool.submit(soak, arguments, arguments.seed + i) for i in range(arguments.at_once)]
        done = [each.result() for each in soaks]
    counts = done[0][0]
    for others, _ in done[1:]:
        for name, value in others.items():
            counts[name] += value
    return counts, [seed for _, seed in done if seed is not None]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--minutes', type=float, default=1)
    parser.add_argument('--seed', type=int, default=1, help='of the first job; the next one has the next seed')
    parser.add_argument('--changes', type=int, default=12, help='of one job')
    parser.add_argument('--timeout', type=float, default=3.0, help='TRIB_PEER_TIMEOUT in seconds')
    parser.add_argument('--policy', action='append', choices=('servers', 'workers', 'continue'), help='default: all')
    parser.add_argument('--faults', default=','.join(FAULTS), help='default: %(default)s')
    parser.add_argument('--calm', action='store_true', help='one fault at a time, for the times of recovery')
    parser.add_argument('--loopback', action='store_true', help='no hosts of their own, so that no link is cut')
    parser.add_argument('--at-once', type=int, default=1, help='so many soaks, each with the seeds of its own')
    parser.add_argument('--json', action='store_true', help='prints one object at the end')
    arguments = parser.parse_args()
    arguments.faults = arguments.faults.split(',')
    for each in arguments.faults:
        if each not in FAULTS:
            parser.error('no fault is called "%s": there are %s' % (each, ', '.join(FAULTS)))
    why = 'not asked for' if arguments.loopback else soak_job.lab.why_not()
    if why:
        print('links are not cut: %s' % why, file=sys.stderr)
        arguments.loopback = True
    else:
        soak_job.lab.remove_stale('tribsoak')
    counts, failed = soak_at_once(arguments)
    if arguments.json:
        known = dict(counts, recoveries=recoveries_of(counts), failed_seeds=failed)
        print(json.dumps(known))
    else:
        show(counts)
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())

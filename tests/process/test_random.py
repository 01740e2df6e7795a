#!/usr/bin/env python3
"""Kills or stops a random member of a random job at a random time, again and again. Every other member ends by itself,
soon, and either has all its results or says which member was lost. Prints `ok NAME` / `not ok NAME: why`.

    test_random.py [SEED [RUNS]]     each name contains the seed, so one run can be repeated: test_random.py 17 1
"""

import os
import random
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import PIPES, job_settings  # noqa: E402

BUILD = os.environ.get('TRIB_BUILD', 'build/release')
# Seconds. On a busy machine a member that lives may stand still for some, and the end takes far longer.
PEER_TIMEOUT, BOUND = 4, 60.0


class Run:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.workers, self.servers = self.rng.randint(1, 4), self.rng.randint(0, 3)
        env = dict(
            os.environ,
            **job_settings(self.workers, self.servers),
            TRIB_PEER_TIMEOUT=str(PEER_TIMEOUT),
            TRIB_JOIN_TIMEOUT='3',
            TRIB_LOG='error',
            TRIB_REACTORS=str(self.rng.randint(1, 2)),
        )
        self.members = {}
        for i in range(self.servers):
            self.start('server %d' % i, [BUILD + '/tributary', 'server'], env)
        for i in range(self.workers):
            self.start('rank %d' % i, [BUILD + '/examples/digits', '--epochs', '60'], dict(env, TRIB_RANK=str(i)))
        self.victim = self.rng.choice(list(self.members))
        self.signal = self.rng.choice([signal.SIGKILL, signal.SIGSTOP])
        self.delay = self.rng.uniform(0, 1.2)

    def describe(self):
        return '%d workers, %d servers, %s %s after %.2f s' % (
            self.workers,
            self.servers,
            self.victim,
            'killed' if self.signal == signal.SIGKILL else 'stopped',
            self.delay,
        )

    def start(self, name, command, env):
        self.members[name] = subprocess.Popen(command, env=env, **PIPES)

    def go(self):
        time.sleep(self.delay)
        victim = self.members[self.victim]
        was_there = victim.poll() is None
        if was_there:
            victim.send_signal(self.signal)
        deadline = time.monotonic() + BOUND
        for name, member in self.members.items():
            if name == self.victim:
                continue
            try:
                output, _ = member.communicate(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise AssertionError('%s is still there' % name) from None
            assert member.returncode >= 0, '%s ended by signal %d: %s' % (name, -member.returncode, output[-300:])
            assert member.returncode == 0 or output.strip(), '%s failed without a word' % name
            assert was_there or member.returncode == 0, '%s failed although nobody was lost: %s' % (name, output[-300:])

    def clean(self):
        for member in self.members.values():
            if member.poll() is None:
                member.kill()
            member.wait()
            member.stdout.close()


def main():
    first = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    failed = 0
    for seed in range(first, first + (int(sys.argv[2]) if len(sys.argv) > 2 else 8)):
        run = Run(seed)
        try:
            run.go()
            print('ok seed %d' % seed, flush=True)
        except AssertionError as problem:
            failed += 1
            print('not ok seed %d: %s | %s' % (seed, run.describe(), ' | '.join(str(problem).splitlines())), flush=True)
        finally:
            run.clean()
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())

#!/usr/bin/env python3
"""A worker that comes late to sums with a quorum (TRIB_QUORUM): the others go on without it, and it gets their sums.

Prints `ok NAME` / `not ok NAME: why`.
"""

import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, 'tests'))
from cases import job_settings, run_cases  # noqa: E402

BUILD = os.environ.get('TRIB_BUILD', 'build/release')
WORKERS = 3
STEPS = 3
COUNT = 300000  # several partitions

# A worker does one step for each line that it reads. The last one holds several steps back.
PROGRAM = """
import array, json, os, sys
sys.path.insert(0, sys.argv[1])
import tributary
from tributary import _abi
tributary.init()
engine = tributary.engine()
tensor = engine.declare('gradient', _abi.TRIB_FLOAT32, int(sys.argv[2]), quorum=int(sys.argv[3]))
print(json.dumps({'rank': engine.rank}), flush=True)
for line in sys.stdin:
    step = int(line)
    data = array.array('f', [100.0 * step + 10.0 ** engine.rank]) * int(sys.argv[2])
    op = tensor.push_pull(data, reduce=tributary.SUM)
    try:
        op.wait()
        print(json.dumps({'step': step, 'values': sorted(set(data)), 'contributors': op.contributors}), flush=True)
    except tributary.TributaryError as problem:
        print(json.dumps({'error': str(problem)}), flush=True)
tributary.shutdown()
"""


class Job:
    """The processes of a job; none is left behind."""

    def __init__(self, servers, tensor_quorum=0, **settings):
        env = {k: v for k, v in os.environ.items() if not k.startswith('TRIB_')}
        env.update(
            job_settings(WORKERS, servers),
            TRIB_QUORUM_TIMEOUT='100ms',
            TRIBUTARY_LIBRARY=os.path.abspath(BUILD + '/libtributary.so'),
            **settings,
        )
        self.servers = [subprocess.Popen([BUILD + '/tributary', 'server'], env=env) for _ in range(servers)]
        command = [sys.executable, '-c', PROGRAM, os.path.join(ROOT, 'api', 'python'), str(COUNT), str(tensor_quorum)]
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.workers = [
            subprocess.Popen(command, env=dict(env, TRIB_RANK=str(rank)), **pipes) for rank in range(WORKERS)
        ]
        for worker in self.workers:
            self.read(worker)

    @staticmethod
    def read(worker):
        line = worker.stdout.readline()
        assert line, 'a worker ended with %s' % worker.wait()
        return json.loads(line)

    def step(self, rank, step):
        self.workers[rank].stdin.write('%d\n' % step)
        self.workers[rank].stdin.flush()

    def result(self, rank, step):
        """Returns the contributors, after a check of the sum."""
        found = self.read(self.workers[rank])
        assert found.get('step') == step, found
        expected = sum(100.0 * step + 10.0**contributor for contributor in found['contributors'])
        assert found['values'] == [expected], (found, expected)
        return found['contributors']

    def end(self):
        for worker in self.workers:
            worker.stdin.close()
        for process in self.workers + self.servers:
            assert process.wait(timeout=60) == 0, process.args

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        for process in self.servers + self.workers:
            process.kill()
            process.wait()


def late(servers, tensor_quorum=0, **settings):
    with Job(servers, tensor_quorum, **settings) as job:
        for step in range(STEPS):
            for rank in range(WORKERS - 1):
                job.step(rank, step)
            for rank in range(WORKERS - 1):
                assert job.result(rank, step) == [0, 1], 'another set'
        for step in range(STEPS):
            job.step(WORKERS - 1, step)
            assert job.result(WORKERS - 1, step) == [0, 1], 'another set for the late worker'
        for rank in range(WORKERS):  # all are there again: whoever is in the sum, it is the same one for all
            job.step(rank, STEPS)
        sets = [job.result(rank, STEPS) for rank in range(WORKERS)]
        assert sets[0] == sets[1] == sets[2] and len(sets[0]) >= 2, sets
        job.end()


ALONE = """
import sys
sys.path.insert(0, sys.argv[1])
import tributary
from tributary import _abi
tributary.init()
engine = tributary.engine()
for keywords in ({'codec': 'int8'}, {'group': engine.group('g', [0])._group}):
    try:
        engine.declare('refused %s' % keywords, _abi.TRIB_FLOAT32, 100000, quorum=1, **keywords)
        sys.exit('not refused: %s' % keywords)
    except tributary.TributaryError as problem:
        print(problem)
engine.declare('weights', _abi.TRIB_FLOAT32, 10, quorum=1)
try:
    engine.join()
    sys.exit('join is not refused')
except tributary.TributaryError as problem:
    print(problem)
"""


def alone(**settings):
    """Runs a worker that is alone, and returns its exit status and what it says."""
    env = {k: v for k, v in os.environ.items() if not k.startswith('TRIB_')}
    env.update(TRIB_WORKERS='1', TRIB_RANK='0', TRIBUTARY_LIBRARY=os.path.abspath(BUILD + '/libtributary.so'))
    env.update(settings)
    command = [sys.executable, '-c', ALONE, os.path.join(ROOT, 'api', 'python')]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    return ended.returncode, ended.stdout + ended.stderr


def refused():
    status, said = alone(TRIB_QUORUM='1', TRIB_SURVIVE='workers')
    assert status != 0 and 'needs TRIB_SURVIVE=nothing' in said, said
    status, said = alone(TRIB_SURVIVE='workers')
    assert status != 0 and 'trib_tensor_desc.quorum' in said and 'TRIB_SURVIVE must be nothing' in said, said
    status, said = alone(TRIB_QUORUM='2')
    assert status != 0 and 'quorum 2 of 1 workers' in said, said
    status, said = alone()
    assert status == 0 and said.count('cannot have a quorum') == 2 and 'has a quorum' in said, said


if __name__ == '__main__':
    sys.exit(
        run_cases(
            [
                ('a late worker, workers sum', lambda: late(0, TRIB_QUORUM='2')),
                ('a late worker, over TCP', lambda: late(0, TRIB_QUORUM='2', TRIB_TRANSPORT='tcp')),
                ('a late worker, servers sum', lambda: late(2, TRIB_QUORUM='2', TRIB_COLOCATE='off')),
                ('a late worker, several reactors', lambda: late(2, TRIB_QUORUM='2', TRIB_REACTORS='2')),
                ('a quorum of one tensor', lambda: late(1, 2)),
                ('what cannot have a quorum', refused),
            ]
        )
    )

#!/usr/bin/env python3
"""Programs in Python whose job goes on without workers that are killed (TRIB_SURVIVE=workers, continue), and with
others that join.

Prints `ok NAME` / `not ok NAME: why`.
"""

import os
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import PIPES, ends_of, read_until, run_cases  # noqa: E402
from ports import free_port  # noqa: E402
from shrink_bed import PACKAGE, Job  # noqa: E402

PYTHON = '''
import array, sys
import tributary
engine = tributary.Engine()
engine.wait_ready()
tensor = engine.declare("x", tributary._abi.TRIB_INT32, 3)
coded = engine.declare("coded", tributary._abi.TRIB_FLOAT32, 100000, codec="auto")
ones = array.array("f", [1] * 100000)
coded.push_pull(ones, reduce=tributary.AVG).wait()
group = engine.group("all", [2, 1, 0])
group.declare("y", tributary._abi.TRIB_INT32, 1).push_pull(array.array("i", [1]), reduce=tributary.SUM).wait()
print("there", flush=True)
for step in range(10**9):
    data = array.array("i", [1, engine.rank, step])
    try:
        tensor.push_pull(data, reduce=tributary.SUM).wait()
    except tributary.MembershipChangedError as lost:
        now = engine.advance()
        print("epoch", now.epoch, "rank", engine.rank, "of", engine.size, flush=True)
        tensor.push_pull(array.array("i", [1, 1, 1]), reduce=tributary.SUM).wait()
        try:
            group.declare("z", tributary._abi.TRIB_INT32, 1)
            print("the group of the last epoch goes on")
        except tributary.MembershipChangedError:
            group = engine.group("all", [1, 0])
        data = array.array("i", [3])
        group.declare("y", tributary._abi.TRIB_INT32, 1).push_pull(data, reduce=tributary.SUM).wait()
        group.barrier()
        assert (group.rank, data[0]) == (1 - engine.rank, 6), (group.rank, data)
        break
coded.push_pull(ones, reduce=tributary.AVG).wait()
assert max(abs(each - 1) for each in ones) < 0.02
data = array.array("i", [1, engine.rank, 7])
tensor.push_pull(data, reduce=tributary.SUM).wait()
print("sum", list(data), flush=True)
engine.close()
'''


def from_python(killed_rank):
    """Engine.advance(): three workers, of which one is killed. The codec of a tensor is chosen in each epoch."""
    with Job(3, 0, 'tcp') as job:
        job.env.update(TRIB_BANDWIDTH='100mbit', TRIB_LOG='info')
        for rank in range(3):
            job.start_python(rank, PYTHON)
        for worker in job.workers:
            read_until(worker, 'there')
        job.workers[killed_rank].send_signal(signal.SIGKILL)
        left = [worker for rank, worker in enumerate(job.workers) if rank != killed_rank]
        for rank, (status, output) in enumerate(ends_of(left)):
            assert status == 0 and 'rank %d of 2' % rank in output and 'sum [2, 1, 14]' in output, (
                status,
                output[-600:],
            )


STREAM = '''
import types
import tributary
from tributary import _abi, operation

# The library's part of an operation on a device that a loss has undone: the call for the stream would succeed.
operation.lib = types.SimpleNamespace(
    trib_op_stream_wait=lambda handle, stream, error: print("stream waits", flush=True) or 0,
    trib_op_status=lambda handle: _abi.TRIB_EPOCH_CHANGED,
    trib_op_wait=lambda handle, ns, error: _abi.TRIB_EPOCH_CHANGED,
    trib_op_release=lambda handle: None,
)
for loss_undoes in (False, True):
    engine = types.SimpleNamespace(loss_undoes=lambda: loss_undoes, _forget=lambda operation: None)
    try:
        operation.Operation(engine, 1, None, None).stream_wait(0)
        print("went on", flush=True)
    except tributary.MembershipChangedError:
        print("raised", flush=True)
'''


def stream_wait_raises():
    """A program that lets a stream wait for an operation learns of the loss that has undone it at once. It is told
    instead, as the call in the library cannot be interrupted."""
    output = subprocess.run(
        [sys.executable, '-c', STREAM], env=dict(os.environ, **PACKAGE), timeout=100, check=True, **PIPES
    ).stdout
    assert output.split('\n')[:3] == ['stream waits', 'went on', 'raised'], output


UNDOES = """
import tributary
engine = tributary.Engine()
print('undoes', engine.loss_undoes(), flush=True)
engine.close()
"""


def loss_undoes_as_the_coordinator_says():
    """A process learns from the job, not from its own setting, whether a loss undoes operations."""
    for settings in (('workers', 'nothing'), ('nothing', 'continue'), ('continue', 'nothing')):
        with Job(2, 0, 'tcp') as job:
            for rank, survive in enumerate(settings):
                job.start_python(rank, UNDOES, TRIB_SURVIVE=survive)
            for status, output in ends_of(job.workers):
                assert status == 0 and 'undoes %s' % (settings[0] != 'nothing') in output, (status, output[-600:])


CONTINUES = '''
import array, sys
import tributary
engine = tributary.Engine()
engine.wait_ready()
tensor = engine.declare("x", tributary._abi.TRIB_INT32, 100000)
average = engine.declare("average", tributary._abi.TRIB_FLOAT64, 1)
seen, left = None, 0
while left < 200:
    data = array.array("i", [1 + engine.rank]) * 100000
    mean = array.array("d", [engine.rank])
    sums, means = tensor.push_pull(data, reduce=tributary.SUM), average.push_pull(mean, reduce=tributary.AVG)
    sums.wait()
    means.wait()
    who, others = sums.contributors, means.contributors
    assert set(data) == {len(who) + sum(who)} and engine.rank in who, (who, data[0])
    assert mean[0] == sum(others) / len(others), (others, mean[0])
    if who != seen:
        print("contributors", list(who), flush=True)
        seen = who
    left += len(who) == int(sys.argv[1])
print("rank", engine.rank, "has had", list(who), flush=True)
engine.close()
'''


def continued(transport, servers):
    """TRIB_SURVIVE=continue: a worker is killed, then rank 0. The programs of the others notice nothing, and each sum
    is that of the ranks that the result names."""
    with Job(4, servers, transport) as job:
        job.env.update(TRIB_SURVIVE='continue', TRIB_LOG='error')
        for rank in range(4):
            job.start_python(rank, CONTINUES, '2')
        read_until(job.workers[1], r'contributors \[0, 1, 2, 3\]')
        job.workers[3].send_signal(signal.SIGKILL)
        read_until(job.workers[1], r'contributors \[0, 1, 2\]')
        job.workers[0].send_signal(signal.SIGKILL)
        for rank, (status, output) in zip((1, 2), ends_of(job.workers[1:3])):
            assert status == 0 and 'rank %d has had [1, 2]' % rank in output, (status, output[-800:])


ELASTIC = '''
import array
import tributary.elastic
import tributary.process_sets
tributary.init()
state = tributary.elastic.ObjectState(step=0, total=0)

@tributary.elastic.run
def train(state):
    last = tributary.process_sets.add_process_set([tributary.size() - 1])  # sets end with their epoch
    while True:
        if last.included():
            data = array.array("i", [5])
            tensor = last.engine().declare("y", tributary._abi.TRIB_INT32, 1)
            tensor.push_pull(data, reduce=tributary.SUM).wait()
            assert data[0] == 5, data
        data = array.array("i", [1])
        tensor = tributary.engine().declare("x", tributary._abi.TRIB_INT32, 1)
        tensor.push_pull(data, reduce=tributary.SUM).wait()
        state.total += data[0]
        state.step += 1
        assert state.total <= 3 * state.step, state.total
        print("rank", tributary.rank(), "of", tributary.size(), flush=True)
        state.commit()
        if state.step % 50 == 0:
            state.admit()

train(state)
'''


def elastic_from_python():
    """tributary.elastic goes on in the process: a worker is killed, and another one joins. Each commit broadcasts an
    object, by tensors that have been released when the epoch ends."""
    with Job(3, 0, 'tcp') as job:
        for rank in range(3):
            job.start_python(rank, ELASTIC)
        read_until(job.workers[0], 'rank 0 of 3')
        job.workers[1].send_signal(signal.SIGKILL)
        read_until(job.workers[0], 'rank 0 of 2')
        read_until(job.start_python(-1, ELASTIC), 'rank 2 of 3')
        read_until(job.workers[0], 'rank 0 of 3')


COMES_AND_GOES = '''
import array, os, sys, time
import tributary.elastic
folder, leaves = sys.argv[1], sys.argv[2] == "leaves"
tributary.init()
state = tributary.elastic.ObjectState(step=0)

@tributary.elastic.run
def train(state):
    while True:
        data = array.array("i", [1])
        tributary.engine().declare("x", tributary._abi.TRIB_INT32, 1).push_pull(data, reduce=tributary.SUM).wait()
        state.step += 1
        print("step %d of %d" % (state.step, data[0]), flush=True)
        state.commit()
        if tributary.elastic.broadcast_object(os.path.exists(folder + "/go")) and not os.path.exists(folder + "/gone"):
            if leaves:
                return
            while not os.path.exists(folder + "/gone"):
                time.sleep(0.01)
            state.admit()

train(state)
tributary.shutdown()
open(folder + "/gone", "x").close()
'''


def one_comes_as_another_goes():
    """At a boundary where a worker leaves in good order another one joins: it gets the state of the others."""
    with Job(3, 0, 'tcp', TRIB_LOG='info') as job, tempfile.TemporaryDirectory() as folder:
        for rank in (0, 1, 2, -1):
            job.start_python(rank, COMES_AND_GOES, folder, 'leaves' if rank == 2 else 'stays')
            if rank == 2:
                read_until(job.workers[0], 'step 3 of 3')
        read_until(job.workers[0], 'waits to join')
        with open(folder + '/go', 'x', encoding='ascii'):
            pass
        line = read_until(job.workers[3], r'step \d+ of 3', seconds=60)
        assert int(line.split()[1]) > 3, line


LOST_BEHIND = '''
import array, ctypes, time
import tributary
from tributary._library import lib
engine = tributary.Engine()
engine.wait_ready()
tensor = engine.declare("x", tributary._abi.TRIB_INT32, 1)

def epoch():
    now = tributary._abi.trib_membership(struct_size=ctypes.sizeof(tributary._abi.trib_membership))
    assert lib.trib_membership_get(engine._handle, ctypes.byref(now)) == 0
    return now.epoch

def total():
    data = array.array("i", [1])
    tensor.push_pull(data, reduce=tributary.SUM).wait()
    return data[0]

if engine.rank == 1:
    try:
        engine.advance(timeout=0)
    except tributary.TributaryError as late:
        assert late.status == tributary._abi.TRIB_TIMEOUT, late
    print("asked", flush=True)
    while epoch() == 1 or engine.has_changed():
        time.sleep(0.01)
    print("advanced", flush=True)
    while not engine.has_changed():
        time.sleep(0.01)
else:
    input()
    engine.advance()
    print("advanced", flush=True)
    try:
        total()
    except tributary.MembershipChangedError:
        pass
engine.advance()
print("sum", total(), flush=True)
engine.close()
'''


def lost_behind_the_boundary():
    """A worker is lost before another one has noticed that its boundary is over: advance() goes on to the next."""
    with Job(3, 0, 'tcp') as job:
        for rank in range(3):
            job.start_python(rank, LOST_BEHIND)
        read_until(job.workers[1], 'asked')
        for worker in job.workers[0], job.workers[2]:
            worker.stdin.write('go on\n')
            worker.stdin.flush()
        for worker in job.workers[1:]:
            read_until(worker, 'advanced')
        job.workers[2].send_signal(signal.SIGKILL)
        for status, output in ends_of(job.workers[:2]):
            assert status == 0 and 'sum 2' in output, (status, output[-600:])


SERVER_BACK = '''
import array
import tributary
import tributary.errors
engine = tributary.Engine()
engine.wait_ready()
tensor = engine.declare("x", tributary._abi.TRIB_INT32, 50000)

def steps(count):
    for step in range(count):
        data = array.array("i", [engine.rank + step] * 50000)
        try:
            tensor.push_pull(data, reduce=tributary.SUM).wait()
        except tributary.errors.MembershipChangedError:
            return  # nobody could take over from the server
        assert data == array.array("i", [1 + 2 * step] * 50000), list(data[:4])

steps(20)
print("there", flush=True)
counts = [1]
while counts != [1, 0, 1]:
    now = engine.advance()
    steps(20)
    if now.server_count != counts[-1]:
        counts.append(now.server_count)
        print("servers", counts[-1], flush=True)
before = engine.stats()
steps(20)
after = engine.stats()
assert after.bytes_summed == before.bytes_summed, after.bytes_summed - before.bytes_summed
assert after.bytes_pulled - before.bytes_pulled == 20 * 200000, after.bytes_pulled
engine.close()
print("done", flush=True)
'''


def server_comes_back(transport, number):
    """The server is killed and started again as it was, or drained and another one started. Workers have summed
    meanwhile, and do not any more."""
    with Job(2, 1, transport, TRIB_COLOCATE='off', TRIB_LOG='info') as job:
        for rank in range(2):
            job.start_python(rank, SERVER_BACK, TRIB_LOG='warn')
        for worker in job.workers:
            read_until(worker, 'there')
        job.servers[0].send_signal(signal.SIGKILL if number == '0' else signal.SIGTERM)
        read_until(job.workers[0], 'servers 0')
        job.start_server(TRIB_RANK=number)
        read_until(job.servers[1], 'is under way: this server joins when all workers')
        for status, output in ends_of(job.workers):
            assert status == 0 and 'done' in output, (status, output[-600:])
        ((status, output),) = ends_of(job.servers[1:])
        assert status == 0, (status, output[-600:])


LISTED = '''
import tributary
engine = tributary.Engine()
engine.wait_ready()
for _ in range(3):
    now = engine.advance(timeout=60)
    assert (now.lost_count, now.worker_count, engine.rank) == (0, 2, now.rank), (now.lost_count, now.worker_count)
engine.close()
print("done", flush=True)
'''


def coordinator_has_two_addresses(transport):
    """A worker that has found the coordinator at one of its addresses finds it there in each epoch."""
    with Job(2, 0, transport) as job:
        first, second = job.env['TRIB_COORDINATOR'], '127.0.0.1:%d' % free_port()
        for rank, listed in enumerate((first + ',' + second, second + ',' + first)):
            job.start_python(rank, LISTED, TRIB_COORDINATOR=listed)
        for status, output in ends_of(job.workers):
            assert status == 0 and 'done' in output, (status, output[-600:])


CASES = [('from_python_rank_%d_killed' % rank, lambda r=rank: from_python(r)) for rank in (0, 1)]
CASES += [
    ('continued_with_%d_servers_%s' % (servers, transport), lambda t=transport, s=servers: continued(t, s))
    for transport, servers in (('tcp', 0), ('shm', 0), ('tcp', 1))
]
CASES += [(case.__name__, case) for case in (stream_wait_raises, loss_undoes_as_the_coordinator_says)]
CASES += [(case.__name__, case) for case in (elastic_from_python, one_comes_as_another_goes, lost_behind_the_boundary)]
CASES += [
    ('server_comes_back_%s' % transport, lambda t=transport, n=number: server_comes_back(t, n))
    for transport, number in (('tcp', '0'), ('shm', '-1'))
]
CASES += [
    ('coordinator_has_two_addresses_%s' % transport, lambda t=transport: coordinator_has_two_addresses(t))
    for transport in ('tcp', 'shm')
]


if __name__ == '__main__':
    sys.exit(run_cases([case for case in CASES if len(sys.argv) < 2 or case[0] in sys.argv[1:]]))

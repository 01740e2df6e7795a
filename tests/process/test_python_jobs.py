#!/usr/bin/env python3
"""How jobs of Python programs begin and end: by an id or a communicator, by BytePS's launcher; failures, threads of
callbacks. Prints `ok NAME` / `not ok NAME: why`, or one `skip NAME: why` and exits with 77.
"""

import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), 'python'))
import ports  # noqa: E402
import python_bed  # noqa: E402
from cases import PIPES  # noqa: E402

VARIABLES = '''
import tributary
tributary.init()
print('partitions of %d' % tributary.engine().info().partition_bytes)
'''


def byteps_variables_are_read():
    names = {'BYTEPS_PARTITION_BYTES': '4096000', 'BYTEPS_NCCL_NUM_RINGS': '2', 'BYTEPS_PCIE_SWITCH_SIZE': '4'}
    for more, partition in (({}, 4 << 20), ({'TRIB_PARTITION_BYTES': '512K'}, 512 << 10)):
        output = python_bed.run_workers(sys.executable, 2, '-c', VARIABLES, **names, **more)
        assert output.count('partitions of %d' % partition) == 2, output
        assert output.count('have no effect: BYTEPS_NCCL_NUM_RINGS, BYTEPS_PCIE_SWITCH_SIZE\n') == 1, output
    for name, value in (('BYTEPS_ENABLE_ASYNC', '1'), ('BYTEPS_PARTITION_BYTES', '4M')):
        output = python_bed.run_workers(sys.executable, 1, '-c', VARIABLES, statuses=(1,), **{name: value})
        assert 'Error: %s' % name in output, output


def bytepss_servers_run():
    """A job as BytePS's launcher starts it: a scheduler, a server and two workers."""
    stand_in = python_bed.SOURCE + '/api/python/tributary/alias/byteps'
    worker = 'import array, tributary; tributary.init(); values = array.array("f", [1]); ' + (
        'tributary.engine().declare_like("x", values).push_pull(values, reduce=tributary.SUM).wait(); print(values[0])'
    )
    names = {
        'DMLC_NUM_WORKER': '2',
        'DMLC_NUM_SERVER': '1',
        'DMLC_PS_ROOT_URI': '127.0.0.1',
        'DMLC_PS_ROOT_PORT': str(ports.free_port()),
        'TRIB_TOKEN': 'token of a test',
    }
    roles = [('scheduler', None), ('server', None), ('worker', '0'), ('worker', '1')]
    processes = [
        subprocess.Popen(
            [sys.executable, '-c', 'import byteps.server' if number is None else worker],
            env=python_bed.environment(
                stand_in, **names, DMLC_ROLE=role, **({} if number is None else {'DMLC_WORKER_ID': number})
            ),
            **PIPES,
        )
        for role, number in roles
    ]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4 and outputs[2:] == ['2.0\n'] * 2, outputs
    for name, text in ('server', 'DMLC_ROLE is worker'), ('misc.imagenet18', 'has no such part'):
        output = python_bed.run(
            [sys.executable, '-c', 'import byteps.' + name], python_bed.environment(stand_in), statuses=(1,)
        )
        assert 'Error: byteps.' in output and text in output, output


BOOTSTRAP = '''
import array, os, sys, time
import tributary
folder, rank, size = sys.argv[1], int(sys.argv[2]), 3

def bring(name, value):
    """Puts a value where all see it, and returns nothing."""
    with open(os.path.join(folder, name + '.new'), 'wb') as file:
        file.write(value)
    os.rename(os.path.join(folder, name + '.new'), os.path.join(folder, name))

def fetch(name):
    path = os.path.join(folder, name)
    for _ in range(2000):
        if os.path.exists(path):
            with open(path, 'rb') as file:
                return file.read()
        time.sleep(0.01)
    raise TimeoutError(name)

class Comm:
    rank, size, turns = rank, size, 0
    def allgather(self, value):
        self.turns += 1
        bring('%d.%d' % (self.turns, self.rank), value)
        return [fetch('%d.%d' % (self.turns, r)) for r in range(self.size)]

class Broken(Comm):
    def allgather(self, value):
        raise KeyError('no network')

def check():
    values = array.array('d', [float(tributary.rank())])
    tributary.engine().declare_like('values', values).push_pull(values, reduce=tributary.SUM).wait()
    assert values.tolist() == [3.0] and tributary.size() == 3, values

if rank == 0:
    bring('id', tributary.unique_id('127.0.0.1:0'))
tributary.init(unique_id=fetch('id'), rank=rank, worker_count=size)
check()
tributary.shutdown()
comm = Comm()
tributary.init(comm)
check()
tributary.shutdown()
assert comm.turns == 1
for call, kind, words in ((lambda: tributary.init([0, 1]), tributary.ArgumentError, 'no allgather()'),
                          (lambda: tributary.init(unique_id=b'short'), tributary.ArgumentError, '5 bytes'),
                          (lambda: tributary.init(unique_id=bytes(256)), tributary.ArgumentError, 'unique_id'),
                          (lambda: tributary.unique_id('192.0.2.1:0'), tributary.TributaryError, '192.0.2.1'),
                          (lambda: tributary.init(Broken()), tributary.JobLostError, 'oob_cb returned 1')):
    try:
        call()
    except kind as problem:
        assert words in str(problem), problem
        assert words[:3] != 'oob' or isinstance(problem.__cause__, KeyError), problem.__cause__
    else:
        raise AssertionError(words)
print('found each other')
'''


FAILS = '''
import array, sys
import tributary
tributary.init()
values = array.array('d', [1.0])
operation = tributary.engine().declare_like('of rank %d' % tributary.rank(), values).push_pull(values)
if sys.argv[1] == 'caught':
    try:
        raise RuntimeError('the script has failed')
    finally:
        tributary.shutdown()
raise RuntimeError('the script has failed')
'''


ENDS_WELL = '''
import array, sys
import tributary
tributary.init()
values = array.array('d', [1.0])
tensor = tributary.engine().declare_like('x', values)
if tributary.rank() == 0:
    try:
        operation = tensor.push_pull(values, reduce=tributary.SUM)
        open(sys.argv[1], 'w').close()
        sys.exit(0)
    finally:
        tributary.shutdown()
open(sys.argv[1]).read()  # until rank 0 is about to end
tensor.push_pull(values, reduce=tributary.SUM).wait()
assert values[0] == 2, values
'''


def a_script_that_fails_waits_for_nobody():
    """Each worker waits for an operation that the other never begins, and fails."""
    for way in 'caught', 'uncaught':
        output = python_bed.run_workers(sys.executable, 2, '-c', FAILS, way, statuses=(1,))
        assert output.count('RuntimeError: the script has failed') == 2, output


def a_script_that_ends_well_completes_operations():
    """Rank 0 ends by sys.exit(0) before the other worker has begun the operation that is under way there."""
    with tempfile.TemporaryDirectory() as folder:
        os.mkfifo(folder + '/end')
        python_bed.run_workers(sys.executable, 2, '-c', ENDS_WELL, folder + '/end')


STUCK = '''
import threading, warnings
from tributary import completions
completions.CALLBACK_S = 0.01
waits, never = completions.Completions(), threading.Event()
waits.run_apart(never.wait)
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter('always')
    waits.stop()
assert ['has not returned' in str(one.message) for one in told] == [True], told
'''


THREADS = '''
import threading, weakref
from tributary import completions
waits, threads, kept = completions.Completions(), [], []
def meet():
    both.wait()
    threads.append(threading.current_thread())
for count in 2, 2, 1, 2, 0:  # how many functions wait for each other
    both = threading.Barrier(max(count, 1))
    for _ in range(count):
        function = lambda: meet()
        kept.append(weakref.ref(function))
        waits.run_apart(function)
    function = None
    while waits._idle < 2:  # all are back
        pass
assert len(threads) == 7 and len(set(threads)) == 2, threads
assert not [one() for one in kept if one()], kept
waits.run_apart(waits.stop)  # it does not wait for itself
for thread in threads:
    thread.join()
'''


def callbacks_of_futures_share_threads():
    subprocess.run([sys.executable, '-c', THREADS], env=python_bed.environment(), check=True, timeout=60)


def callbacks_that_do_not_return_are_left():
    subprocess.run([sys.executable, '-c', STUCK], env=python_bed.environment(), check=True, timeout=60)


def processes_find_together_without_an_address():
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, '-c', BOOTSTRAP, folder]
        environment = {name: value for name, value in python_bed.environment().items() if name != 'TRIB_TOKEN'}
        workers = [subprocess.Popen([*command, str(rank)], env=environment, **PIPES) for rank in range(3)]
        outputs = [worker.communicate(timeout=120)[0] for worker in workers]
    for output in outputs:
        assert output.count('found each other') == 1, output[-1500:]


if __name__ == '__main__':
    sys.exit(
        python_bed.main(
            [
                ('failing_script', a_script_that_fails_waits_for_nobody),
                ('script_that_ends_well', a_script_that_ends_well_completes_operations),
                ('byteps_variables', byteps_variables_are_read),
                ('bytepss_servers', bytepss_servers_run),
                ('threads_of_callbacks', callbacks_of_futures_share_threads),
                ('stuck_callbacks', callbacks_that_do_not_return_are_left),
                ('bootstrap', processes_find_together_without_an_address),
            ]
        )
    )

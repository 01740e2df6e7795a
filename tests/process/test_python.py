#!/usr/bin/env python3
"""The Python package without a framework: its declarations match the header, arrays are summed and errors are
exceptions. Prints `ok NAME` / `not ok NAME: why`, or one `skip NAME: why` and exits with 77.
"""

import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), 'python'))
import python_bed  # noqa: E402

PROGRAM = '''
import array, asyncio, os, sys
import tributary
tributary.init()
engine, rank, size = tributary.engine(), tributary.rank(), tributary.size()
values = array.array('d', [float(rank), 1.0, -2.0 * rank])
tensor = engine.declare_like('values', values)
assert tensor.push_pull(values, reduce=tributary.SUM).wait() is values
assert values.tolist() == [sum(range(size)), size, -2.0 * sum(range(size))], values

async def one(operation):
    return await operation

async def several():
    arrays = [array.array('i', [rank + i]) for i in range(20)]
    tensors = [engine.declare_like('async %d' % i, a) for i, a in enumerate(arrays)]
    results = await asyncio.gather(*(one(t.push_pull(a, reduce=tributary.MAX)) for t, a in zip(tensors, arrays)))
    assert [r[0] for r in results] == [size - 1 + i for i in range(20)]

asyncio.run(several())

class Late:
    """The library, of which a wait gives up at the moment when its operation completes."""
    def __init__(self, wrapped):
        self.wrapped, self.waits = wrapped, 0
    def __getattr__(self, name):
        return getattr(self.wrapped, name)
    def trib_op_wait(self, *arguments):
        self.waits += 1
        if self.waits > 1:
            return self.wrapped.trib_op_wait(*arguments)
        self.wrapped.trib_op_wait(arguments[0], -1, None)
        return tributary._abi.TRIB_TIMEOUT

module = sys.modules['tributary.operation']
late = module.lib = Late(module.lib)
values = array.array('d', [float(rank), 1.0, -2.0 * rank])
assert tensor.push_pull(values, reduce=tributary.SUM).wait() is values and values[1] == size and late.waits == 2
print('sums are right')
'''


def layout_is_the_headers():
    sys.path.insert(0, python_bed.SOURCE + '/api/python/tributary')
    import _abi

    expected = {
        name: value for name, value in vars(_abi).items() if name.startswith('TRIB_') and isinstance(value, int)
    }
    for name, struct in vars(_abi).items():
        if isinstance(struct, type) and issubclass(struct, ctypes.Structure) and struct is not ctypes.Structure:
            expected['sizeof(%s)' % name] = ctypes.sizeof(struct)
            expected.update(
                ('offsetof(%s, %s)' % (name, field), getattr(struct, field).offset) for field, *_ in struct._fields_
            )
    with tempfile.TemporaryDirectory() as folder:
        with open(folder + '/print.c', 'w', encoding='ascii') as file:
            file.write('#include <stddef.h>\n#include <stdio.h>\n#include <tributary.h>\nint main(void) {\n')
            file.writelines('printf("%%lld\\n", (long long)(%s));\n' % expression for expression in expected)
            file.write('}\n')
        subprocess.run(
            ['gcc', '-I', python_bed.SOURCE + '/api', '-o', folder + '/print', folder + '/print.c'], check=True
        )
        actual = dict(zip(expected, map(int, subprocess.check_output([folder + '/print'], text=True).split())))
    assert actual == expected, {
        name: (actual[name], expected[name]) for name in expected if actual[name] != expected[name]
    }
    with open(python_bed.SOURCE + '/api/tributary.h', encoding='ascii') as file:
        declared = set(re.findall(r'^TRIB_API [^;{]*?\b(trib_\w+)\(', file.read(), re.M))
    assert declared == set(_abi.FUNCTIONS), declared ^ set(_abi.FUNCTIONS)


def the_file_is_what_the_header_says():
    python_bed.run([sys.executable, python_bed.SOURCE + '/tools/dev/pyabi.py', '--check'], os.environ)


def arrays_are_summed():
    for workers in (1, 3):
        output = python_bed.run_workers(sys.executable, workers, '-c', PROGRAM)
        assert output.count('sums are right') == workers, output[-1500:]


ERRORS = '''
import array, os
import tributary
try:
    tributary.rank()
except tributary.NotInitializedError as problem:
    assert 'init()' in str(problem)
tributary.init()
engine, rank = tributary.engine(), tributary.rank()
for call, words in ((lambda: engine.declare(5, 0, 1), 'must be a str'),
                    (lambda: engine.declare('nul\\0', 0, 1), 'NUL'),
                    (lambda: engine.declare_like('text', 'text'), 'str is no array'),
                    (lambda: engine.declare_like('complex', memoryview(bytearray(8)).cast('P')), 'type P'),
                    (lambda: engine.declare('short', 0, 4).push_pull(array.array('f', [1.0])), 'declared with 4'),
                    (lambda: engine.declare('root', 0, 1).broadcast(array.array('f', [1.0]), root=2), 'root 2 is not'),
                    (lambda: engine.declare('root', 0, 1).broadcast(array.array('f', [1.0]), root=2**40), 'root 10995'),
                    (lambda: engine.declare('less', 0, -1), 'count [-1]'),
                    (lambda: engine.declare_once('pairs', 0, layout=2, splits=[-1, 2]), 'splits [-1, 2]'),
                    (lambda: engine.declare_once('pairs', 0, layout=2, splits=[1, 2, 3]), '3 splits, needs 2'),
                    (lambda: engine.group('far', [0, 2**32 + 1]), 'ranks [0, 4294967297]'),
                    (lambda: engine.group('far', [0, 2]), '2 is not a rank below 2'),
                    (lambda: engine.group('nul\\0', [0, 1]), 'NUL'),
                    (lambda: tributary.Engine(no_such_setting=1), 'no_such_setting')):
    try:
        call()
    except tributary.ArgumentError as problem:
        assert words in str(problem), problem
    else:
        raise AssertionError(words)
def disagrees(name, begin):
    try:
        begin().wait()
    except tributary.MismatchError as problem:
        assert name in str(problem), problem
    else:
        raise AssertionError('workers disagreed, and nothing was raised')

for count in 4 + rank, 4, 5, 6:  # workers would number further shapes of that name differently
    values = array.array('f', [1.0] * count)
    disagrees('differs', lambda: engine.declare('differs', 0, count).push_pull(values))

def use(count):
    values = array.array('f', [1.0] * count)
    return engine.declare('used before', 0, count).push_pull(values)

for count in 4, 5:
    use(count).wait()
for count in 4 + rank, 4, 5:  # both shapes are known, so that no declaration differs
    disagrees('used before', lambda: use(count))

def begin(number, reduce=tributary.SUM):
    values = array.array('f', [number] * 3)
    return engine.declare_like('round', values).push_pull(values, reduce=reduce)

first = begin(0, tributary.MAX if rank == 0 else tributary.SUM)
second = begin(1) if rank == 0 else None  # before it has waited for the first, and the other worker after
disagrees('round', lambda: first)
assert (second or begin(1)).wait().tolist() == [2] * 3
for number in range(2, 6):
    assert begin(number).wait().tolist() == [2 * number] * 3
tensor, values = engine.declare('closed', 0, 1), array.array('f', [1.0])
lock = engine._lock
lock.acquire()  # as if another thread were inside a call
child = os.fork()
if child == 0:
    for call in engine.barrier, lambda: tensor.push_pull(values):
        try:
            call()
        except tributary.NotInitializedError as problem:
            assert 'forked' in str(problem), problem
        else:
            os._exit(1)
    os._exit(7)
lock.release()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
engine.barrier()

class Closing:
    """The engine's lock, for which a thread waits while another one closes the engine."""
    def __enter__(self):
        engine._lock = lock
        tributary.shutdown()
        tributary.shutdown()
    def __exit__(self, *exception):
        pass

engine._lock = Closing()
for call in lambda: tensor.push_pull(values), engine.info:
    try:
        call()
    except tributary.NotInitializedError as problem:
        assert 'closed' in str(problem), problem
    else:
        raise AssertionError('an engine was called that has been closed')
print('errors are right')
'''


def errors_are_exceptions():
    output = python_bed.run_workers(sys.executable, 2, '-c', ERRORS)
    assert output.count('errors are right') == 2, output[-1500:]


CROSSED = '''
import array
import tributary
tributary.init()
engine, rank = tributary.engine(), tributary.rank()
values = array.array('f', [1.0] * 3)
try:
    engine.declare_like('of rank %d' % rank, values).push_pull(values).wait()
except tributary.TributaryError as problem:
    words = 'which waits for round 1 of tensor "of rank %d" (float32[3])' % (1 - rank)
    assert problem.status == -5 and words in str(problem), problem
else:
    raise AssertionError('an operation is complete that one worker began')
engine.barrier()
print('the other worker is told')
'''


def waits_for_each_other_are_told():
    output = python_bed.run_workers(sys.executable, 2, '-c', CROSSED, TRIB_OP_TIMEOUT='10s')
    assert output.count('the other worker is told') == 2, output[-1500:]
    assert output.count('stalled for ') >= 2, output[-1500:]


JOIN = '''
import array
import tributary
tributary.init()
engine, rank, size = tributary.engine(), tributary.rank(), tributary.size()
for lap in range(3):
    for batch in range(rank + lap if rank > 0 else 0):  # declared by worker 0 after its first join only
        values = array.array('f', [rank + 1.0] * 70000)
        engine.declare_like('batch', values).push_pull(values, reduce=tributary.SUM).wait()
        there = [r for r in range(1, size) if r + lap > batch]
        assert set(values) == {float(sum(r + 1 for r in there))}, (lap, batch, set(values))
    assert engine.join() == size - 1
values = array.array('f', [1.0] * 70000)
engine.declare_like('batch', values).push_pull(values, reduce=tributary.SUM).wait()
assert set(values) == {float(size)}
print('joins are right')
'''


def workers_join():
    for options in (), ('-s', '1'):
        for transport in 'shm', 'tcp':
            output = python_bed.run_workers(sys.executable, 3, '-c', JOIN, options=options, TRIB_TRANSPORT=transport)
            assert output.count('joins are right') == 3, (options, transport, output[-1500:])


TIMELINE = '''
import array, sys, tributary
tributary.init()
values = array.array('d', [1.0])
def add(name):
    tributary.engine().declare_like(name, values).push_pull(values, reduce=tributary.SUM).wait()
add('first layer')
if len(sys.argv) > 1:
    tributary.start_timeline(sys.argv[1])
    add('second layer')
    tributary.stop_timeline()
    add('third layer')
'''

# A child that is forked ends as programs do.
TIMELINE_OF_PARENT = '''
import os, sys, tributary
tributary.init()
child = os.fork()
if child == 0:
    sys.exit(0)
os.waitpid(child, 0)
'''

# A folder that is there on rank 0's machine alone.
TIMELINE_OF_FIRST = '''
import os, tributary
if os.environ['TRIB_RANK'] != '0':
    os.environ['HOROVOD_TIMELINE'] += '/none/timeline.json'
tributary.init()
print('rank', tributary.rank(), 'is there')
'''


HINTS = """
import python_bed, tributary
from tributary.tensor import Group
for kind, least in (tributary, 15), (tributary.Engine, 20), (tributary.Tensor, 5), (tributary.Operation, 6), (Group, 4):
    count, untyped = python_bed.untyped(kind)
    assert count >= least and not untyped, (kind, count, untyped)
"""


def methods_have_type_hints():
    """Editors and type checkers know the arguments and results of all public functions and methods."""
    python_bed.run([sys.executable, '-c', HINTS], python_bed.environment(python_bed.SOURCE + '/tests/python'))


def timelines_are_for_chrome():
    with tempfile.TemporaryDirectory() as folder:
        odd, plain = folder + '/100 %.json', folder + '/plain.json'
        for path, variables, arguments, layers in (
            (plain, {'HOROVOD_TIMELINE': plain}, (), ['first']),
            (odd, {'HOROVOD_TIMELINE': odd}, (), ['first']),
            (odd, {'HOROVOD_TIMELINE': 'DYNAMIC'}, (odd,), ['second']),
        ):
            python_bed.run_workers(sys.executable, 2, '-c', TIMELINE, *arguments, **variables)
            with open(path, encoding='utf-8') as file:
                assert json.loads(file.read())
                file.seek(0)
                assert re.findall(r'(\w+) layer', file.read())[:1] == layers
            written = [path] + ['%s.rank%d.trib' % (path, r) for r in range(2)]
            assert sorted(os.listdir(folder)) == [os.path.basename(one) for one in written]
            for one in written:
                os.remove(one)
        output = python_bed.run_workers(
            sys.executable, 1, '-c', TIMELINE, statuses=(1,), HOROVOD_TIMELINE=folder + '/none/timeline.json'
        )
        assert 'ArgumentError: timeline' in output and 'make it first' in output, output
        output = python_bed.run_workers(sys.executable, 1, '-c', TIMELINE_OF_PARENT, HOROVOD_TIMELINE=path)
        assert 'tributary:' not in output and os.path.exists(path), output
        output = python_bed.run_workers(sys.executable, 2, '-c', TIMELINE_OF_FIRST, HOROVOD_TIMELINE=path)
        assert output.count('is there') == 2 and 'rank 1 records nothing: timeline' in output, output


if __name__ == '__main__':
    sys.exit(
        python_bed.main(
            [
                ('layout', layout_is_the_headers),
                ('generated', the_file_is_what_the_header_says),
                ('arrays', arrays_are_summed),
                ('type_hints', methods_have_type_hints),
                ('errors', errors_are_exceptions),
                ('waits for each other', waits_for_each_other_are_told),
                ('join', workers_join),
                ('timelines', timelines_are_for_chrome),
            ]
        )
    )

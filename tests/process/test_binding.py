#!/usr/bin/env python3
"""examples/binding.py: its layout matches the header, it trains, and Python programs end cleanly after a killed rank,
Ctrl-C, exceptions, released arrays and forks. Prints `ok NAME` / `not ok NAME: why`, or one `skip NAME: why` and exits
with 77.
"""

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import alive, comes_true, run_cases  # noqa: E402

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(SOURCE, os.environ.get('TRIB_BUILD', 'build/release'))
TOOL, EXAMPLE = BUILD + '/tributary', SOURCE + '/examples/binding.py'
PIPES = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors='replace')
FOREVER = str(10**9)  # steps
TIMEOUT = 120  # seconds; ends a test that hangs


def environment(**more):
    """An environment with this build's library, and without a launcher's variables."""
    foreign = ('TRIB_', 'OMPI_', 'PMI_', 'PMIX_', 'SLURM_', 'DMLC_')
    env = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(foreign) and k not in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK')
    }
    return dict(env, LD_LIBRARY_PATH=BUILD, PYTHONPATH=SOURCE + '/examples', PYTHONUNBUFFERED='1', **more)


def begin(options, *program, **more):
    """Starts a program under `tributary run`, or alone if there are no options."""
    command = ([TOOL, 'run', *options.split(), '--tag-output', '--'] if options else []) + [sys.executable, *program]
    return subprocess.Popen(command, env=environment(**more), **PIPES)


def finish(child, statuses, output=''):
    """Waits for the end and returns the whole output. The exit status must be one of `statuses`."""
    try:
        output += child.communicate(timeout=TIMEOUT)[0]
    finally:
        child.kill()
        child.wait()
    assert child.returncode in statuses, (child.returncode, output[-1500:])
    return output


def until(child, text):
    """Returns the output up to the line that holds the text."""
    output = ''
    for line in child.stdout:
        output += line
        if text in line:
            return output
    raise AssertionError('the program ended before it printed "%s": %s' % (text, output[-1500:]))


def lines_of(rank, output):
    return ''.join(line for line in output.splitlines(True) if line.startswith('[rank %d] ' % rank))


# ---- The header ----


def compiled(expressions):
    """Returns the value of each expression, as the C compiler computes it."""
    with tempfile.TemporaryDirectory() as folder:
        with open(folder + '/print.c', 'w', encoding='ascii') as file:
            file.write('#include <stddef.h>\n#include <stdio.h>\n#include <tributary.h>\nint main(void) {\n')
            file.writelines('printf("%%lld\\n", (long long)(%s));\n' % expression for expression in expressions)
            file.write('}\n')
        subprocess.run(
            [shutil.which('cc') or 'gcc', '-I', SOURCE + '/api', '-o', folder + '/print', folder + '/print.c'],
            check=True,
        )
        return dict(zip(expressions, map(int, subprocess.check_output([folder + '/print'], text=True).split())))


def layout_is_the_headers():
    described = {
        name: value for name, value in vars(binding).items() if name.startswith('TRIB_') and isinstance(value, int)
    }
    for name, struct in vars(binding).items():
        if isinstance(struct, type) and issubclass(struct, ctypes.Structure):
            described['sizeof(%s)' % name] = ctypes.sizeof(struct)
            for field, _ in struct._fields_:
                described['offsetof(%s, %s)' % (name, field)] = getattr(struct, field).offset
                described['sizeof(((%s *)0)->%s)' % (name, field)] = getattr(struct, field).size
    known = compiled(list(described))
    wrong = [
        '%s is %d, described as %d' % (what, known[what], value)
        for what, value in described.items()
        if known[what] != value
    ]
    assert len(described) > 150 and not wrong, (len(described), wrong)


def kind(declared):
    """Returns binding.py's letters for a type in the header."""
    scalars = {'void': 'nothing', 'trib_status': 'i32', 'int': 'i32', 'size_t': 'size'}
    return 'pointer' if '*' in declared or '_cb ' in declared else scalars[declared.split()[0]]


def functions_are_the_headers():
    with open(SOURCE + '/api/tributary.h', encoding='utf-8') as file:
        header = ' '.join(file.read().split())
    for name, text in binding.FUNCTIONS.items():
        result, arguments = re.search(r'TRIB_API (?:TRIB_CHECKED )?([\w *]*?)\b%s\(([^)]*)\);' % name, header).groups()
        declared = ' '.join([kind(result)] + [kind(argument.strip()) for argument in arguments.split(',')])
        assert declared == text.replace('text', 'pointer'), (name, declared, text)


# ---- It trains ----


def trains(options, count):
    output = finish(begin(options, EXAMPLE), [0])
    for rank in range(count):
        line = r'worker %d of %d: loss \d+\.\d+, then 0\.\d+; the same weights on all ranks$' % (rank, count)
        assert len(re.findall(line, output, re.MULTILINE)) == 1, (line, output)


# ---- Failures in a Python program ----


def killed_rank_is_an_exception(victim):
    """The exception is raised on all other ranks, and names the killed rank."""
    mark = 'victim%d' % os.getpid()
    child = begin('-n 4', EXAMPLE, FOREVER, MARK_OF_A_TEST=mark)
    output = until(child, 'step 20:')
    pid = next(pid for pid in alive(mark) if 'TRIB_RANK=%d\0' % victim in open('/proc/%s/environ' % pid).read())
    os.kill(int(pid), signal.SIGKILL)
    output = finish(child, [128 + signal.SIGKILL, 1], output)  # `run` may notice late, and report another process first
    for rank in {0, 1, 2, 3} - {victim}:
        raised = r'TributaryError: TRIB_PEER_LOST: .*rank %d \(.*:%s\)' % (victim, pid)
        assert re.search(raised, lines_of(rank, output)), (rank, output[-3000:])
        assert 'rank %d ended with status 1' % rank in output, output[-3000:]


def ctrl_c_ends_all():
    """SIGINT to `tributary run` reaches all workers. Each interpreter ends with KeyboardInterrupt, and in time."""
    mark = 'interrupt%d' % os.getpid()
    child = begin('-n 4 -s 1', EXAMPLE, FOREVER, MARK_OF_A_TEST=mark)
    output = until(child, 'step 20:')
    child.send_signal(signal.SIGINT)
    output = finish(child, [128 + signal.SIGINT], output)
    # A slow rank may have heard first that others have left.
    end = r'^\[rank %d\] (KeyboardInterrupt|\w*\.?TributaryError: TRIB_PEER_LEFT)'
    ends = [re.findall(end % rank, output, re.MULTILINE) for rank in range(4)]
    assert all(ends) and any('KeyboardInterrupt' in end for end in ends), output[-3000:]
    assert 'within' not in output, output[-3000:]  # the text of a forced end: "did not end rank 0 within"
    assert comes_true(lambda: not alive(mark)), alive(mark)


def run_text(text, options='-n 2', status=0):
    return finish(begin(options, '-c', 'import binding, sys\nfrom array import array\n' + text), [status])


def exception_ends_all():
    """The program does not close the engine. The interpreter does so at its end, and the others hear that this rank has
    left."""
    for at_fault in (0, 1):
        output = run_text(
            '''
engine = binding.Engine()
tensor = engine.declare('x', array('d', [0]))
for step in range(10):
    if step == 5 and engine.rank == %d:
        raise ValueError('a fault')
    engine.push_pull(tensor, array('d', [1])).result()
'''
            % at_fault,
            status=1,
        )
        assert 'ValueError: a fault' in lines_of(at_fault, output), output
        other = lines_of(1 - at_fault, output)
        assert re.search('TributaryError: TRIB_PEER_LEFT: tensor "x": .*rank %d ' % at_fault, other), output


def second_close_waits_again():
    """Ctrl-C interrupts a close that waits. The next call, for example from atexit, must not destroy the engine under
    the dispatching thread, whose callback is still running."""
    output = run_text('''
import os, signal, threading
begun, go_on, over = threading.Event(), threading.Event(), []
def busy(future):
    begun.set()
    go_on.wait()
    over.append(future)
engine = binding.Engine()
late, early = (engine.declare(name, array('d', [0])) for name in ('late', 'early'))
if engine.rank == 0:
    engine.push_pull(late, array('d', [1])).add_done_callback(busy)
    engine.broadcast(early, array('d', [1]))
    begun.wait()
    try:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        engine.close()
        sys.exit('closed')
    except KeyboardInterrupt:
        threading.Timer(0.5, go_on.set).start()
        engine.close()
        assert over
    print('closed once')
else:
    engine.broadcast(early, array('d', [0])).result()
    engine.push_pull(late, array('d', [1])).result()
''')
    assert output.count('closed once') == 1, output


def arrays_nobody_holds():
    """The binding keeps arrays at their size until the operation is over, and no longer."""
    output = run_text('''
import asyncio, gc
def begin(engine, number):
    data = array('q', [number + engine.rank]) * 100000
    return engine.push_pull(engine.declare('number %d' % number, data), data, reduce=binding.TRIB_SUM)
async def sums(engine):
    futures = [asyncio.wrap_future(begin(engine, number)) for number in range(100, 120)]
    futures[0].cancel()
    for number, values in enumerate(await asyncio.gather(*futures[1:]), 101):
        assert set(values) == {2 * number + 1}, (number, values[0])
with binding.Engine() as engine:
    for number in range(20):
        begin(engine, number)
    gc.collect()
    tensor, early = (engine.declare(name, array('d', bytes(800))) for name in ('late', 'early'))
    data = array('d', bytes(800))
    if engine.rank == 0:  # rank 1 waits for the broadcast, so the operation cannot end before it
        future = engine.push_pull(tensor, data, array('d', bytes(800)))
        try:
            data.append(0)
            sys.exit('resized')
        except BufferError:
            pass
        engine.broadcast(early, array('d', bytes(800))).result()
        future.result()
    else:
        engine.broadcast(early, array('d', bytes(800))).result()
        engine.push_pull(tensor, data).result()
    asyncio.run(sums(engine))
    data.append(0)
    for wrong in (data, array('f', [0] * 100), memoryview(array('d', [0] * 200))[::2]):
        try:
            engine.push_pull(tensor, wrong)
            sys.exit('taken')
        except ValueError as error:
            assert 'late: needs 100 contiguous elements of type d' in str(error), error
assert not engine._in_flight, engine._in_flight
try:
    engine.push_pull(tensor, array('d', bytes(800)))
    sys.exit('taken')
except binding.TributaryError as error:
    assert str(error) == 'TRIB_CLOSED: the engine has been closed', error
print('held')
''')
    assert output.count('held') == 2, output


def forked_children():
    """Forked children, like data loaders, cannot use the parent's engine, may have their own, and end normally. The
    parent does not notice."""
    output = run_text('''
import ctypes, multiprocessing, os
def refused(function, *arguments):
    try:
        function(*arguments)
        return 'taken'
    except RuntimeError as error:
        return str(error)
def child(queue):
    queue.put(refused(engine.push_pull, tensor, data))
    queue.put(refused(engine.declare, 'y', data))
    error = binding.trib_error()
    queue.put(binding.lib.trib_push_pull(engine._engine, None, None, ctypes.byref(error)))
    queue.put(error.text)
    engine.close()
    for name in [name for name in os.environ if name.startswith('TRIB_')]:
        del os.environ[name]
    with binding.Engine() as own:
        queue.put(own.push_pull(own.declare('z', data), data).result()[0])
with binding.Engine() as engine:
    data, context = array('d', [1]), multiprocessing.get_context('fork')
    tensor = engine.declare('x', data)
    future, queue = engine.push_pull(tensor, data, array('d', [0])), context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    for expected in ('forked from', 'forked from', -2, b'this process was forked', 1.0):
        got = queue.get(timeout=60)
        assert expected == got or isinstance(got, (str, bytes)) and expected in got, (got, expected)
    process.join()
    assert process.exitcode == 0 and future.result()[0] == 1, process.exitcode
    pid = os.fork()
    if pid == 0:
        sys.exit(7)  # through `with` and atexit, which close the parent's engine
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    for step in range(20):
        engine.push_pull(tensor, data).result()
    print('unharmed')
''')
    assert output.count('unharmed') == 2, output


def what_cannot_be_is_told():
    """Wrong input raises an error: a field that does not exist, a name with a NUL, arguments that are not numbers."""
    run_text(
        '''
def refused(kind, function, *arguments, **fields):
    try:
        function(*arguments, **fields)
    except kind as error:
        return str(error)
    raise AssertionError(function)
assert 'rnk' in refused(AttributeError, binding.Engine, rnk=1)
with binding.Engine() as engine:
    data = array('d', [1])
    assert 'NUL' in refused(ValueError, engine.declare, 'half' + chr(0) + 'a name', data)
    tensor = engine.declare('half', data)
    broadcast = binding.lib.trib_broadcast
    assert 'rooot' in refused(AttributeError, engine.submit, broadcast, tensor.handle, 0, 0, (data,), rooot=1)
    assert engine.push_pull(tensor, data).result()[0] == 1
    assert not engine._in_flight
''',
        '-n 1',
    )
    for words in (['--help'], ['x'], ['0'], ['5', '6']):
        assert 'usage: tributary run -n 4 -- python3 binding.py [STEPS]' in finish(begin('', EXAMPLE, *words), [1]), (
            words
        )


CASES = (
    [('layout_is_the_headers', layout_is_the_headers), ('functions_are_the_headers', functions_are_the_headers)]
    + [
        ('trains_' + name, lambda options=options, count=count: trains(options, count))
        for name, options, count in (('alone', '', 1), ('1w', '-n 1', 1), ('4w', '-n 4', 4), ('4w2s', '-n 4 -s 2', 4))
    ]
    + [
        ('killed_rank_%d_is_an_exception' % victim, lambda victim=victim: killed_rank_is_an_exception(victim))
        for victim in (0, 2)
    ]
    + [
        (case.__name__, case)
        for case in (
            what_cannot_be_is_told,
            ctrl_c_ends_all,
            second_close_waits_again,
            exception_ends_all,
            arrays_nobody_holds,
            forked_children,
        )
    ]
)


if __name__ == '__main__':
    # A script's background process ignores SIGINT, and its workers would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    shows = 'import binding; print(open("/proc/self/maps").read())'
    tried = subprocess.run(
        [sys.executable, '-c', shows], env=environment(), capture_output=True, text=True, check=False
    )
    if os.path.realpath(BUILD + '/libtributary.so.0') not in tried.stdout:
        if not os.path.basename(BUILD).startswith(('asan', 'tsan')):
            sys.exit('not ok library: binding.py does not load that of %s: %s' % (BUILD, tried.stderr))
        print('skip binding: a library with a sanitizer cannot be loaded into Python')
        sys.exit(77)
    os.environ.update(environment())
    sys.path.insert(0, SOURCE + '/examples')
    import binding

    sys.exit(run_cases(CASES))

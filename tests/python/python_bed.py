"""Shared parts of the tests of Python's bindings: interpreters with frameworks, jobs of workers, and what workers
assert."""

import ctypes
import inspect
import os
import re
import select
import subprocess
import sys

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(SOURCE, 'tests'))
import python_frameworks  # noqa: E402
from cases import PIPES, run_cases  # noqa: E402

BUILD = os.path.join(SOURCE, os.environ.get('TRIB_BUILD', 'build/release'))
LIBRARY = BUILD + '/libtributary.so.0'
FOLDER = os.environ.get('TRIB_FRAMEWORKS', os.path.join(SOURCE, 'build', 'frameworks'))
CANNOT_LOAD = 'a library with a sanitizer cannot be loaded into Python'
TIMEOUT = 400  # seconds; long enough for a busy machine, so only a test that hangs is ended
FOREIGN = ('TRIB_', 'OMPI_', 'PMI_', 'PMIX_', 'SLURM_', 'DMLC_', 'BYTEPS_', 'HOROVOD_', 'TORCHELASTIC_')


def environment(*path, **more):
    """An environment with this build's library, and without a launcher's variables."""
    env = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(FOREIGN) and k not in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK')
    }
    return dict(
        env,
        TRIBUTARY_LIBRARY=LIBRARY,
        PYTHONPATH=os.pathsep.join((SOURCE + '/api/python',) + path),
        PYTHONUNBUFFERED='1',
        OMP_NUM_THREADS='1',
        TRIB_JOIN_TIMEOUT='200s',  # a framework takes minutes to import on a busy machine
        **more,
    )


def run(command, env, statuses=(0,)):
    """Runs a command and returns its output; its exit status must be one of those."""
    try:
        result = subprocess.run(command, env=env, timeout=TIMEOUT, **PIPES)
    except subprocess.TimeoutExpired as late:
        said = late.output or b''
        said = said if isinstance(said, str) else said.decode(errors='replace')
        raise AssertionError('not done within %d s; its output ends so: %s' % (TIMEOUT, said[-2500:])) from None
    # PyTorch marks the lines of a rank's exception, after which torchrun tells a lot about itself.
    marked = [line for line in result.stdout.splitlines() if line.startswith('[rank')]
    assert result.returncode in statuses, (result.returncode, '\n'.join(marked)[-2500:] or result.stdout[-2500:])
    return result.stdout


def run_workers(python, count, program, *arguments, options=(), statuses=(0,), path=(), **more):
    """Runs a program as so many workers of a job and returns their output."""
    command = [BUILD + '/tributary', 'run', '-n', str(count), *options, '--', python, program, *arguments]
    return run(command, environment(*path, **more), statuses)


IS_INTERRUPTED = '''
import os, signal, threading, tributary

def interrupt():
    while tributary.engine().stats().ops_in_flight == 0:
        pass
    os.kill(os.getpid(), signal.SIGINT)

def interrupted(rank, wait):
    """Calls what waits for an operation that no other worker begins."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=interrupt, daemon=True).start()
    try:
        wait('of rank %d' % rank)
    except KeyboardInterrupt:
        print('worker %d is interrupted' % rank, flush=True)
'''


def ctrl_c_ends_waits(python, program, **more):
    """Each worker waits for an operation that the other never begins, in a framework's code."""
    output = run_workers(python, 2, '-c', IS_INTERRUPTED + program, **more)
    assert output.count('is interrupted') == 2 and 'Traceback' not in output, output[-1500:]


def example_learns(python, program, **more):
    """Two workers train the three models of a script of examples/python. Guesses are right in a tenth of all digits and
    in a sixth of all letters."""
    output = run_workers(python, 2, os.path.join(SOURCE, 'examples', 'python', program), **more)
    found = dict(re.findall(r'^(\w+): 2 workers: accuracy ([\d.]+) %', output, re.MULTILINE))
    for model, least in ('digits', 85), ('image', 85), ('text', 30):
        assert float(found.get(model, 0)) >= least, (model, output[-1500:])


def main(cases):
    """Runs a script's pairs of (name, function), or those that the command line names, where this interpreter can load
    the library. Returns the exit status."""
    if os.path.basename(BUILD) != 'release':
        print('skip %s: %s' % (os.path.basename(sys.argv[0]), CANNOT_LOAD))
        return 77
    return run_cases([case for case in cases if len(sys.argv) < 2 or case[0] in sys.argv[1:]])


def interpreter(framework):
    """Returns the interpreter that has a framework: this one, or that of an environment made for tests. None and the
    reason where there is none."""
    if os.path.basename(BUILD) != 'release':
        return None, CANNOT_LOAD
    if subprocess.run([sys.executable, '-c', 'import ' + framework], stderr=subprocess.DEVNULL).returncode == 0:
        return sys.executable, ''
    try:
        return python_frameworks.make(framework, FOLDER), ''
    except (OSError, subprocess.CalledProcessError) as problem:
        return None, '%s cannot be installed: %s' % (framework, problem)


def refused(kind, *cases):
    """Each case, a call and a part of the text, raises that kind of exception."""
    for call, text in cases:
        try:
            call()
        except kind as problem:
            assert text in str(problem), (text, problem)
        else:
            raise AssertionError('nothing was raised, and "%s" expected' % text)


def is_declared(name):
    """True if the engine of this worker has a tensor of that name."""
    from tributary import _abi, job
    from tributary._library import lib

    handle = ctypes.c_void_p()
    return lib.trib_tensor_find(job.engine()._handle, name.encode(), ctypes.byref(handle), None) == _abi.TRIB_OK


def told_of(words, begin):
    """Begins an operation, and returns when this worker has told of that on its standard error."""
    kept, (read, write), told = os.dup(2), os.pipe(), b''
    os.dup2(write, 2)
    try:
        begin()
        while words not in told and select.select([read], [], [], 60)[0]:
            told += os.read(read, 4096)
    finally:
        os.dup2(kept, 2)
        os.write(2, told)
        for end in kept, read, write:
            os.close(end)
    assert words in told, told


def assert_only_reactors_are_pinned():
    """Threads on which a framework may go on computing have a choice of cores, where the program has one."""
    from tributary import job

    threads = os.listdir('/proc/self/task') if len(os.sched_getaffinity(0)) > 1 else ()
    pinned = [thread for thread in threads if len(os.sched_getaffinity(int(thread))) == 1]
    assert len(pinned) <= job.engine().info().reactors, pinned


def wrong_arguments(trib, value):
    """Calls that every binding refuses with ArgumentError, and a part of each text."""
    return [
        (lambda: trib.broadcast(value, '0'), "must be an integer, and is '0'"),
        (lambda: trib.broadcast(value, 0.5), 'must be an integer, and is 0.5'),
        (lambda: trib.broadcast(value, -1), 'root_rank -1'),
        (lambda: trib.allreduce(value, op=['Sum']), 'is not one of Average'),
        (lambda: trib.allreduce(value, name='a\0b'), 'NUL'),
        (lambda: trib.allreduce(value, name='a\nb'), 'control character'),
        (lambda: trib.allreduce(value, name='a\udc80'), 'surrogate'),
        (lambda: trib.allreduce(value, process_set=5), 'is not a ProcessSet'),
        (lambda: trib.allreduce(value, name=5), 'name: it must be a str, and is int'),
    ]


def untyped(module, left_out=()):
    """Returns how many public functions of a binding, or methods of a class, there are, and names of which a type
    checker does not know all. To it a module has the names of __all__, and others that it imports are not its own."""
    functions = [
        function
        for name, function in vars(module).items()
        if inspect.isfunction(function) and not name.startswith('_') and name not in left_out
    ]
    missing = [
        function.__name__
        for function in functions
        for signature in [inspect.signature(function)]
        if signature.return_annotation is signature.empty
        or any(each.annotation is each.empty for each in signature.parameters.values() if each.name != 'self')
    ]
    if inspect.ismodule(module):
        public = [name for name, value in vars(module).items() if name[0] != '_' and not inspect.ismodule(value)]
        missing += sorted(set(public) - set(getattr(module, '__all__', ())))
    return len(functions), missing

#!/usr/bin/env python3
"""Ctrl-C in programs that use the Python package without a framework. Prints `ok NAME` / `not ok NAME: why`, or one
`skip NAME: why` and exits with 77.
"""

import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), 'python'))
import python_bed  # noqa: E402


def ctrl_c_is_told_in_a_line():
    begin = 'import signal, tributary; tributary.init(); tributary.engine().barrier(); '
    beside = begin + "exec(compile('signal.raise_signal(2)', tributary.__path__[0] + '_train.py', 'exec'))"
    for program, place in (begin + 'signal.raise_signal(2)', '<string>'), (beside, 'tributary_train.py'):
        output = python_bed.run_workers(sys.executable, 2, '-c', program, statuses=(130,))
        said = re.findall(r'rank (\d): interrupted in [^,]*%s, line 1' % place, output)
        assert sorted(said) == ['0', '1'] and 'Traceback' not in output, output
    left = begin + 'tributary.shutdown(); signal.raise_signal(2)'
    output = python_bed.run_workers(sys.executable, 2, '-c', left, statuses=(130,))
    assert 'Traceback' in output and 'rank ?' not in output, output


WAITS_ELSEWHERE = '''
import array, os, signal, sys, threading, time
import tributary
from tributary import interrupts
from tributary._library import lib
signal.signal(signal.SIGINT, signal.default_int_handler)
tributary.init()
values, more, engine = array.array('d', [1.0]), array.array('d', [1.0]), tributary.engine()
waits, over = threading.Event(), []

def interrupt():
    waits.wait()
    os.kill(os.getpid(), signal.SIGINT)
    while sys.argv[1] == 'second' and not over:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)

def wait(operation):
    # As a framework does: the interpreter sees no signal until it returns.
    threading.Thread(target=interrupt).start()
    sys.setswitchinterval(60)  # the thread runs on when this one waits
    waits.set()
    lib.trib_op_wait(operation._handle, -1, None)

interrupts.PATIENCE_S = 1e9 if sys.argv[1] == 'second' else 0
'''

STANDS_STILL = (
    WAITS_ELSEWHERE
    + '''
operation = engine.declare_like('of rank %d' % tributary.rank(), values).push_pull(values)
engine.barrier()
try:
    wait(operation)
finally:
    over.append(True)
'''
)

MOVES = (
    WAITS_ELSEWHERE
    + '''
first, last = (engine.declare_like(name, values) for name in ('first', 'last'))
looks, stats = [], engine.stats

def moving_stats():
    looks.append(stats())
    looks[-1].bytes_pushed = len(looks)  # as in a sum that takes its time
    if len(looks) == 20:
        first.push_pull(more)
    return looks[-1]

if tributary.rank() == 0:
    engine.stats = moving_stats
    operation = last.push_pull(values, reduce=tributary.SUM)
    try:
        wait(operation)
    except KeyboardInterrupt:
        pass
    assert len(looks) >= 20, looks
else:
    first.push_pull(more).wait()
    operation = last.push_pull(values, reduce=tributary.SUM)
operation.wait()
assert values[0] == 2, values
'''
)


def ctrl_c_ends_waits_of_frameworks():
    """Each worker waits for an operation that the other never begins, in a function that knows nothing of signals:
    until nothing has moved for a while, or until a second Ctrl-C."""
    for way in 'still', 'second':
        output = python_bed.run_workers(sys.executable, 2, '-c', STANDS_STILL, way, statuses=(130,))
        said = re.findall(r'rank (\d): interrupted in <string>', output)
        assert sorted(said) == ['0', '1'] and 'Traceback' not in output, output


def ctrl_c_ends_no_sum_that_moves():
    python_bed.run_workers(sys.executable, 2, '-c', MOVES, 'moves')


WAITS_AFTERWARDS = '''
import array, signal, sys, tributary
from tributary import interrupts
signal.signal(signal.SIGINT, signal.default_int_handler)
tributary.init()
values, more, engine = array.array('d', [1.0]), array.array('d', [1.0]), tributary.engine()
first, last = (engine.declare_like(name, values) for name in ('first', 'last'))
if tributary.rank() == 0:
    interrupts.follow(lambda: None, lambda: first.push_pull(more))  # when the interrupt is over
    sys.setswitchinterval(60)  # the thread that gets the signal runs when this one waits
    operation = last.push_pull(values, reduce=tributary.SUM)
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        if sys.argv[1] == 'within':
            operation.wait()
else:
    first.push_pull(more).wait()
    operation = last.push_pull(values, reduce=tributary.SUM)
operation.wait()
assert values[0] == 2, values
'''


def ctrl_c_ends_no_waits_of_its_handler():
    """A script that saves its state when it is interrupted, or that takes a note and completes its step, may wait for
    the others."""
    for way in 'within', 'behind':
        python_bed.run_workers(sys.executable, 2, '-c', WAITS_AFTERWARDS, way)


ANOTHER_THREAD = '''
import _thread, sys
assert 'threading' not in sys.modules
lock = _thread.allocate_lock()
lock.acquire()

def work():
    try:
        import tributary
        tributary.init()
        print('%d worker' % tributary.size())
    finally:
        lock.release()

_thread.start_new_thread(work, ())
lock.acquire()
'''


def a_thread_that_takes_itself_for_the_main_one():
    """As in a program that embeds Python: the first thread that imports threading is its main thread, and not the
    interpreter's."""
    output = python_bed.run([sys.executable, '-S', '-c', ANOTHER_THREAD], python_bed.environment())
    assert '1 worker' in output, output


if __name__ == '__main__':
    sys.exit(
        python_bed.main(
            [
                ('ctrl_c', ctrl_c_is_told_in_a_line),
                ('ctrl_c_in_a_framework', ctrl_c_ends_waits_of_frameworks),
                ('ctrl_c_in_a_sum_that_moves', ctrl_c_ends_no_sum_that_moves),
                ('wait_after_ctrl_c', ctrl_c_ends_no_waits_of_its_handler),
                ('thread_of_an_embedder', a_thread_that_takes_itself_for_the_main_one),
            ]
        )
    )

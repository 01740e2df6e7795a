#!/usr/bin/env python3
"""tributary.tensorflow with workers on this machine's processors. Prints `ok NAME` / `not ok NAME:
why`, or one `skip NAME: why` and exits with 77.
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import python_bed  # noqa: E402
from cases import run_cases  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))


def all_cases(python, workers, *options):
    output = python_bed.run_workers(python, workers, HERE + '/tensorflow_cases.py', options=options)
    assert output.count('is right') == 21 * workers, output[-1500:]


def strategies(python):
    output = python_bed.run_workers(python, 2, HERE + '/strategy_cases.py')
    for devices in 1, 2:
        assert output.count('with %d devices is right' % devices) == 2 * 2, output[-1500:]


WAITS = '''
import os, signal, threading
import tensorflow as tf
import tributary.tensorflow as trib
signal.signal(signal.SIGINT, signal.default_int_handler)
trib.init()
alone = lambda: trib.allreduce(tf.ones(3), name='of rank %d' % trib.rank())
alone = tf.function(alone) if trib.rank() else alone
trib.barrier()

def interrupt():
    while trib.ops.calls() == 0:
        pass
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
try:
    alone()
except KeyboardInterrupt:
    print('worker %d is interrupted' % trib.rank(), flush=True)
    raise
'''


WAITS_ELSEWHERE = '''
import ctypes, os, signal, threading
import tensorflow as tf
import tributary.tensorflow as trib
signal.signal(signal.SIGINT, signal.default_int_handler)
trib.init()
trib.barrier()
libc, mutex, count = ctypes.CDLL(None), ctypes.create_string_buffer(64), 0
libc.pthread_mutex_lock(mutex)

def work():
    try:
        trib.allreduce(tf.ones(3), name='of rank %d' % trib.rank())
    except tf.errors.OpError:
        libc.pthread_mutex_unlock(mutex)

def interrupt():
    while trib.ops.calls() == 0:
        pass
    os.kill(os.getpid(), signal.SIGINT)

for function in work, interrupt:
    threading.Thread(target=function, daemon=True).start()
try:
    libc.pthread_mutex_lock(mutex)
except KeyboardInterrupt:
    count = 1
    try:
        [len('') for _ in range(1000)]  # the script saves its state
    except KeyboardInterrupt:
        count = 2
print('worker %d is interrupted %d times' % (trib.rank(), count), flush=True)
'''


def ctrl_c(python):
    """Each worker waits for an operation that the other never begins: eager, and in a function. Or a thread does, while
    the main one waits for that."""
    output = python_bed.run_workers(python, 2, '-c', WAITS, statuses=(130,))
    assert output.count('is interrupted') == 2 and 'Traceback' not in output, output[-1500:]
    output = python_bed.run_workers(python, 2, '-c', WAITS_ELSEWHERE)
    assert output.count('is interrupted 1 times') == 2, output[-1500:]


def main():
    python, reason = python_bed.interpreter('tensorflow')
    if python is None:
        print('skip tensorflow: ' + reason)
        return 77
    return run_cases(
        [
            ('alone', lambda: all_cases(python, 1)),
            ('two_workers', lambda: all_cases(python, 2)),
            ('three_and_a_server', lambda: all_cases(python, 3, '-s', '1')),
            ('strategies', lambda: strategies(python)),
            ('ctrl_c', lambda: ctrl_c(python)),
            ('example', lambda: python_bed.example_learns(python, 'train_tensorflow.py')),
        ]
    )


if __name__ == '__main__':
    sys.exit(main())

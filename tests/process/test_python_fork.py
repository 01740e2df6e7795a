#!/usr/bin/env python3
"""Forks in programs that use the Python package, without a framework. Prints `ok NAME` / `not ok NAME: why`, or one
`skip NAME: why` and exits with 77.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), 'python'))
import python_bed  # noqa: E402

JOINS_AGAIN = '''
import array, os, tributary
tributary.init()
child = os.fork()
if child == 0:
    tributary.shutdown()
    for join in tributary.init, tributary.Engine:
        try:
            join()
        except tributary.NotInitializedError as problem:
            assert 'was forked from rank %s' % os.environ['TRIB_RANK'] in str(problem), problem
        else:
            os._exit(1)
    try:  # Nothing answers there, so only that it is another job shows.
        tributary.Engine(store='etcd://127.0.0.1:9/another').give_up()
    except RuntimeError as problem:
        assert 'forked' not in str(problem), problem
    another = dict(unique_id=tributary.unique_id('127.0.0.1:0'), rank=0, worker_count=2, server_count=0)
    tributary.Engine(**another).give_up()  # it may have a job of its own
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
values = array.array('f', [1.0])
assert tributary.engine().declare_like('sum', values).push_pull(values, reduce=tributary.SUM).wait()[0] == 2
'''


def a_child_that_joins_is_told():
    """It has the environment of its parent, whose rank is taken: it would be rejected for as long as joining may
    take."""
    python_bed.run_workers(sys.executable, 2, '-c', JOINS_AGAIN, TRIB_OP_TIMEOUT='100s')


if __name__ == '__main__':
    sys.exit(python_bed.main([('child_that_joins', a_child_that_joins_is_told)]))

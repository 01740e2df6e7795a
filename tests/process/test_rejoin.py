#!/usr/bin/env python3
"""Workers in Python that leave a job and join the next one at the same address, and one that ends before the others.
Prints `ok NAME` / `not ok NAME: why`, or one `skip NAME: why` and exits with 77.
"""

import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), 'python'))
import python_bed  # noqa: E402

# Rank 1 is rank 0 of the next job. Rank 2 stays in the last one, and so does its coordinator, until rank 1 has tried.
MOVES = '''
import array, sys
import tributary
from tributary import job
tributary.init()
rank = tributary.rank()
tributary.engine().barrier()
if rank == 1:
    class Engine(job.Engine):
        def __init__(self, **settings):
            try:
                super().__init__(**settings)
            finally:
                if job.Engine is Engine:
                    job.Engine = Engine.__base__
                    open(sys.argv[1], 'w').close()
    job.Engine = Engine
if rank == 2:
    open(sys.argv[1]).read()
job.suspend()
job.resume(3, 0, (1, 0, 2)[rank])
values = array.array('d', [float(rank)])
tributary.engine().declare_like('x', values).push_pull(values, reduce=tributary.SUM).wait()
assert values[0] == 3 and job.rank() == (1, 0, 2)[rank], (values, job.rank())
print('the next job has formed')
tributary.shutdown()
'''

# Rank 0 ends at once, the other worker when its job is over.
EARLY = '''
import os
import tributary
tributary.init(close_timeout_ns=10**8)
tributary.engine().barrier()
if tributary.rank() > 0:
    while not tributary.engine().is_lost():
        os.sched_yield()
    try:
        tributary.engine().barrier()
    except tributary.JobLostError as problem:
        print('told:', problem)
tributary.shutdown()
'''


def rank_0_moves_to_another_process():
    with tempfile.TemporaryDirectory() as folder:
        os.mkfifo(folder + '/tried')
        output = python_bed.run_workers(sys.executable, 3, '-c', MOVES, folder + '/tried', TRIB_CLOSE_TIMEOUT='60s')
    assert output.count('the next job has formed') == 3, output


def late_workers_are_told_what_to_do():
    output = python_bed.run_workers(sys.executable, 2, '-c', EARLY, statuses=(0, 1))
    told = [line for line in output.splitlines() if 'told:' in line]
    words = 'left the job before its workers', '0.1 s (TRIB_CLOSE_TIMEOUT)', 'at about the same time'
    assert len(told) == 1 and all(word in told[0] for word in words), output


if __name__ == '__main__':
    sys.exit(
        python_bed.main(
            [
                ('rank_0_moves', rank_0_moves_to_another_process),
                ('late_worker', late_workers_are_told_what_to_do),
            ]
        )
    )

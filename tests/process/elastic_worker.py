#!/usr/bin/env python3
"""A worker of an elastic job, for tests: elastic_worker.py STEPS PAUSE. It checks every sum, and that no step is lost
or counted twice.

Prints a line for each step and one at the end. Its state is the number of steps and a total that any error would
change."""

import array
import os
import sys
import time

import tributary
import tributary.elastic

STEPS, PAUSE = int(sys.argv[1]), float(sys.argv[2])


@tributary.elastic.run
def train(state):
    rank, size = tributary.rank(), tributary.size()
    while state.step < STEPS:
        step = state.step + 1
        values = array.array('q', [step * (rank + 1), rank * rank, step] + [7] * 5000)
        tensor = tributary.engine().declare_like('values', values)
        tensor.push_pull(values, reduce=tributary.SUM).wait()
        expected = [
            step * size * (size + 1) // 2,
            sum(each * each for each in range(size)),
            step * size,
        ] + [7 * size] * 5000
        if values.tolist() != expected:
            print('WRONG: step %d, rank %d of %d: %s' % (step, rank, size, values[:4].tolist()), flush=True)
            os._exit(3)
        state.total += values[2] // size
        state.step = step
        print('step %d rank %d of %d pid %d' % (step, rank, size, os.getpid()), flush=True)
        time.sleep(PAUSE)
        state.commit()


tributary.init()
state = tributary.elastic.ObjectState(step=0, total=0)
resets = []
state.register_reset_callbacks([lambda: resets.append(tributary.size())])
train(state)
if state.total != STEPS * (STEPS + 1) // 2:
    print('WRONG: total %d' % state.total, flush=True)
    sys.exit(3)
print('finished after %d resets with total %d' % (len(resets), state.total), flush=True)
tributary.shutdown()

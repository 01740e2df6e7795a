#!/usr/bin/env python3
"""A worker of an elastic job, for tests: elastic_worker.py STEPS PAUSE [GATE]. It checks every sum, and that no step is
lost or counted twice. With GATE it goes on after STEPS until there is a file of that name.

Prints a line for each step and one at the end. Its state is the number of steps and a total that any error would
change."""

import array
import os
import sys
import time

import tributary
import tributary.elastic

STEPS, PAUSE, GATE = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None


def is_over(state):
    """True on all workers alike: rank 0 looks for the file."""
    if state.step < STEPS:
        return False
    return GATE is None or tributary.elastic.broadcast_object(os.path.exists(GATE))


@tributary.elastic.run
def train(state):
    rank, size = tributary.rank(), tributary.size()
    while not is_over(state):
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
if state.step < STEPS or state.total != state.step * (state.step + 1) // 2:
    print('WRONG: total %d' % state.total, flush=True)
    sys.exit(3)
print('finished after %d resets with total %d' % (len(resets), state.total), flush=True)
tributary.shutdown()

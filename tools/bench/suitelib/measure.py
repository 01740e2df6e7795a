"""Measures cases in turns: in each turn every system runs, in rotating order, so that noise affects all systems
alike."""

import os
import statistics

WARM_S = 0.1  # an exchange that takes longer needs no warm-up in each turn


class Effort:
    """The amount of measuring: turns, and about how long a system runs in each."""

    def __init__(self, turns, turn_s, iterations_max):
        self.turns, self.turn_s, self.iterations_max = turns, turn_s, iterations_max


EFFORTS = {'quick': Effort(3, 0.03, 30), 'default': Effort(7, 0.08, 200), 'thorough': Effort(15, 0.25, 1000)}


class Case:
    """A list of tensors: one of some size, or a model's."""

    def __init__(self, name, kind, path, size, tensors, scale=0.0):
        self.name, self.kind, self.path, self.size, self.tensors, self.scale = name, kind, path, size, tensors, scale


def size_case(size, folder):
    path = os.path.join(folder, 'size-%d.csv' % size)
    with open(path, 'w') as out:
        out.write('whole,%d,0\n' % (size // 4))
    return Case(human(size), 'size', path, size // 4 * 4, 1)


def model_case(path, scale):
    elements = []
    with open(path) as lines:
        for line in lines:
            words = line.split(',')
            if not line.startswith('#') and len(words) == 3 and words[1].isdigit():
                elements.append(int(words[1]))
    return Case(
        os.path.splitext(os.path.basename(path))[0],
        'model',
        os.path.abspath(path),
        4 * sum(elements),
        len(elements),
        scale,
    )


def human(size):
    for unit, name in ((1 << 30, 'GiB'), (1 << 20, 'MiB'), (1 << 10, 'KiB')):
        if size >= unit and size % (unit // 1024 if unit > 1024 else 1) == 0:
            return '%g %s' % (round(size / unit, 2), name)
    return '%d B' % size


def quartiles(values):
    """Returns (first quartile, median, third quartile)."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    first, middle, third = statistics.quantiles(values, n=4, method='inclusive')
    return first, middle, third


def measure(case, jobs, effort, bound_s, tell):
    """Returns one row: the checked time of each system for the case, and its ratio to Tributary's time, turn by
    turn."""
    counts, warm = {}, {}
    for job in jobs:
        tell('%s: %s, check' % (case.name, job.system.label))
        job.load(case.path)
        job.check()
        rows, _ = job.run(1, 1, case.scale)
        shortest = min(r[0] for r in rows)
        counts[job.system.name] = max(1, min(effort.iterations_max, int(effort.turn_s / shortest)))
        # A system that waited has cold caches and sleeping cores, which are not to be measured.
        warm[job.system.name] = 0 if shortest > WARM_S else min(counts[job.system.name], 3)
    times, last, cpu = ({job.system.name: [] for job in jobs} for _ in range(3))
    for turn in range(effort.turns):
        tell('%s: turn %d of %d' % (case.name, turn + 1, effort.turns))
        first = turn % len(jobs)
        for job in jobs[first:] + jobs[:first]:
            count = counts[job.system.name]
            rows, used_s = job.run(warm[job.system.name], count, case.scale)
            times[job.system.name].append([r[0] for r in rows])
            last[job.system.name].append(statistics.median(r[1] for r in rows))
            cpu[job.system.name].append(used_s / count)
    row = {
        'case': case.name,
        'kind': case.kind,
        'bytes': case.size,
        'tensors': case.tensors,
        'gaps': case.scale,
        'bound_s': bound_s,
        'systems': {},
    }
    base = [statistics.median(turn) for turn in times[jobs[0].system.name]]
    for job in jobs:
        name = job.system.name
        everything = [t for turn in times[name] for t in turn]
        ratios = [statistics.median(turn) / b for turn, b in zip(times[name], base)]
        row['systems'][name] = {
            'seconds': dict(zip(('q1', 'median', 'q3'), quartiles(everything))),
            'samples': len(everything),
            'ratio': dict(zip(('q1', 'median', 'q3'), quartiles(ratios))),
            'last_tensor_s': statistics.median(last[name]),
            'rank_cpu_s': statistics.median(cpu[name]),
        }
    return row


def memory_needed(case, jobs):
    """Returns the bytes that the ranks hold, doubled for servers and socket buffers."""
    return sum(2 * case.size * job.scene.workers for job in jobs)


def memory_available():
    with open('/proc/meminfo') as lines:
        for line in lines:
            if line.startswith('MemAvailable:'):
                return int(line.split()[1]) * 1024
    return 0

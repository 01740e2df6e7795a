"""The report of a run of the suite: a table and a JSON object."""

import json
import os
import platform

from .jobs import SYSTEMS


def machine():
    model = 'unknown'
    with open('/proc/cpuinfo') as lines:
        for line in lines:
            if line.startswith('model name'):
                model = line.split(':', 1)[1].strip()
                break
    return {
        'cpu': model,
        'cores': len(os.sched_getaffinity(0)),
        'kernel': platform.release(),
        'system': platform.system(),
    }


def format_seconds(value):
    for unit, name in ((1.0, 's'), (1e-3, 'ms'), (1e-6, 'µs')):
        if value >= unit * 0.999:
            return '%g %s' % (float('%.3g' % (value / unit)), name)
    return '%.3g ns' % (value * 1e9)


def table(scene):
    """Returns the lines of Markdown for one scene."""
    names = scene['systems']
    head = (
        ['tensor(s)']
        + ['%s' % SYSTEMS[n].label for n in names]
        + ['%s / Tributary' % SYSTEMS[n].label for n in names[1:]]
    )
    bounded = any(row['bound_s'] for row in scene['rows'])
    head += ['Tributary / bound'] if bounded else []
    lines = ['### ' + scene['title'], '', '| ' + ' | '.join(head) + ' |', '|' + ' --- |' * len(head)]
    for row in scene['rows']:
        words = [
            row['case']
            if row['tensors'] == 1
            else '%s, %d tensors, %.0f MB' % (row['case'], row['tensors'], row['bytes'] / 1e6)
        ]
        for name in names:
            of = row['systems'][name]['seconds']
            words.append('%s (%s to %s)' % tuple(format_seconds(of[k]) for k in ('median', 'q1', 'q3')))
        for name in names[1:]:
            of = row['systems'][name]['ratio']
            words.append('%.2f (%.2f to %.2f)' % (of['median'], of['q1'], of['q3']))
        if bounded:
            words.append(
                '%.3f' % (row['systems'][names[0]]['seconds']['median'] / row['bound_s']) if row['bound_s'] else ''
            )
        lines.append('| ' + ' | '.join(words) + ' |')
    return lines + ['']


def write(result, folder):
    """Writes suite.json and suite.md; returns their paths."""
    os.makedirs(folder, exist_ok=True)
    files = [os.path.join(folder, 'suite.json'), os.path.join(folder, 'suite.md')]
    with open(files[0], 'w') as out:
        json.dump(result, out, indent=1)
        out.write('\n')
    with open(files[1], 'w') as out:
        out.write('\n'.join(describe(result)) + '\n')
    return files


def describe(result):
    lines = [
        '# Sums between processes, side by side',
        '',
        '%(cpu)s, %(cores)d cores, Linux %(kernel)s; ' % result['machine']
        + '; '.join(result['versions'].values())
        + '.',
        'Interleaved in one run, every result checked; times are medians (quartiles in brackets)'
        ' from the last rank\'s begin '
        'to the last rank\'s end,',
        'ratios are medians of %d turns (quartiles in brackets): above 1 Tributary is faster.' % result['turns'],
        '',
    ]
    lines += ['Not measured: %s: %s' % (what, why.splitlines()[0]) for what, why in result['missing'].items()]
    for scene in result['scenes']:
        if scene['rows']:
            lines += [''] + table(scene)
    return lines

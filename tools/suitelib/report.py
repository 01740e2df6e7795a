"""What a run of the suite says: a table, a JSON object and plots."""
import json
import os
import platform

from . import svg
from .jobs import SYSTEMS


def machine():
    model = 'unknown'
    with open('/proc/cpuinfo') as lines:
        for line in lines:
            if line.startswith('model name'):
                model = line.split(':', 1)[1].strip()
                break
    return {'cpu': model, 'cores': len(os.sched_getaffinity(0)), 'kernel': platform.release(), 'system': platform.system()}


def table(scene):
    """Lines of Markdown for one scene."""
    names = scene['systems']
    head = ['tensor(s)'] + ['%s' % SYSTEMS[n].label for n in names] + ['%s / Tributary' % SYSTEMS[n].label for n in names[1:]]
    bounded = any(row['bound_s'] for row in scene['rows'])
    head += ['Tributary / bound'] if bounded else []
    lines = ['### ' + scene['title'], '', '| ' + ' | '.join(head) + ' |', '|' + ' --- |' * len(head)]
    for row in scene['rows']:
        words = [row['case'] if row['tensors'] == 1 else '%s, %d tensors, %.0f MB' % (row['case'], row['tensors'], row['bytes'] / 1e6)]
        for name in names:
            of = row['systems'][name]['seconds']
            words.append('%s (%s to %s)' % tuple(svg.seconds(of[k]) for k in ('median', 'q1', 'q3')))
        for name in names[1:]:
            of = row['systems'][name]['ratio']
            words.append('%.2f (%.2f to %.2f)' % (of['median'], of['q1'], of['q3']))
        if bounded:
            words.append('%.3f' % (row['systems'][names[0]]['seconds']['median'] / row['bound_s']) if row['bound_s'] else '')
        lines.append('| ' + ' | '.join(words) + ' |')
    return lines + ['']


def points(scene, kind, name, field):
    return [tuple(row['systems'][name][field][k] for k in ('q1', 'median', 'q3')) for row in scene['rows'] if row['kind'] == kind]


def plot(scene, folder):
    """The files that were written."""
    files, names = [], scene['systems']
    sizes = [row for row in scene['rows'] if row['kind'] == 'size']
    if sizes:
        xs, texts = [row['bytes'] for row in sizes], [row['case'] for row in sizes]
        series = [(SYSTEMS[n].label, points(scene, 'size', n, 'seconds')) for n in names]
        bounded = all(row['bound_s'] for row in sizes)
        bound = [('least possible', [(row['bound_s'],) * 3 for row in sizes])] if bounded else []
        files.append(os.path.join(folder, scene['name'] + '-sizes.svg'))
        svg.log_lines(files[-1], 'Sum over all ranks: ' + scene['title'], 'median time', xs, texts, series + bound, dashed=['least possible'])
        if len(names) > 1:
            files.append(os.path.join(folder, scene['name'] + '-ratio.svg'))
            ratios = [(SYSTEMS[n].label, points(scene, 'size', n, 'ratio')) for n in names]
            svg.log_lines(files[-1], 'Time against Tributary\'s, above 1 Tributary is faster: ' + scene['title'], 'time / Tributary\'s time', xs, texts,
                          ratios, svg.times, one=True)
    models = [row for row in scene['rows'] if row['kind'] == 'model']
    if models:
        files.append(os.path.join(folder, scene['name'] + '-models.svg'))
        svg.bars(files[-1], 'All gradients of a step: ' + scene['title'], 'median time', ['%s (%.0f MB)' % (r['case'], r['bytes'] / 1e6) for r in models],
                 [(SYSTEMS[n].label, points(scene, 'model', n, 'seconds')) for n in names])
    return files


def write(result, folder):
    """suite.json, suite.md and the plots; the paths."""
    os.makedirs(folder, exist_ok=True)
    files = [os.path.join(folder, 'suite.json'), os.path.join(folder, 'suite.md')]
    with open(files[0], 'w') as out:
        json.dump(result, out, indent=1)
        out.write('\n')
    with open(files[1], 'w') as out:
        out.write('\n'.join(describe(result)) + '\n')
    for scene in result['scenes']:
        files += plot(scene, folder) if scene['rows'] else []
    return files


def describe(result):
    lines = ['# Sums between processes, side by side', '',
             '%(cpu)s, %(cores)d cores, Linux %(kernel)s; ' % result['machine'] + '; '.join(result['versions'].values()) + '.',
             'Interleaved in one run, every result checked; times are medians (quartiles in brackets) from the last rank\'s begin to the last rank\'s end,',
             'ratios are medians of %d turns (quartiles in brackets): above 1 Tributary is faster.' % result['turns'], '']
    lines += ['Not measured: %s: %s' % (what, why.splitlines()[0]) for what, why in result['missing'].items()]
    for scene in result['scenes']:
        if scene['rows']:
            lines += [''] + table(scene)
    return lines

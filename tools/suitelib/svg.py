"""Plots as SVG, without any library: lines over logarithmic axes with bars for the quartiles, and grouped bars."""
import math
from xml.sax.saxutils import escape

COLOURS = ['#0b6e4f', '#d1495b', '#2e5eaa', '#edae49', '#7b2d8b', '#5c5c5c', '#00798c', '#a44200']
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 520, 90, 230, 56, 64


class Canvas:
    def __init__(self, title):
        self.parts = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" '
                      'font-family="system-ui, sans-serif" font-size="13">' % (WIDTH, HEIGHT, WIDTH, HEIGHT),
                      '<title>%s</title>' % escape(title), '<rect width="100%" height="100%" fill="white"/>']
        self.text(LEFT, 28, title, size=16, weight='bold')

    def line(self, x1, y1, x2, y2, colour='#333', width=1.0, dash=None):
        self.parts.append('<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-width="%g"%s/>' % (
            x1, y1, x2, y2, colour, width, ' stroke-dasharray="%s"' % dash if dash else ''))

    def text(self, x, y, text, anchor='start', size=13, weight='normal', turn=None):
        self.parts.append('<text x="%.1f" y="%.1f" text-anchor="%s" font-size="%d" font-weight="%s"%s>%s</text>' % (
            x, y, anchor, size, weight, '' if turn is None else ' transform="rotate(%d %.1f %.1f)"' % (turn, x, y), escape(text)))

    def path(self, points, colour, dash=None):
        self.parts.append('<polyline points="%s" fill="none" stroke="%s" stroke-width="2"%s/>' % (
            ' '.join('%.1f,%.1f' % p for p in points), colour, ' stroke-dasharray="%s"' % dash if dash else ''))

    def dot(self, x, y, colour, tip):
        self.parts.append('<circle cx="%.1f" cy="%.1f" r="4" fill="%s"><title>%s</title></circle>' % (x, y, colour, escape(tip)))

    def bar(self, x, y, width, height, colour, tip):
        self.parts.append('<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"><title>%s</title></rect>' % (
            x, y, width, height, colour, escape(tip)))

    def legend(self, labels, dashed=()):
        for i, label in enumerate(labels):
            y = TOP + 14 + 22 * i
            self.line(WIDTH - RIGHT + 16, y - 4, WIDTH - RIGHT + 40, y - 4, COLOURS[i % len(COLOURS)], 3, '5 4' if label in dashed else None)
            self.text(WIDTH - RIGHT + 46, y, label)

    def save(self, path):
        with open(path, 'w') as out:
            out.write('\n'.join(self.parts + ['</svg>']) + '\n')


def decades(low, high):
    """Powers of ten that enclose the values; with few of them 2 and 5 between get a line too."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1, 2, 5) if last - first <= 3 else (1,)
    return first, max(last, first + 1), [10 ** p * s for p in range(first, max(last, first + 1)) for s in steps] + [10 ** max(last, first + 1)]


def seconds(value):
    for unit, name in ((1.0, 's'), (1e-3, 'ms'), (1e-6, 'µs')):
        if value >= unit * 0.999:
            return '%g %s' % (float('%.3g' % (value / unit)), name)
    return '%.3g ns' % (value * 1e9)


def times(value):
    return '%g×' % float('%.3g' % value)


def frame(canvas, x_label, y_label, marks, y_of, tick):
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for mark in marks:
        canvas.line(LEFT, y_of(mark), right, y_of(mark), '#ddd')
        canvas.text(LEFT - 8, y_of(mark) + 4, tick(mark), 'end')
    canvas.line(LEFT, bottom, right, bottom)
    canvas.line(LEFT, TOP, LEFT, bottom)
    canvas.text((LEFT + right) / 2, HEIGHT - 14, x_label, 'middle')
    canvas.text(20, (TOP + bottom) / 2, y_label, 'middle', turn=-90)


def log_lines(path, title, y_label, xs, x_texts, series, tick=seconds, dashed=(), one=False):
    """series: [(label, [(low, middle, high) or None for each x])]; xs are numbers above 0, both axes are logarithmic."""
    values = [v for _, points in series for p in points if p is not None for v in p]
    low_power, high_power, marks = decades(min(values + ([1.0] if one else [])), max(values + ([1.0] if one else [])))
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    spread = math.log(xs[-1] / xs[0]) if xs[-1] > xs[0] else 1.0

    def x_of(x):
        return LEFT + 20 + (right - LEFT - 40) * math.log(x / xs[0]) / spread

    def y_of(y):
        return bottom - (bottom - TOP) * (math.log10(y) - low_power) / (high_power - low_power)
    canvas = Canvas(title)
    frame(canvas, 'bytes in the tensor of each rank (logarithmic)', y_label + ' (logarithmic)', marks, y_of, tick)
    for x, text in zip(xs, x_texts):
        canvas.line(x_of(x), bottom, x_of(x), bottom + 5)
        canvas.text(x_of(x), bottom + 20, text, 'middle', size=12)
    if one:
        canvas.line(LEFT, y_of(1.0), right, y_of(1.0), '#333', 1.5)
    for i, (label, points) in enumerate(series):
        colour = COLOURS[i % len(COLOURS)]
        there = [(x, p) for x, p in zip(xs, points) if p is not None]
        canvas.path([(x_of(x), y_of(p[1])) for x, p in there], colour, '5 4' if label in dashed else None)
        for x, (low, middle, high) in there:
            if label not in dashed:
                canvas.line(x_of(x), y_of(low), x_of(x), y_of(high), colour, 1.5)
                canvas.dot(x_of(x), y_of(middle), colour, '%s: %s (quartiles %s, %s)' % (label, tick(middle), tick(low), tick(high)))
    canvas.legend([label for label, _ in series], dashed)
    canvas.save(path)


def bars(path, title, y_label, groups, series):
    """series: [(label, [(low, middle, high) or None for each group])]; the axis begins at 0."""
    top_value = max(p[2] for _, points in series for p in points if p is not None)
    step = 10 ** math.floor(math.log10(top_value))
    step = step / 5 if top_value / step < 2 else step / 2 if top_value / step < 5 else step
    marks = [step * i for i in range(int(top_value / step) + 2)]
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT

    def y_of(y):
        return bottom - (bottom - TOP) * y / marks[-1]
    canvas = Canvas(title)
    frame(canvas, 'all gradients of one step', y_label, marks, y_of, lambda v: seconds(v) if v > 0 else '0')
    room = (right - LEFT) / len(groups)
    for g, group in enumerate(groups):
        canvas.text(LEFT + room * (g + 0.5), bottom + 20, group, 'middle')
        for i, (label, points) in enumerate(series):
            if points[g] is not None:
                low, middle, high = points[g]
                width = room * 0.8 / len(series)
                x = LEFT + room * (g + 0.1) + width * i
                canvas.bar(x, y_of(middle), width * 0.9, bottom - y_of(middle), COLOURS[i % len(COLOURS)],
                           '%s, %s: %s (quartiles %s, %s)' % (group, label, seconds(middle), seconds(low), seconds(high)))
                canvas.line(x + width * 0.45, y_of(low), x + width * 0.45, y_of(high), '#111', 1.5)
    canvas.legend([label for label, _ in series])
    canvas.save(path)

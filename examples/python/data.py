"""data.py - what the examples beside it learn from: handwritten digits, and the licence texts of Debian.

Inputs and targets are arrays of numpy, in the same order on every worker. A worker takes its part of them by shard().
"""

import glob
import os

import numpy as np

LENGTH = 32  # letters that a model of texts sees at most
DIGITS = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'digits', 'digits.csv')
TEXTS = '/usr/share/common-licenses'


def digits():
    """Returns (images, digits) to learn from and (images, digits) held out. An image is 8 x 8 pixels from 0 to 1."""
    rows = np.loadtxt(DIGITS, delimiter=',', dtype='int64')
    rows = rows[np.random.RandomState(1).permutation(len(rows))]
    images, targets = (rows[:, :64] / 16).astype('float32').reshape(-1, 8, 8), rows[:, 64]
    return (images[:1500], targets[:1500]), (images[1500:], targets[1500:])


def texts():
    """Returns (letters, next letters) to learn from, the same held out, and how many letters there are. A letter is a
    number, and a row has LENGTH of them. The last tenth of each text is held out."""
    learned, held_out = [], []
    for path in sorted(glob.glob(TEXTS + '/*')):
        if not os.path.islink(path):
            with open(path, encoding='latin-1') as file:
                text = file.read()
            learned.append(text[: len(text) * 9 // 10])
            held_out.append(text[len(text) * 9 // 10 :])
    if not learned:
        raise SystemExit('%s has no texts to learn from: it is a folder of Debian and Ubuntu' % TEXTS)
    known = sorted(set(''.join(learned + held_out)))
    number = {letter: i for i, letter in enumerate(known)}

    def rows(parts):
        letters = np.array([number[letter] for letter in ''.join(parts)], 'int64')
        count = (len(letters) - 1) // LENGTH
        inputs, targets = letters[: count * LENGTH], letters[1 : count * LENGTH + 1]
        return inputs.reshape(count, LENGTH), targets.reshape(count, LENGTH)

    return rows(learned), rows(held_out), len(known)


def load(model):
    """Returns what a model of that name learns from, what is held out, and the number of classes it tells apart."""
    return texts() if model == 'text' else (*digits(), 10)


def shard(arrays, rank, size):
    """Returns a worker's part: as many rows on each worker, so that all take the same number of steps."""
    count = len(arrays[0]) // size
    return tuple(array[rank : rank + count * size : size] for array in arrays)


def batches(arrays, size, seed=None):
    """Yields whole batches of so many rows, shuffled by the seed."""
    order = np.arange(len(arrays[0])) if seed is None else np.random.RandomState(seed).permutation(len(arrays[0]))
    for first in range(0, len(order) - size + 1, size):
        yield tuple(array[order[first : first + size]] for array in arrays)

#!/usr/bin/env python3
"""Writes golden_codecs.h: encoded chunks, computed from the codecs' definitions one element at a time, in plain Python.

tests/unit/codec/golden_codecs.py            prints the header
tests/unit/codec/golden_codecs.py --check    exit status 1 if the file in the tree is another
"""

import math
import os
import struct
import sys

COUNT = 300
SEED = 7
U64 = (1 << 64) - 1


def f32(value):
    return struct.unpack('<f', struct.pack('<f', value))[0]


def values():
    """The chunk that test_codec_golden.c makes, too: whole numbers from a linear congruence, over 2^10."""
    state, made = 12345, []
    for _ in range(COUNT):
        state = (state * 1664525 + 1013904223) % (1 << 32)
        made.append((state >> 8) % 2001 - 1000)
    return [f32(number / (1 << 10)) for number in made]


class XorShift:
    def __init__(self, seed):
        self.a = self.b = seed

    def next(self):
        t, s = self.a, self.b
        self.a = s
        t = t ^ (t << 23) & U64
        t ^= t >> 17
        t ^= s ^ (s >> 26)
        self.b = t
        return (t + s) & U64


def pairs(chosen):
    return b''.join(struct.pack('<If', index, value) for index, value in chosen)


def onebit(chunk, scaling):
    scale, total = 1.0, 0.0
    if scaling:
        for value in chunk:
            total += abs(value)
        scale = f32(total / len(chunk))
    signs = ['1' if value < 0 else '0' for value in chunk]
    signs += ['0'] * (-len(signs) % 32)
    words = [int(''.join(signs[i : i + 32]), 2) for i in range(0, len(signs), 32)]
    return struct.pack('<%dI' % len(words), *words) + struct.pack('<f', scale)


def topk(chunk, kept):
    """A binary heap with the smallest magnitude on top; removal sinks the hole to a leaf before the last is put
    there."""
    heap = []

    def rise(hole, item):
        while hole > 0 and abs(heap[(hole - 1) // 2][1]) > abs(item[1]):
            heap[hole] = heap[(hole - 1) // 2]
            hole = (hole - 1) // 2
        heap[hole] = item

    for index, value in enumerate(chunk):
        if len(heap) == kept:
            if abs(value) <= abs(heap[0][1]):
                continue
            last, hole, length = heap.pop(), 0, kept - 1
            while 2 * hole + 1 < length:
                left, right = 2 * hole + 1, 2 * hole + 2
                child = left if right >= length or abs(heap[right][1]) > abs(heap[left][1]) else right
                heap[hole] = heap[child]
                hole = child
            if length > 0:
                rise(hole, last)
        heap.append(None)
        rise(len(heap) - 1, (index, value))
    return pairs(heap)


def randomk(chunk, kept):
    random = XorShift(SEED)
    indices = [random.next() % len(chunk) for _ in range(kept)]
    return pairs((index, chunk[index]) for index in indices)


def elias(number):
    length = number.bit_length()
    return '0' * (length.bit_length() - 1) + bin(length)[2:] + bin(number)[3:]


def dithering(chunk, levels, natural, l2):
    random = XorShift(SEED)
    if l2:
        scale = 0.0
        for value in chunk:
            scale += f32(value * value)
        scale = math.sqrt(scale)
    else:
        scale = max(abs(value) for value in chunk)
    bits, last = '', -1
    for index, value in enumerate(chunk):
        draw = float(random.next())
        if natural:
            normalized = abs(value) / scale * (1 << (levels - 1))
            above = math.ceil(normalized)
            below = 0 if above == 0 else (1 << (above - 1).bit_length()) >> 1
            length = below or 1
            level = below + (length if draw < (normalized - below) / length * 2.0**64 else 0)
        else:
            normalized = f32(abs(value) / scale * levels)
            below = math.floor(normalized)
            level = below + (1 if draw < f32(normalized - below) * 2.0**64 else 0)
        if level:
            bits += elias(index - last) + ('1' if value < 0 else '0') + elias(level)
            last = index
    padded = bits + '0' * (-len(bits) % 32)
    words = [int(padded[i : i + 32], 2) for i in range(0, len(padded), 32)]
    return struct.pack('<%dI' % len(words), *words) + struct.pack('<If', len(bits), f32(scale))


def cases():
    chunk = values()
    yield 'fp16', b''.join(struct.pack('<e', value) for value in chunk)
    yield (
        'bf16',
        b''.join(
            struct.pack('<H', (bits + 0x7FFF + (bits >> 16 & 1)) >> 16)
            for bits in (struct.unpack('<I', struct.pack('<f', value))[0] for value in chunk)
        ),
    )
    yield 'onebit', onebit(chunk, True)
    yield 'onebit,scaling=false', onebit(chunk, False)
    yield 'topk,k=1', topk(chunk, 1)
    yield 'topk,k=2', topk(chunk, 2)
    yield 'topk,k=31', topk(chunk, 31)
    yield 'topk,k=64', topk(chunk, 64)
    yield 'randomk,k=20,seed=7', randomk(chunk, 20)
    yield 'dithering,k=2,seed=7', dithering(chunk, 2, False, False)
    yield 'dithering,k=127,seed=7', dithering(chunk, 127, False, False)
    yield 'dithering,k=4000,seed=7', dithering(chunk, 4000, False, False)
    yield 'dithering,k=5,normalize=l2,seed=7', dithering(chunk, 5, False, True)
    yield 'dithering,k=4,partition=natural,seed=7', dithering(chunk, 4, True, False)
    yield 'dithering,k=9,partition=natural,normalize=l2,seed=7', dithering(chunk, 9, True, True)


def header():
    lines = [
        '/* golden_codecs.h - encoded chunks that golden_codecs.py has computed from the definitions; see there. */',
        '/* clang-format off */',
        '#define GOLDEN_COUNT %d' % COUNT,
        '',
        'static const struct {',
        '    const char *codec;',
        '    const char *encoded; /* hexadecimal */',
        '} golden_chunks[] = {',
    ]
    for codec, encoded in cases():
        digits = encoded.hex()
        parts = [digits[i : i + 100] for i in range(0, len(digits), 100)]
        lines.append('    {"%s",' % codec)
        lines += ['     "%s"%s' % (part, '},' if i + 1 == len(parts) else '') for i, part in enumerate(parts)]
    return '\n'.join(lines + ['};']) + '\n'


def main():
    text = header()
    if sys.argv[1:] != ['--check']:
        sys.stdout.write(text)
        return 0
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), 'golden_codecs.h')) as stands:
        return stands.read() != text


if __name__ == '__main__':
    sys.exit(main())

#!/usr/bin/env python3
"""Makes api/python/tributary/_abi.py, the public header as ctypes declarations.

The header is the truth; nothing is written by hand. tests/process/test_python.py compares the result with what the C
compiler computes.

  tools/dev/pyabi.py           writes the file
  tools/dev/pyabi.py --check   writes nothing; fails if the file is not what would be written, or if the shared library
                               does not export what the header declares (api/tributary.map)
"""

import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
HEADER = ROOT / 'api' / 'tributary.h'
EXPORTS = ROOT / 'api' / 'tributary.map'
TARGET = ROOT / 'api' / 'python' / 'tributary' / '_abi.py'
SCALARS = {
    'bool': 'c_bool',
    'char': 'c_char',
    'int': 'c_int',
    'int32_t': 'c_int32',
    'uint32_t': 'c_uint32',
    'int64_t': 'c_int64',
    'uint64_t': 'c_uint64',
    'uint8_t': 'c_uint8',
    'uint16_t': 'c_uint16',
    'int16_t': 'c_int16',
    'size_t': 'c_size_t',
    'float': 'c_float',
    'double': 'c_double',
}


class HeaderError(Exception):
    """The header has a form that this program does not understand."""


class Header:
    """What the header declares: constants, enums, structs, callbacks and functions, in its order."""

    def __init__(self, text):
        text = re.sub(r'/\*.*?\*/', ' ', text, flags=re.S)
        text = re.sub(r'//[^\n]*', ' ', text)
        joined = re.sub(r'\\\n', ' ', text)
        self.constants = {}
        self.enums, self.structs, self.callbacks, self.functions = set(), {}, {}, {}
        self._read_macros(joined)
        body = re.sub(r'^\s*#.*$', '', joined, flags=re.M)
        self._read_types(body)
        self._read_functions(body)

    def _read_macros(self, text):
        for name, value in re.findall(r'^#define (TRIB_\w+)\s+(\S.*?)\s*$', text, flags=re.M):
            number = re.fullmatch(r'\(?(-?(?:0x[0-9a-fA-F]+|\d+))[uU]?[lL]*\)?', value)
            if number:
                self.constants[name] = int(number.group(1), 0)
        for listed in re.findall(r'^#define TRIB_STATUS_LIST\(X\)(.*)$', text, flags=re.M):
            for name, value in re.findall(r'X\((TRIB_\w+),\s*(-?\d+),', listed):
                self.constants[name] = int(value)

    def number(self, text):
        text = text.strip().rstrip('uU')
        if text in self.constants:
            return self.constants[text]
        if re.fullmatch(r'1[uU]?\s*<<\s*\d+', text):
            return 1 << int(text.split('<<')[1])
        if re.fullmatch(r'TRIB_\w+\s*\+\s*1', text):
            return self.constants[text.split('+')[0].strip()] + 1
        return int(text, 0)

    def _read_types(self, body):
        for kind, members, name in re.findall(
            r'typedef\s+(enum|struct)\s+\w+\s*\{(.*?)\}\s*(\w+)\s*;', body, flags=re.S
        ):
            if kind == 'enum':
                self.enums.add(name)
                for constant, value in re.findall(r'(TRIB_\w+)\s*=\s*([^,]+?)\s*(?:,|$)', members.strip(), flags=re.S):
                    self.constants[constant] = self.number(value)
            else:
                self.structs[name] = [
                    field for line in members.split(';') if line.strip() for field in self._fields(line)
                ]
        for result, name, arguments in re.findall(r'typedef\s+([\w\s*]+?)\(\s*\*\s*(\w+)\s*\)\s*\(([^)]*)\)\s*;', body):
            self.callbacks[name] = (result.strip(), self._arguments(arguments))

    def _fields(self, line):
        match = re.match(r'\s*((?:const\s+)?(?:struct\s+)?\w+(?:\s*\*)*)\s*(.*)$', line.strip(), flags=re.S)
        if not match:
            raise HeaderError('a field that is not understood: %s' % line.strip())
        kind, names = match.groups()
        for name in names.split(','):
            stars, bare, size = re.match(r'\s*(\**)\s*(\w+)\s*(?:\[(.*)\])?\s*$', name, flags=re.S).groups()
            yield bare, (kind + stars).replace(' *', '*'), self.number(size) if size else None

    @staticmethod
    def _arguments(text):
        arguments = [' '.join(argument.split()) for argument in text.split(',')]
        return (
            []
            if arguments == ['void']
            else [re.sub(r'\s*\w+$', '', a) if not a.endswith('*') else a for a in arguments]
        )

    def _read_functions(self, body):
        for result, name, arguments in re.findall(
            r'TRIB_API\s+(?:TRIB_CHECKED\s+)?([\w\s*]+?)\s*\b(trib_\w+)\(([^;{]*?)\)\s*;', body, flags=re.S
        ):
            self.functions[name] = (' '.join(result.split()), self._arguments(arguments))

    def ctype(self, text, is_argument=False):
        """Returns the ctypes expression of a C type. Pointers are plain addresses, so byref() and integers both
        serve."""
        is_text = 'const' in text  # what is not const is memory that the caller owns, and stays an address
        text = text.replace('const', ' ').replace('struct', ' ').strip()
        bare = text.replace('*', '').strip()
        if '*' in text:
            return 'c_char_p' if bare == 'char' and text.count('*') == 1 and is_text else 'c_void_p'
        if bare == 'void':
            return 'None'
        if bare in SCALARS:
            return SCALARS[bare]
        if bare in self.enums:
            return 'c_int'
        if bare in self.callbacks:
            return 'c_void_p' if is_argument else bare
        raise HeaderError('a type that is not known: %s' % text)


def render(header):
    lines = [
        '"""The public header as ctypes declarations. Made by tools/dev/pyabi.py from api/tributary.h: do not edit."""',
        '# ruff: noqa',
        'from ctypes import (CFUNCTYPE, Structure, c_bool, c_char, c_char_p, c_double, c_float, c_int, c_int16,',
        '                    c_int32, c_int64, c_size_t, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p)',
        '',
    ]
    lines += ['%s = %d' % item for item in header.constants.items()]
    for name, (result, arguments) in header.callbacks.items():
        types = [header.ctype(result)] + [
            'c_char_p' if header.ctype(a) == 'c_char_p' else header.ctype(a, True) for a in arguments
        ]
        lines += ['', '%s = CFUNCTYPE(%s)' % (name, ', '.join(types))]
    for name, fields in header.structs.items():
        lines += ['', '', 'class %s(Structure):' % name, '    __slots__ = ()', '    _fields_ = [']
        for field, kind, size in fields:
            # A callback's field takes None or a function object, a struct's array is an array of its type.
            expression = header.ctype(kind)
            lines.append("        ('%s', %s)," % (field, '%s * %d' % (expression, size) if size else expression))
        lines.append('    ]')
    lines += ['', '', '# The result of each function, then its arguments.', 'FUNCTIONS = {']
    for name, (result, arguments) in sorted(header.functions.items()):
        types = [header.ctype(result, True)] + [header.ctype(a, True) for a in arguments]
        lines.append("    '%s': (%s)," % (name, ', '.join(types) + (',' if len(types) == 1 else '')))
    lines += ['}', '']
    return '\n'.join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--check', action='store_true', help='fail if the file is not what would be written')
    arguments = parser.parse_args()
    try:
        header = Header(HEADER.read_text(encoding='ascii'))
        text = render(header)
    except HeaderError as problem:
        sys.exit('tools/dev/pyabi.py: %s: %s' % (HEADER.name, problem))
    if not arguments.check:
        TARGET.write_text(text, encoding='ascii')
    elif not TARGET.exists() or TARGET.read_text(encoding='ascii') != text:
        sys.exit('%s is not what the header says: run tools/dev/pyabi.py' % TARGET.relative_to(ROOT))
    exported = set(re.findall(r'trib_\w+', EXPORTS.read_text(encoding='ascii')))
    if exported != set(header.functions):
        differing = ', '.join(sorted(exported ^ set(header.functions)))
        sys.exit('%s and %s do not name the same functions: %s' % (EXPORTS.name, HEADER.name, differing))


if __name__ == '__main__':
    main()

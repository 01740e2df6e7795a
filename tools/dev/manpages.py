#!/usr/bin/env python3
"""Writes a manual page for the tributary command, and one for each of its subcommands, from their --help.

    tools/dev/manpages.py build/release/tributary FOLDER
"""
import os
import re
import subprocess
import sys


def ask(tool, *words):
    return subprocess.run([tool, *words], stdout=subprocess.PIPE, text=True, check=True).stdout.rstrip('\n')


def escape(text):
    """Escapes text so that troff prints the lines unchanged: no line is a request, a hyphen can be copied."""
    escaped = text.replace('\\', '\\e').replace('-', '\\-')
    return re.sub(r"^(?=[.'])", r'\\&', escaped, flags=re.MULTILINE)


def page(name, version, purpose, text, others):
    """Returns a page. Its synopsis is the line that begins with "usage:", and the following lines with the same indentation."""
    lines = text.split('\n')
    end = next((i for i, line in enumerate(lines) if i > 0 and not line.startswith(' ' * 7)), len(lines))
    synopsis = [re.sub(r'^(usage: | {7})', '', line) for line in lines[:end]]
    see = ', '.join('%s(1)' % escape(other) for other in others)
    return '\n'.join(['.TH %s 1 "" "tributary %s" Tributary' % (escape(name.upper()), version), '.SH NAME',
                      '%s \\- %s' % (escape(name), escape(purpose)), '.SH SYNOPSIS', '.nf', *map(escape, synopsis), '.fi',
                      '.SH DESCRIPTION', '.nf', *map(escape, lines[end:]), '.fi', '.SH SEE ALSO', see, ''])


def main():
    tool, folder = sys.argv[1:]
    overview = ask(tool, '--help')
    version = ask(tool, '--version').split()[1]
    commands = re.findall(r'^  (\w+) +(.*)$', overview, re.MULTILINE)
    pages = {'tributary': page('tributary', version, 'sum tensors between processes', overview, ['tributary-' + c for c, _ in commands])}
    for command, purpose in commands:
        name = 'tributary-' + command
        pages[name] = page(name, version, purpose, ask(tool, command, '--help'), ['tributary'])
    os.makedirs(folder, exist_ok=True)
    for name, text in pages.items():
        with open(os.path.join(folder, name + '.1'), 'w') as out:
            out.write(text)


if __name__ == '__main__':
    main()

#!/usr/bin/env python3
"""Writes a manual page for the tributary command, and one for each of its subcommands, from their --help; and one for
the variables of the environment, from their table in docs/operating.md, which is made from the table of settings
(settingsdoc.py).

    tools/dev/manpages.py build/release/tributary FOLDER
"""

import os
import pathlib
import re
import subprocess
import sys

PAGE = pathlib.Path(__file__).resolve().parent.parent.parent / 'docs' / 'operating.md'


def ask(tool, *words):
    return subprocess.run([tool, *words], stdout=subprocess.PIPE, text=True, check=True).stdout.rstrip('\n')


def escape(text):
    """Escapes text so that troff prints the lines unchanged: no line is a request, a hyphen can be copied."""
    escaped = text.replace('\\', '\\e').replace('-', '\\-')
    return re.sub(r"^(?=[.'])", r'\\&', escaped, flags=re.MULTILINE)


def page(name, version, purpose, text, others):
    """Returns a page. Its synopsis is the line that begins with "usage:", and the following lines with the same
    indentation."""
    lines = text.split('\n')
    end = next((i for i, line in enumerate(lines) if i > 0 and not line.startswith(' ' * 7)), len(lines))
    synopsis = [re.sub(r'^(usage: | {7})', '', line) for line in lines[:end]]
    see = ', '.join('%s(%d)' % (escape(other), 7 if other == 'tributary-environment' else 1) for other in others)
    return '\n'.join(
        [
            '.TH %s 1 "" "tributary %s" Tributary' % (escape(name.upper()), version),
            '.SH NAME',
            '%s \\- %s' % (escape(name), escape(purpose)),
            '.SH SYNOPSIS',
            '.nf',
            *map(escape, synopsis),
            '.fi',
            '.SH DESCRIPTION',
            '.nf',
            *map(escape, lines[end:]),
            '.fi',
            '.SH SEE ALSO',
            see,
            '',
        ]
    )


def plain(text):
    """Takes Markdown's marks out of a cell: code, links."""
    return re.sub(r'\[([^\]]*)\]\([^)]*\)', r'\1', text).replace('`', '').strip()


def environment_page(version):
    section = PAGE.read_text(encoding='utf-8').split('\n## Variables\n')[1].split('\n### ')[0]
    before, table, after = re.fullmatch(r'(.*?)\n((?:\|[^\n]*\n)+)(.*)', section, re.DOTALL).groups()
    entries = []
    for row in table.splitlines()[2:]:
        name, default, values, meaning = [plain(cell) for cell in row.strip('|').split(' | ', 3)]
        entries += [
            '.TP',
            '.B %s' % escape(name),
            escape('%s. %s; default %s.' % (meaning.strip(' |'), values, default)),
        ]
    notes = [escape(plain(' '.join(note.split()))) for note in re.split(r'^- ', after, flags=re.MULTILINE)[1:]]
    return '\n'.join(
        [
            '.TH TRIBUTARY\\-ENVIRONMENT 7 "" "tributary %s" Tributary' % version,
            '.SH NAME',
            'tributary\\-environment \\- variables that set up an engine',
            '.SH DESCRIPTION',
            escape(plain(' '.join(before.split()))),
            *entries,
            '.SH NOTES',
            *('.PP\n' + note for note in notes),
            '.SH SEE ALSO',
            'tributary(1)',
            '',
        ]
    )


def main():
    tool, folder = sys.argv[1:]
    overview = ask(tool, '--help')
    version = ask(tool, '--version').split()[1]
    commands = re.findall(r'^  (\w+) +(.*)$', overview, re.MULTILINE)
    pages = {
        'tributary': page(
            'tributary',
            version,
            'sum tensors between processes',
            overview,
            ['tributary-' + c for c, _ in commands] + ['tributary-environment'],
        )
    }
    for command, purpose in commands:
        name = 'tributary-' + command
        pages[name] = page(name, version, purpose, ask(tool, command, '--help'), ['tributary', 'tributary-environment'])
    pages = {name + '.1': text for name, text in pages.items()}
    pages['tributary-environment.7'] = environment_page(version)
    os.makedirs(folder, exist_ok=True)
    for name, text in pages.items():
        with open(os.path.join(folder, name), 'w', encoding='utf-8') as out:
            out.write(text)


if __name__ == '__main__':
    main()

"""The `tributary` command of an installed wheel: the program lies beside the library in the package."""

import os
import sys


def main():
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'lib', 'tributary')
    if not os.path.exists(program):
        sys.exit(
            'tributary: %s is missing: this package was not installed from a wheel; use the build\'s own command'
            % program
        )
    os.execv(program, ['tributary', *sys.argv[1:]])

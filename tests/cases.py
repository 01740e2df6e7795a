"""What the test scripts have in common: cases that are run one by one, each with a line of its own."""
import subprocess


def run_cases(cases):
    """Each is (name, function); an exception is a failure. The script's exit status."""
    failed = 0
    for name, case in cases:
        try:
            case()
            print('ok ' + name, flush=True)
        except (AssertionError, subprocess.TimeoutExpired, ValueError, KeyError, OSError) as problem:
            failed += 1
            print('not ok %s: %s' % (name, ' | '.join(str(problem).splitlines())[:1500]), flush=True)
    return 1 if failed else 0

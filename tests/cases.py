"""Shared parts of the test scripts: they run cases one by one and print one line for each."""

import os
import subprocess
import time


def run_cases(cases):
    """Runs pairs of (name, function) and returns the script's exit status. An exception is a failure."""
    failed = 0
    for name, case in cases:
        try:
            case()
            print('ok ' + name, flush=True)
        except (AssertionError, subprocess.TimeoutExpired, ValueError, KeyError, OSError) as problem:
            failed += 1
            print('not ok %s: %s' % (name, ' | '.join(str(problem).splitlines())[:1500]), flush=True)
    return 1 if failed else 0


def alive(mark):
    """Returns the live processes that have the mark in their environment."""
    found = []
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try:
            if mark.encode() in open('/proc/%s/environ' % pid, 'rb').read():
                found.append(pid)
        except OSError:
            pass
    return found


def comes_true(condition, seconds=20):
    """Waits until the condition is true, and returns whether it was in time."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()

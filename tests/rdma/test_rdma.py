#!/usr/bin/env python3
"""Runs what needs RDMA in a guest with the kernel's software RDMA (tools/verbs-guest).

Prints `ok NAME` / `not ok NAME: why` / `skip NAME: why`.
"""
import subprocess
import sys

GUEST_CANNOT_RUN = 77


class Skip(Exception):
    """The test cannot run here; the text says why."""


def guest(command, *options, timeout=300):
    """Exit status and output of a shell command in a guest."""
    done = subprocess.run(['tools/verbs-guest', '--timeout', str(timeout), *options, '--', command],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors='replace')
    if done.returncode == GUEST_CANNOT_RUN:
        raise Skip(done.stdout.strip().splitlines()[-1])
    return done.returncode, done.stdout


def guest_has_a_verbs_device():
    status, output = guest('ibv_devinfo && exit 5')
    assert status == 5, 'status %d\n%s' % (status, output)  # the command's own
    assert 'hca_id:\trxe0' in output and 'PORT_ACTIVE' in output, output


def guest_ends_at_its_deadline():
    status, output = guest('while true; do sleep 1; done', timeout=20)
    assert status == 124 and 'not done within 20 s' in output, 'status %d\n%s' % (status, output)


TESTS = [guest_has_a_verbs_device, guest_ends_at_its_deadline]


def main():
    names, failed = sys.argv[1:], 0
    for test in TESTS:
        if names and test.__name__ not in names:
            continue
        try:
            test()
            print('ok %s' % test.__name__)
        except Skip as why:
            print('skip %s: %s' % (test.__name__, why))
        except AssertionError as why:
            failed += 1
            print('not ok %s: %s' % (test.__name__, str(why)[-6000:]))
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())

#!/usr/bin/env python3
"""Runs what needs RDMA in a guest with the kernel's software RDMA (tools/verbs-guest).

Prints `ok NAME` / `not ok NAME: why` / `skip NAME: why`. A guest boots in some four seconds, so every case has its own.
"""
import os
import re
import subprocess
import sys

BUILD = os.environ.get('TRIB_BUILD', 'build/release')
GUEST_CANNOT_RUN = 77
TOOLS = [BUILD + '/tributary', BUILD + '/examples/digits', BUILD + '/libtributary.so.0']
CONTRACT = BUILD + '/tests/test_transport_rdma'
DATA = 'examples/digits/digits.csv'

# A job with members of known names, one of which is lost in the middle; the others' status and last words.
LOSE = r'''
export TRIB_TRANSPORT=rdma TRIB_WORKERS=2 TRIB_SERVERS=2 TRIB_TOKEN=secret TRIB_PEER_TIMEOUT=3 TRIB_LOG=error
export TRIB_COORDINATOR=$RDMA_IP:12000 TRIB_LISTEN=$RDMA_IP
./tributary server > server0 2>&1 & server0=$!
./tributary server > server1 2>&1 & server1=$!
TRIB_RANK=0 ./digits --epochs 300 --data digits.csv > rank0 2>&1 & rank0=$!
TRIB_RANK=1 ./digits --epochs 300 --data digits.csv > rank1 2>&1 & rank1=$!
i=0; until grep -q '^epoch' rank0; do sleep 0.1; i=$((i+1)); [ $i -lt 600 ] || { cat rank0; exit 9; }; done
victim=; [ -z '@VICTIM@' ] || eval victim=\$@VICTIM@; began=$(cut -d. -f1 /proc/uptime)
@LOSE@; echo "lost pid $victim"
for name in server0 server1 rank0 rank1; do
    [ $name = '@VICTIM@' ] && continue
    eval pid=\$$name; wait $pid; status=$?
    echo "member $name: status $status, after $(($(cut -d. -f1 /proc/uptime) - began)) s: $(tail -n 1 $name)"
done
[ -z "$victim" ] || kill -9 $victim; exit 0
'''


class Skip(Exception):
    """The test cannot run here; the text says why."""


def guest(command, *options, programs=(), timeout=180):
    """Exit status and output of a shell command in a guest."""
    missing = [path for path in programs if not os.path.exists(path)]
    if missing:
        raise Skip('not built: %s' % ', '.join(missing))
    carried = [word for path in programs for word in ('--program', path)]
    companion = BUILD + '/libtributary-jemalloc.so.0'
    if programs and os.path.exists(companion):
        carried += ['--program', companion]
    done = subprocess.run(['tools/verbs-guest', '--timeout', str(timeout), *carried, *options, '--', command],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors='replace')
    if done.returncode == GUEST_CANNOT_RUN:
        raise Skip(done.stdout.strip().splitlines()[-1])
    return done.returncode, done.stdout


def job(command, **kwargs):
    """As guest, with the tools and the example."""
    built_with_rdma()
    return guest(command, '--file', DATA + '=t/digits.csv', programs=TOOLS, **kwargs)


def built_with_rdma():
    done = subprocess.run([BUILD + '/tributary', 'info', '--json'], stdout=subprocess.PIPE, text=True, check=True)
    if '"rdma"' not in re.search(r'"transports": \[[^]]*\]', done.stdout).group():
        raise Skip('built without libibverbs and librdmacm')


def guest_has_a_verbs_device():
    status, output = guest('ibv_devinfo && exit 5')
    assert status == 5, 'status %d\n%s' % (status, output)  # the command's own
    assert 'hca_id:\trxe0' in output and 'PORT_ACTIVE' in output, output


def guest_ends_at_its_deadline():
    status, output = guest('while true; do sleep 1; done', timeout=12)
    assert status == 124 and 'not done within 12 s' in output, 'status %d\n%s' % (status, output)


def contract():
    built_with_rdma()
    status, output = guest('CMOCKA_MESSAGE_OUTPUT=TAP ./test_transport_rdma', programs=[CONTRACT])
    passed = len(re.findall(r'^ok \d+ - ', output, re.M))
    assert status == 0 and passed >= 32 and 'not ok' not in output, 'status %d, %d passed\n%s' % (
        status, passed, output)


def digits_as_over_tcp():
    """The same job over both: it learns, and the weights are the same, bit by bit."""
    run = './tributary run -n 2 -s 2 --host $RDMA_IP -- ./digits --epochs 6 --data digits.csv || exit 1; '
    status, output = job('TRIB_TRANSPORT=rdma %s TRIB_TRANSPORT=tcp %s' % (run, run))
    hashes = re.findall(r'bit-identical: ok \(hash (\w+)\)', output)
    assert status == 0, 'status %d\n%s' % (status, output)
    assert len(hashes) == 2 and hashes[0] == hashes[1], output


def lose(victim, how):
    """Loses a member of a running job; the others' ends, as (name, status, seconds, last words)."""
    status, output = job(LOSE.replace('@VICTIM@', victim).replace('@LOSE@', how))
    pid = re.search(r'^lost pid (\d*)', output, re.M)
    assert status == 0 and pid, 'status %d\n%s' % (status, output)
    ends = re.findall(r'^member (\w+): status (\d+), after (\d+) s: (.*)$', output, re.M)
    assert len(ends) == (3 if victim else 4), output
    for name, end, seconds, words in ends:
        assert int(end) != 0, '%s ended with status 0\n%s' % (name, output)
        assert int(seconds) < 40, '%s ended after %s s\n%s' % (name, seconds, output)
        named = ':%s)' % pid.group(1) in words or (victim == 'rank0' and 'coordinator' in words) or not victim
        assert named, '%s does not name %s (pid %s): %s' % (name, victim, pid.group(1), words)
    return ends


def server_killed():
    lose('server1', 'kill -KILL $victim')


def worker_killed():
    lose('rank1', 'kill -KILL $victim')


def server_stopped():
    lose('server1', 'kill -STOP $victim')


def network_lost():
    for name, _, _, words in lose('', 'ip link set $RDMA_LINK down'):
        assert 'lost the connection' in words or 'no sign of life' in words, '%s: %s' % (name, words)


def too_little_memory_may_be_locked():
    command = "ulimit -l 64; su -s /bin/sh nobody -c './tributary run -n 1 -s 1 --host %s -- ./digits --data digits.csv'"
    status, output = job('export TRIB_TRANSPORT=rdma; ' + command % '$RDMA_IP')
    assert status != 0, output
    assert 'the limit on locked memory (ulimit -l) is 64 KiB; raise it' in output, output


def no_device():
    status, output = job('rdma link delete rxe0; TRIB_TRANSPORT=rdma ./tributary run -n 1 -s 1 -- ./digits --data digits.csv')
    assert status != 0 and 'transport rdma: there is no RDMA device here' in output, 'status %d\n%s' % (status, output)


def no_address_of_a_device():
    status, output = job('export TRIB_TRANSPORT=rdma TRIB_JOIN_TIMEOUT=2; ./tributary run -n 2 -- ./digits --data digits.csv')
    assert status != 0 and 'no RDMA device of this machine leads there' in output, 'status %d\n%s' % (status, output)


TESTS = [guest_has_a_verbs_device, guest_ends_at_its_deadline, contract, digits_as_over_tcp, server_killed, worker_killed,
         server_stopped, network_lost, too_little_memory_may_be_locked, no_device, no_address_of_a_device]


def main():
    names, failed = sys.argv[1:], 0
    for test in TESTS:
        if names and test.__name__ not in names:
            continue
        try:
            test()
            print('ok %s' % test.__name__, flush=True)
        except Skip as why:
            print('skip %s: %s' % (test.__name__, why), flush=True)
        except AssertionError as why:
            failed += 1
            print('not ok %s: %s' % (test.__name__, str(why)[-6000:]), flush=True)
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())

#!/usr/bin/env python3
"""Runs the RDMA tests in a guest with the kernel's software RDMA (tools/cluster/verbs-guest).

Prints `ok NAME` / `not ok NAME: why` / `skip NAME: why`. A guest takes time to boot, so the jobs share one.
"""

import functools
import os
import re
import subprocess
import sys

BUILD = os.environ.get('TRIB_BUILD', 'build/release')
GUEST_CANNOT_RUN = 77
# The kernel's warning that it holds a connection, and with it the process that closes it.
KEPT = 'cm_destroy_id_wait_timeout'
TOOLS = [BUILD + '/tributary', BUILD + '/examples/digits', BUILD + '/libtributary.so.0']
CONTRACT = BUILD + '/tests/test_transport_rdma'
REGISTERED = BUILD + '/tests/test_registered'
DIRECT = [BUILD + '/tests/test_direct', BUILD + '/tests/test_direct_ends']
DATA = 'examples/digits/digits.csv'

# Every job's name comes before its output, and its status after.
MARKS = r'''
began() { echo "== $1"; }
ended() { echo "== status $?"; }
'''

JOBS = (
    MARKS
    + r'''
digits() { ./tributary run -n 2 "$@" -- ./digits --epochs ${epochs:-4} --data digits.csv; }

# chosen COMMAND: runs a job whose server belongs to another user, so shared memory does not reach it. COMMAND goes
# before the server's command line.
port=12000
chosen() {
    port=$((port + 1))
    export TRIB_WORKERS=2 TRIB_SERVERS=1 TRIB_TOKEN=secret-of-these-hosts TRIB_LOG=info TRIB_LISTEN=${rails:-$RDMA_IP}
    export TRIB_COORDINATOR=$RDMA_IP:$port
    su -s /bin/sh nobody -c "$1 ./tributary server" 2>&1 & server=$!
    for rank in 0 1; do TRIB_RANK=$rank ./digits --epochs 4 --data digits.csv > rank$rank 2>&1 & eval rank$rank=$!; done
    wait $rank0; status=$?; wait $rank1 || status=$?; wait $server || status=$?
    cat rank0 rank1
    unset TRIB_WORKERS TRIB_SERVERS TRIB_TOKEN TRIB_LISTEN TRIB_COORDINATOR TRIB_LOG
    return $status
}

began auto_chooses_rdma; TRIB_TRANSPORT=auto chosen; ended
began auto_does_without_rdma; TRIB_TRANSPORT=auto chosen 'ulimit -l 64;'; ended
ip link add dummy1 type dummy; ip link set dummy1 mtu 4200 up; ip addr add 10.78.0.1/24 dev dummy1
rdma link add rxe1 type rxe netdev dummy1
began two_rails; TRIB_REACTORS=2 TRIB_TRANSPORT=auto rails=$RDMA_IP,10.78.0.1 chosen; ended
rdma link delete rxe1; ip link delete dummy1
began a_rail_is_gone; TRIB_REACTORS=2 TRIB_TRANSPORT=auto rails=$RDMA_IP,10.78.0.1 chosen; ended
export TRIB_TRANSPORT=rdma
began digits_over_rdma; digits -s 2 --host $RDMA_IP; ended
began digits_over_tcp; TRIB_TRANSPORT=tcp digits -s 2; ended
began digits_longer_over_tcp; epochs=@EPOCHS@ TRIB_TRANSPORT=tcp digits -s 1; ended
began no_address_of_a_device; TRIB_JOIN_TIMEOUT=2 digits; ended
began too_little_memory_may_be_locked
(ulimit -l 64; su -s /bin/sh nobody -c "./tributary run -n 1 -s 1 --host $RDMA_IP -- ./digits --data digits.csv"); ended
rdma link delete $RDMA_DEV
began no_device; digits; ended
'''
)

# These jobs have a guest of their own, and the one that breaks it comes last.
LOSSES = (
    MARKS
    + r'''
now() { cut -d. -f1 /proc/uptime; }

lives() { grep -hs '^State:' /proc/$1/task/*/status | grep -qv Z; }

# ends NAME...: prints how and when each member ends, which all of them do at the same time. A process cannot end if the
# kernel holds one of its connections; its last output must do.
ends() {
    left="$*"
    while [ -n "$left" ]; do
        running=
        for name in $left; do
            eval pid=\$$name
            if ! lives $pid; then wait $pid; status=$?
            elif [ $(now) -ge $((at + 45)) ]; then status=kept
            else running="$running $name"; continue; fi
            echo "member $name: status $status, after $(($(now) - at)) s: $(tail -n 1 $name)"
        done
        left=$running; sleep 0.2
    done
}

# lose VICTIM COMMAND: runs a job with named members, of which one is lost in the middle. Prints how the others end.
port=12000
lose() {
    port=$((port + 1))
    export TRIB_WORKERS=2 TRIB_SERVERS=2 TRIB_TOKEN=secret-of-these-hosts TRIB_PEER_TIMEOUT=6
    export TRIB_LOG=error TRIB_LISTEN=$RDMA_IP
    export TRIB_COORDINATOR=$RDMA_IP:$port
    rm -f rank0 # or the output of the previous job would be read
    ./tributary server > server0 2>&1 & server0=$!
    ./tributary server > server1 2>&1 & server1=$!
    TRIB_RANK=0 ./digits --epochs 10 --data digits.csv > rank0 2>&1 & rank0=$!
    TRIB_RANK=1 ./digits --epochs 10 --data digits.csv > rank1 2>&1 & rank1=$!
    until grep -qs '^epoch' rank0; do
        sleep 0.1; kill -0 $rank0 2> /dev/null || { tail -n 5 server0 server1 rank0 rank1; return 9; }
    done
    victim=; [ $1 = nobody ] || eval victim=\$$1
    at=$(now)
    eval "$2"
    echo "lost pid $victim"
    ends $(echo server0 server1 rank0 rank1 | sed "s/$1//")
    [ -z "$victim" ] || { kill -9 $victim; wait $victim; }
    unset TRIB_WORKERS TRIB_SERVERS TRIB_TOKEN TRIB_PEER_TIMEOUT TRIB_LISTEN TRIB_COORDINATOR TRIB_LOG
    return 0
}

export TRIB_TRANSPORT=rdma
began server_killed; lose server1 'kill -KILL $victim'; ended
began worker_killed; lose rank1 'kill -KILL $victim'; ended
began server_stopped; lose server1 'kill -STOP $victim'; ended
began network_lost; lose nobody 'ip link set $RDMA_LINK down'; ended
'''
)


# Runs on both of two connected hosts; the coordinator is on the first, the server on the second.
HOSTS = r'''
began() { echo "== $1_$RDMA_HOST"; }
ended() { echo "== status $?"; }
i=0; until ping -c 1 -W 1 $RDMA_PEER > /dev/null; do i=$((i+1)); [ $i -lt 100 ] || break; done
export TRIB_WORKERS=2 TRIB_SERVERS=1 TRIB_TOKEN=secret-of-these-hosts
export TRIB_LISTEN=$RDMA_IP TRIB_RANK=$RDMA_HOST TRIB_LOG=info
export TRIB_COORDINATOR=10.77.0.1:12001
began learns
[ $RDMA_HOST = 0 ] || ./tributary server > server 2>&1 &
./digits --epochs 4 --data digits.csv 2>&1; status=$?; wait; (exit $status); ended
# An attempt over RDMA has a part of this time, so a slow guest would take TCP where it has to learn.
export TRIB_COORDINATOR=10.77.0.1:12002 TRIB_PEER_TIMEOUT=4
began machine_lost
./digits --epochs 300 --data digits.csv > rank 2>&1 & rank=$!
if [ $RDMA_HOST = 0 ]; then
    ./tributary server > server 2>&1
    at=$(cut -d. -f1 /proc/uptime); wait $rank; status=$?
    echo "after $(($(cut -d. -f1 /proc/uptime) - at)) s: $(grep -v '^epoch' server | tail -n 1)"
    grep -v ^epoch rank; (exit $status)
else
    i=0; until grep -q 'over RDMA' rank; do sleep 0.1; i=$((i+1)); [ $i -lt 600 ] || break; done
    sleep 1; echo 0 > /dev/ttyS1; echo o > /proc/sysrq-trigger; sleep 60 # from here on this host is silent
fi
ended
[ $RDMA_HOST = 1 ] || exit 0
'''

# The same with two cables. A rail fails on the first host and comes back, then the other one fails on the second host;
# at the end both fail.
RAIL_EPOCHS = 16
RAILS = r'''
began() { echo "== $1_$RDMA_HOST"; }
ended() { echo "== status $?"; }
for peer in $RDMA_PEER 10.78.0.${RDMA_PEER##*.}; do
    i=0; until ping -c 1 -W 1 $peer > /dev/null; do i=$((i+1)); [ $i -lt 100 ] || break; done
done
export TRIB_WORKERS=2 TRIB_SERVERS=1 TRIB_TOKEN=secret-of-these-hosts TRIB_RANK=$RDMA_HOST TRIB_LOG=info
says() {
    i=0
    while [ $(grep -c "$1" rank) -lt $2 ]; do
        sleep 0.1; i=$((i+1))
        [ $i -lt 1200 ] && kill -0 $rank || { echo "never said $2 times: $1"; break; }
    done
}
rails() {
    export TRIB_LISTEN=$RDMA_IP,$RDMA_IP2 TRIB_REACTORS=2 TRIB_COORDINATOR=10.77.0.1:$1,10.78.0.1:$1 TRIB_PEER_TIMEOUT=8
    : > rank # or the output of the previous job would be read
    [ $RDMA_HOST = 0 ] || ./tributary server > server 2>&1 &
    ./digits --epochs $2 --data digits.csv > rank 2>&1 & rank=$!
}
began rails
rails 12003 @EPOCHS@
if [ $RDMA_HOST = 0 ]; then
    says '^epoch' 1; ip link set $RDMA_LINK down; says 'is made again' 2; says '^epoch' 2; ip link set $RDMA_LINK up
else
    says 'is made again' 2; until ping -c 1 -W 1 10.77.0.1 > /dev/null; do kill -0 $rank || break; done
    kill -0 $rank || echo "never said: the job ended before the other device failed"; ip link set $RDMA_LINK2 down
fi
wait $rank; status=$?; cat rank; wait; (exit $status); ended
ip link set $RDMA_LINK2 up
export TRIB_TRANSPORT=tcp # this kernel's soft-RoCE makes no more connections once its link was down
began no_rail_left
rails 12004 300
[ $RDMA_HOST = 1 ] || { says '^epoch' 1; ip link set $RDMA_LINK down; ip link set $RDMA_LINK2 down; }
at=$(cut -d. -f1 /proc/uptime)
wait $rank; status=$?; echo "after $(($(cut -d. -f1 /proc/uptime) - at)) s"
grep -v ^epoch rank; wait; (exit $status); ended
'''


class Skip(Exception):
    """The test cannot run here; the text says why."""


def kernel_crashed(output):
    """Returns whether Linux's software RDMA device crashed: sometimes a completion arrives while its queue is closed
    (6.1). No program can do that to a working kernel, so the guest gets a second chance."""
    return (
        'Kernel panic' in output
        and re.search(r'RIP: \S+ \[(ib_uverbs|ib_core|rdma_rxe|rdma_ucm|rdma_cm)\]', output) is not None
    )


def device_stood_still(output):
    """Returns whether the device got stuck: it neither executes nor fails a request. The test that hangs reports this
    (rdma_raw_peer.h)."""
    return 'the device owes an answer' in output


def guest(command, *options, programs=(), timeout=300):
    """Returns exit status and output of a shell command in a guest."""
    missing = [path for path in programs if not os.path.exists(path)]
    if missing:
        raise Skip('not built: %s' % ', '.join(missing))
    carried = [word for path in programs for word in ('--program', path)]
    words = ['tools/cluster/verbs-guest', '--timeout', str(timeout), *carried, *options, '--', command]
    for _ in range(2):
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors='replace',
        )
        fault = (
            'crashed in'
            if kernel_crashed(done.stdout)
            else 'stood still in'
            if device_stood_still(done.stdout)
            else None
        )
        if fault is None:
            break
        print("  # the guest's kernel %s its RDMA driver" % fault)
    if done.returncode == GUEST_CANNOT_RUN:
        raise Skip(done.stdout.strip().splitlines()[-1])
    return done.returncode, done.stdout


def built_with_rdma():
    done = subprocess.run([BUILD + '/tributary', 'info', '--json'], stdout=subprocess.PIPE, text=True, check=True)
    if '"rdma"' not in re.search(r'"transports": \[[^]]*\]', done.stdout).group():
        raise Skip('built without libibverbs and librdmacm')


def parts(output):
    """Returns each job's exit status and output, by name."""
    found, name = {}, None
    for line in output.splitlines():
        begins, ends = re.match(r'== (\w+)$', line), re.match(r'== status (\d+)$', line)
        if ends:
            found[name][0] = int(ends.group(1))
        elif begins:
            name = begins.group(1)
            found[name] = [None, []]
        elif name:
            found[name][1].append(line)
    return {name: (status, '\n'.join(lines)) for name, (status, lines) in found.items()}


@functools.lru_cache(maxsize=2)
def all_of(jobs):
    """Runs the jobs once. An error that ends the run early appears in every case's output."""
    command = jobs.replace('@EPOCHS@', str(RAIL_EPOCHS))
    # Two emulated processors take a third more of this machine's: they wait for each other's locks. Only losses, which
    # have time limits, need them.
    cpus = '2' if jobs == LOSSES else '1'
    _, output = guest(command, '--cpus', cpus, '--file', DATA + '=t/digits.csv', programs=TOOLS, timeout=400)
    return parts(output), output


def job(name, among=JOBS):
    built_with_rdma()
    jobs, output = all_of(among)
    assert name in jobs and jobs[name][0] is not None, 'the job did not finish\n%s' % output[-3000:]
    return jobs[name]


def guest_has_a_verbs_device():
    status, output = guest('ibv_devinfo && exit 5')
    assert status == 5, 'status %d\n%s' % (status, output)  # the command's own status
    assert 'hca_id:\trxe0' in output and 'PORT_ACTIVE' in output, output


def guest_ends_at_its_deadline():
    status, output = guest('while true; do sleep 1; done', timeout=5)
    assert status == 124 and 'not done within 5 s' in output, 'status %d\n%s' % (status, output)


def contract():
    built_with_rdma()
    status, output = guest('CMOCKA_MESSAGE_OUTPUT=TAP ./test_transport_rdma', programs=[CONTRACT])
    passed = len(re.findall(r'^ok \d+ - ', output, re.M))
    assert status == 0 and passed >= 60 and 'not ok' not in output, 'status %d, %d passed\n%s' % (
        status,
        passed,
        output,
    )


def memory_of_the_caller():
    """Tests the public interface: registered memory is not copied, other memory is; bytes_copied counts."""
    built_with_rdma()
    status, output = guest('CMOCKA_MESSAGE_OUTPUT=TAP timeout 100 ./test_registered', programs=[REGISTERED])
    passed = len(re.findall(r'^ok \d+ - ', output, re.M))
    assert status == 0 and passed == 4 and 'not ok' not in output, 'status %d, %d passed\n%s' % (status, passed, output)


def gpu_direct():
    """Bytes of device tensors that bypass host memory: which ones do, in which order, and how operations end."""
    built_with_rdma()
    command = (
        'ip link add dummy1 type dummy; ip link set dummy1 mtu 4200 up; ip addr add 10.78.0.1/24 dev dummy1; '
        'rdma link add rxe1 type rxe netdev dummy1; export RDMA_SECOND=10.78.0.1 CMOCKA_MESSAGE_OUTPUT=TAP; '
        'timeout 250 ./test_direct && timeout 250 ./test_direct_ends'
    )
    status, output = guest(command, programs=DIRECT, timeout=500)
    passed = len(re.findall(r'^ok \d+ - ', output, re.M))
    assert status == 0 and passed == 10 and 'not ok' not in output, 'status %d, %d passed\n%s' % (
        status,
        passed,
        output,
    )


def device_removed():
    """The device goes while one connection is open and another waits for its peer to end. Each is reported once."""
    built_with_rdma()
    command = 'CMOCKA_MESSAGE_OUTPUT=TAP timeout 30 ./test_transport_rdma device_removed'
    status, output = guest(command, programs=[CONTRACT])
    assert status == 0 and 'ok 1 - is_told_once_when_the_device_goes' in output, 'status %d\n%s' % (status, output)


def digits_as_over_tcp():
    """The same job over RDMA and TCP learns the same weights, bit for bit."""
    hashes = []
    for name in 'digits_over_rdma', 'digits_over_tcp':
        status, output = job(name)
        assert status == 0, 'status %d\n%s' % (status, output)
        hashes += re.findall(r'bit-identical: ok \(hash (\w+)\)', output)
    assert len(hashes) == 2 and hashes[0] == hashes[1], hashes


def auto_chooses_rdma():
    """Processes without shared memory between them use RDMA. The others use shared memory."""
    status, output = job('auto_chooses_rdma')
    assert status == 0, 'status %d\n%s' % (status, output)
    assert len(re.findall(r'rank \d: to 10\.77\.0\.1:\d+ over RDMA', output)) == 2, output
    # One at least: a worker that tried the coordinator's address too early was told that there is no shared memory.
    assert re.search(r'rank \d: to 10\.77\.0\.1:\d+ over shared memory', output), output


def auto_does_without_rdma():
    status, output = job('auto_does_without_rdma')
    assert status == 0, 'status %d\n%s' % (status, output)
    assert 'RDMA is not used: cannot register' in output and 'over RDMA' not in output, output
    assert len(re.findall(r'rank \d: to 10\.77\.0\.1:\d+ over TCP: ', output)) >= 2, output


def two_rails():
    """Reactors listen on one device each, and their connections use it."""
    status, output = job('two_rails')
    assert status == 0, 'status %d\n%s' % (status, output)
    for rail in 77, 78:
        assert len(re.findall(r'rank \d: to 10\.%d\.0\.1:\d+ over RDMA' % rail, output)) == 2, output


def a_rail_is_gone():
    status, output = job('a_rail_is_gone')
    assert status == 0 and 'reactor 1 takes the next listen address: ' in output, 'status %d\n%s' % (status, output)
    assert len(re.findall(r'rank \d: to 10\.77\.0\.1:\d+ over RDMA', output)) == 4, output


def lost(name, victim):
    """Checks that each remaining member ends in time and names the loss."""
    status, output = job(name, LOSSES)
    pid = re.search(r'^lost pid (\d*)', output, re.M)
    assert status == 0 and pid, 'status %d\n%s' % (status, output)
    ends = re.findall(r'^member (\w+): status (\w+), after (\d+) s: (.*)$', output, re.M)
    assert len(ends) == (3 if victim else 4), output
    for member, end, seconds, words in ends:
        assert end not in ('0', 'kept') or (end == 'kept' and KEPT in all_of(LOSSES)[1]), '%s: status %s\n%s' % (
            member,
            end,
            output,
        )
        assert end == 'kept' or int(seconds) < 40, '%s ended after %s s\n%s' % (member, seconds, output)
        named = ':%s)' % pid.group(1) in words if victim else re.search('lost the connection|no sign of life', words)
        assert named, '%s does not say what was lost (pid %s): %s' % (member, pid.group(1), words)


def server_killed():
    lost('server_killed', 'server1')


def worker_killed():
    lost('worker_killed', 'rank1')


def server_stopped():
    lost('server_stopped', 'server1')


def network_lost():
    lost('network_lost', None)


@functools.lru_cache(maxsize=1)
def with_two_cables():
    _, output = guest(
        RAILS.replace('@EPOCHS@', str(RAIL_EPOCHS)),
        '--hosts',
        '2',
        '--cables',
        '2',
        '--cpus',
        '1',
        '--file',
        DATA + '=t/digits.csv',
        programs=TOOLS,
        timeout=400,
    )
    return parts(output), output


def a_rail_fails():
    """A rail fails in the middle of a job, on either side. Its work moves to the other rail; sums stay exact."""
    built_with_rdma()
    jobs, output = with_two_cables()
    status, words = jobs.get('rails_0', (None, ''))
    assert status == 0 and jobs['rails_1'][0] == 0 and 'never said' not in output, output[-9000:]
    assert re.search(r'connection \w+ 10\.77\.0\.2:\d+ broke \(.*port 1 of rxe0 is down', words), words
    assert re.search(r'connection \w+ 10\.78\.0\.2:\d+ is made again', words), words
    assert len(set(re.findall(r'reactor [01] listens by (\w+)', words))) == 2, words
    second = re.search(r'connection \w+ 10\.78\.0\.2:\d+ broke', words)
    assert second and re.search(r'connection \w+ 10\.77\.0\.2:\d+ is made again', words[second.end() :]), words
    there = re.findall(r'bit-identical: ok \(hash (\w+)\)', words)
    here = re.findall(r'bit-identical: ok \(hash (\w+)\)', job('digits_longer_over_tcp')[1])
    assert there and there == here, 'weights %s, on one host over TCP %s' % (there, here)


def no_rail_left():
    jobs, output = with_two_cables()
    status, words = jobs.get('no_rail_left_0', (0, ''))
    seconds = re.search(r'after (\d+) s', words)
    assert status and seconds and int(seconds.group(1)) < 40 and 'TRIB_PEER_LOST' in words, output[-6000:]


def two_hosts():
    """Over a network: the second host has a worker and the server. Then the host falls silent."""
    built_with_rdma()
    _, output = guest(
        HOSTS, '--hosts', '2', '--cpus', '1', '--file', DATA + '=t/digits.csv', programs=TOOLS, timeout=200
    )
    jobs = parts(output)
    status, words = jobs.get('learns_0', (None, ''))
    assert status == 0 and len(re.findall(r'rank 0: to 10\.77\.0\.2:\d+ over RDMA', words)) == 2, output[-6000:]
    assert jobs['learns_1'][0] == 0, output[-6000:]
    there = re.findall(r'bit-identical: ok \(hash (\w+)\)', words)
    here = re.findall(r'bit-identical: ok \(hash (\w+)\)', job('digits_over_tcp')[1])
    assert there and there == here, 'weights %s, on one host over TCP %s' % (there, here)
    status, words = jobs.get('machine_lost_0', (0, ''))
    seconds = re.search(r'after (\d+) s: .*(lost|no sign of life)', words)
    assert status and seconds and int(seconds.group(1)) < 40 and 'TRIB_PEER_LOST' in words, output[-6000:]


def too_little_memory_may_be_locked():
    status, output = job('too_little_memory_may_be_locked')
    assert status != 0, output
    assert 'the limit on locked memory (ulimit -l) is 64 KiB; raise it' in output, output


def no_address_of_a_device():
    status, output = job('no_address_of_a_device')
    assert status != 0 and 'no RDMA device of this machine leads there' in output, 'status %d\n%s' % (status, output)


def no_device():
    status, output = job('no_device')
    assert status != 0 and 'transport rdma: this machine has no RDMA device' in output, 'status %d\n%s' % (
        status,
        output,
    )


TESTS = [
    guest_has_a_verbs_device,
    guest_ends_at_its_deadline,
    contract,
    memory_of_the_caller,
    gpu_direct,
    device_removed,
    digits_as_over_tcp,
    auto_chooses_rdma,
    auto_does_without_rdma,
    two_rails,
    a_rail_is_gone,
    server_killed,
    worker_killed,
    server_stopped,
    network_lost,
    two_hosts,
    a_rail_fails,
    no_rail_left,
    too_little_memory_may_be_locked,
    no_device,
    no_address_of_a_device,
]


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

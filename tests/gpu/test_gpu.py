#!/usr/bin/env python3
"""GPU tests: jobs of real processes on this machine's GPUs. `python3 tests/gpu/test_gpu.py [--build build/release]`.

Prints `ok NAME`, `not ok NAME: why`, `skip NAME: why`. A case NAME is scenario_MxL+S: M machines (groups of processes
on this host) with L local ranks each, and S dedicated servers. Groups may share GPUs; local ranks of one group may not.
NCCL takes groups for different hosts too (NCCL_HOSTID). With --rate (none, 10gbit, ...) every machine and server has a
network namespace and a shaped link of its own; that needs root and iproute2.
"""

import argparse
import contextlib
import functools
import os
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
# In a package all files are beside this one.
sys.path += [HERE, os.path.join(HERE, '..'), os.path.join(HERE, '..', '..', 'tools', 'cluster')]
import cluster as lab
from ports import free_port

# scenario, machines, local ranks, servers, argument
CASES = [
    ('sums', 1, 1, 0, ''),
    ('sums', 2, 1, 0, ''),
    ('sums', 2, 1, 1, ''),
    ('sums', 4, 1, 2, ''),
    ('broadcast', 1, 1, 0, ''),
    ('broadcast', 2, 1, 1, ''),
    ('broadcast', 1, 2, 0, ''),
    ('broadcast', 2, 2, 1, ''),
    ('broadcast', 1, 4, 0, ''),
    ('broadcast', 2, 4, 0, ''),
    ('stream', 1, 1, 0, ''),
    ('stream', 2, 1, 1, ''),
    ('graph', 1, 1, 0, ''),
    ('declare', 2, 1, 1, ''),
    ('late', 2, 1, 1, ''),
    ('killed', 2, 1, 1, '1'),
    ('stopped', 2, 1, 0, '1'),
    ('leave', 2, 1, 1, ''),
    ('idle', 2, 1, 0, ''),
    ('sums', 1, 2, 0, ''),
    ('sums', 2, 2, 0, ''),
    ('sums', 2, 2, 1, ''),
    ('stream', 1, 2, 0, ''),
    ('stream', 2, 2, 1, ''),
    ('declare', 1, 2, 0, ''),
    ('declare', 2, 2, 1, ''),
    ('late', 1, 2, 0, ''),
    ('late', 2, 2, 0, ''),
    ('graph', 1, 2, 0, ''),
    ('killed', 1, 2, 0, '1'),
    ('killed', 1, 2, 0, '0'),
    ('killed', 2, 2, 1, '3'),
    ('stopped', 1, 2, 0, '1'),
    ('stopped', 2, 2, 0, '2'),
    ('leave', 1, 2, 0, ''),
    ('leave', 1, 2, 0, 'stream'),
    ('leave', 1, 4, 0, 'stream'),
    ('leave', 2, 2, 1, ''),
    ('idle', 1, 2, 0, ''),
    ('exit', 1, 2, 0, ''),
    ('threads', 1, 2, 0, ''),
    ('sums', 1, 4, 0, ''),
    ('exit', 1, 4, 0, ''),
    ('sums', 2, 4, 1, ''),
    ('stream', 1, 4, 0, ''),
    ('killed', 1, 4, 0, '2'),
    ('threads', 1, 4, 0, ''),
    ('captured', 1, 1, 0, ''),
    ('captured', 1, 2, 0, ''),
    ('unchosen', 1, 1, 0, ''),
    ('unchosen', 2, 1, 1, ''),
    ('unchosen', 1, 2, 0, ''),
    ('unchosen', 1, 4, 0, ''),
    ('ahead', 1, 1, 0, ''),
    ('ahead', 2, 1, 1, ''),
    ('ahead', 1, 2, 0, ''),
    ('ahead', 2, 2, 1, ''),
    ('ahead', 1, 4, 0, ''),
    ('streams', 1, 1, 0, ''),
    ('streams', 2, 1, 1, ''),
    ('streams', 1, 2, 0, ''),
    ('streams', 2, 2, 1, ''),
    ('streams', 1, 4, 0, ''),
    ('streams', 2, 1, 1, 'one_queue'),
    ('streams', 2, 1, 1, 'many_queues'),
    ('exchanges', 1, 1, 0, ''),
    ('exchanges', 2, 1, 0, ''),
    ('exchanges', 2, 1, 1, ''),
    ('exchanges', 1, 2, 0, ''),
    ('exchanges', 2, 2, 1, ''),
    ('exchanges', 1, 4, 0, ''),
    ('survive', 2, 1, 1, ''),
    ('survive', 4, 1, 0, ''),
    ('survive', 4, 1, 2, ''),
    ('survive', 2, 1, 1, 'server'),
    ('survive', 2, 2, 0, ''),
    ('survive', 2, 2, 1, 'server'),
    ('codecs', 1, 1, 0, ''),
    ('codecs', 2, 1, 0, ''),
    ('codecs', 2, 1, 1, ''),
    ('codecs', 1, 2, 0, ''),
    ('codecs', 2, 2, 1, ''),
    ('codecs', 2, 1, 1, 'full'),
    ('bits', 1, 1, 0, ''),
    ('kernels', 1, 1, 0, ''),
    ('pytorch', 1, 1, 0, ''),
    ('pytorch', 2, 1, 0, ''),
    ('pytorch', 2, 1, 1, ''),
    ('pytorch', 2, 1, 1, 'one_queue'),
    ('pytorch', 2, 1, 1, 'many_queues'),
    ('pytorch', 2, 1, 0, 'ddp'),
    ('pytorch', 1, 2, 0, 'ddp'),
    ('pytorch', 1, 2, 0, ''),
    ('pytorch', 2, 2, 1, ''),
    ('pytorch', 1, 4, 0, ''),
    ('c10d', 2, 1, 0, ''),
    ('c10d', 2, 1, 0, 'one_queue'),
    ('c10d', 1, 2, 0, 'streams'),
    ('c10d', 1, 4, 0, 'streams'),
    ('sums', 1, 3, 0, ''),
    ('sums', 2, 3, 1, ''),
    ('sums', 3, 2, 1, ''),
    ('broadcast', 2, 3, 1, ''),
    ('killed', 2, 3, 1, '4'),
    ('sums', 4, 4, 2, ''),
    ('sums', 1, 5, 0, ''),
    ('sums', 1, 6, 0, ''),
    ('sums', 1, 7, 0, ''),
    ('sums', 1, 8, 0, ''),
    ('sums', 2, 8, 2, ''),
    ('stream', 1, 8, 0, ''),
    ('threads', 1, 8, 0, ''),
    ('killed', 1, 8, 0, '5'),
]
# Scenarios that are Python scripts. In the source tree some are in the folder of the bindings' tests.
PYTORCH = {'pytorch': 'torch_steps.py', 'steps': 'torch_speed.py', 'c10d': 'c10d_cases.py'}
SCRIPTS = HERE, os.path.join(HERE, '..', 'python')
LIMIT_S = 150
C10D_LIMIT_S = 240  # its cases come one after the other in one job
# The Python package is in another place in a tarball than in the source tree.
PACKAGE = next((path for path in (HERE + '/../python', HERE + '/../../api/python') if os.path.exists(path)), None)


class Job:
    def __init__(self, build, case, gpus, hosts=None, seed=1):
        scenario, machines, local_size, servers, argument = case
        self.processes, self.hosts, self.here = [], hosts, 0
        self.limit_s = C10D_LIMIT_S if scenario == 'c10d' else LIMIT_S
        self.folder = tempfile.TemporaryDirectory()
        threads = local_size if scenario == 'threads' else 1
        base = dict(
            os.environ,
            TRIB_WORKERS=str(machines * local_size),
            TRIB_SERVERS=str(servers),
            TRIB_TOKEN='gpu tests',
            TRIB_COORDINATOR='%s:%d' % ((hosts.address(0), 7077) if hosts else ('127.0.0.1', free_port())),
            TRIB_LOCAL_COUNT=str(servers + machines * local_size // threads),
            NCCL_SOCKET_IFNAME='eth0' if hosts else 'lo',
            GPU_LOCAL_SIZE=str(local_size),
            GPU_SEED=str(seed),
        )
        if scenario == 'codecs' and local_size == 1:  # tensors in host memory are encoded, too
            base['TRIB_LOCAL_SUM'] = 'off'
        if argument == 'one_queue':
            base['CUDA_DEVICE_MAX_CONNECTIONS'] = '1'
        if argument == 'many_queues':  # and kernels that are loaded at the start, not at their first use
            base.update(CUDA_DEVICE_MAX_CONNECTIONS='32', CUDA_MODULE_LOADING='EAGER')
        if scenario == 'survive':  # no rank sums for another one that shares its machine
            base.update(TRIB_SURVIVE='workers', TRIB_LOCAL_SUM='off')
        tool = build + '/tributary' if os.path.exists(build + '/tributary') else build + '/bin/tributary'
        for i in range(servers):
            self.start('server %d' % i, machines + i, [tool, 'server'], base)
        if servers > 0:
            base['GPU_SERVER'] = str(self.processes[0][1].pid)
        worker = (
            [sys.executable, script_of(scenario)]
            if scenario in PYTORCH
            else [os.path.join(build, 'tests', 'gpu_worker'), 'sums' if scenario == 'threads' else scenario, argument]
        )
        if scenario in PYTORCH:
            where = os.path.dirname(tool) + ('/../lib' if tool.endswith('/bin/tributary') else '')
            base.update(
                PYTHONPATH=PACKAGE,
                TRIBUTARY_LIBRARY=where + '/libtributary.so.0',
                PYTHONUNBUFFERED='1',
                LOCAL_WORLD_SIZE=str(local_size),
                TRIB_DEVICE_COUNT=str(local_size),
            )
        if argument == 'ddp':
            base['GPU_DDP'] = '1'
        if scenario == 'c10d':  # it makes several engines, each with an address of its own
            del base['TRIB_COORDINATOR']
            worker += ['streams'] if argument else []
        if argument == 'ddp' or scenario in ('steps', 'c10d'):
            base.update(
                MASTER_ADDR=hosts.address(0) if hosts else '127.0.0.1',
                MASTER_PORT=str(free_port()),
                WORLD_SIZE=str(machines * local_size),
            )
        for rank in range(0, machines * local_size, threads):
            gpu = rank % local_size if machines * local_size > gpus and local_size > 1 else rank % gpus
            env = dict(
                base,
                TRIB_RANK=str(rank),
                NCCL_HOSTID='machine %d' % (rank // local_size),
                GPU_LOCAL_RANK=str(rank % local_size),
                GPU_THREADS=str(threads),
                GPU_INDEX=str(gpu),
            )
            if scenario in PYTORCH:
                env.update(
                    LOCAL_RANK=str(rank % local_size),
                    TRIB_DEVICE_RANK=str(rank % local_size),
                    RANK=str(rank),
                    CUDA_VISIBLE_DEVICES=str(gpu),
                )
            self.start('rank %d' % rank, rank // local_size, worker, env)

    def start(self, name, host, command, env):
        log = open(os.path.join(self.folder.name, name.replace(' ', '_')), 'w+')
        env = dict(env, TRIB_LOCAL_RANK=str(self.here))  # so that processes take different cores
        self.here += 1
        words = self.hosts.exec_words(host, command) if self.hosts else command
        process = subprocess.Popen(words, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        self.processes.append((name, process, log))

    def finish(self, lost=()):
        """Returns exit statuses by name, and all output. Processes that do not end in time are killed, and at the end
        those that are to be lost. They are killed too when this process ends, because they would keep the GPUs."""
        try:
            return self.collect(lost)
        finally:
            for _, process, _ in self.processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()

    def collect(self, lost):
        deadline = time.monotonic() + self.limit_s
        statuses, output = {}, []
        for name, process, log in sorted(self.processes, key=lambda member: member[0] in lost):
            if name in lost and process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            try:
                statuses[name] = process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                statuses[name] = 'not done within %d s' % self.limit_s
            log.seek(0)
            output += ['%s: %s' % (name, line.rstrip()) for line in log]
            log.close()
        return statuses, output


def script_of(scenario):
    return next(
        path for path in (os.path.join(folder, PYTORCH[scenario]) for folder in SCRIPTS) if os.path.exists(path)
    )


def cluster_of(case, rate):
    """Makes hosts for a case, for as long as it runs; None without a rate."""
    if rate is None:
        return contextlib.nullcontext()
    hosts = lab.Cluster('gputest%d' % os.getpid())
    hosts.up(case[1] + case[3], rate)
    return hosts


def name_of(case):
    scenario, machines, local_size, servers, argument = case
    return '%s%s_%dx%d+%d' % (scenario, argument and '_' + argument, machines, local_size, servers)


def lost_in(case):
    """Names of the processes that the case loses."""
    scenario, machines, local_size, _, argument = case
    if scenario in ('killed', 'stopped'):
        return ['rank ' + argument]
    if scenario != 'survive':
        return []
    last = machines * local_size - 1
    return ['server 0'] if argument == 'server' else ['rank %d' % last] + ['rank 0'] * (last > 2)


def is_chosen(case, names):
    """True if a name chooses the case. `stream_1x2` chooses cases with an argument, too."""
    texts = name_of(case), name_of((*case[:4], ''))
    return not names or any(name in text for name in names for text in texts)


def run_case(build, case, gpus, rate, seed, verbose):
    scenario, local_size, argument, name = case[0], case[2], case[4], name_of(case)
    if local_size > gpus:
        print('skip %s: %d GPUs are needed, there %s %d' % (name, local_size, 'is' if gpus == 1 else 'are', gpus))
        return True
    if scenario in PYTORCH and not has_pytorch():
        print('skip %s: there is no PyTorch that uses GPUs' % name)
        return True
    began = time.monotonic()
    with cluster_of(case, rate) as hosts:
        lost = lost_in(case)
        statuses, output = Job(build, case, gpus, hosts, seed).finish(lost)
    wrong = []
    for who, status in statuses.items():
        ends_with = -signal.SIGKILL if who in lost else 0
        if status != ends_with and not (scenario in ('killed', 'stopped') and who.startswith('server')):
            wrong.append('%s: %s' % (who, status))
    if argument == 'full' and not any('no memory left to encode' in line for line in output):
        wrong.append('no GPU was full')
    if wrong:
        print('not ok %s: %s' % (name, '; '.join(wrong)))
    else:
        print('ok %s' % name)
    if wrong or verbose:
        print('  # %.1f s' % (time.monotonic() - began))
        for line in output[-60:]:
            print('  # ' + line)
    sys.stdout.flush()
    return not wrong


def count_gpus(build):
    worker = os.path.join(build, 'tests', 'gpu_worker')
    if not os.path.exists(worker):
        return 0, 'this build has no CUDA module (the CUDA Toolkit and NCCL were not found)'
    answer = subprocess.run([worker, 'count'], capture_output=True, text=True)
    number, _, why = answer.stdout.strip().partition(' ')
    return int(number or 0), why or answer.stderr.strip() or 'no GPU'


@functools.lru_cache
def has_pytorch():
    uses = 'import sys, torch; sys.exit(not torch.cuda.is_available())'
    return subprocess.run([sys.executable, '-c', uses], capture_output=True, check=False).returncode == 0


def mps_runs():
    """True if CUDA MPS runs: the kernels of processes that share a GPU then run beside each other."""
    return os.path.exists(os.environ.get('CUDA_MPS_PIPE_DIRECTORY', '/tmp/nvidia-mps') + '/control')


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    packed = os.path.dirname(HERE) if os.path.exists(os.path.join(HERE, 'gpu_worker')) else ''
    parser.add_argument('--build', default=packed or os.environ.get('TRIB_BUILD', 'build/release'))
    parser.add_argument('--rate', help='of the links of hosts in namespaces; without it processes meet on loopback')
    parser.add_argument('--seed', type=int, default=1, help='orders of tensors, and when a rank is lost')
    parser.add_argument('--verbose', action='store_true')
    parser.add_argument(
        '--speed', action='store_true', help='measures instead, with NCCL beside it (GPU_NCCL=no: without)'
    )
    parser.add_argument(
        '--steps', action='store_true', help='measures steps of PyTorch models instead, with DDP over NCCL beside them'
    )
    parser.add_argument('--shape', default='1x1+0', help='MxL+S: machines, local ranks, servers')
    parser.add_argument('names', nargs='*', help='only cases that contain one of these')
    args = parser.parse_args()
    gpus, why = count_gpus(args.build)
    if gpus == 0:
        print('skip gpu: %s' % why)
        return 77
    reason = lab.why_not() if args.rate else None
    if reason is not None:
        print('skip gpu: %s' % reason)
        return 77
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the cleanup runs
    if args.speed or args.steps:
        machines, _, rest = args.shape.partition('x')
        local_size, _, servers = rest.partition('+')
        case = ('steps' if args.steps else 'speed', int(machines), int(local_size), int(servers or 0), '')
        if case[1] * case[2] > gpus and not mps_runs():
            print(
                '# %d ranks share %d GPUs, and there is no CUDA MPS (nvidia-cuda-mps-control -d): '
                'they take turns on them, of milliseconds' % (case[1] * case[2], gpus)
            )
        with cluster_of(case, args.rate) as hosts:
            statuses, output = Job(args.build, case, gpus, hosts).finish()
        print('\n'.join(output))
        return 0 if set(statuses.values()) == {0} else 1
    chosen = [case for case in CASES if is_chosen(case, args.names)]
    if not chosen:
        parser.error('no case is called %s' % ' or '.join(args.names))
    passed = True
    for case in chosen:
        passed = run_case(args.build, case, gpus, args.rate, args.seed, args.verbose) and passed
    return 0 if passed else 1


if __name__ == '__main__':
    sys.exit(main())

"""Jobs that live as long as a scene and run exchanges on command (tools/bench/peers/agent.h), so that systems can
take turns.

A job that waits for its turn uses no CPU: its ranks are blocked on a pipe, and one whose threads spin is stopped by
signal.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '../../cluster'))
import cluster  # noqa: E402

START_S, COMMAND_S = 90.0, 300.0


class JobError(Exception):
    """A job failed; the text ends with the last lines of its output."""


class System:
    """A measured system: a family's program in one of its modes."""

    def __init__(self, name, label, family, mode=(), env=None, spins=False, local_only=False):
        self.name, self.label, self.family, self.mode = name, label, family, list(mode)
        self.env, self.spins, self.local_only = env or {}, spins, local_only


SYSTEMS = {
    s.name: s
    for s in (
        System('tributary', 'Tributary', 'tributary', ['threads']),
        System('tributary-polling', 'Tributary, caller\'s loop polling', 'tributary', ['polling'], local_only=True),
        System('tributary-attached', 'Tributary, caller\'s loop', 'tributary', ['attached'], local_only=True),
        System(
            'tributary-busy',
            'Tributary, threads polling',
            'tributary',
            ['spinning'],
            {'TRIB_BUSY_POLL': 'yes'},
            spins=True,
            local_only=True,
        ),
        System('openmpi', 'Open MPI', 'openmpi'),
        System('openmpi-nonblocking', 'Open MPI, MPI_Iallreduce', 'openmpi', ['nonblocking']),
        System('gloo', 'Gloo', 'gloo', ['ring']),
        System('gloo-halving', 'Gloo, halving and doubling', 'gloo', ['halving-doubling']),
        System('gloo-bcube', 'Gloo, bcube', 'gloo', ['bcube']),
    )
}


class Scene:
    """Where jobs run: on this machine over TCP or whatever is fastest, or on shaped hosts."""

    def __init__(self, name, title, workers, servers=0, tcp=True, hosts=None, rates=None, goodput=1.0):
        self.name, self.title, self.workers, self.servers, self.tcp = name, title, workers, servers, tcp
        self.hosts, self.goodput = hosts, goodput  # hosts: a cluster.Cluster, or None on this machine
        self.rates = rates or {}  # bits per second of each host

    def places(self):
        return cluster.lay_out(self.hosts.hosts(), self.workers, self.servers)

    def cores(self, rank):
        """Returns a rank's part of this machine's cores, or one shared core if there are more ranks than cores; None
        on hosts."""
        if self.hosts is not None:
            return None
        cores = sorted(os.sched_getaffinity(0))
        each = len(cores) // self.workers
        return cores[rank * each : (rank + 1) * each] or [cores[rank % len(cores)]]

    def bound_s(self, size, op):
        """Returns the least possible time (docs/architecture.md, placement) at the goodput of equal links; None
        without links."""
        if len(set(self.rates.values())) != 1:
            return None
        n, k, rate = self.workers, self.servers, next(iter(self.rates.values()))
        if op != 'all_reduce':
            return (n - 1) * size * 8 / (n * rate * self.goodput)
        return 2 * n * (n - 1) * size * 8 / ((n * n + k * n - 2 * k) * rate * self.goodput)


class Job:
    """The ranks of one system in one scene, and its servers."""

    def __init__(self, system, scene, program, folder, build, extra_env):
        self.system, self.scene, self.program, self.build = system, scene, program, build
        self.folder = os.path.join(folder, scene.name + '-' + system.name)
        shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(self.folder)
        self.prefix = os.path.join(self.folder, 'rank')
        self.extra_env = extra_env
        self.children, self.outs, self.ins, self.buffers = [], [], [], []
        self.log = open(os.path.join(self.folder, 'log'), 'ab')
        try:
            self.make_pipes()
            {'tributary': self.start_tributary, 'openmpi': self.start_openmpi, 'gloo': self.start_gloo}[system.family]()
            for rank, line in enumerate(self.answers(START_S)):
                if line != 'ready %d %d' % (rank, scene.workers):
                    raise self.error('rank %d says "%s"' % (rank, line))
            self.pids = self.all_pids()
            self.pause()
        except BaseException:
            self.kill()
            raise

    # ---- Starting ----

    def make_pipes(self):
        for rank in range(self.scene.workers):
            for end in ('in', 'out'):
                os.mkfifo('%s.%d.%s' % (self.prefix, rank, end))
            self.outs.append(os.open('%s.%d.out' % (self.prefix, rank), os.O_RDONLY | os.O_NONBLOCK))
            self.ins.append(os.open('%s.%d.in' % (self.prefix, rank), os.O_RDWR))
            self.buffers.append(b'')

    def spawn(self, words, env, host=None, cores=None):
        how = dict(env=env, stdout=self.log, stderr=self.log)

        def begin():
            os.setpgrp()
            if cores:
                os.sched_setaffinity(0, cores)

        if host is None:
            # A process group of its own, so that Ctrl-C reaches the suite alone; but not a session: a kernel that
            # groups tasks by session (sched_autogroup_enabled) would give each rank as much time as all of mpirun's
            # together.
            child = subprocess.Popen(words, stdin=subprocess.DEVNULL, preexec_fn=begin, **how)
        else:
            child = self.scene.hosts.popen(host, words, **how)
        self.children.append(child)

    def start_tributary(self):
        scene, shared = self.scene, cluster.clean_environment()
        if scene.hosts is None:
            worker_hosts, server_hosts = [None] * scene.workers, [None] * scene.servers
            shared.update(
                TRIB_WORKERS=str(scene.workers),
                TRIB_SERVERS=str(scene.servers),
                TRIB_COORDINATOR='127.0.0.1:%d' % free_port(),
                TRIB_TRANSPORT='tcp' if scene.tcp else 'auto',
            )
        else:
            worker_hosts, server_hosts = scene.places()
            shared.update(
                cluster.job_environment(scene.workers, scene.servers, worker_hosts[0], port=free_port()),
                TRIB_TRANSPORT='tcp',
            )
        # A job is stopped between its turns, which must not look like its death.
        shared.update({'TRIB_PEER_TIMEOUT': '600s'}, **self.system.env)
        shared.update(self.extra_env)

        def start(words, host, cores=None, **more):
            rate = scene.rates.get(host)
            if rate is not None:
                more['TRIB_BANDWIDTH'] = str(rate)
            if host is None:  # like mpirun and `tributary run`, so that ranks take different cores
                more.update(
                    TRIB_LOCAL_RANK=str(len(self.children)), TRIB_LOCAL_COUNT=str(scene.workers + scene.servers)
                )
            self.spawn(words, dict(shared, **more), host, cores)

        for host in server_hosts:
            start([os.path.join(self.build, 'tributary'), 'server'], host)
        for rank, host in enumerate(worker_hosts):
            start([self.program, self.prefix, *self.system.mode], host, scene.cores(rank), TRIB_RANK=str(rank))

    def start_openmpi(self):
        scene, env = (
            self.scene,
            dict(cluster.clean_environment(), OMPI_ALLOW_RUN_AS_ROOT='1', OMPI_ALLOW_RUN_AS_ROOT_CONFIRM='1'),
        )
        # Ranks poll if there are enough cores; otherwise they yield to each other.
        words = [
            'mpirun',
            '-np',
            str(scene.workers),
            '--oversubscribe',
            '--mca',
            'btl_base_warn_component_unused',
            '0',
            '-x',
            'AGENT_OP',
        ]
        if scene.hosts is None:
            words += ['--map-by', 'slot:PE=%d' % len(scene.cores(0)), '--bind-to', 'core:overload-allowed']
            words += ['--mca', 'btl', 'tcp,self', '--mca', 'btl_tcp_if_include', 'lo'] if scene.tcp else []
            self.spawn(words + [self.program, self.prefix, *self.system.mode], env)
            return
        worker_hosts, _ = scene.places()
        agent = os.path.join(self.folder, 'enter-host')
        with open(agent, 'w') as out:
            # mpirun's remote shell: the "machine" is an address, the rest a command line. Different host names keep
            # the daemons' folders apart and prevent the use of shared memory.
            out.write('#!/bin/sh\nhost=$1; shift\ncase $host in\n')
            for host in worker_hosts:
                out.write(
                    '%s) exec ip netns exec %s unshare --uts sh -c "hostname %s; export TMPDIR=%s; exec $*" ;;\n'
                    % (scene.hosts.address(host), scene.hosts.namespace(host), 'h%d' % host, self.host_folder(host))
                )
            out.write('esac\nexit 1\n')
        os.chmod(agent, 0o755)
        env['TMPDIR'] = self.host_folder('mpirun')
        names = ','.join(scene.hosts.address(h) + ':1' for h in worker_hosts)
        # mpirun itself runs on the last host, which has no rank, so that every rank's host is another machine.
        words += [
            '--host',
            names,
            '--map-by',
            'node',
            '--mca',
            'plm',
            'rsh',
            '--mca',
            'plm_rsh_agent',
            agent,
            '--mca',
            'plm_rsh_no_tree_spawn',
            '1',
            '--mca',
            'btl',
            'tcp,self',
            '--mca',
            'btl_tcp_if_include',
            'eth0',
            '--mca',
            'oob_tcp_if_include',
            'eth0',
        ]
        self.spawn(
            [
                'unshare',
                '--uts',
                'sh',
                '-c',
                'hostname launcher; exec "$@"',
                'sh',
                *words,
                self.program,
                self.prefix,
                *self.system.mode,
            ],
            env,
            scene.hosts.hosts()[-1],
        )

    def host_folder(self, host):
        folder = os.path.join(self.folder, 'tmp-%s' % host)
        os.makedirs(folder, exist_ok=True)
        return folder

    def start_gloo(self):
        scene, store = self.scene, os.path.join(self.folder, 'store')
        os.makedirs(store)
        hosts = [None] * scene.workers if scene.hosts is None else scene.places()[0]
        # Gloo polls on a thread beside the caller's; on one core each waits for the end of the other's time slice: 4
        # ms instead of 0.3.
        crowded = scene.workers > len(os.sched_getaffinity(0))
        for rank, host in enumerate(hosts):
            address = '127.0.0.1' if host is None else scene.hosts.address(host)
            self.spawn(
                [self.program, self.prefix, str(rank), str(scene.workers), store, address, *self.system.mode],
                cluster.clean_environment(),
                host,
                scene.cores(rank) if crowded else None,
            )

    # ---- Commands ----

    def error(self, what):
        self.log.flush()
        with open(self.log.name, errors='replace') as log:
            tail = ''.join('\n    | ' + line for line in log.read().splitlines()[-12:])
        return JobError('%s in %s: %s%s' % (self.system.label, self.scene.name, what, tail))

    def answers(self, patience):
        """Reads one line from every rank."""
        deadline, lines = time.monotonic() + patience, [None] * len(self.outs)
        while None in lines:
            waiting = [fd for fd, line in zip(self.outs, lines) if line is None]
            for fd in select.select(waiting, [], [], 0.5)[0]:
                rank = self.outs.index(fd)
                got = os.read(fd, 1 << 20)
                self.buffers[rank] += got
                line, newline, rest = self.buffers[rank].partition(b'\n')
                if newline:
                    lines[rank], self.buffers[rank] = line.decode(), rest
                elif not got:
                    time.sleep(0.02)  # the other end is closed: the process is ending or has not begun
            ended = [child.returncode for child in self.children if child.poll() not in (None, 0)]
            if ended:
                raise self.error('a process ended with status %d' % ended[0])
            if time.monotonic() > deadline:
                raise self.error('rank %d did not answer within %.0f s' % (lines.index(None), patience))
        return lines

    def command(self, text, patience=COMMAND_S):
        self.resume()
        try:
            for fd in self.ins:
                os.write(fd, (text + '\n').encode())
            return self.answers(patience)
        finally:
            self.pause()

    def load(self, path):
        self.expect_ok('load ' + path)

    def check(self):
        self.expect_ok('check')

    def expect_ok(self, text):
        for rank, line in enumerate(self.command(text)):
            if line != 'ok':
                raise self.error('%s: rank %d says "%s"' % (text, rank, line))

    def run(self, warmup, iterations, scale):
        """Returns for every iteration (seconds from the last rank's begin to the last rank's end, seconds of the
        slowest rank's last tensor), and the CPU seconds of all ranks together."""
        ranks = []
        cpu = 0.0
        for rank, line in enumerate(self.command('run %d %d %g' % (warmup, iterations, scale))):
            words = line.split()
            if words[:1] != ['times'] or len(words) != 4 + iterations:
                raise self.error('rank %d says "%s"' % (rank, line[:200]))
            cpu += float(words[1]) / 1e6
            ranks.append([[int(n) for n in word.split(':')] for word in words[4:]])
        rows = []
        for of_ranks in zip(*ranks):
            whole = max(t[1] for t in of_ranks) - max(t[0] for t in of_ranks)
            rows.append((max(whole, 1) / 1e9, max(t[3] - t[2] for t in of_ranks) / 1e9))
        return rows, cpu

    # ---- Turns and the end ----

    def all_pids(self):
        """Returns the pids of the job's processes and of their descendants (mpirun's)."""
        parents = {}
        for name in os.listdir('/proc'):
            if name.isdigit():
                try:
                    with open('/proc/%s/stat' % name) as stat:
                        parents[int(name)] = int(stat.read().rpartition(')')[2].split()[1])
                except (OSError, IndexError):
                    continue
        found = {child.pid for child in self.children}
        grown = True
        while grown:
            more = {pid for pid, parent in parents.items() if parent in found} - found
            found |= more
            grown = bool(more)
        return found

    def signal(self, number):
        for pid in self.pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def pause(self):
        if self.system.spins:
            self.signal(signal.SIGSTOP)

    def resume(self):
        if self.system.spins:
            self.signal(signal.SIGCONT)

    def close(self):
        """Ends the job in an orderly way, and kills the rest."""
        try:
            self.resume()
            for fd in self.ins:
                os.write(fd, b'quit\n')
            deadline = time.monotonic() + 15
            while any(child.poll() is None for child in self.children) and time.monotonic() < deadline:
                time.sleep(0.02)
        finally:
            self.kill()

    def kill(self):
        pids = self.all_pids() if any(child.poll() is None for child in self.children) else set()
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for child in self.children:
            child.wait()
        for fd in self.outs + self.ins:
            os.close(fd)
        self.outs, self.ins, self.children = [], [], []
        self.log.close()


def free_port():
    import socket

    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return probe.getsockname()[1]

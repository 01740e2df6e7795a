"""Small clusters of hosts on one machine: network namespaces joined by a bridge, every host's link shaped each way.

A cluster has a name, and everything that it creates bears that name or is inside its own namespaces: clusters with
different names never meet, even with equal addresses. Host i of NAME is the namespace NAME-i with the addresses
10.77.0.(10+i) and fd77::(10+i) on eth0; where hosts have several links, eth1 is in the networks 10.78.0.0 and fd78::,
and so on. Each of these networks is a bridge, with a port of every host, in the namespace NAME-switch. A token bucket
(tbf) on each end of each link carries the link's rate in that direction, so links are full duplex.

Used by tools/cluster/hosts, tools/bench/suite and tests/cluster. Needs root, iproute2 and a kernel with network
namespaces, veth, bridge and, for links with a rate, sch_tbf.
"""

import fcntl
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import threading
import time

HOSTS_MAX = 200
LINKS_MAX = 4
QUEUE_MS = 20  # queue of a port, as in a switch with deep buffers
NAMES_FOLDER = '/run/netns'


class ClusterError(Exception):
    """The text says what failed and how to correct it."""


def command(*words, text=None):
    """Runs a command of iproute2 and returns its output; a failure raises ClusterError with its message."""
    result = subprocess.run(words, input=text, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if result.returncode != 0:
        raise ClusterError('%s: %s' % (' '.join(words), (result.stderr + result.stdout).strip() or 'failed'))
    return result.stdout


def why_not():
    """Returns the reason why no cluster can be made on this machine, or None."""
    if os.geteuid() != 0:
        return 'network namespaces need root: run it with sudo'
    for tool in ('ip', 'tc'):
        if shutil.which(tool) is None:
            return '%s is missing: install iproute2 (Debian: apt-get install iproute2)' % tool
    probe = 'probe%d-switch' % os.getpid()
    try:
        command('ip', 'netns', 'add', probe)
    except ClusterError as error:
        return 'this kernel or container gives no network namespaces: %s' % error
    try:
        command('ip', '-n', probe, 'link', 'add', 'br0', 'type', 'bridge')
        command('ip', '-n', probe, 'link', 'add', 'v0', 'type', 'veth', 'peer', 'name', 'v1')
        command(
            'tc',
            '-n',
            probe,
            'qdisc',
            'add',
            'dev',
            'v0',
            'root',
            'tbf',
            'rate',
            '1gbit',
            'burst',
            '262144',
            'latency',
            '20ms',
        )
    except ClusterError as error:
        return 'the kernel lacks bridge, veth or tbf (modprobe bridge veth sch_tbf): %s' % error
    finally:
        command('ip', 'netns', 'del', probe)
    return None


def parse_rate(text):
    """Converts a rate such as '1gbit' to bits per second, and 'none' to None."""
    match = re.fullmatch(r'(\d+(?:\.\d+)?)([kmgt])bit', text.lower())
    if text.lower() == 'none':
        return None
    if match is None or float(match.group(1)) == 0:
        raise ClusterError('rate "%s": must be like 500mbit, 1gbit, 10gbit, or none' % text)
    return int(float(match.group(1)) * {'k': 1e3, 'm': 1e6, 'g': 1e9, 't': 1e12}[match.group(2)])


class Cluster:
    """The hosts of one name; as a context manager it removes them at the end in any case."""

    def __init__(self, name):
        if not re.fullmatch(r'[A-Za-z0-9_.]{1,40}', name):
            raise ClusterError('name "%s": letters, digits, _ and . only, at most 40' % name)
        self.name = name
        self.switch = name + '-switch'

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.down()

    # ---- Hosts and links ----

    def namespace(self, host):
        return '%s-%d' % (self.name, host)

    def hosts(self):
        pattern = re.compile(re.escape(self.name) + r'-(\d+)')
        names = os.listdir(NAMES_FOLDER) if os.path.isdir(NAMES_FOLDER) else []
        return sorted(int(m.group(1)) for m in map(pattern.fullmatch, names) if m)

    def need(self, host):
        hosts = self.hosts()
        if host not in hosts:
            there = '%d hosts, 0 to %d' % (len(hosts), len(hosts) - 1) if hosts else 'no hosts: bring it up first'
            raise ClusterError('cluster "%s" has no host %d; it has %s' % (self.name, host, there))

    def links(self, host):
        """Returns the number of the host's links."""
        self.need(host)
        devices = json.loads(command('ip', '-n', self.namespace(host), '-j', 'link', 'show'))
        return sum(device['ifname'].startswith('eth') for device in devices)

    @staticmethod
    def address(host, link=0):
        return '10.%d.0.%d' % (77 + link, 10 + host)

    @staticmethod
    def address6(host, link=0):
        return 'fd%d::%x' % (77 + link, 10 + host)

    @staticmethod
    def port(host, link=0):
        """Returns the name of the link's end at the switch."""
        return 'host%d' % host if link == 0 else 'host%d.%d' % (host, link)

    # ---- Up and down ----

    def up(self, count, rate='none', mtu=1500, links=1):
        """Creates the cluster; an older one of the same name is removed. After an error nothing is left."""
        if not 1 <= links <= LINKS_MAX:
            raise ClusterError('%d links: must be 1 to %d' % (links, LINKS_MAX))
        if not 1 <= count <= HOSTS_MAX:
            raise ClusterError('%d hosts: must be 1 to %d' % (count, HOSTS_MAX))
        if not 1280 <= mtu <= 65535:
            raise ClusterError('an MTU of %d: must be 1280 (what IPv6 needs) to 65535' % mtu)
        parse_rate(rate)
        with self.lock():
            self.remove()
            try:
                self.build(count, rate, mtu, links)
            except BaseException:
                self.remove()
                raise

    def down(self):
        """Removes the cluster, if there is one, with the processes that still run on its hosts."""
        with self.lock():
            self.remove()

    def lock(self):
        """Serializes processes that create or remove the same cluster."""
        file = open(
            '/run/lock/tributary-hosts-' + self.name
            if os.path.isdir('/run/lock')
            else '/tmp/tributary-hosts-' + self.name,
            'w',
        )
        fcntl.flock(file, fcntl.LOCK_EX)
        return file

    def build(self, count, rate, mtu, links):
        command('ip', 'netns', 'add', self.switch)
        lines = [
            line % (link, mtu)
            for link in range(links)
            for line in ('link add br%d mtu %d type bridge', 'link set br%d mtu %d up')
        ]
        command('ip', '-n', self.switch, '-batch', '-', text='\n'.join(lines) + '\n')
        for host in range(count):
            name = self.namespace(host)
            command('ip', 'netns', 'add', name)
            command('ip', '-n', name, 'link', 'set', 'lo', 'up')
            for link in range(links):
                self.connect(host, link, mtu)
                self.shape(host, rate, link)

    def connect(self, host, link, mtu):
        name, device = self.namespace(host), 'eth%d' % link
        command(
            'ip',
            'link',
            'add',
            device,
            'netns',
            name,
            'mtu',
            str(mtu),
            'type',
            'veth',
            'peer',
            'name',
            self.port(host, link),
            'netns',
            self.switch,
            'mtu',
            str(mtu),
        )
        command('ip', '-n', self.switch, 'link', 'set', self.port(host, link), 'master', 'br%d' % link, 'up')
        lines = [
            'addr add %s/24 dev %s' % (self.address(host, link), device),
            'addr add %s/64 dev %s nodad' % (self.address6(host, link), device),
            'link set %s up' % device,
        ]
        command('ip', '-n', name, '-batch', '-', text='\n'.join(lines) + '\n')

    def remove(self):
        names = [
            n
            for n in [self.namespace(h) for h in self.hosts()] + [self.switch]
            if os.path.exists(os.path.join(NAMES_FOLDER, n))
        ]
        for number, patience in ((signal.SIGTERM, 2.0), (signal.SIGKILL, 2.0)):
            deadline = time.monotonic() + patience
            pids = self.pids(names)
            for pid in pids:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass
            while pids and time.monotonic() < deadline:
                time.sleep(0.02)
                pids = self.pids(names)
        for name in names:
            command('ip', 'netns', 'del', name)

    @staticmethod
    def pids(names):
        found = [int(pid) for name in names for pid in command('ip', 'netns', 'pids', name).split()]
        return [pid for pid in found if pid != os.getpid()]

    # ---- Links ----

    def ends(self, host, link):
        self.need(host)
        if not 0 <= link < self.links(host):
            raise ClusterError(
                'host %d of cluster "%s" has no link %d; it has %d' % (host, self.name, link, self.links(host))
            )
        return (self.namespace(host), 'eth%d' % link), (self.switch, self.port(host, link))

    def shape(self, host, rate, link=0):
        bits = parse_rate(rate)
        for namespace, device in self.ends(host, link):
            at = ('dev', device, 'root')
            if bits is None:
                if 'tbf' in command('tc', '-n', namespace, 'qdisc', 'show', *at):
                    command('tc', '-n', namespace, 'qdisc', 'del', *at)
            else:
                # 2 ms at this rate, but at least some of the largest packets, so that a late timer loses no tokens.
                burst = max(bits // 8 // 500, 256 * 1024)
                command(
                    'tc',
                    '-n',
                    namespace,
                    'qdisc',
                    'replace',
                    *at,
                    'handle',
                    '1:',
                    'tbf',
                    'rate',
                    '%dbit' % bits,
                    'burst',
                    str(burst),
                    'latency',
                    '%dms' % QUEUE_MS,
                )

    def rate(self, host, rate, link=0):
        self.shape(host, rate, link)

    def cut(self, host, link=0):
        """Takes the host's port down: packets are lost, but no connection is reset."""
        _, (switch, port) = self.ends(host, link)
        command('ip', '-n', switch, 'link', 'set', port, 'down')

    def mend(self, host, link=0):
        _, (switch, port) = self.ends(host, link)
        command('ip', '-n', switch, 'link', 'set', port, 'up')

    def bytes(self, host, link=0):
        """Returns the bytes and drops of the host's link since its creation, and the segments that the host sent
        again on all links."""
        ends = self.ends(host, link)
        name, device = ends[0]
        stats = json.loads(command('ip', '-n', name, '-j', '-s', 'link', 'show', device))[0]['stats64']
        drops = [
            json.loads(command('tc', '-n', n, '-j', '-s', 'qdisc', 'show', 'dev', d, 'root'))[0].get('drops', 0)
            for n, d in ends
        ]
        tcp = [
            line.split()
            for line in command('ip', 'netns', 'exec', name, 'cat', '/proc/net/snmp').splitlines()
            if line.startswith('Tcp:')
        ]
        return {
            'rx': stats['rx']['bytes'],
            'tx': stats['tx']['bytes'],
            'dropped_out': drops[0],
            'dropped_in': drops[1],
            'segments_again': int(tcp[1][tcp[0].index('RetransSegs')]),
        }

    # ---- Programs ----

    def exec_words(self, host, words):
        self.need(host)
        return ['ip', 'netns', 'exec', self.namespace(host), *words]

    def popen(self, host, words, **how):
        """Starts a program on a host, in a session of its own. Its pid is the program's, because ip execs it."""
        return subprocess.Popen(self.exec_words(host, words), stdin=subprocess.DEVNULL, start_new_session=True, **how)


class Group:
    """Programs on hosts that end together. Each line of output gets a prefix; when a program fails the others are
    ended."""

    GRACE_S = 10.0  # time of the others to end with their own errors
    TERM_S = 3.0

    def __init__(self, out):
        self.out, self.members, self.readers = out, [], []
        self.mutex = threading.Lock()

    def start(self, cluster, host, label, words, env=None, plain=False):
        child = cluster.popen(
            host, words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors='replace'
        )
        self.members.append((label, child))
        reader = threading.Thread(target=self.relay, args=(child, '' if plain else '[%s] ' % label), daemon=True)
        reader.start()
        self.readers.append(reader)

    def relay(self, child, prefix):
        for line in child.stdout:
            with self.mutex:
                self.out.write(prefix + line)
                self.out.flush()

    def kill(self, number):
        for _, child in self.members:
            if child.poll() is None:
                try:
                    os.killpg(child.pid, number)
                except ProcessLookupError:
                    pass

    def wait(self, leaders=None):
        """Waits for all programs and returns the first status that is not 0, or 0. When all leaders (labels) have
        ended the others are ended too."""
        status, ending, steps = 0, None, [(self.GRACE_S, signal.SIGTERM), (self.TERM_S, signal.SIGKILL)]
        while any(child.poll() is None for _, child in self.members):
            time.sleep(0.02)
            for label, child in self.members:
                code = child.poll()
                if code not in (None, 0) and status == 0:
                    status = code if code > 0 else 128 - code
                    with self.mutex:
                        self.out.write(
                            '%s %s\n'
                            % (label, 'ended with status %d' % code if code > 0 else 'was ended by signal %d' % -code)
                        )
            led = leaders is not None and all(c.poll() is not None for label, c in self.members if label in leaders)
            if ending is None and (status != 0 or led):
                ending = time.monotonic()
            if ending is not None and steps and time.monotonic() > ending + steps[0][0]:
                self.kill(steps.pop(0)[1])
                ending = time.monotonic()
        for reader in self.readers:
            reader.join(1.0)
        return status


def clean_environment():
    """Returns the environment of this process without the variables of launchers and of other jobs."""
    foreign = ('TRIB_', 'OMPI_', 'PMI_', 'PMIX_', 'SLURM_', 'DMLC_', 'TORCHELASTIC_')
    return {key: value for key, value in os.environ.items() if not key.startswith(foreign)}


def job_environment(workers, servers, coordinator_host=0, ipv6=False, port=7077):
    """Returns the settings that all members of a job share: counts, a fresh token, and the coordinator on rank 0's
    host."""
    at = '[%s]' % Cluster.address6(coordinator_host) if ipv6 else Cluster.address(coordinator_host)
    return {
        'TRIB_WORKERS': str(workers),
        'TRIB_SERVERS': str(servers),
        'TRIB_COORDINATOR': '%s:%d' % (at, port),
        'TRIB_TOKEN': secrets.token_hex(24),
    }


def listen_environment(hosts, host, ipv6=False, order=None):
    """Returns the setting that makes the reactors of a member take the links of its host in turn: all links, or those
    in order."""
    links = list(range(hosts.links(host))) if order is None else order
    address = hosts.address6 if ipv6 else hosts.address
    for link in links:
        hosts.ends(host, link)
    return {} if links == [0] else {'TRIB_LISTEN': ','.join(address(host, link) for link in links)}


def lay_out(hosts, workers, servers, per_host=1):
    """Returns the hosts of the workers and those of the servers: one member per host, and further members on the
    hosts from the first one on. Each host has per_host consecutive workers."""
    machines = (workers + per_host - 1) // per_host
    places = [
        hosts[(i // per_host if i < workers else machines + i - workers) % len(hosts)] for i in range(workers + servers)
    ]
    return places[:workers], places[workers:]


def remove_stale(prefix):
    """Removes clusters named PREFIX<pid> whose process has ended, which killed test runs left behind."""
    names = os.listdir(NAMES_FOLDER) if os.path.isdir(NAMES_FOLDER) else []
    for name, pid in {m.groups() for m in map(re.compile(r'(%s(\d+))-.*' % re.escape(prefix)).fullmatch, names) if m}:
        if not os.path.exists('/proc/' + pid):
            Cluster(name).down()

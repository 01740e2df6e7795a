"""`tributary run` over several hosts, or with --elastic. The command reads its options and starts this with pairs of
name and value, then -- and the program. Nothing here needs the library, or a package beside Python's own."""

import argparse
import asyncio
import os
import sys

import hosts
from driver import say
from elastic import Elastic
from fixed import Fixed


def _split(argv):
    cut = argv.index('--')
    pairs = dict(word.split('=', 1) for word in argv[:cut])
    return pairs, argv[cut + 1 :]


def _elastic_range(text):
    least, colon, most = text.partition(':')
    if not (least.isdigit() and (most.isdigit() or not colon)) or not 0 < int(least) <= int(most or least) <= 4096:
        raise hosts.HostsError('--elastic %s: must be MIN:MAX, such as 2:8' % text)
    return int(least), int(most or least)


def read_options(argv):
    """Returns the options, or raises HostsError."""
    pairs, program = _split(argv)
    options = argparse.Namespace(
        program=program,
        program_path=pairs['self'],
        workers=int(pairs['workers']),
        servers=int(pairs['servers']),
        address=pairs.get('host'),
        rsh=pairs.get('rsh'),
        discover=pairs.get('discover'),
        host_failures=int(pairs['host_failures']),
        hosts=[],
    )
    if 'elastic' in pairs:
        options.least, options.most = _elastic_range(pairs['elastic'])
        if options.servers:
            raise hosts.HostsError('-s %d: an elastic job has no servers of its own' % options.servers)
    if 'hosts' in pairs:
        options.hosts = hosts.parse_hosts(pairs['hosts'].split(','))
    elif 'hostfile' in pairs:
        try:
            with open(pairs['hostfile'], encoding='utf-8') as file:
                options.hosts = hosts.parse_hosts(file)
        except (OSError, UnicodeDecodeError) as problem:
            raise hosts.HostsError('--hostfile %s: %s' % (pairs['hostfile'], problem)) from None
    elif options.discover is None:
        options.hosts = [hosts.Listed('localhost', options.most)]
    if options.discover is None and not options.hosts:
        raise hosts.HostsError('no host is listed')
    if options.discover is not None:
        if 'elastic' not in pairs:
            raise hosts.HostsError('--discover needs --elastic MIN:MAX')
        options.discover = os.path.abspath(options.discover)
    return options, Elastic if 'elastic' in pairs else Fixed


async def _run(kind, options):
    return await kind(options).run()


def main():
    try:
        options, kind = read_options(sys.argv[1:])
    except hosts.HostsError as problem:
        say(str(problem))
        return 2
    return asyncio.run(_run(kind, options))


if __name__ == '__main__':
    sys.exit(main())

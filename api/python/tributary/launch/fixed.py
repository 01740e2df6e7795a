"""A job with so many workers and servers, which ends with the first failure that TRIB_SURVIVE does not cover."""

import asyncio
import os

from driver import SERVERS_SECONDS, Driver, Fatal
from link import HostLost


class Fixed(Driver):
    async def begin(self):
        options = self.options
        slots = [(host, slot) for host in options.hosts for slot in range(host.slots)]
        count = options.workers or len(slots)
        if count > len(slots):
            raise Fatal('-n %d: the hosts have %d slots' % (count, len(slots)))
        self.choose_address(options.hosts)
        names = [host.name for host in options.hosts if any(used is host for used, _ in slots[:count])]
        try:
            await asyncio.gather(*(self.open_link(name) for name in names))
        except HostLost as problem:
            raise Fatal(str(problem)) from None
        first = self.links[slots[0][0].name]
        common = {
            'TRIB_WORKERS': str(count),
            'TRIB_SERVERS': str(options.servers),
            'TRIB_COORDINATOR': '%s:%d' % (first.address, await first.free_port()),
        }
        for rank in range(options.servers):
            link = self.links[names[rank % len(names)]]
            server = self.start(link, rank, [options.program_path, 'server'], dict(common, TRIB_RANK=str(rank)))
            server.rank, server.is_server = rank, True
        for rank, (host, slot) in enumerate(slots[:count]):
            local = sum(other is host for other, _ in slots[:count])
            variables = dict(common, TRIB_RANK=str(rank), TRIB_LOCAL_COUNT=str(local))
            self.start(self.links[host.name], slot, options.program, variables).rank = rank

    async def step(self):
        if not self.workers:
            return False
        if all(worker.is_server for worker in self.workers.values()):
            self.deadline = None if not self.status and self.deadline is None else self.deadline
            self.end_soon(SERVERS_SECONDS)
        return True

    def note_end(self, worker, status):
        code = status if status >= 0 else 128 - status
        has_workers = any(not other.is_server for other in self.workers.values())
        if code == 0 or (worker.is_server and not has_workers):
            return
        survive = os.environ.get('TRIB_SURVIVE', '').lower()
        covers = survive in ('workers', 'continue') or (survive == 'servers' and worker.is_server)
        if covers and has_workers and self.deadline is None:
            self.report(worker, status, ': the others may go on (TRIB_SURVIVE=%s)' % survive)
            return  # the workers that are left decide how the job ends
        if not self.is_asked(status) and self.deadline is None:
            self.report(worker, status)
        self.status = self.status or code
        self.end_soon()

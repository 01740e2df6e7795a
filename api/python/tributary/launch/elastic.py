"""A job whose workers come and go. The launcher holds the rendezvous: it knows who lives, and gives out, for each
attempt, ranks and the address of the coordinator.

An attempt is one engine in each worker, from its forming to the first loss, or to the boundary at which workers learn
that others have come or must go. The next attempt begins when every worker that is left of the last one has asked for
its place. Workers of the last attempt get the first ranks, in their old order, because they have the state that the
others get from rank 0."""

import asyncio
import signal
import time

from driver import Driver, Fatal, say
from hosts import HostsError, Listed, Record, discover
from link import HostLost
from rendezvous import Rendezvous

_FORM_SECONDS = 120  # for workers to ask for their place, once one has
_STOPPED_SECONDS = 3  # for a worker that others wait for, and that is seen to be stopped, to go on
_LOOK_SECONDS = 1  # between two looks for such ones
_KILL_SECONDS = 5  # for a worker that was killed to end
_HOST_SECONDS = 30  # for a host to say something, once it was asked
_START_SECONDS = 600  # for a worker that was started to ask for its place
_DISCOVERY_SECONDS = 1
_HOSTS_SECONDS = 600  # for a discovery script to show enough hosts
_GATHER_SECONDS = 5  # newcomers wait so long for others that are starting, to come in together

_HAS_NOT_ASKED = 'it has not asked for its place within %d s'


class Elastic(Driver):
    def __init__(self, options):
        super().__init__(options)
        self._listed, self._records, self._opening = {}, {}, {}
        self._rendezvous, self._port, self._discovery = Rendezvous(self.token, self._take_message), None, None
        self._attempt, self._members, self._ready = 0, set(), set()  # numbers of the attempt's workers
        self._waiting, self._asked_at = {}, None  # when each asked for its place
        self._looked_at = 0.0  # for stopped workers
        self._told = None  # what the members have been told of changes
        self._is_finishing, self._is_forming = False, False
        self._short_since, self._last_code = None, 1  # since when too few places are there; how the last worker failed

    async def begin(self):
        options = self.options
        if options.discover:
            self._listed = await self._discover_first()
        else:
            self._listed = {host.name: host.slots for host in options.hosts}
        self.choose_address(self._as_hosts())
        self._port = await self._rendezvous.open(self.address)
        if options.discover:
            self._discovery = asyncio.ensure_future(self._keep_discovering())

    async def run(self):
        try:
            return await super().run()
        finally:
            if self._discovery is not None:
                self._discovery.cancel()

    def _as_hosts(self):
        return [Listed(name, slots) for name, slots in self._listed.items()]

    async def _discover_first(self):
        try:
            return {host.name: host.slots for host in await discover(self.options.discover)}
        except (HostsError, OSError) as problem:
            raise Fatal('--discover %s: %s' % (self.options.discover, problem)) from None

    async def _keep_discovering(self):
        said = None
        while True:
            await asyncio.sleep(_DISCOVERY_SECONDS)
            try:
                found = {host.name: host.slots for host in await discover(self.options.discover)}
            except (HostsError, OSError) as problem:
                if str(problem) != said:
                    say('--discover %s: %s; the hosts stay as they were' % (self.options.discover, problem))
                said = str(problem)
                continue
            said = None
            for name in set(self._listed) - set(found):
                self._records.pop(name, None)  # a host that comes back later begins anew
            self._listed = found

    # One step: starts what is missing, tells of changes, forms an attempt when it can.

    async def step(self):
        self._drop_lost_links()
        self._end_unlisted()
        if not self.signal and not self._is_finishing:
            self._start_missing()
            self._tell_of_changes()
        self._dismiss_unwanted()
        if not self.signal and not self._is_forming and self._may_form():
            self._is_forming = True
            asyncio.ensure_future(self._form())
        self._press_late_ones()
        self._look_for_stopped()
        if not self.workers and (self.signal or self._is_finishing or self.status):
            return False
        self._check_enough()
        return True

    def _drop_lost_links(self):
        for name, link in list(self.links.items()):
            if link.is_lost:
                self._record(name).note_failure()
                del self.links[name]

    def _is_listed(self, worker):
        return worker.slot < self._listed.get(worker.link.name, 0)

    def _end_unlisted(self):
        for worker in self.workers.values():
            if not self._is_listed(worker) and not worker.is_unwanted:
                if worker.number in self._members:
                    worker.is_unwanted = True  # it leaves at the next boundary
                else:
                    self.kill(worker)

    def _record(self, name):
        return self._records.setdefault(name, Record(self.options.host_failures))

    def _start_missing(self):
        room = self.options.most - len(self.workers)
        for name, slots in self._listed.items():
            record, link = self._record(name), self.links.get(name)
            taken = {worker.slot for worker in self.workers.values() if worker.link.name == name}
            if room <= 0 or len(taken) >= slots or record.is_bad() or not record.may_start():
                continue
            if link is None or link.address is None:
                if name not in self._opening:
                    self._opening[name] = asyncio.ensure_future(self._open(name))
                room -= slots - len(taken)
                continue
            for slot in [slot for slot in range(slots) if slot not in taken][:room]:
                room -= 1
                variables = {
                    'TRIBUTARY_RENDEZVOUS': '%s:%d' % (self.address, self._port),
                    'TRIBUTARY_WORKER': str(self._next_number),
                    'TRIB_RANK': '0',
                    'TRIB_WORKERS': '1',
                    'TRIB_SERVERS': '0',
                }
                self.start(link, slot, self.options.program, variables)

    async def _open(self, name):
        try:
            await self.open_link(name)
        except HostLost as problem:
            say(str(problem))
            self._record(name).note_failure()
        del self._opening[name]
        self._wake.set()

    def _newcomers(self):
        return [
            number for number in self._waiting if number not in self._members and not self.workers[number].is_unwanted
        ]

    def _tell_of_changes(self):
        """Tells the members when someone waits to come in, or has to go. They learn it once for each attempt."""
        if not self._members or self._told == self._attempt:
            return
        added = self._newcomers()
        removed = [number for number in self._members if number in self.workers and self.workers[number].is_unwanted]
        starting = [number for number in self.workers if number not in self._members and number not in self._waiting]
        is_gathering = starting and time.monotonic() < min(map(self._waiting.get, added), default=0) + _GATHER_SECONDS
        if removed or (added and not is_gathering):
            self._told = self._attempt
            for number in self._members:
                self._rendezvous.send(number, changed=self._attempt, added=bool(added), removed=bool(removed))

    def _dismiss_unwanted(self):
        for number, worker in self.workers.items():
            if self._is_finishing and number not in self._members and not worker.is_unwanted:
                self.kill(worker)  # it has come too late to do anything
                self._waiting.pop(number, None)
            elif worker.is_unwanted and number in self._waiting:
                self._rendezvous.send(number, leave='the hosts that are listed do not have its place any more')
                del self._waiting[number]
                self._members.discard(number)

    def _missing(self):
        """Returns the members that the next attempt waits for: they still train, have not heard of the loss yet, or
        stand still. One that was killed and does not end, as it waits in the kernel, holds nobody up."""
        return [
            worker
            for number, worker in self.workers.items()
            if number in self._members and number not in self._waiting and not worker.is_overdue(_KILL_SECONDS)
        ]

    def _may_form(self):
        if not self._waiting or self._missing():
            return False
        if self._is_finishing:
            return True
        if len(self._waiting) < self.options.least:
            return False
        is_first = self._attempt == 0
        is_late = time.monotonic() > self._asked_at + _FORM_SECONDS
        places = sum(slots for name, slots in self._listed.items() if not self._record(name).is_bad())
        return not is_first or is_late or len(self._waiting) >= min(self.options.most, places)

    async def _form(self):
        order = [n for n in sorted(self._members, key=lambda n: self.workers[n].rank if n in self.workers else 0)]
        chosen = [n for n in order if n in self._waiting]
        kept = len(chosen)
        chosen += sorted(self._newcomers())
        try:
            first = self.workers[chosen[0]].link
            asyncio.ensure_future(first.check(_HOST_SECONDS))  # all would wait for a host that says nothing
            coordinator = '%s:%d' % (first.address, await first.free_port())
        except (HostLost, IndexError):
            return  # the next step looks again
        finally:
            self._is_forming = False
        if any(number not in self._waiting for number in chosen):
            return  # someone has ended, or has to go, meanwhile
        self._attempt += 1
        self._members, self._ready, self._asked_at = set(chosen), set(), None
        for rank, number in enumerate(chosen):
            worker = self.workers[number]
            worker.rank = rank
            self._rendezvous.send(
                number,
                attempt=self._attempt,
                rank=rank,
                size=len(chosen),
                coordinator=coordinator,
                job='%s-%d' % (self.name, self._attempt),
                has_newcomers=kept < len(chosen),
            )
            del self._waiting[number]
        say('attempt %d begins with %d workers' % (self._attempt, len(chosen)))

    def _press_late_ones(self):
        """Ends workers that have not asked for their place in time: they would hold all others up."""
        for number, worker in self.workers.items():
            if number not in self._waiting and number not in self._members:
                self._press(worker, worker.started_at, _START_SECONDS)
        if not self._members & set(self._waiting):
            return
        for worker in self._missing():
            self._press(worker, self._asked_at, _FORM_SECONDS)

    def _awaited(self):
        """Returns the members that others wait for: to ask for their place, or to join the attempt that forms."""
        if self._members & set(self._waiting):
            return self._missing()
        return [self.workers[number] for number in self._members - self._ready if number in self.workers]

    def _look_for_stopped(self):
        """Asks hosts which workers are stopped, as long as some are awaited. Whom the others have lost does not matter:
        one that is cut off names those that live, and one that is busy asks for its place later."""
        if time.monotonic() > self._looked_at + _LOOK_SECONDS:
            self._looked_at = time.monotonic()
            for link in {worker.link for worker in self._awaited()}:
                asyncio.ensure_future(link.check(_HOST_SECONDS))

    def note_stopped(self, link, numbers):
        for worker in self._awaited():
            if worker.link is link:
                is_stopped = worker.number in numbers
                worker.stopped_at = (worker.stopped_at or time.monotonic()) if is_stopped else None
                if is_stopped:
                    self._press(
                        worker,
                        worker.stopped_at,
                        _STOPPED_SECONDS,
                        'others wait for it, and it has been stopped for %d s',
                    )

    def _press(self, worker, since, seconds, why=_HAS_NOT_ASKED):
        now = time.monotonic()
        if worker.pressed_at is None and now > since + seconds:
            say('%s: %s: ending it' % (worker, why % seconds))
            worker.pressed_at = now
            worker.link.order(do='signal', worker=worker.number, number=signal.SIGKILL)
            asyncio.ensure_future(worker.link.check(_HOST_SECONDS))

    def _check_enough(self):
        """Ends the job if too few workers are left and no more can be started."""
        if self.signal or self._is_finishing or self.deadline is not None:
            return
        places = sum(slots for name, slots in self._listed.items() if not self._record(name).is_bad())
        there = len(self.workers) + sum(
            max(slots - sum(worker.link.name == name for worker in self.workers.values()), 0)
            for name, slots in self._listed.items()
            if not self._record(name).is_bad()
        )
        now = time.monotonic()
        self._short_since = None if there >= self.options.least else self._short_since or now
        patience = _HOSTS_SECONDS if self.options.discover else 0
        if self._short_since is not None and now >= self._short_since + patience:
            self.status = self._last_code
            raise Fatal(
                'no more than %d workers are left, and %d places to start some: --elastic asks for at least %d'
                % (len(self.workers), max(places, 0), self.options.least)
            )

    # Handlers of messages from workers, and of their ends.

    def _take_message(self, number, message):
        if number not in self.workers:
            return
        self.workers[number].stopped_at = None
        if 'join' in message:
            self._waiting[number] = time.monotonic()
            self._asked_at = self._asked_at or time.monotonic()
        elif message.get('ready') == self._attempt:
            self._ready.add(number)
            self._record(self.workers[number].link.name).note_joined()
        elif 'worked' in message:
            self.workers[number].has_worked = True
        self._wake.set()

    def note_end(self, worker, status):
        self._waiting.pop(worker.number, None)
        was_member = worker.number in self._members
        if was_member and worker.number not in self._ready:
            for number in self._members:  # the engines of this attempt wait for it in vain
                self._rendezvous.send(number, void=self._attempt)
        if worker.is_unwanted or self.is_asked(status):
            return
        if status == 0:
            others = [number for number in self.workers if number != worker.number]  # they may train without it
            self._is_finishing = self._is_finishing or was_member or not (self._members or others)
            if not self._is_finishing:  # one that would not join: others like it are started with delays
                self._record(worker.link.name).note_failure()
            return
        code = status if status >= 0 else 128 - status
        self.report(worker, status)
        self._last_code = code
        record = self._record(worker.link.name)
        was_bad = record.is_bad()
        record.note_failure(worker.number in self._ready, worker.has_worked)
        if record.is_bad() and not was_bad:
            say('host %s is not used for now: too many workers have failed on it' % worker.link.name)
        if self._is_finishing:
            self.status = self.status or code

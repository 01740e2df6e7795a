/*
 * formation_probe.c - which of the processes that are awaited between two epochs are dead (formation.h).
 *
 * All connections end with an epoch, so nobody hears of a process that dies before it has come back. The coordinator
 * tries to connect to each that it awaits. A member listens at the same address from its first epoch to its end: it is
 * lost when its address refuses. A coordinator that is no member has never reached that address, and a firewall may
 * refuse it there: it gives members the time in which all that live are back.
 */
#include <stdlib.h>

#include "engine/base/assert.h"
#include "engine/membership/election.h"
#include "engine/membership/formation.h"
#include "engine/membership/member.h"
#include "engine/membership/probe.h"

#define BACK_MORE_NS (2 * INT64_C(1000000000)) /* time beyond the peer timeout, to close links and to come back */
#define PROBE_NS (100 * INT64_C(1000000))

int64_t trib_formation_absent_until(const trib_coordinator *self, uint32_t place)
{
    const trib_coordinator_slot *slot = &self->slots[place];
    if (slot->joined || !trib_formation_expects(self, place)) {
        return INT64_MAX;
    }
    const int64_t since_ns = slot->away_since_ns != 0 ? slot->away_since_ns : self->opened_ns;
    return since_ns + self->core->engine->config.peer_timeout_ns + BACK_MORE_NS;
}

void trib_formation_await_absent(trib_coordinator *self)
{
    int64_t first_ns = INT64_MAX;
    for (uint32_t i = 0; i < trib_coordinator_slots(self); i++) {
        const int64_t until_ns = trib_formation_absent_until(self, i);
        first_ns = until_ns < first_ns ? until_ns : first_ns;
    }
    if (first_ns != INT64_MAX) {
        trib_timer_arm(self->core->reactor, &self->join_deadline, first_ns);
    }
}

void trib_formation_keep_roster(trib_coordinator *self)
{
    const trib_engine *engine = self->core->engine;
    trib_formation *formation = &self->core->engine->formation;
    const bool is_member = (engine->config.roles & (TRIB_ROLE_WORKER | TRIB_ROLE_SERVER)) != 0;
    trib_assert(self->roster != NULL && formation->kept != self->roster);
    if (!is_member) {
        free(formation->kept);
        formation->kept = self->roster;
        formation->is_settled = formation->at_boundary = false;
        formation->committed_count = 0;
    }
}

/* The roster of the epoch that is over. NULL: this process does not have it. */
static const trib_roster *last_roster(const trib_coordinator *self)
{
    const trib_formation *formation = &self->core->engine->formation;
    const trib_roster *roster = formation->kept != NULL ? formation->kept : self->core->engine->roster;
    return roster != NULL && roster->epoch == formation->epoch ? roster : NULL;
}

/* True if the member of that place has to be asked: it is awaited, and is not this process. */
static bool is_absent(const trib_coordinator *self, uint32_t place)
{
    const trib_engine *engine = self->core->engine;
    const uint32_t me = engine->roster != NULL ? engine->formation.place : TRIB_NO_MEMBER;
    return !self->slots[place].joined && trib_formation_expects(self, place) &&
           trib_formation_former_id(self, place) != me;
}

static const trib_address *find_absent(const void *user, uint32_t place)
{
    const trib_coordinator *self = user;
    const trib_roster *roster = last_roster(self);
    const uint32_t member = trib_formation_former_id(self, place);
    if (!is_absent(self, place)) {
        return NULL;
    }
    trib_assert(roster != NULL && member < roster->member_count);
    return &roster->members[member].addresses[0];
}

static void probe_all(trib_reactor *reactor, trib_timer *timer)
{
    trib_coordinator *self = timer->user;
    if (trib_now(reactor) - self->opened_ns >= TRIB_ELECTION_REOPEN_NS) {
        self->core->engine->formation.joiners = 0; /* a live one that waited to join has come by now */
    }
    for (uint32_t i = 0; i < self->probes.count && !self->core->ended; i++) {
        if (self->probes.each[i].is_dead && is_absent(self, i)) {
            trib_formation_lose_absent(self, i, ": its address refuses");
        }
    }
    if (!self->core->ended) {
        trib_probes_ask(self->core, &self->probes, find_absent, self);
    }
    trib_formation_check(self); /* the next epoch may begin, which ends the attempts */
    if (trib_formation_gathers(self) && !self->core->ended) {
        trib_timer_arm(reactor, timer, trib_now(reactor) + PROBE_NS);
    }
}

void trib_formation_probe_begin(trib_coordinator *self)
{
    const bool is_member = self->core->engine->roster != NULL;
    const int64_t refused_for_ns = is_member ? TRIB_ELECTION_REFUSED_NS : TRIB_ELECTION_REOPEN_NS;
    if (last_roster(self) != NULL) {
        trib_probes_open(&self->probes, trib_coordinator_slots(self), refused_for_ns,
                         trib_heartbeat_period_ns(self->core->engine->config.peer_timeout_ns), NULL);
    }
    trib_formation_await_absent(self);
    self->probing.fired = probe_all;
    self->probing.user = self;
    trib_timer_arm(self->core->reactor, &self->probing, trib_now(self->core->reactor) + PROBE_NS);
}

void trib_formation_probe_end(trib_coordinator *self)
{
    trib_timer_stop(self->core->reactor, &self->probing);
    trib_probes_close(&self->probes, "the next epoch begins");
}

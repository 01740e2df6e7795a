/*
 * election_silence.c - which members stand still while the coordinator is silent, or another one is elected
 * (election.h).
 *
 * Nobody needs an answer of a member that has nothing to do, so its silence says nothing. From a quarter of the peer
 * timeout on in which the coordinator is silent members ask each other. So those that stand still with it are known
 * soon after its loss, and no vote of theirs is waited for. Silence counts while some other member is heard: a member
 * that is cut off from all knows nothing about them.
 */
#include "engine/membership/election_internal.h"
#include "engine/membership/member_internal.h"

#define NEXT_CANDIDATES 3u /* so many may stand still at once, and the next one has asked the others all the same */

static bool is_next_candidate(const trib_election *self, uint32_t member)
{
    return member >= self->candidate && member - self->candidate < NEXT_CANDIDATES &&
           member < self->roster->worker_count;
}

/* Candidates ask all whose votes they may need, the others ask the candidates. */
static bool has_to_ask(const trib_election *self, uint32_t member)
{
    const uint32_t me = trib_election_place(self);
    return member != me && member >= self->candidate && trib_election_counts(self, member) &&
           !self->votes[member].has_voted && (is_next_candidate(self, member) || is_next_candidate(self, me));
}

/* True if another member gives signs of life. */
static bool hears_some(const trib_election *self, int64_t now_ns)
{
    bool hears = false;
    for (uint32_t i = 0; i < self->roster->member_count; i++) {
        const trib_probe *probe = &self->probes.each[i];
        hears = hears || self->votes[i].has_voted ||
                (probe->heard_ns != 0 && now_ns - probe->heard_ns < self->roster->peer_timeout_ns / 4);
    }
    return hears;
}

static const trib_address *find_asked(const void *user, uint32_t member)
{
    const trib_election *self = user;
    const int64_t passed_ns = trib_now(self->core->reactor) - self->probes.each[member].began_ns;
    const bool is_due = passed_ns >= trib_heartbeat_period_ns(self->roster->peer_timeout_ns);
    return is_due && has_to_ask(self, member) ? &self->roster->members[member].addresses[0] : NULL;
}

/* The member lives. It has no vote yet if it has joined just now, and the roster has not reached it. It takes none
 * while it has heard the coordinator lately, and needs it once more then. */
static void note_answer(trib_link *link, trib_probe *probe)
{
    trib_election *self = link->core->engine->election;
    const int64_t now_ns = trib_now(link->core->reactor);
    const int64_t pause_ns = self->roster->peer_timeout_ns / TRIB_ELECTION_DOUBT_SHARE;
    const bool was_told = probe->told_ns != 0 && now_ns - probe->told_ns < pause_ns;
    if (!was_told && trib_election_let_in(self, link, (uint32_t)(probe - self->probes.each))) {
        probe->told_ns = now_ns;
    }
}

void trib_election_ask_members(trib_election *self, bool was_stopped)
{
    const int64_t now_ns = trib_now(self->core->reactor);
    if (self->probes.each == NULL) {
        trib_probes_open(&self->probes, self->roster->member_count, TRIB_ELECTION_REFUSED_NS,
                         trib_heartbeat_period_ns(self->roster->peer_timeout_ns), note_answer);
    }
    trib_probes_ask(self->core, &self->probes, find_asked, self);
    if (self->probes.each == NULL || !hears_some(self, now_ns)) {
        self->heard_since_ns = 0;
    } else if (self->heard_since_ns == 0 || was_stopped) {
        self->heard_since_ns = now_ns;
    }
}

bool trib_election_is_silent(const trib_election *self, uint32_t member)
{
    const trib_probe *probe = self->probes.each != NULL ? &self->probes.each[member] : NULL;
    const int64_t silent_ns = probe != NULL ? trib_probe_silent_since(probe) : 0;
    if (silent_ns == 0 || self->heard_since_ns == 0) {
        return probe != NULL && probe->is_dead;
    }
    const int64_t since_ns = silent_ns > self->heard_since_ns ? silent_ns : self->heard_since_ns;
    const int64_t until_ns = trib_probe_silent_until(probe, trib_now(self->core->reactor));
    return probe->is_dead || until_ns - since_ns >= self->roster->peer_timeout_ns;
}

void trib_election_end_asking(trib_election *self)
{
    trib_probes_close(&self->probes, "the election is over");
}

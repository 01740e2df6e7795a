/*
 * storm_strikes.c - faults at the moments of an election, which random times seldom meet (storm.h): when the first
 * member has lost the coordinator, when a candidate has decided, when one voter has heard of that, and when one member
 * has the next roster. They hit the candidate or another member: it dies, stands still, is cut off, does not reach the
 * candidate, or all that stand still go on. So second elections in one epoch are common, two candidates stand at once,
 * and the old coordinator comes back while another one is elected.
 *
 * In other jobs a server asks to leave while half of the workers stand still, the coordinator among them. When these go
 * on they are cut off from the others.
 */
#include "engine/membership/coordinator_internal.h"
#include "engine/membership/election_internal.h"
#include "engine/membership/formation.h"
#include "tests/sim/storm_internal.h"

void storm_plan_strikes(storm *self, uint64_t seed)
{
    static const int kinds[] = {KILL, KILL, PAUSE, PAUSE, CUT, DEAF, MUTE, SHUN, WAKE};
    uint64_t state = seed * 49979687 + 11;
    (void)storm_draw(&state, 2);
    if (storm_draw(&state, 3) > 0) {
        return;
    }
    self->strike_count = 1 + (uint32_t)storm_draw(&state, STRIKES_MAX);
    for (uint32_t i = 0; i < self->strike_count; i++) {
        strike *at = &self->strikes[i];
        at->moment = storm_draw(&state, MOMENTS);
        at->at_other = storm_draw(&state, 3) == 0;
        at->kind = kinds[storm_draw(&state, sizeof kinds / sizeof kinds[0])];
        at->after_ns = storm_draw(&state, 3) > 0 ? 0 : (int64_t)storm_draw(&state, 3000000);
        at->lasts_ns = at->kind != KILL && storm_draw(&state, 3) > 0 ? (int64_t)storm_draw(&state, 6 * SECOND) : 0;
        at->state = state + i;
    }
    if (storm_draw(&state, 2) == 0) { /* two elections, which may decide differently */
        self->strikes[0].moment = AT_SUCCESS;
        self->strikes[0].lasts_ns = 5 * SECOND + (int64_t)storm_draw(&state, 4 * SECOND);
        self->strikes[1] = (strike){.moment = AT_DECISION, .at_other = true, .kind = DEAF, .state = state};
        self->strikes[1].lasts_ns = 1 + (int64_t)storm_draw(&state, 3 * SECOND);
        self->strikes[2] = (strike){.moment = AT_TOLD, .kind = KILL};
        self->strike_count = 3;
    }
    self->what.workers = self->what.workers < 4 ? 4 : self->what.workers;
}

void storm_plan_breaks(storm *self, uint64_t seed, int64_t last_ns)
{
    uint64_t state = seed * 86028121 + 13;
    (void)storm_draw(&state, 2);
    if (storm_draw(&state, 3) > 0) {
        return;
    }
    for (uint32_t i = 0; i < BREAKS_MAX; i++) {
        const uint32_t first = (uint32_t)storm_draw(&state, 1000);
        const uint64_t within_ns = storm_draw(&state, 2) == 0 ? 5000000 : (uint64_t)last_ns + SECOND;
        const int64_t at_ns = 1 + (int64_t)storm_draw(&state, within_ns);
        self->faults[self->fault_count++] = (fault){.kind = RESET, .members = first, .at_ns = at_ns};
        strike *at = &self->strikes[self->strike_count++];
        *at = (strike){.moment = AT_RETURN, .kind = RESET, .state = state};
        at->moment = storm_draw(&state, 2) == 0 ? AT_RETURN : storm_draw(&state, MOMENTS);
        at->after_ns = storm_draw(&state, 3) == 0 ? 0 : (int64_t)storm_draw(&state, 3000000);
    }
    if (self->what.servers > 0 && storm_draw(&state, 2) == 0) {
        const uint32_t server = self->what.workers + (uint32_t)storm_draw(&state, self->what.servers);
        const int64_t at_ns =
            2 + (int64_t)storm_draw(&state, storm_draw(&state, 2) == 0 ? 5000000 : (uint64_t)last_ns + SECOND);
        self->faults[self->fault_count++] = (fault){.kind = DRAIN, .members = 1u << server, .at_ns = at_ns};
    }
}

void storm_plan_lonely_drain(storm *self, uint64_t seed)
{
    uint64_t state = seed * 122949823 + 21;
    (void)storm_draw(&state, 2);
    const bool is_small = self->what.joins == 0 && self->what.late == 0 && !self->what.apart;
    if (!self->what.has_groups || !is_small || storm_draw(&state, 3) > 0) {
        return;
    }
    self->what.workers = self->what.workers < 4 ? 2 : 4;
    self->what.servers = 1;
    self->what.colocated = true;
    self->what.has_store = self->what.late_groups = false;
    self->strike_count = 0;
    self->fault_count = 3;
    const uint32_t half = (1u << self->what.workers / 2) - 1;
    const int64_t at_ns = 1 + (int64_t)storm_draw(&state, SECOND);
    const int64_t pause_ns = 6 * SECOND + (int64_t)storm_draw(&state, 10 * SECOND);
    const int64_t asks_ns = at_ns + 1 + (int64_t)storm_draw(&state, SECOND);
    self->faults[0] = (fault){.kind = PAUSE, .members = half, .at_ns = at_ns, .lasts_ns = pause_ns};
    self->faults[1] = (fault){.kind = DRAIN, .members = 1u << self->what.workers, .at_ns = asks_ns};
    self->faults[2] = (fault){.kind = CUT, .members = half, .at_ns = at_ns + pause_ns - 1};
    self->quiet_ns = self->faults[2].at_ns + 14 * SECOND;
}

static bool takes_part(const storm *self, uint32_t member)
{
    const sim_member *at = &self->bed->job->members[member];
    return !at->killed && !at->ended_told && at->engine->roster != NULL && (self->paused >> member & 1) == 0;
}

/* The member whose place in the last roster of that one is the given place, or TRIB_NO_MEMBER. */
static uint32_t find_member(const storm *self, const trib_engine *engine, uint32_t place)
{
    for (uint32_t i = 0; i < storm_members(self); i++) {
        const trib_engine *at = self->bed->job->members[i].engine;
        if (takes_part(self, i) && at->roster != NULL && at->roster->epoch == engine->roster->epoch &&
            at->formation.place == place) {
            return i;
        }
    }
    return TRIB_NO_MEMBER;
}

/* Beside the coordinator this worker alone has heard of a success in this epoch. */
static bool is_ahead(const storm *self, uint32_t member)
{
    const trib_engine *engine = self->bed->job->members[member].engine;
    const trib_formation *mine = &engine->formation;
    for (uint32_t t = 0; t < mine->committed_count; t++) {
        bool alone = mine->committed[t] > 0 && !mine->is_settled;
        for (uint32_t i = 0; alone && i < self->what.workers; i++) {
            const trib_engine *other = self->bed->job->members[i].engine;
            const trib_formation *theirs = &other->formation;
            const bool counts = i != member && takes_part(self, i) && other->coordinator == NULL;
            alone = !counts || t >= theirs->committed_count || theirs->committed[t] < mine->committed[t];
        }
        if (alone) {
            return true;
        }
    }
    return false;
}

static uint32_t ballot_of_first(const trib_roster *roster)
{
    return (roster->members[0].roles & TRIB_ROLE_COORDINATOR) != 0 ? 0 : 1;
}

/* Returns the member that the moment is about, if it is that moment for the given one; else TRIB_NO_MEMBER. */
static uint32_t look_at(const storm *self, uint32_t member, const strike *what)
{
    const trib_engine *engine = self->bed->job->members[member].engine;
    const trib_formation *formation = &engine->formation;
    const trib_coordinator *coordinator = engine->coordinator;
    const bool has_office = formation->coordinates && formation->ballot > 0;
    switch (what->moment) {
    case AT_OPEN:
        return trib_election_is_open(engine) ? find_member(self, engine, engine->election->candidate) : TRIB_NO_MEMBER;
    case AT_SUCCESS:
        return member > 0 && member < self->what.workers && coordinator == NULL && is_ahead(self, member)
                   ? member
                   : TRIB_NO_MEMBER;
    case AT_RETURN:
        return coordinator != NULL && trib_formation_gathers(coordinator) && coordinator->joined > 1 ? member
                                                                                                     : TRIB_NO_MEMBER;
    case AT_DECISION:
        return has_office && formation->is_settled ? member : TRIB_NO_MEMBER;
    case AT_TOLD:
        return !has_office && formation->is_settled && formation->settled_ballot > 0
                   ? find_member(self, engine, formation->settled_ballot - ballot_of_first(engine->roster))
                   : TRIB_NO_MEMBER;
    default:
        return has_office && coordinator != NULL && coordinator->running && !formation->is_known ? member
                                                                                                 : TRIB_NO_MEMBER;
    }
}

static void add_fault(storm *self, strike *what, uint32_t candidate, int64_t now_ns)
{
    const uint32_t other = (uint32_t)storm_draw(&what->state, storm_members(self));
    const uint32_t victim = what->at_other ? other : candidate;
    fault *at = &self->faults[self->fault_count++];
    *at = (fault){.kind = what->kind, .members = 1u << victim, .at_ns = now_ns + 1 + what->after_ns};
    at->lasts_ns = what->lasts_ns;
    if (what->kind == SHUN) {
        at->members = 1u << candidate | 1u << other;
    } else if (what->kind == RESET) {
        *at = (fault){.kind = RESET, .members = (uint32_t)storm_draw(&what->state, 1000), .at_ns = at->at_ns};
    } else if (what->kind == WAKE) {
        at->members = self->paused;
        at->lasts_ns = 0;
    }
    if (what->moment == AT_SUCCESS) { /* that worker is back later, and the coordinator is not */
        *at = (fault){.kind = CUT, .members = 1u << candidate, .at_ns = now_ns + 1, .lasts_ns = what->lasts_ns};
        self->faults[self->fault_count++] = (fault){.kind = KILL, .members = 1, .at_ns = now_ns + 1};
        self->hit |= 1;
    }
    self->hit |= at->kind != RESET ? at->members : 0;
    const int64_t quiet_ns = at->at_ns + at->lasts_ns + 14 * SECOND;
    self->quiet_ns = quiet_ns > self->quiet_ns ? quiet_ns : self->quiet_ns;
}

bool storm_strikes(storm *self, int64_t began_ns)
{
    for (uint32_t k = 0; k < self->strike_count; k++) {
        strike *what = &self->strikes[k];
        for (uint32_t i = 0; !what->is_done && i < storm_members(self); i++) {
            const uint32_t about = takes_part(self, i) ? look_at(self, i, what) : TRIB_NO_MEMBER;
            if (about != TRIB_NO_MEMBER) {
                what->is_done = true;
                add_fault(self, what, about, trib_sim_now(self->bed->job->sim) - began_ns);
                return true;
            }
        }
    }
    return false;
}

/* storm_store.c - the store of a storm's job: how slow it is, when it is away, and who reaches it. */
#include "tests/sim/storm_internal.h"

/* Numbers of its own, so that a seed's faults are the same with a store and without. */
void storm_plan_store(storm *self, uint64_t seed)
{
    uint64_t state = seed * 104729 + 7;
    (void)storm_draw(&state, 2);
    self->what.has_store = storm_draw(&state, 2) != 0;
    self->is_everywhere = storm_draw(&state, 2) != 0;
    self->lie = storm_draw(&state, 4) == 0 ? (trib_sim_lie)storm_draw(&state, TRIB_SIM_LIE_COUNT) : TRIB_SIM_TRUTH;
    self->lies_ns = storm_draw(&state, 3) == 0 ? 0 : (int64_t)storm_draw(&state, (uint64_t)self->quiet_ns);
    self->away_ns = storm_draw(&state, 2) == 0 ? (int64_t)storm_draw(&state, (uint64_t)self->quiet_ns) : INT64_MAX;
    self->back_ns = self->away_ns != INT64_MAX ? self->away_ns + (int64_t)storm_draw(&state, 20 * SECOND) : INT64_MAX;
}

static bool reaches(void *user, const trib_reactor *reactor)
{
    const storm *self = user;
    for (uint32_t i = 0; i < self->bed->job->member_count; i++) {
        const sim_member *at = &self->bed->job->members[i];
        if (at->process == trib_sim_reactor_process(reactor)) {
            return !at->killed && (self->is_everywhere || (self->cut >> i & 1) == 0);
        }
    }
    return false;
}

void storm_open_store(storm *self, uint64_t seed)
{
    static const int64_t delays_ns[] = {1000, 1000000, 300000000, 1500000000};
    trib_sim_store *store = &self->bed->job->store;
    uint64_t state = seed * 1299709 + 3;
    (void)storm_draw(&state, 2);
    store->delay_ns = delays_ns[storm_draw(&state, 4)];
    store->lost_one_in = storm_draw(&state, 3) == 0 ? 3 : 0;
    store->late_one_in = storm_draw(&state, 3) == 0 ? 3 : 0;
    store->reaches = reaches;
    store->user = self;
}

int64_t storm_keep_store(storm *self, int64_t now_ns)
{
    trib_sim_store *store = &self->bed->job->store;
    store->is_away = now_ns >= self->away_ns && now_ns < self->back_ns;
    store->lie = now_ns >= self->lies_ns ? self->lie : TRIB_SIM_TRUTH;
    const int64_t times_ns[] = {self->lies_ns, self->away_ns, self->back_ns};
    int64_t next_ns = INT64_MAX;
    for (uint32_t i = 0; i < 3; i++) {
        next_ns = times_ns[i] > now_ns && times_ns[i] < next_ns ? times_ns[i] : next_ns;
    }
    return next_ns;
}

/* storm_internal.h - declarations that the files of storm.h share: storm.c, storm_strikes.c and storm_store.c. */
#ifndef TRIB_TESTS_SIM_STORM_INTERNAL_H
#define TRIB_TESTS_SIM_STORM_INTERNAL_H

#include "tests/sim/storm.h"
#include "tests/sim/worker_loss.h"

enum { DRAWN_MAX = 3, STRIKES_MAX = 3, BREAKS_MAX = 2, NUMBERS_MAX = 64 };
enum { FAULTS_MAX = DRAWN_MAX + 2 * (JOINERS_MAX + 1) + STRIKES_MAX + 1 + 2 * BREAKS_MAX + 1 };

typedef struct fault {
    /* DEAF, MUTE: cut off one way; SHUN: two members do not reach each other; WAKE: all that stand still go on;
     * RESET: some connections end, which may hit nobody; DRAIN: a server leaves in good order */
    enum { KILL, PAUSE, CUT, DEAF, MUTE, START, SHUN, WAKE, RESET, DRAIN } kind;
    uint32_t members; /* a set; RESET: the first of the connections */
    int64_t at_ns, lasts_ns;
} fault;

/* A fault that waits for a moment of an election, and hits whom it is about then. */
typedef struct strike {
    enum {
        AT_OPEN,
        AT_DECISION,
        AT_TOLD,
        AT_ROSTER,
        MOMENTS,
        AT_SUCCESS = MOMENTS,
        AT_RETURN
    } moment;      /* AT_RETURN: some are back between two epochs */
    bool at_other; /* another member, drawn then, instead of the candidate */
    int kind;      /* of the fault */
    int64_t after_ns, lasts_ns;
    uint64_t state; /* of the draw of the other member */
    bool is_done;
} strike;

typedef struct storm {
    bed *bed;
    setting what;
    uint32_t fault_count, hit; /* hit: the set of members that some fault concerns */
    fault faults[FAULTS_MAX];
    uint32_t strike_count;
    strike strikes[STRIKES_MAX + BREAKS_MAX];
    uint32_t coordinator_of[NUMBERS_MAX]; /* by epoch: the member that forms it, plus one */
    uint32_t paused;
    int64_t quiet_ns; /* after the last fault */
    /* The store. */
    bool is_everywhere; /* who is cut off from the others reaches it, so that both sides ask */
    uint32_t cut;       /* members that are cut off */
    trib_sim_lie lie;
    int64_t lies_ns, away_ns, back_ns; /* when it begins to lie, is away, and is back */
} storm;

static inline uint64_t storm_draw(uint64_t *state, uint64_t below)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (*state >> 33) % below;
}

static inline uint32_t storm_members(const storm *self)
{
    return self->what.workers + self->what.servers;
}

/* Plans whether the job has a store, and how that fails. */
void storm_plan_store(storm *self, uint64_t seed);
void storm_open_store(storm *self, uint64_t seed);
/* Sees to it that the store is as it is planned at that time. Returns when that changes next. */
int64_t storm_keep_store(storm *self, int64_t now_ns);
/* Plans strikes in some of the jobs, which have enough members then. */
void storm_plan_strikes(storm *self, uint64_t seed);
/* Plans connections that are reset, and servers that are drained, in some of the jobs. */
void storm_plan_breaks(storm *self, uint64_t seed, int64_t last_ns);
/* In some of the jobs that have groups, a server is drained while the coordinator is alone with half of the workers. */
void storm_plan_lonely_drain(storm *self, uint64_t seed);
/* Returns true if the moment of a strike has come. The faults have one more then. */
bool storm_strikes(storm *self, int64_t began_ns);

#endif

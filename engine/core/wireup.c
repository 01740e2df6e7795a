/* wireup.c - the data links that a core makes and awaits, and its reports of failed ones (wireup.h). */
#include "engine/core/wireup.h"

#include <stdio.h>

#include "engine/base/assert.h"
#include "engine/link/link_handshake.h"

/* A shortage shorter than this ends nothing. Callers give up after 5 s over shared memory, and after 10 s otherwise. */
#define SHORTAGE_MAX_NS (2 * INT64_C(1000000000))
#define NS_PER_S 1e9
#define VERDICT_NS INT64_C(1000000000)

static uint32_t machine_of(const trib_roster *roster, uint32_t rank)
{
    return rank / roster->local_size;
}

/* True if a worker's core connects to a member's core. `deals` means that the member sums and the two cores share
 * keys. `is_twin` means that the two cores have the same index. */
static bool connects(const trib_engine *engine, uint32_t worker, uint32_t member, bool deals, bool is_twin)
{
    const trib_roster *roster = engine->roster;
    if (deals || roster->local_size == 0) {
        return deals; /* also where machines sum first: pairs and groups go to the members that sum without a relay */
    }
    return is_twin && member < roster->worker_count && machine_of(roster, member) == machine_of(roster, worker);
}

bool trib_wireup_connects_to(const trib_core *core, uint32_t member, uint32_t reactor)
{
    const trib_engine *engine = core->engine;
    const uint32_t me = core->reactor->index;
    const bool deals = engine->roster->members[member].sums && reactor % engine->core_count == me;
    return connects(engine, engine->member_id, member, deals, reactor == me);
}

bool trib_wireup_expects_worker(const trib_core *core, uint32_t worker)
{
    const trib_engine *engine = core->engine;
    const uint32_t me = engine->member_id;
    return worker != me && connects(engine, worker, me, engine->roster->members[me].sums, true);
}

void trib_wireup_expect_peers(trib_core *core)
{
    trib_assert(core->wireup_missing == 0);
    for (uint32_t i = 0; i < core->engine->roster->worker_count; i++) {
        core->wireup_missing += core->worker_links[i] == NULL && trib_wireup_expects_worker(core, i);
    }
}

void trib_wireup_note_peer(trib_core *core, uint32_t worker)
{
    if (core->wireup_missing > 0 && trib_wireup_expects_worker(core, worker)) {
        core->wireup_missing--;
    }
}

void trib_wireup_check(trib_core *core)
{
    int64_t for_ns = 0;
    const int shortage = core->wireup_missing > 0 ? trib_reactor_find_shortage(core->reactor, &for_ns) : 0;
    if (shortage == 0 || for_ns < SHORTAGE_MAX_NS) {
        return;
    }
    if (trib_link_handshake_send_away(&core->host)) {
        /* closed half-open connections free the resource that other callers need */
        trib_reactor_end_shortage(core->reactor);
        return;
    }
    char why[TRIB_REASON_MAX], detail[TRIB_ERROR_TEXT_SIZE];
    snprintf(detail, sizeof detail, "could let nobody else connect for %.1f s: %s", (double)for_ns / NS_PER_S,
             trib_log_reason(shortage, why));
    core->wireup_missing = 0;
    const uint32_t me = core->engine->member_id;
    const trib_cause cause = trib_cause_about(TRIB_SYSTEM, TRIB_CAUSE_SHORTAGE, TRIB_SUBJECT_MEMBER, me, me, detail);
    trib_job_end(core->engine, &cause);
}

static void no_verdict(trib_reactor *reactor, trib_timer *timer)
{
    (void)timer;
    trib_core *core = reactor->owner;
    trib_job_member_lost(core->engine, &core->doubt_cause);
}

void trib_wireup_defer_failure(trib_core *core, const trib_cause *cause)
{
    if (core->doubt.armed || core->ended) {
        return; /* the first failure counts */
    }
    core->doubt_cause = *cause;
    core->doubt.fired = no_verdict;
    trib_timer_arm(core->reactor, &core->doubt, trib_now(core->reactor) + VERDICT_NS);
}

void trib_wireup_stop(trib_core *core)
{
    trib_timer_stop(core->reactor, &core->doubt);
}

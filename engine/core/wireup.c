/* wireup.c - the data links that a core makes and awaits, and its reports of failed ones (wireup.h). */
#include "engine/core/wireup.h"

#include <stdio.h>
#include <stdlib.h>

#include <utlist.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/link/link_handshake.h"

/* A shortage shorter than this ends nothing. Callers give up after 5 s over shared memory, and after 10 s otherwise. */
#define SHORTAGE_MAX_NS (2 * INT64_C(1000000000))
#define NS_PER_S 1e9
#define VERDICT_NS INT64_C(1000000000)
#define DOUBT_TICK_NS (20 * INT64_C(1000000))

/* A connection that could not be made. Its peer may have left. */
typedef struct trib_doubt {
    uint32_t member;
    int64_t since_ns;
    trib_cause cause;
    struct trib_doubt *next;
} trib_doubt;

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

static bool has_left(const trib_core *core, uint32_t member)
{
    int64_t since_ns;
    return trib_departed_has(&core->engine->departed, member, &since_ns);
}

trib_status trib_wireup_expect_peers(trib_core *core)
{
    trib_assert(core->wireup_awaited == NULL);
    const uint32_t worker_count = core->engine->roster->worker_count;
    core->wireup_awaited = trib_core_zalloc(core, worker_count * sizeof *core->wireup_awaited);
    if (core->wireup_awaited == NULL) {
        return TRIB_NO_MEMORY;
    }
    for (uint32_t i = 0; i < worker_count; i++) {
        core->wireup_awaited[i] = core->worker_links[i] == NULL && trib_wireup_expects_worker(core, i);
    }
    return TRIB_OK;
}

void trib_wireup_note_peer(trib_core *core, uint32_t worker)
{
    if (core->wireup_awaited != NULL) {
        core->wireup_awaited[worker] = false;
    }
}

bool trib_wireup_awaits(const trib_core *core)
{
    for (uint32_t i = 0; core->wireup_awaited != NULL && i < core->engine->roster->worker_count; i++) {
        if (core->wireup_awaited[i] && !has_left(core, i)) {
            return true;
        }
    }
    return false;
}

void trib_wireup_check(trib_core *core)
{
    int64_t for_ns = 0;
    const int shortage = trib_wireup_awaits(core) ? trib_reactor_find_shortage(core->reactor, &for_ns) : 0;
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
    const uint32_t me = core->engine->member_id;
    const trib_cause cause = trib_cause_about(TRIB_SYSTEM, TRIB_CAUSE_SHORTAGE, TRIB_SUBJECT_MEMBER, me, me, detail);
    trib_job_end(core->engine, &cause);
}

/* ---- Connections that could not be made ---- */

void trib_wireup_drop_link(trib_core *core)
{
    trib_assert(core->links_missing > 0);
    if (--core->links_missing == 0 && !core->ended) {
        core->engine->hooks->core_joined(core);
    }
}

const char *trib_wireup_missing_name(const trib_core *core)
{
    const trib_roster *roster = core->engine->roster;
    for (uint32_t i = 0; roster != NULL && core->owner_links != NULL && i < roster->member_count; i++) {
        for (uint32_t k = 0; k < roster->members[i].reactors; k++) {
            if (trib_wireup_connects_to(core, i, k) && core->owner_links[i * TRIB_REACTORS_MAX + k] == NULL &&
                !has_left(core, i)) {
                return trib_roster_name(roster, i);
            }
        }
    }
    return "another member";
}

/* Core 0: the answer to a question that was asked now comes behind all that the coordinator has announced. */
static void ask_arrived(trib_reactor *reactor, trib_post *post)
{
    trib_core *asker = trib_container_of(post, trib_core, ask_post);
    trib_engine *engine = ((trib_core *)reactor->owner)->engine;
    atomic_store(&asker->ask_posted, false);
    if (engine->hooks->ask_time(engine)) {
        atomic_store(&asker->ask_number, atomic_load(&engine->questions));
    }
}

static void ask_coordinator(trib_core *core)
{
    atomic_store(&core->ask_number, 0);
    if (!atomic_exchange(&core->ask_posted, true)) {
        core->ask_post.run = ask_arrived;
        trib_reactor_post(core->engine->reactors[0].reactor, &core->ask_post);
    }
}

static bool is_answered(trib_core *core)
{
    const uint32_t number = atomic_load(&core->ask_number);
    return number != 0 && atomic_load(&core->engine->answers) >= number;
}

static void forget_first(trib_core *core)
{
    trib_doubt *doubt = core->doubts;
    core->doubts = doubt->next;
    free(doubt);
}

/* Links to members that have left are not missing. */
static void drop_departed(trib_core *core)
{
    for (trib_doubt **at = &core->doubts; *at != NULL;) {
        trib_doubt *doubt = *at;
        if (!has_left(core, doubt->member)) {
            at = &doubt->next;
            continue;
        }
        *at = doubt->next;
        free(doubt);
        trib_wireup_drop_link(core);
    }
}

static void check_doubts(trib_reactor *reactor, trib_timer *timer)
{
    trib_core *core = reactor->owner;
    drop_departed(core);
    if (core->doubts == NULL) {
        return;
    }
    const int64_t age_ns = trib_now(reactor) - core->doubts->since_ns;
    if (age_ns < VERDICT_NS || (!is_answered(core) && age_ns < core->engine->roster->peer_timeout_ns)) {
        trib_timer_arm(reactor, timer, trib_now(reactor) + DOUBT_TICK_NS);
        return;
    }
    const trib_cause cause = core->doubts->cause;
    forget_first(core);
    trib_job_member_lost(core->engine, &cause);
}

void trib_wireup_defer_failure(trib_core *core, uint32_t member, const trib_cause *cause)
{
    if (core->ended) {
        return;
    }
    if (has_left(core, member)) {
        trib_wireup_drop_link(core);
        return;
    }
    trib_doubt *doubt = trib_core_zalloc(core, sizeof *doubt);
    if (doubt == NULL) {
        trib_job_member_lost(core->engine, cause);
        return;
    }
    *doubt = (trib_doubt){.member = member, .since_ns = trib_now(core->reactor), .cause = *cause};
    LL_APPEND(core->doubts, doubt);
    ask_coordinator(core);
    core->doubt.fired = check_doubts;
    if (!core->doubt.armed) {
        trib_timer_arm(core->reactor, &core->doubt, trib_now(core->reactor) + DOUBT_TICK_NS);
    }
}

void trib_wireup_stop(trib_core *core)
{
    trib_timer_stop(core->reactor, &core->doubt);
    while (core->doubts != NULL) {
        forget_first(core);
    }
}

void trib_wireup_close(trib_core *core)
{
    trib_wireup_stop(core);
    free(core->wireup_awaited);
    core->wireup_awaited = NULL;
}

/*
 * reopen.c - see reopen.h.
 *
 * Core 0 frees what belongs to the epoch that is over, then each core closes and opens its own parts on its own
 * reactor, then core 0 joins the next epoch. Nothing else runs on the cores meanwhile: no operation is taken. The
 * device stays, with no job of the cores' but waits for callers' streams, which belong to operations (device_op.c).
 */
#include "engine/reopen.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/membership/coordinator.h"
#include "engine/membership/election.h"
#include "engine/membership/member.h"
#include "engine/worker/boundary.h"
#include "engine/worker/op_carry.h"

#define LOOK_NS INT64_C(1000000)

trib_status trib_engine_open_membership(trib_engine *engine, trib_error *error)
{
    const trib_config *config = &engine->config;
    trib_core *core = &engine->cores[0];
    if (engine->formation.coordinates) {
        trib_address bound;
        const trib_status status = trib_coordinator_open(core, &bound, error);
        if (status != TRIB_OK) {
            return status;
        }
        /* A job of one process may ask for port 0; the real port is known now. */
        if (!trib_member_note_coordinator(engine, bound.text)) {
            return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for the coordinator's address");
        }
    }
    return config->roles & (TRIB_ROLE_WORKER | TRIB_ROLE_SERVER) ? trib_member_open(core, error) : TRIB_OK;
}

/* Core 0: the next epoch is joined. */
static void join(trib_reactor *reactor, trib_post *post)
{
    (void)post;
    trib_engine *engine = ((trib_core *)reactor->owner)->engine;
    trib_error error = {.status = TRIB_OK};
    trib_rank_sets_free(engine); /* all cores have closed what used them */
    trib_job_reopened(engine);
    trib_carry_submit(engine);
    if (!atomic_load(&engine->changing)) {
        return; /* the job has ended meanwhile */
    }
    if (trib_engine_open_membership(engine, &error) != TRIB_OK) {
        trib_job_fail(engine, error.status, error.text);
    }
}

static void look_again(trib_reactor *reactor, trib_timer *timer);

static void reopen_core(trib_reactor *reactor, trib_post *post)
{
    trib_core *core = trib_container_of(post, trib_core, reopen_post);
    trib_engine *engine = core->engine;
    trib_error error = {.status = TRIB_OK};
    if (core->host.links != NULL) { /* somebody has connected meanwhile, and is being turned away */
        core->tick.fired = look_again;
        trib_timer_arm(reactor, &core->tick, trib_now(reactor) + LOOK_NS);
        return;
    }
    if (trib_core_reopen(core, &error) != TRIB_OK) {
        trib_job_fail(engine, error.status, error.text);
    }
    if (atomic_fetch_sub(&engine->formation.cores_left, 1) == 1) {
        engine->formation.reopen_post.run = join;
        trib_reactor_post(engine->reactors[0].reactor, &engine->formation.reopen_post);
    }
}

static void look_again(trib_reactor *reactor, trib_timer *timer)
{
    (void)timer;
    reopen_core(reactor, &((trib_core *)reactor->owner)->reopen_post);
}

/* Clears the traces of the last epoch. The caller holds the mutex, as other threads read some of them. */
static void reset_job(trib_engine *engine)
{
    atomic_store(&engine->leave_settled, false);
    atomic_store(&engine->job_over, false);
    engine->verdict = (trib_cause){.status = TRIB_OK};
    trib_departed_close(&engine->departed);
    trib_losses_close(&engine->losses);
    if ((engine->config.roles & TRIB_ROLE_WORKER) == 0) {
        engine->member_id = TRIB_NO_MEMBER;
    }
    atomic_store(&engine->cores_joining, engine->core_count);
    atomic_store(&engine->cores_open, engine->core_count);
    atomic_store(&engine->formation.cores_kept, 0);
    atomic_store(&engine->formation.cores_left, engine->core_count);
}

void trib_engine_reopen(trib_reactor *reactor, trib_post *post)
{
    (void)reactor;
    trib_engine *engine = trib_container_of(post, trib_engine, formation.reopen_post);
    trib_assert(engine->group == NULL);
    trib_election_stop(engine);
    trib_coordinator_close(engine->coordinator);
    engine->coordinator = NULL;
    trib_member_close(engine->member);
    engine->member = NULL;
    pthread_mutex_lock(&engine->once_mutex);
    pthread_mutex_lock(&engine->mutex);
    reset_job(engine);
    if (!atomic_load(&engine->formation.continues)) { /* else those that are under way keep their names */
        engine->once_count = 0;
        engine->bytes_calls = 0;
        trib_boundaries_reset(engine);
    }
    trib_rank_groups_end(engine);
    trib_tensors_reset(engine);
    pthread_mutex_unlock(&engine->mutex);
    pthread_mutex_unlock(&engine->once_mutex);
    for (uint32_t i = 0; i < engine->core_count; i++) {
        engine->cores[i].reopen_post.run = reopen_core;
        trib_reactor_post(engine->reactors[i].reactor, &engine->cores[i].reopen_post);
    }
}

/* server_joined.c - workers that have no more data (trib_join): the sums of all others go on without them. */
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/server/server_sum.h"

bool trib_server_rank_has_joined(const trib_engine *engine, uint32_t rank)
{
    return atomic_load(&engine->join.ranks_joined) > 0 && atomic_load(&engine->join.has_joined[rank]);
}

bool trib_server_has_joined(const trib_server_sum *sum, uint32_t contributor, const trib_contribution *what)
{
    const trib_engine *engine = sum->core->engine;
    if (atomic_load(&engine->join.ranks_joined) == 0) {
        return false;
    }
    if (sum->level != TRIB_SUM_HOST) {
        return trib_server_rank_has_joined(engine, trib_server_sum_rank(sum, contributor, what));
    }
    bool have_all = true; /* a machine contributes until its last worker has joined */
    for (uint32_t i = 0; i < sum->rank_step && have_all; i++) {
        have_all = trib_server_rank_has_joined(engine, sum->rank_first + contributor * sum->rank_step + i);
    }
    return have_all;
}

static bool is_absent(void *user, const trib_contribution *what, char *text, size_t size)
{
    const trib_server_sum *sum = user;
    if (!trib_server_has_joined(sum, what->contributor, what)) {
        return false;
    }
    snprintf(text, size,
             "rank %u has joined (trib_join), as it has no more data: until all have, there are only all-reduces among "
             "all workers, of tensors in host memory",
             trib_server_sum_rank(sum, what->contributor, what));
    return true;
}

void trib_server_sum_fill(trib_server_sum *sum, const trib_contribution *what)
{
    if (atomic_load(&sum->core->engine->join.ranks_joined) > 0) {
        sum->aggregator->ops->fill(sum->aggregator, what, is_absent);
    }
}

void trib_server_sums_fill(const trib_core *core)
{
    for (trib_server_sum *sum = NULL; (sum = trib_server_sums_next(core, sum)) != NULL;) {
        if (sum->aggregator != NULL) {
            trib_server_sum_fill(sum, NULL);
        }
    }
}

/* Rounds that wait for the rank already. */
static void fill_all(trib_reactor *reactor, trib_post *post)
{
    trib_core *core = reactor->owner;
    trib_assert(trib_core_is_here(core));
    atomic_store(&trib_container_of(post, trib_core, joined_post)->joined_posted, false);
    if (!core->ended) {
        trib_server_sums_fill(core);
    }
}

/* Core 0: no core is inside a turn that began while the workers counted as joined. */
static void end_joined(trib_reactor *reactor, trib_post *post)
{
    (void)post;
    trib_core *core = reactor->owner;
    trib_engine *engine = core->engine;
    trib_uneven_inputs *join = &engine->join;
    join->is_closing = false;
    atomic_fetch_add(&join->joins_over, 1);
    atomic_store(&join->ranks_joined, 0);
    for (uint32_t i = 0; i < engine->roster->worker_count && join->has_joined != NULL; i++) {
        atomic_store(&join->has_joined[i], false);
    }
    if (!core->ended) {
        engine->hooks->tell_coordinator(engine, &(trib_frame){.type = TRIB_FRAME_JOIN_HEARD}, NULL, 0);
    }
}

/* Goes through all cores: sums are still handed out to others there, or wait for the rank that joined last. */
static void close_joined(trib_reactor *reactor, trib_post *post)
{
    trib_core *core = reactor->owner;
    const trib_engine *engine = core->engine;
    const uint32_t next = reactor->index + 1;
    if (!core->ended) {
        trib_server_sums_fill(core);
    }
    post->run = next < engine->core_count ? close_joined : end_joined;
    trib_reactor_post(engine->cores[next < engine->core_count ? next : 0].reactor, post);
}

trib_status trib_server_take_joined(trib_engine *engine, const trib_frame *frame, trib_error *error)
{
    trib_uneven_inputs *join = &engine->join;
    const uint32_t workers = engine->roster->worker_count;
    trib_assert(trib_core_is_here(&engine->cores[0]));
    if (frame->root == TRIB_JOINED_NOBODY) {
        if (join->is_closing) {
            return trib_error_set(error, TRIB_PROTOCOL, "JOINED of nobody, twice");
        }
        join->is_closing = true;
        join->close_post.run = close_joined;
        trib_reactor_post(engine->cores[0].reactor, &join->close_post);
        return TRIB_OK;
    }
    if (frame->aux >= workers) {
        return trib_error_set(error, TRIB_PROTOCOL, "JOINED of rank %u", frame->aux);
    }
    if (join->has_joined == NULL) {
        join->has_joined = calloc(workers, sizeof *join->has_joined);
        if (join->has_joined == NULL) {
            return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for the workers that have joined");
        }
    }
    atomic_store(&join->has_joined[frame->aux], true);
    atomic_fetch_add(&join->ranks_joined, 1);
    for (uint32_t i = 0; i < engine->core_count; i++) {
        trib_core *core = &engine->cores[i];
        if (!atomic_exchange(&core->joined_posted, true)) {
            core->joined_post.run = fill_all;
            trib_reactor_post(core->reactor, &core->joined_post);
        }
    }
    return TRIB_OK;
}

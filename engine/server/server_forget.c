/* server_forget.c - the end of a tensor or of a group on a server: every core drops its state of the tensor's
 * partitions, or the group's aggregator. */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/server/keeper.h"
#include "engine/server/quorum.h"
#include "engine/server/server_sum.h"
#include "engine/server/server_tensor.h"
#include "engine/server/takeover.h"

typedef struct forget_core {
    trib_post post;
    struct trib_forget *whole;
} forget_core;

/* The end of a tensor or a group on its way through the cores. */
typedef struct trib_forget {
    struct trib_forget *previous, *next; /* neighbours in the engine's list */
    trib_engine *engine;
    trib_contribution what;
    uint32_t partition_count;
    const trib_rank_set *ranks; /* of a group that ends, in the engine's table until then; NULL: a tensor ends */
    void (*done)(trib_engine *engine, uint32_t group);
    atomic_uint cores_left;
    trib_post done_post;
    forget_core cores[];
} forget;

static void forgotten_everywhere(trib_reactor *reactor, trib_post *post)
{
    (void)reactor;
    forget *self = trib_container_of(post, forget, done_post);
    trib_assert(atomic_load(&self->cores_left) == 0);
    const uint32_t group = self->ranks == NULL ? 0 : self->ranks->id;
    if (group > 0) { /* no core is inside a turn in which it has looked the group up */
        atomic_store(&self->engine->rank_sets[group], NULL);
        trib_rank_set_unref(self->ranks);
    }
    self->done(self->engine, group);
    DL_DELETE2(self->engine->forgets, self, previous, next);
    free(self);
}

void trib_server_forgets_free(trib_engine *engine)
{
    while (engine->forgets != NULL) { /* the cores ended before these reached them all */
        forget *first = engine->forgets;
        DL_DELETE2(engine->forgets, first, previous, next);
        free(first);
    }
}

static bool reserve(trib_core *core, uint32_t tensor)
{
    if (tensor < core->sums_over_capacity) {
        return true;
    }
    uint32_t capacity = core->sums_over_capacity == 0 ? 64 : core->sums_over_capacity;
    while (capacity <= tensor) {
        capacity *= 2;
    }
    uint32_t *bigger = trib_core_zalloc(core, capacity * sizeof *bigger);
    if (bigger == NULL) {
        return false;
    }
    if (core->sums_over_capacity > 0) {
        memcpy(bigger, core->sums_over, core->sums_over_capacity * sizeof *bigger);
    }
    free(core->sums_over);
    core->sums_over = bigger;
    core->sums_over_capacity = capacity;
    return true;
}

static void forget_on_core(trib_reactor *reactor, trib_post *post)
{
    forget *self = trib_container_of(post, forget_core, post)->whole;
    trib_core *core = reactor->owner;
    if (self->ranks != NULL) {
        if (core->sums != NULL) {
            trib_server_end_group(core, self->ranks->id);
        }
    } else if (core->sums != NULL && !reserve(core, self->what.tensor)) {
        trib_job_fail(core->engine, TRIB_NO_MEMORY, "out of memory for the end of a tensor");
    } else if (core->sums != NULL) {
        if (self->what.round > core->sums_over[self->what.tensor]) { /* rounds of a number never restart */
            core->sums_over[self->what.tensor] = self->what.round;
        }
        trib_takeovers_forget(core, self->what.tensor);
        trib_keepers_forget(core, self->what.tensor);
        trib_quorums_forget(core, self->what.tensor);
        trib_server_forget_tensor(core, self->what.tensor);
        for (trib_server_sum *sum = NULL; (sum = trib_server_sums_next(core, sum)) != NULL;) {
            trib_aggregator *aggregator = sum->aggregator;
            trib_contribution what = self->what;
            for (; aggregator != NULL && what.partition < self->partition_count; what.partition++) {
                aggregator->ops->forget(aggregator, &what);
            }
        }
    }
    trib_assert(trib_core_is_here(core));
    const unsigned left = atomic_fetch_sub(&self->cores_left, 1);
    trib_assert(left > 0 && left <= core->engine->core_count);
    if (left == 1) {
        self->done_post.run = forgotten_everywhere;
        trib_reactor_post(self->engine->cores[0].reactor, &self->done_post);
    }
}

static trib_status send_to_cores(trib_engine *engine, const forget *what)
{
    forget *self = calloc(1, sizeof *self + engine->core_count * sizeof self->cores[0]);
    if (self == NULL) {
        return TRIB_NO_MEMORY;
    }
    *self = *what;
    self->engine = engine;
    DL_APPEND2(engine->forgets, self, previous, next);
    atomic_store(&self->cores_left, engine->core_count);
    for (uint32_t i = 0; i < engine->core_count; i++) {
        self->cores[i].whole = self;
        self->cores[i].post.run = forget_on_core;
        trib_reactor_post(engine->cores[i].reactor, &self->cores[i].post);
    }
    return TRIB_OK;
}

trib_status trib_server_forget(trib_engine *engine, const trib_frame *frame,
                               void (*done)(trib_engine *engine, uint32_t group))
{
    return send_to_cores(engine, &(forget){.what = {.tensor = frame->tensor, .round = frame->round},
                                           .partition_count = frame->partition,
                                           .done = done});
}

trib_status trib_server_forget_group(trib_engine *engine, const trib_rank_set *ranks,
                                     void (*done)(trib_engine *engine, uint32_t group))
{
    trib_assert(ranks != NULL && ranks->id > 0);
    return send_to_cores(engine, &(forget){.ranks = ranks, .done = done});
}

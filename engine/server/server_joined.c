/* server_joined.c - workers that have no more data (trib_join): the sums of all others go on without them. */
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/base/hash.h"
#include "engine/server/server_sum.h"

static bool rank_has_joined(const trib_engine *engine, uint32_t rank)
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
        return rank_has_joined(engine, trib_server_sum_rank(sum, contributor, what));
    }
    bool have_all = true; /* a machine contributes until its last worker has joined */
    for (uint32_t i = 0; i < sum->rank_step && have_all; i++) {
        have_all = rank_has_joined(engine, sum->rank_first + contributor * sum->rank_step + i);
    }
    return have_all;
}

/* ---- Rounds that were given up before a join ---- */

/* A worker that has joined gave up rounds of a tensor before. What it has sent to them may be on its way. */
typedef struct trib_given_up {
    uint64_t key;   /* its rank and the tensor's id */
    uint32_t round; /* the last one */
    UT_hash_handle hh;
} trib_given_up;

static uint64_t key_of(uint32_t rank, uint32_t tensor)
{
    return (uint64_t)rank << 32 | tensor;
}

/* JOINED may overtake what the worker has sent before, and on a machine what its relay has yet to send. Every round up
 * to the one that the worker gave up last gets its contribution or its withdrawal. */
static bool is_on_its_way(const trib_server_sum *sum, const trib_contribution *what)
{
    trib_engine *engine = sum->core->engine;
    if (atomic_load(&engine->join.given_up_count) == 0) {
        return false;
    }
    const bool is_machine = sum->level == TRIB_SUM_HOST;
    const uint32_t first = is_machine ? sum->rank_first + what->contributor * sum->rank_step
                                      : trib_server_sum_rank(sum, what->contributor, what);
    bool is = false;
    pthread_mutex_lock(&engine->mutex);
    for (uint32_t rank = first; rank < first + (is_machine ? sum->rank_step : 1) && !is; rank++) {
        const uint64_t key = key_of(rank, what->tensor);
        trib_given_up *given_up = NULL;
        HASH_FIND(hh, engine->join.given_up, &key, sizeof key, given_up);
        is = given_up != NULL && what->round <= given_up->round;
    }
    pthread_mutex_unlock(&engine->mutex);
    return is;
}

/* The caller holds the mutex. Returns false if there is no memory. */
static bool note_given_up(trib_uneven_inputs *join, uint64_t key, uint32_t round)
{
    trib_given_up *given_up = NULL;
    HASH_FIND(hh, join->given_up, &key, sizeof key, given_up);
    if (given_up == NULL) {
        given_up = calloc(1, sizeof *given_up);
        if (given_up == NULL) {
            return false;
        }
        given_up->key = key;
        HASH_ADD(hh, join->given_up, key, sizeof given_up->key, given_up);
        if (given_up->hh.tbl == NULL) {
            free(given_up);
            return false;
        }
        atomic_fetch_add(&join->given_up_count, 1);
    }
    given_up->round = given_up->round < round ? round : given_up->round;
    return true;
}

static bool take_given_up(trib_engine *engine, const trib_frame *frame, const void *payload)
{
    trib_reader reader = {.data = payload, .left = frame->payload_size};
    bool has_memory = true;
    pthread_mutex_lock(&engine->mutex);
    while (reader.left > 0 && has_memory) {
        const uint32_t tensor = trib_get_u32(&reader), round = trib_get_u32(&reader);
        has_memory = note_given_up(&engine->join, key_of(frame->aux, tensor), round);
    }
    pthread_mutex_unlock(&engine->mutex);
    return has_memory;
}

static void forget_given_up(trib_uneven_inputs *join)
{
    trib_given_up *given_up, *next;
    atomic_store(&join->given_up_count, 0);
    HASH_ITER(hh, join->given_up, given_up, next)
    {
        HASH_DEL(join->given_up, given_up);
        free(given_up);
    }
}

void trib_server_joined_free(trib_engine *engine)
{
    forget_given_up(&engine->join);
    free(engine->join.has_joined);
}

/* ---- Neutral elements ---- */

static bool is_absent(void *user, const trib_contribution *what, char *text, size_t size)
{
    const trib_server_sum *sum = user;
    if (!trib_server_has_joined(sum, what->contributor, what) || is_on_its_way(sum, what)) {
        return false;
    }
    snprintf(text, size,
             "rank %u has joined (trib_join), as it has no more data: until all have, there are only all-reduces among "
             "all workers, of tensors in host memory",
             trib_server_sum_rank(sum, what->contributor, what));
    return true;
}

/* True if all have joined since the round was begun: whoever has sent something to it gave it up. */
static bool is_past(void *user, const trib_contribution *what, char *text, size_t size)
{
    const trib_server_sum *sum = user;
    snprintf(text, size, "all workers have joined (trib_join) since round %u", what->round);
    return what->joins != atomic_load(&sum->core->engine->join.joins_over);
}

void trib_server_sum_fill(trib_server_sum *sum, const trib_contribution *what)
{
    if (what != NULL && what->is_late) {
        sum->aggregator->ops->fill(sum->aggregator, what, is_past);
    } else if (atomic_load(&sum->core->engine->join.ranks_joined) > 0) {
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

/* ---- The coordinator's word ---- */

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
    pthread_mutex_lock(&engine->mutex);
    forget_given_up(join);
    pthread_mutex_unlock(&engine->mutex);
    if (!core->ended) {
        engine->hooks->tell_coordinator(engine, &(trib_frame){.type = TRIB_FRAME_JOIN_HEARD}, NULL, 0);
    }
}

/* Goes through all cores: sums are still handed out to others there. */
static void close_joined(trib_reactor *reactor, trib_post *post)
{
    const trib_engine *engine = ((trib_core *)reactor->owner)->engine;
    const uint32_t next = reactor->index + 1;
    post->run = next < engine->core_count ? close_joined : end_joined;
    trib_reactor_post(engine->cores[next < engine->core_count ? next : 0].reactor, post);
}

trib_status trib_server_take_joined(trib_engine *engine, const trib_frame *frame, const void *payload,
                                    trib_error *error)
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
    if (frame->aux >= workers || frame->payload_size % TRIB_JOINED_ENTRY_BYTES != 0) {
        return trib_error_set(error, TRIB_PROTOCOL, "malformed JOINED of rank %u", frame->aux);
    }
    if (join->has_joined == NULL) { /* other cores read the pointer once some rank has joined */
        join->has_joined = calloc(workers, sizeof *join->has_joined);
    }
    if (join->has_joined == NULL || !take_given_up(engine, frame, payload)) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for the workers that have joined");
    }
    if (frame->chunk != TRIB_JOIN_LAST) {
        return TRIB_OK;
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

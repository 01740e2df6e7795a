/* op_commit.c - see op_commit.h. */
#include "engine/worker/op_commit.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/worker/op_carry.h"

#define TOLD_AT_ONCE 512u /* rounds in a SETTLED */

/* ---- Any core ---- */

static bool is_gated(const trib_engine *engine)
{
    return atomic_load(&engine->shrinks);
}

bool trib_commit_holds(trib_op *op)
{
    const int claim = atomic_load(&op->claim);
    /* A change of the membership has cut it short, here or on a worker that has heard of it sooner. */
    const bool is_cut = claim == TRIB_EPOCH_CHANGED || claim == TRIB_PEER_LOST;
    op->is_held = is_gated(op->engine) && (claim == 0 || (is_cut && atomic_load(&op->engine->continues)));
    if (op->is_held) {
        atomic_fetch_add(&op->engine->ops_held, 1);
    }
    return op->is_held;
}

/* ---- Core 0 ---- */

static void complete_held(trib_core *core, trib_op *op)
{
    trib_assert(op->is_held && atomic_load(&op->engine->ops_held) > 0 && trib_core_is_here(core));
    op->is_held = false;
    atomic_fetch_sub(&op->engine->ops_held, 1);
    trib_op_complete(op, core);
}

static void finish_held(trib_core *core, trib_op *op)
{
    complete_held(core, op);
    trib_op_unref(op);
}

/* An operation that failed because the membership changes tells nothing: the others' must not succeed for that. */
static bool is_told(const trib_core *core, const trib_op *op)
{
    const int claim = atomic_load(&op->claim);
    return !core->ended && op->spread && atomic_load(&op->tensor->placed) && claim != TRIB_PEER_LOST &&
           claim != TRIB_EPOCH_CHANGED;
}

static void send_settled(const trib_core *core, trib_writer *writer)
{
    const trib_frame frame = {.type = TRIB_FRAME_SETTLED};
    if (writer->size > 0) {
        core->engine->hooks->tell_coordinator(core->engine, &frame, writer->data, writer->size);
        writer->size = 0;
    }
}

static void hold_op(trib_core *core, trib_op *op)
{
    if (core->ended && !trib_carry_take(core, op)) {
        trib_op_fail(op, core->ended_status, "%s", core->ended_text);
        finish_held(core, op);
    } else if (!core->ended) {
        op->next = NULL;
        *core->held_last = op;
        core->held_last = &op->next;
    }
}

/* An operation has failed on this worker alone. Where operations go on in the next epoch, its round has to be spent
 * there, unless all are through with it before. */
static void keep_spent(trib_core *core, trib_op *op)
{
    trib_formation *formation = &core->engine->formation;
    if (core->ended ? trib_carry_take(core, op) : false) {
        return;
    }
    if (core->ended || !atomic_load(&core->engine->continues) || !is_told(core, op)) {
        trib_op_unref(op);
        return;
    }
    op->next = formation->spent;
    formation->spent = op;
}

/* All are through with the tensor's rounds up to that one. */
static void forget_spent(trib_core *core, uint32_t tensor, uint32_t round)
{
    trib_op **at = &core->engine->formation.spent;
    while (*at != NULL) {
        trib_op *op = *at;
        if (op->tensor->id == tensor && op->round <= round) {
            *at = op->next;
            trib_op_unref(op);
        } else {
            at = &op->next;
        }
    }
}

static void reports_arrived(trib_reactor *reactor, trib_post *post)
{
    trib_core *core = reactor->owner;
    trib_engine *engine = trib_container_of(post, trib_engine, settled_post);
    trib_op *newest = atomic_exchange(&engine->settled_ops, NULL), *oldest = NULL;
    while (newest != NULL) {
        trib_op *op = newest;
        newest = op->next;
        op->next = oldest;
        oldest = op;
    }
    unsigned char payload[TOLD_AT_ONCE * TRIB_SETTLED_BYTES];
    trib_writer writer = {.data = payload, .capacity = sizeof payload};
    while (oldest != NULL) {
        trib_op *op = oldest;
        oldest = op->next;
        if (is_told(core, op)) {
            trib_put_u32(&writer, op->tensor->id);
            trib_put_u32(&writer, op->round);
        }
        if (writer.size == writer.capacity) {
            send_settled(core, &writer);
        }
        if (op->is_held) {
            hold_op(core, op);
        } else {
            keep_spent(core, op);
        }
    }
    send_settled(core, &writer);
}

bool trib_commit_report(trib_op *op)
{
    trib_engine *engine = op->engine;
    if (!is_gated(engine)) {
        return false;
    }
    trib_op *before = atomic_load(&engine->settled_ops);
    do {
        op->next = before;
    } while (!atomic_compare_exchange_weak(&engine->settled_ops, &before, op));
    if (before == NULL) {
        engine->settled_post.run = reports_arrived;
        trib_reactor_post(engine->cores[0].reactor, &engine->settled_post);
    }
    return true;
}

/* Takes the operation behind that link of the list out of it. */
static trib_op *take_held(trib_core *core, trib_op **at)
{
    trib_op *op = *at;
    trib_assert(op->is_held && (op->next != NULL || core->held_last == &op->next));
    *at = op->next;
    if (core->held_last == &op->next) {
        core->held_last = at;
    }
    op->next = NULL;
    return op;
}

static void commit_op(trib_core *core, uint32_t tensor, uint32_t round)
{
    trib_op **at = &core->held;
    while (*at != NULL && ((*at)->round != round || (*at)->tensor->id != tensor)) {
        at = &(*at)->next;
    }
    if (*at != NULL) { /* else it failed here */
        finish_held(core, take_held(core, at));
    }
}

bool trib_commit_note(trib_formation *formation, uint32_t tensor, uint32_t round)
{
    if (tensor >= formation->committed_count) {
        const uint32_t count =
            tensor + 1 > 2 * formation->committed_count ? tensor + 1 : 2 * formation->committed_count;
        uint32_t *committed = realloc(formation->committed, count * sizeof *committed);
        if (committed == NULL) {
            return false;
        }
        memset(committed + formation->committed_count, 0, (count - formation->committed_count) * sizeof *committed);
        formation->committed = committed;
        formation->committed_count = count;
    }
    if (round > formation->committed[tensor]) {
        formation->committed[tensor] = round;
    }
    return true;
}

void trib_commit_settle(trib_core *core, uint32_t tensor, uint32_t round)
{
    if (!trib_commit_note(&core->engine->formation, tensor, round)) { /* a later election in this epoch asks for it */
        trib_job_fail(core->engine, TRIB_NO_MEMORY, "out of memory for the operations that an election has decided");
        return;
    }
    forget_spent(core, tensor, round);
    trib_op **at = &core->held;
    while (*at != NULL) {
        if ((*at)->tensor->id == tensor && (*at)->round <= round) {
            finish_held(core, take_held(core, at));
        } else {
            at = &(*at)->next;
        }
    }
}

trib_status trib_commit_take(trib_core *core, const trib_frame *frame, const void *payload, trib_error *error)
{
    trib_reader reader = {.data = payload, .left = frame->payload_size};
    while (reader.left > 0 && !reader.failed) {
        const uint32_t tensor = trib_get_u32(&reader), round = trib_get_u32(&reader);
        if (!reader.failed && tensor < TRIB_TENSORS_MAX) {
            if (!trib_commit_note(&core->engine->formation, tensor, round)) {
                return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for %u tensors", tensor);
            }
            commit_op(core, tensor, round);
            forget_spent(core, tensor, round);
        }
    }
    return trib_get_end(&reader, "COMMIT", error);
}

void trib_commit_check(trib_core *core)
{
    const int64_t now_ns = trib_now(core->reactor);
    trib_op **at = &core->held;
    while (*at != NULL) {
        trib_op *op = *at;
        const bool is_late = op->deadline_ns > 0 && now_ns >= op->deadline_ns;
        /* the operation waits for the end of the epoch, which decides on it */
        const bool is_cut = atomic_load(&op->claim) != 0;
        if (is_cut || (!is_late && !atomic_load(&op->is_cancelled))) {
            at = &op->next;
            continue;
        }
        trib_op_fail(op, is_late ? TRIB_TIMEOUT : TRIB_CANCELLED,
                     "%s: this worker has the result, and some other does not",
                     is_late ? "not complete by its deadline" : "cancelled");
        complete_held(core, take_held(core, at));
        keep_spent(core, op);
    }
}

void trib_commit_fail_all(trib_core *core, trib_status status, const char *text)
{
    while (core->held != NULL) {
        trib_op *op = take_held(core, &core->held);
        if (!trib_carry_take(core, op)) {
            trib_op_fail(op, status, "%s", text);
            finish_held(core, op);
        }
    }
    trib_op *spent = core->engine->formation.spent;
    core->engine->formation.spent = NULL;
    while (spent != NULL) {
        trib_op *op = spent;
        spent = op->next;
        if (!trib_carry_take(core, op)) {
            trib_op_unref(op);
        }
    }
}

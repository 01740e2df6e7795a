/*
 * op.c - operations between the caller and the cores: the pool, failing, completing. Submitting is in op_submit.c.
 *
 * ops_max limits what the caller knows of: an operation counts until its completion is announced and the caller has
 * returned its handle. The slot is in use for longer: while the callback runs, and while a core still has to use up
 * a round that was given up. The pool therefore has more slots than ops_max, made on demand and reused.
 *
 * The mailbox needs no bound of its own: an operation is posted at most once to each core, and slots_max bounds the
 * operations.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/base/handle.h"
#include "engine/job/callback.h"
#include "engine/job/completions.h"
#include "engine/worker/boundary.h"
#include "engine/worker/device_hooks.h"
#include "engine/worker/op.h"
#include "engine/worker/op_carry.h"
#include "engine/worker/op_commit.h"
#include "engine/worker/task_trace.h"

#define NAME_SHOWN_MAX 96u /* bytes of a tensor's name in an error text */

/* Given-up operations that wait behind running rounds may be as many as ops_max. The constant covers operations in
 * their last steps on a core. */
static uint64_t slots_max(const trib_engine *engine)
{
    return 2 * (uint64_t)engine->config.ops_max + 1024;
}

/* The caller holds the mutex. */
static trib_status take_slot(trib_engine *engine, uint32_t replaced, trib_op **op_out, trib_error *error)
{
    const uint32_t counted = (uint32_t)(trib_counter_get(&engine->ops_submitted) - atomic_load(&engine->ops_uncounted));
    if (counted >= replaced + (uint64_t)engine->config.ops_max) {
        return trib_error_set(error, TRIB_BUSY,
                              "%u operations are in flight, or over and not given back by trib_op_release "
                              "(trib_config.ops_max)",
                              counted);
    }
    if (engine->free_ops == NULL) {
        engine->free_ops = atomic_exchange(&engine->returned_ops, NULL);
    }
    trib_op *op = engine->free_ops;
    if (op != NULL) {
        engine->free_ops = op->next;
        *op_out = op;
        return TRIB_OK;
    }
    if (engine->ops_made >= slots_max(engine)) {
        return trib_error_set(error, TRIB_BUSY,
                              "%u operations that were given up wait behind earlier ones on their tensors, to spend "
                              "their rounds (trib_config.ops_max)",
                              engine->ops_made - counted);
    }
    op = calloc(1, sizeof *op + engine->core_count * sizeof op->cores[0]);
    const uint32_t place = op == NULL ? TRIB_NO_PLACE : trib_handle_take_place(op);
    if (place == TRIB_NO_PLACE) {
        free(op);
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for an operation");
    }
    op->place = place;
    op->engine = engine;
    op->made_next = engine->all_ops;
    engine->all_ops = op;
    engine->ops_made++;
    *op_out = op;
    return TRIB_OK;
}

trib_status trib_op_take(trib_engine *engine, uint32_t replaced, trib_op **op_out, trib_error *error)
{
    const trib_status status = take_slot(engine, replaced, op_out, error);
    if (status == TRIB_OK) {
        trib_counter_add(&engine->ops_submitted, 1); /* the operation counts for ops_max from here */
    }
    return status;
}

void trib_op_put_back(trib_op *op)
{
    trib_assert(atomic_load(&op->references) == 0 && atomic_load(&op->cores_left) == 0);
    op->next = op->engine->free_ops;
    op->engine->free_ops = op;
    trib_counter_take_one(&op->engine->ops_submitted);
}

/* ---- Buffers of the sliced layouts ---- */

static bool overlaps(const void *buffer, uint64_t bytes, const void *memory, size_t size)
{
    const uintptr_t at = (uintptr_t)buffer;
    const uintptr_t from = (uintptr_t)memory;
    return buffer != NULL && at < from + size && from < at + bytes;
}

typedef struct needed_bytes {
    uint64_t in, out;
} needed_bytes;

static needed_bytes bytes_of(const trib_op *op)
{
    const trib_tensor *tensor = op->tensor;
    const uint64_t given = trib_partitioning_send_bytes(tensor->cut, tensor->group_place),
                   taken = trib_partitioning_recv_bytes(tensor->cut, tensor->group_place);
    return op->collective == TRIB_COLLECTIVE_REDUCE ? (needed_bytes){.in = taken, .out = given}
                                                    : (needed_bytes){.in = given, .out = taken};
}

static void fail_to_fit(trib_op *op, const char *what, uint64_t has, uint64_t needs)
{
    trib_op_fail(op, TRIB_INVALID, "%s has %llu bytes, and the operation %s %llu: see trib_tensor_counts", what,
                 (unsigned long long)has, what[0] == 'i' ? "reads" : "writes", (unsigned long long)needs);
}

/* True if the smaller one of input and output is this worker's slice at its place in the larger one. */
static bool may_overlap(const trib_op *op, const needed_bytes *needs)
{
    const trib_tensor *tensor = op->tensor;
    const uint64_t before = tensor->layout == TRIB_SLICES ? tensor->cut->slices[tensor->group_place].begin : 0;
    const uintptr_t in = (uintptr_t)op->input, out = (uintptr_t)op->output;
    return tensor->layout == TRIB_SLICES && (needs->in < needs->out ? in == out + before : out == in + before);
}

/* A worker that is named by its rank has its place in this epoch only. */
static void find_root(trib_op *op)
{
    const trib_roster *roster = op->engine->roster;
    if (op->root_rank == TRIB_NO_MEMBER || op->tensor->group != NULL || !roster->continues) {
        return;
    }
    op->root = trib_roster_find_rank(roster, op->root_rank);
    if (op->root == TRIB_NO_MEMBER) {
        op->root = 0;
        trib_op_fail(op, TRIB_PEER_LEFT, "rank %u, its root, is not there any more", op->root_rank);
    }
}

static bool have_same_workers(const trib_roster *one, const trib_roster *other)
{
    bool same = one->worker_count == other->worker_count;
    for (uint32_t i = 0; same && i < one->worker_count; i++) {
        same = one->members[i].rank == other->members[i].rank; /* nobody gets a rank that another one has had */
    }
    return same;
}

void trib_op_take_roster(trib_op *op, const trib_roster *roster)
{
    if (op->roster == roster) {
        return;
    }
    trib_roster_let_go(op->roster);
    op->roster = trib_roster_hold(roster);
}

/* Slices are for the workers of the epoch in which the operation began. */
static void check_workers(trib_op *op)
{
    const trib_roster *roster = op->engine->roster;
    const bool is_for_all = op->tensor->layout == TRIB_WHOLE || op->collective == TRIB_COLLECTIVE_BROADCAST;
    if (roster->continues && !is_for_all && op->roster != NULL && !have_same_workers(op->roster, roster)) {
        trib_op_fail(
            op, TRIB_PEER_LEFT,
            "the number of workers has changed, and the operation's slices are for another one: begin it anew");
    }
    trib_op_take_roster(op, roster);
}

void trib_op_fit(trib_op *op)
{
    find_root(op);
    check_workers(op);
    if (op->tensor->on_device) {
        op->engine->device_hooks->fit(op);
    }
    if (op->tensor->layout == TRIB_WHOLE || atomic_load(&op->claim) != 0) {
        return; /* the buffers of a whole tensor were checked when it was submitted */
    }
    const needed_bytes needs = bytes_of(op);
    if (op->input_bytes != 0 && op->input_bytes != needs.in) {
        fail_to_fit(op, "input", op->input_bytes, needs.in);
    } else if (op->allocates && needs.out > 0) {
        op->allocated = op->engine->env.memory_alloc(op->engine->env.memory, needs.out);
        op->output = op->allocated;
        if (op->output == NULL) {
            trib_op_fail(op, TRIB_NO_MEMORY, "out of memory for an output of %llu bytes",
                         (unsigned long long)needs.out);
        }
    } else if (!op->allocates && op->output_bytes < needs.out &&
               (op->output_bytes != 0 || op->collective != TRIB_COLLECTIVE_REDUCE)) {
        fail_to_fit(op, "output", op->output_bytes, needs.out);
    }
    if ((op->input == NULL && needs.in > 0) || (op->output == NULL && needs.out > 0)) {
        const bool is_input = op->input == NULL && needs.in > 0;
        trib_op_fail(op, TRIB_INVALID, "%s is NULL, and the operation %s %llu bytes", is_input ? "input" : "output",
                     is_input ? "reads" : "writes", (unsigned long long)(is_input ? needs.in : needs.out));
    }
    const bool is_moved = op->is_again && op->kept != NULL; /* its place among all was another one */
    if (needs.in > 0 && needs.out > 0 && !is_moved && !may_overlap(op, &needs) &&
        overlaps(op->input, needs.in, op->output, needs.out)) {
        trib_op_fail(op, TRIB_INVALID, "input and output overlap, and not as a slice at its place among all");
    }
    op->input_bytes = needs.in;
    op->output_bytes = needs.out;
}

/* Subtracts the caller's share of a count and returns true if none is left. A caller whose share is the whole
 * count is its only user, so a plain store suffices. */
static bool take_last(atomic_uint *count, uint32_t mine)
{
    trib_assert(atomic_load_explicit(count, memory_order_relaxed) >= mine);
    if (atomic_load_explicit(count, memory_order_acquire) == mine) {
        atomic_store_explicit(count, 0, memory_order_release);
        return true;
    }
    return atomic_fetch_sub(count, mine) == mine;
}

static void free_output(trib_op *op)
{
    if (op->allocated != NULL) {
        op->engine->env.memory_free(op->engine->env.memory, op->allocated);
        op->allocated = NULL;
    }
}

bool trib_op_try_ref(trib_op *op)
{
    uint32_t references = atomic_load(&op->references);
    while (references > 0 && !atomic_compare_exchange_weak(&op->references, &references, references + 1)) {}
    return references > 0;
}

void trib_op_unref(trib_op *op)
{
    const uint32_t references = atomic_fetch_sub(&op->references, 1); /* trib_op_try_ref may add one at any time */
    trib_assert(references > 0);
    if (references > 1) {
        return;
    }
    trib_engine *engine = op->engine;
    free_output(op);
    trib_partitioning_unref(op->cut);
    op->cut = NULL;
    trib_op_take_roster(op, NULL);
    trib_tensor_unref(op->tensor);
    trib_op *before = atomic_load(&engine->returned_ops);
    do {
        op->next = before;
    } while (!atomic_compare_exchange_weak(&engine->returned_ops, &before, op));
}

void trib_op_give_back(trib_op *op)
{
    trib_engine *engine = op->engine;
    const bool counts_no_more = take_last(&op->counts, 1);
    trib_op_unref(op); /* first, so that the slot is free before the operation stops counting */
    if (counts_no_more) {
        atomic_fetch_add(&engine->ops_uncounted, 1);
    }
}

const trib_tensor *trib_op_find_user(trib_engine *engine, const void *memory, size_t size)
{
    const trib_tensor *found = NULL;
    pthread_mutex_lock(&engine->mutex);
    for (const trib_op *op = engine->all_ops; op != NULL && found == NULL; op = op->made_next) {
        const uint64_t bytes = op->tensor == NULL ? 0 : op->tensor->bytes;
        const uint64_t in = op->input_bytes > bytes ? op->input_bytes : bytes;
        const uint64_t out = op->output_bytes > bytes ? op->output_bytes : bytes;
        if (atomic_load(&op->cores_left) > 0 &&
            (overlaps(op->input, in, memory, size) || overlaps(op->output, out, memory, size))) {
            found = op->tensor;
        }
    }
    pthread_mutex_unlock(&engine->mutex);
    return found;
}

/* Long names are cut in the middle, because most differ at their ends, so that the reason fits behind them. */
static void shorten(const char *name, char text[NAME_SHOWN_MAX])
{
    const size_t length = strlen(name), part = (NAME_SHOWN_MAX - sizeof "...") / 2;
    if (length < NAME_SHOWN_MAX) {
        memcpy(text, name, length + 1);
        return;
    }
    snprintf(text, NAME_SHOWN_MAX, "%.*s...%s", (int)part, name, name + length - part);
}

void trib_op_fail(trib_op *op, trib_status status, const char *format, ...)
{
    int none = 0;
    if (!atomic_compare_exchange_strong(&op->claim, &none, (int)status)) {
        return;
    }
    char name[NAME_SHOWN_MAX];
    shorten(op->tensor->name, name);
    const int length = snprintf(op->text, sizeof op->text, "tensor \"%s\": ", name);
    trib_assert(length > 0 && (size_t)length < sizeof op->text);
    op->reason_at = (uint32_t)length;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(op->text + length, sizeof op->text - (size_t)length, format, arguments);
    va_end(arguments);
    atomic_store(&op->has_text, true);
    if (op->tensor->on_device) {
        op->engine->device_hooks->failed(op);
    }
}

void trib_op_read_result(const trib_op *op, trib_result *result)
{
    *result = (trib_result){
        .status = (trib_status)atomic_load(&op->claim),
        .contributors = op->contributors,
        .bytes = op->cut != NULL ? op->cut->bytes : op->tensor->bytes,
        .duration_ns = op->duration_ns,
        .tensor = trib_tensor_is_reserved(op->tensor) ? "" : op->tensor->name,
        .text = op->text,
    };
}

/* The end of an operation, which follows its callback. */
static void announce(trib_reactor *reactor, trib_post *post)
{
    (void)reactor;
    trib_op *op = trib_container_of(post, trib_op, done_post);
    trib_engine *engine = op->engine;
    trib_assert(atomic_load(&op->is_over) && atomic_load(&op->status) == TRIB_PENDING); /* announced once */
    atomic_store(&op->status, atomic_load(&op->claim));
    if (atomic_load(&op->is_awaited)) {
        trib_engine_notify(engine);
    }
    trib_op_unref(op);
}

static trib_callback_kind kind_of(const trib_op *op)
{
    return op->tensor == op->engine->barrier_tensor      ? TRIB_CALLBACK_BARRIER
           : op->collective == TRIB_COLLECTIVE_BROADCAST ? TRIB_CALLBACK_BROADCAST
                                                         : TRIB_CALLBACK_PUSH_PULL;
}

/* The callback runs here once, on a core or in trib_engine_dispatch. The operation stops counting for ops_max
 * before it, so the callback may submit another operation or release the tensor. */
static void complete(trib_reactor *reactor, trib_post *post)
{
    trib_op *op = trib_container_of(post, trib_op, done_post);
    trib_engine *engine = op->engine;
    trib_assert(!atomic_load(&op->is_over) && atomic_load(&op->tensor->in_flight) > 0);
    const int claim = atomic_load(&op->claim);
    trib_result result;
    trib_op_read_result(op, &result);
    atomic_store(&op->is_over, true);
    atomic_fetch_sub(&op->tensor->in_flight, 1);
    atomic_fetch_add(claim == 0 ? &engine->ops_completed : &engine->ops_failed, 1);
    if (take_last(&op->counts, 1)) {
        atomic_fetch_add(&engine->ops_uncounted, 1);
    }
    if (op->done_cb == NULL) {
        announce(reactor, post);
        return;
    }
    trib_callback callback TRIB_CALLBACK_SCOPE = {.engine = engine,
                                                  .reactor = reactor,
                                                  .post = post,
                                                  .after = announce,
                                                  .kind = kind_of(op),
                                                  .tag = op->tensor->tag};
    trib_callback_begin(&callback);
    op->done_cb(&result, op->user);
}

static void queue_completion(trib_engine *engine, trib_op *op)
{
    pthread_mutex_lock(&engine->mutex);
    trib_completions_add(engine, &op->done_post);
    pthread_mutex_unlock(&engine->mutex);
    if (atomic_load(&engine->waiters) > 0) {
        pthread_cond_broadcast(&engine->changed);
    }
    trib_completions_signal(engine);
}

void trib_op_give_up(trib_op *op)
{
    if (atomic_exchange(&op->cancelled, true)) {
        return;
    }
    trib_engine *engine = op->engine;
    for (uint32_t i = 0; i < engine->core_count; i++) {
        atomic_fetch_add(&op->references, 1);
        trib_reactor_post(engine->reactors[i].reactor, &op->cores[i].cancel_post);
    }
}

void trib_op_core_done(trib_op *op, trib_core *core)
{
    if (take_last(&op->cores_left, 1) && !trib_commit_holds(op)) {
        trib_op_complete(op, core);
    }
}

bool trib_op_is_from_one(const trib_op *op)
{
    return op->collective == TRIB_COLLECTIVE_BROADCAST && (op->tensor->layout == TRIB_WHOLE || op->names_root);
}

void trib_op_take_set(trib_op *op, const unsigned char *set)
{
    const uint32_t workers = op->tensor->members;
    if (op->in_sum == NULL) {
        op->in_sum = malloc((op->engine->roster->worker_count + 7) / 8);
    }
    if (op->in_sum == NULL) {
        trib_op_fail(op, TRIB_NO_MEMORY, "out of memory for the names of its contributors");
        return;
    }
    memcpy(op->in_sum, set, (workers + 7) / 8);
    op->late_count = 0;
    for (uint32_t i = 0; i < workers; i++) {
        op->late_count += (set[i / 8] >> i % 8 & 1) == 0;
    }
}

/* The result has contributions of all members of the epoch that share the tensor. */
static void note_contributors(trib_op *op)
{
    trib_partitioning *cut = op->tensor->layout == TRIB_WHOLE ? NULL : op->tensor->cut;
    trib_op_take_roster(op, op->engine->roster);
    trib_partitioning_unref(op->cut); /* partitioning of its last start */
    op->cut = cut != NULL ? trib_partitioning_ref(cut) : NULL;
    op->contributors = atomic_load(&op->claim) != 0 ? 0
                       : trib_op_is_from_one(op)    ? 1
                                                    : op->tensor->members - op->late_count;
}

void trib_op_complete(trib_op *op, trib_core *core)
{
    trib_engine *engine = op->engine;
    trib_boundary_op_over(op);
    note_contributors(op);
    trib_carry_release(op);
    atomic_store(&op->is_complete, true);
    op->duration_ns = trib_now(core->reactor) - op->submit_ns;
    trib_trace_op(core, TRIB_TRACE_COMPLETE, op, op->submit_ns + op->duration_ns);
    if (op->tensor->on_device && atomic_load(&op->is_awaited)) {
        trib_engine_notify(engine); /* trib_op_stream_wait returns, even if the callback waits for its caller */
    }
    trib_assert(atomic_load(&op->cores_left) == 0 && atomic_load(&op->status) == TRIB_PENDING);
    op->done_post.run = complete;
    if (engine->config.mode == TRIB_MODE_QUEUE) {
        queue_completion(engine, op);
    } else {
        trib_reactor_defer(core->reactor, &op->done_post);
    }
}

void trib_op_unbook_cores(trib_op *op, uint32_t count)
{
    if (take_last(&op->cores_booked, count) && !trib_commit_report(op)) {
        trib_op_unref(op);
    }
}

void trib_ops_free(trib_engine *engine)
{
    /* The list of all slots is used: an operation cancelled after its engine closed has posts that never run, so
     * it is not free. */
    while (engine->all_ops != NULL) {
        trib_op *op = engine->all_ops;
        engine->all_ops = op->made_next;
        trib_handle_give_place(op->place);
        free_output(op);
        trib_carry_free(op);
        free(op->in_sum);
        trib_partitioning_unref(op->cut);
        free(op->device);
        free(op);
    }
}

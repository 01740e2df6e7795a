/*
 * op.c - operations between the caller and the cores: the pool, submitting, failing, completing.
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
#include "engine/job/callback.h"
#include "engine/job/completions.h"
#include "engine/worker/device_hooks.h"
#include "engine/worker/op.h"
#include "engine/worker/task_trace.h"

/* Given-up operations that wait behind running rounds may be as many as ops_max. The constant covers operations in
 * their last steps on a core. */
static uint64_t slots_max(const trib_engine *engine)
{
    return 2 * (uint64_t)engine->config.ops_max + 1024;
}

/* The caller holds the mutex. */
static trib_status take_op(trib_engine *engine, trib_op **op_out, trib_error *error)
{
    const uint32_t counted = (uint32_t)(trib_counter_get(&engine->ops_submitted) - atomic_load(&engine->ops_uncounted));
    if (counted >= engine->config.ops_max) {
        return trib_error_set(error, TRIB_BUSY,
                              "%u operations are in flight, or over and not given back by trib_op_release "
                              "(trib_config.ops_max)",
                              counted);
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
    if (op == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for an operation");
    }
    op->made_next = engine->all_ops;
    engine->all_ops = op;
    engine->ops_made++;
    *op_out = op;
    return TRIB_OK;
}

static void fill_op(trib_op *op, trib_engine *engine, const trib_op_params *params, trib_collective collective,
                    trib_tensor *tensor)
{
    trib_assert(op != NULL);
    trib_reactor *reactor = engine->cores[0].reactor;
    op->engine = engine;
    op->tensor = tensor;
    op->collective = collective;
    op->reduce = collective == TRIB_COLLECTIVE_ALL_REDUCE ? params->reduce : TRIB_SUM;
    op->root = collective == TRIB_COLLECTIVE_BROADCAST ? (uint32_t)params->root : 0;
    if (tensor->on_device) {
        engine->device_hooks->fill(op);
    }
    op->priority = params->has_priority ? params->priority : tensor->priority;
    op->input = params->input;
    op->output = params->output;
    op->done_cb = params->done_cb;
    op->user = params->user;
    op->submit_ns = trib_now(reactor);
    int64_t timeout_ns =
        trib_timeout_clamp(params->timeout_ns == 0 ? engine->config.op_timeout_ns : params->timeout_ns);
    op->deadline_ns = timeout_ns < 0 ? 0 : op->submit_ns + timeout_ns;
    op->spread = atomic_load_explicit(&tensor->placed, memory_order_acquire);
    op->text[0] = '\0';
    atomic_init(&op->has_text, false); /* no core sees the operation before its post, which publishes these fields */
    const uint32_t cores = op->spread ? tensor->cores_used : engine->core_count;
    atomic_init(&op->cores_left, cores);
    atomic_init(&op->cores_booked, cores);
    atomic_init(&op->claim, 0);
    atomic_init(&op->status, TRIB_PENDING);
    atomic_init(&op->cancelled, false);
    for (uint32_t i = 0; i < engine->core_count; i++) {
        op->cores[i].op = op;
        trib_worker_prepare_op_core(&op->cores[i]);
    }
}

/* The caller holds the mutex. */
static trib_status check_rounds(const trib_tensor *tensor, trib_error *error)
{
    return tensor->rounds < TRIB_ROUNDS_MAX
               ? TRIB_OK
               : trib_error_set(error, TRIB_STATE, "tensor \"%s\" has had all its %u operations: declare another",
                                tensor->name, TRIB_ROUNDS_MAX);
}

/* Takes a slot for an operation on the tensor. The caller holds the mutex. The mutex is released while the device
 * prepares the slot, as the driver may be slow the first times. */
static trib_status take_op_for(trib_engine *engine, const trib_tensor *tensor, trib_op **op_out, trib_error *error)
{
    trib_status status = take_op(engine, op_out, error);
    if (status != TRIB_OK) {
        return status;
    }
    trib_op *op = *op_out;
    trib_assert(op != NULL);
    trib_counter_add(&engine->ops_submitted, 1); /* the operation counts for ops_max from here */
    if (tensor->on_device) {
        op->engine = engine;
        pthread_mutex_unlock(&engine->mutex);
        status = engine->device_hooks->prepare(op, error);
        pthread_mutex_lock(&engine->mutex);
    }
    if (status == TRIB_OK) {
        status = trib_engine_check_open_locked(engine, error); /* the engine may have closed meanwhile */
    }
    if (status == TRIB_OK) {
        status = check_rounds(tensor, error);
    }
    if (status != TRIB_OK) {
        op->next = engine->free_ops;
        engine->free_ops = op;
        trib_counter_sub(&engine->ops_submitted, 1);
    }
    return status;
}

/* After the last post the operation may complete at any time. */
static void post_op_cores(trib_op *op)
{
    trib_engine *engine = op->engine;
    const trib_tensor *tensor = op->tensor;
    const uint32_t cores = op->spread ? engine->core_count : 1;
    uint32_t unwoken = 0;
    for (uint32_t i = 0; i < cores; i++) {
        if (i == 0 || trib_tensor_is_used(tensor, i)) {
            trib_reactor_post_nowake(engine->cores[i].reactor, &op->cores[i].submit_post);
            unwoken |= 1u << i;
        }
    }
    if (tensor->on_device) {
        engine->device_hooks->wake(op, unwoken);
    } else {
        trib_engine_wake(engine, unwoken);
    }
}

trib_status trib_op_submit(trib_engine *engine, const trib_op_params *params, trib_collective collective,
                           trib_tensor *tensor, trib_op **op_out, trib_error *error)
{
    const trib_device_hooks *device = tensor->on_device ? engine->device_hooks : NULL;
    void *marker = NULL;
    trib_status status = device != NULL ? device->marker_record(engine, params->stream, &marker, error) : TRIB_OK;
    if (status != TRIB_OK) {
        return status;
    }
    pthread_mutex_lock(&engine->mutex);
    trib_op *op = NULL;
    status = take_op_for(engine, tensor, &op, error);
    if (status != TRIB_OK) {
        pthread_mutex_unlock(&engine->mutex);
        if (device != NULL) {
            device->marker_drop(engine, marker);
        }
        return status;
    }
    trib_assert(op != NULL);
    fill_op(op, engine, params, collective, tensor);
    op->round = ++tensor->rounds;
    atomic_init(&op->references, op_out != NULL ? 3 : 2);
    atomic_init(&op->counts, op_out != NULL ? 2 : 1);
    if (op_out != NULL) {
        *op_out = op;
    }
    if (device != NULL) {
        device->begin(op, marker);
    }
    /* Posting under the mutex keeps a tensor's rounds in order on core 0, where they may wait for the placement. */
    post_op_cores(op);
    pthread_mutex_unlock(&engine->mutex);
    return TRIB_OK;
}

/* Subtracts the caller's share of a count and returns true if none is left. A caller whose share is the whole
 * count is its only user, so a plain store suffices. */
static bool take_last(atomic_uint *count, uint32_t mine)
{
    if (atomic_load_explicit(count, memory_order_acquire) == mine) {
        atomic_store_explicit(count, 0, memory_order_release);
        return true;
    }
    return atomic_fetch_sub(count, mine) == mine;
}

void trib_op_unref(trib_op *op)
{
    if (!take_last(&op->references, 1)) {
        return;
    }
    trib_engine *engine = op->engine;
    pthread_mutex_lock(&engine->mutex);
    op->next = engine->free_ops;
    engine->free_ops = op;
    pthread_mutex_unlock(&engine->mutex);
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

static bool overlaps(const void *buffer, uint64_t bytes, const void *memory, size_t size)
{
    const uintptr_t at = (uintptr_t)buffer;
    const uintptr_t from = (uintptr_t)memory;
    return buffer != NULL && at < from + size && from < at + bytes;
}

const trib_tensor *trib_op_find_user(trib_engine *engine, const void *memory, size_t size)
{
    const trib_tensor *found = NULL;
    pthread_mutex_lock(&engine->mutex);
    for (const trib_op *op = engine->all_ops; op != NULL && found == NULL; op = op->made_next) {
        if (atomic_load(&op->cores_left) > 0 && (overlaps(op->input, op->tensor->bytes, memory, size) ||
                                                 overlaps(op->output, op->tensor->bytes, memory, size))) {
            found = op->tensor;
        }
    }
    pthread_mutex_unlock(&engine->mutex);
    return found;
}

void trib_op_fail(trib_op *op, trib_status status, const char *format, ...)
{
    int none = 0;
    if (!atomic_compare_exchange_strong(&op->claim, &none, (int)status)) {
        return;
    }
    const int length = snprintf(op->text, sizeof op->text, "tensor \"%s\": ", op->tensor->name);
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

/* What follows the callback. */
static void announce(trib_reactor *reactor, trib_post *post)
{
    (void)reactor;
    trib_op *op = trib_container_of(post, trib_op, done_post);
    trib_engine *engine = op->engine;
    atomic_store(&op->status, atomic_load(&op->claim));
    if (atomic_load(&engine->waiters) > 0) {
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
 * before it, so the callback may submit another operation. */
static void complete(trib_reactor *reactor, trib_post *post)
{
    trib_op *op = trib_container_of(post, trib_op, done_post);
    trib_engine *engine = op->engine;
    int claim = atomic_load(&op->claim);
    const uint32_t givers = op->collective == TRIB_COLLECTIVE_BROADCAST ? 1 : (uint32_t)engine->config.worker_count;
    trib_result result = {
        .status = (trib_status)claim,
        .contributors = claim == 0 ? givers : 0,
        .bytes = op->tensor->bytes,
        .duration_ns = op->duration_ns,
        .tensor = op->tensor == engine->barrier_tensor ? "" : op->tensor->name,
        .text = op->text,
    };
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
        trib_reactor_post(engine->cores[i].reactor, &op->cores[i].cancel_post);
    }
}

void trib_op_core_done(trib_op *op, trib_core *core)
{
    if (!take_last(&op->cores_left, 1)) {
        return;
    }
    trib_engine *engine = op->engine;
    op->duration_ns = trib_now(core->reactor) - op->submit_ns;
    trib_trace_op(core, TRIB_TRACE_COMPLETE, op, op->submit_ns + op->duration_ns);
    if (op->tensor->on_device) {
        /* This precedes the callback, whose thread may wait for a stream that waits for this operation. */
        engine->device_hooks->end(op);
    }
    op->done_post.run = complete;
    if (engine->config.mode == TRIB_MODE_QUEUE) {
        queue_completion(engine, op);
    } else {
        trib_reactor_defer(core->reactor, &op->done_post);
    }
}

void trib_op_unbook_cores(trib_op *op, uint32_t count)
{
    if (take_last(&op->cores_booked, count)) {
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
        free(op->device);
        free(op);
    }
}

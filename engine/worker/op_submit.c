/*
 * op_submit.c - submitting operations, one or many at a time.
 *
 * All operations of one call are taken or none. Slots are taken first, which may fail. Then everything is checked once
 * more, as another thread may have released a tensor or closed the engine meanwhile. From there on nothing can fail,
 * and the mutex is held until the last post: a tensor's rounds keep their order on core 0, where they may wait for the
 * placement.
 */
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/assert.h"
#include "engine/base/handle.h"
#include "engine/base/scale.h"
#include "engine/worker/boundary.h"
#include "engine/worker/device_hooks.h"
#include "engine/worker/op_submit.h"
#include "engine/worker/op_carry.h"
#include "engine/worker/op_join.h"

/* Operations that are posted together. A core begins with the first ones while the next are filled in. */
#define POSTED_TOGETHER 128u

/* A factor of 0 in the parameters stands for 1. Integers are multiplied before the sum, where they are truncated. */
static void set_scale(trib_op *op, const trib_op_params *params)
{
    const bool is_scaled = trib_collective_is_sum(op->collective);
    const double before = is_scaled && params->prescale != 0 ? params->prescale : 1;
    const double after = is_scaled && params->postscale != 0 ? params->postscale : 1;
    const bool is_float = trib_dtype_is_float(op->tensor->dtype);
    op->prescale = is_float ? 1 : before;
    op->scale = trib_scale_pack(is_float ? before * after : after);
}

static void fill_op(trib_op *op, const trib_request *request, int64_t now_ns)
{
    trib_engine *engine = op->engine;
    const trib_op_params *params = request->params;
    trib_tensor *tensor = request->tensor;
    op->tensor = tensor;
    op->collective = request->collective;
    op->reduce = trib_collective_is_sum(op->collective) ? params->reduce : TRIB_SUM;
    const bool has_root = op->collective == TRIB_COLLECTIVE_BROADCAST || op->collective == TRIB_COLLECTIVE_REDUCE;
    op->root = has_root && tensor->layout == TRIB_WHOLE ? (uint32_t)params->root : 0;
    op->names_root = request->names_root;
    op->root_rank =
        op->names_root || (has_root && tensor->layout == TRIB_WHOLE) ? (uint32_t)params->root : TRIB_NO_MEMBER;
    op->step = request->step;
    op->is_boundary = request->is_boundary;
    set_scale(op, params);
    if (tensor->on_device) {
        engine->device_hooks->fill(op);
    }
    op->priority = params->has_priority ? params->priority : tensor->priority;
    op->input = params->input;
    op->output = params->output;
    op->input_bytes = op->input_given = params->input_bytes;
    op->output_bytes = op->output_given = params->output_bytes;
    op->allocates = (params->flags & TRIB_OP_ALLOCATE_OUTPUT) != 0;
    op->done_cb = params->done_cb;
    op->user = params->user;
    op->submit_ns = now_ns;
    atomic_store(&op->stall_ns, TRIB_STALL_WARNING_NS);
    int64_t timeout_ns =
        trib_timeout_clamp(params->timeout_ns == 0 ? engine->config.op_timeout_ns : params->timeout_ns);
    op->deadline_ns = timeout_ns < 0 ? 0 : op->submit_ns + timeout_ns;
    op->spread = atomic_load_explicit(&tensor->placed, memory_order_acquire) && !trib_carry_parks(engine) &&
                 !op->is_boundary; /* core 0 may keep it back */
    op->is_held = op->is_spent = op->is_again = false;
    op->number = ++engine->op_number;
    op->contributors = op->late_count = 0;
    trib_op_take_roster(op, engine->roster);
    op->text[0] = '\0';
    atomic_init(&op->has_text, false); /* no core sees the operation before its post, which publishes these fields */
    const uint32_t cores = op->spread ? tensor->cores_used : engine->core_count;
    atomic_init(&op->cores_left, cores);
    atomic_init(&op->cores_booked, cores);
    atomic_init(&op->is_second_hand, false);
    atomic_init(&op->claim, 0);
    atomic_init(&op->is_complete, false);
    atomic_init(&op->status, TRIB_PENDING);
    atomic_init(&op->cancelled, false);
    atomic_init(&op->is_cancelled, false);
    atomic_init(&op->is_over, false);
    atomic_init(&op->is_awaited, false);
    for (uint32_t i = 0; i < engine->core_count; i++) {
        op->cores[i].op = op;
        trib_worker_prepare_op_core(&op->cores[i]);
    }
}

/* ---- What may fail ---- */

static const trib_device_hooks *hooks_of(const trib_request *request)
{
    return request->tensor->on_device ? request->tensor->engine->device_hooks : NULL;
}

static trib_status record_markers(trib_engine *engine, trib_request *requests, size_t count, trib_error *error)
{
    trib_status status = TRIB_OK;
    for (size_t i = 0; i < count && status == TRIB_OK; i++) {
        const trib_device_hooks *device = hooks_of(&requests[i]);
        if (device != NULL) {
            status = device->marker_record(engine, requests[i].params->stream, &requests[i].marker, error);
        }
    }
    return status;
}

static void drop_markers(trib_engine *engine, trib_request *requests, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const trib_device_hooks *device = hooks_of(&requests[i]);
        if (device != NULL && requests[i].marker != NULL) {
            device->marker_drop(engine, requests[i].marker);
        }
    }
}

/* The caller holds the mutex. A prepared operation gives its last, complete run back for the new one. */
static trib_status take_slots(trib_engine *engine, trib_request *requests, size_t count, trib_error *error)
{
    trib_status status = TRIB_OK;
    uint32_t replaced = 0;
    for (size_t i = 0; i < count && status == TRIB_OK; i++) {
        const trib_op *before = requests[i].prepared == NULL ? NULL : trib_prepared_current(requests[i].prepared);
        replaced += before != NULL && atomic_load(&before->is_over);
        if (requests[i].op == NULL) {
            status = trib_op_take(engine, replaced, &requests[i].op, error);
        }
    }
    return status;
}

/* The caller holds the mutex. */
static void put_slots_back(trib_request *requests, size_t count)
{
    for (size_t i = count; i > 0; i--) {
        trib_request *request = &requests[i - 1];
        if (request->op != NULL) {
            trib_carry_free(request->op);
            trib_op_put_back(request->op);
            request->op = NULL;
        }
    }
}

trib_status trib_ops_reserve(trib_engine *engine, trib_request *requests, size_t count, trib_error *error)
{
    pthread_mutex_lock(&engine->mutex);
    const trib_status status = take_slots(engine, requests, count, error);
    if (status != TRIB_OK) {
        put_slots_back(requests, count);
    }
    pthread_mutex_unlock(&engine->mutex);
    return status;
}

void trib_ops_put_back(trib_engine *engine, trib_request *requests, size_t count)
{
    pthread_mutex_lock(&engine->mutex);
    put_slots_back(requests, count);
    pthread_mutex_unlock(&engine->mutex);
}

/* The caller holds the mutex. It is released while a device prepares the slot, as the driver may be slow the first
 * times. */
static trib_status prepare_slot(trib_engine *engine, trib_request *request, trib_error *error)
{
    const trib_device_hooks *device = hooks_of(request);
    trib_status status = trib_carry_reserve(request->op, request->params, request->collective, request->tensor, error);
    if (status == TRIB_OK && device != NULL) {
        pthread_mutex_unlock(&engine->mutex);
        status = device->prepare(request->op, error);
        pthread_mutex_lock(&engine->mutex);
    }
    return status;
}

trib_status trib_op_check_tensor(const trib_request *request, trib_error *error)
{
    const trib_tensor *tensor = request->tensor;
    if (request->tensor_handle != 0 && trib_handle_find(request->tensor_handle, TRIB_HANDLE_TENSOR) != tensor) {
        return trib_error_set(error, TRIB_INVALID, "the operation's tensor has just been released");
    }
    if (tensor->on_device && atomic_load(&tensor->engine->join.ranks_joined) > 0) {
        return trib_error_set(
            error, TRIB_UNSUPPORTED,
            "tensor \"%s\" is on a device, and a worker has joined (trib_join), as it has no more data", tensor->name);
    }
    return request->is_boundary ? trib_boundary_check(tensor->engine, error) : TRIB_OK;
}

/* Counts the request's round. unbook_round undoes it. */
static trib_status book_round(const trib_request *request, trib_error *error)
{
    trib_tensor *tensor = request->tensor;
    if (tensor->rounds >= TRIB_ROUNDS_MAX) {
        return trib_error_set(error, TRIB_STATE, "tensor \"%s\" has had all its %u operations: declare another",
                              tensor->name, TRIB_ROUNDS_MAX - tensor->round_base);
    }
    tensor->rounds++;
    return TRIB_OK;
}

/* Keeps a prepared operation from being started twice at a time. */
static trib_status claim_tensor(trib_request *request, trib_error *error)
{
    trib_prepared *prepared = request->prepared;
    if (prepared == NULL) {
        return TRIB_OK;
    }
    if (trib_handle_find(request->prepared_handle, TRIB_HANDLE_PREPARED) != prepared) {
        return trib_error_set(error, TRIB_INVALID, "tensor \"%s\": the prepared operation has just been given back",
                              request->tensor->name);
    }
    trib_op *before = trib_prepared_current(prepared);
    if (prepared->is_claimed || (before != NULL && !atomic_load(&before->is_over))) {
        return trib_error_set(error, TRIB_STATE, "tensor \"%s\": the operation %s", request->tensor->name,
                              prepared->is_claimed ? "is in the list twice, or another thread starts it"
                                                   : "was started before and is not complete");
    }
    prepared->is_claimed = true;
    request->before = before;
    return TRIB_OK;
}

/* The caller holds the mutex until everything is posted. */
static trib_status check_all(trib_engine *engine, trib_request *requests, size_t count, trib_error *error)
{
    trib_status status = trib_engine_check_open_locked(engine, error);
    status = status == TRIB_OK ? trib_op_join_check(engine, error) : status;
    size_t booked = 0, claimed = 0;
    for (size_t i = 0; i < count && status == TRIB_OK; i++) {
        status = trib_op_check_tensor(&requests[i], error);
        if (status == TRIB_OK) {
            status = claim_tensor(&requests[i], error);
            claimed += status == TRIB_OK;
        }
        if (status == TRIB_OK) {
            status = book_round(&requests[i], error);
            booked += status == TRIB_OK;
        }
    }
    for (size_t i = 0; i < claimed; i++) {
        if (requests[i].prepared != NULL) {
            requests[i].prepared->is_claimed = false; /* nobody else claims it while the mutex is held */
        }
    }
    for (size_t i = 0; i < booked; i++) {
        requests[i].tensor->rounds--;
    }
    return status;
}

/* ---- What may not ---- */

static void begin_op(trib_request *request, int64_t now_ns)
{
    trib_op *op = request->op;
    trib_assert(op != NULL && op->engine == request->tensor->engine && atomic_load(&op->references) == 0);
    const bool has_handle = request->handle_out != NULL || request->prepared != NULL;
    fill_op(op, request, now_ns);
    request->spread = op->spread; /* core 0 may change the operation's own once it is posted */
    /* a parked operation gets another round later */
    op->round = trib_carry_parks(op->engine) ? 0 : ++op->tensor->rounds;
    trib_assert(op->round <= TRIB_ROUNDS_MAX); /* book_round has checked it */
    if (op->is_boundary && atomic_load(&op->tensor->placed)) {
        op->round -= op->tensor->round_base; /* core 0 adds it */
    }
    trib_boundary_count(op);
    if (op->spread) {
        trib_op_fit(op);
    }
    atomic_fetch_add(&op->tensor->references, 1);
    atomic_fetch_add(&op->tensor->in_flight, 1);
    atomic_init(&op->references, has_handle ? 3 : 2);
    atomic_init(&op->counts, has_handle ? 2 : 1);
    op->handle = has_handle ? trib_handle_open(op->place, TRIB_HANDLE_OP) : 0;
    if (request->prepared != NULL) {
        atomic_store(&request->prepared->current, op->handle);
    } else if (request->handle_out != NULL) {
        *request->handle_out = (trib_op *)op->handle; /* NOLINT(performance-no-int-to-ptr): a handle (handle.h) */
    }
    if (hooks_of(request) != NULL) {
        hooks_of(request)->begin(op, request->marker);
    }
}

void trib_op_begin_alone(trib_request *request)
{
    trib_op *op = request->op;
    begin_op(request, trib_now(op->engine->reactors[0].reactor));
    op->tensor->rounds--;
    op->deadline_ns = 0;
    atomic_store(&op->cores_left, 1);
    atomic_store(&op->cores_booked, 1);
    atomic_store(&op->cancelled, true);
}

/* After the last post of an operation it may complete at any time; its slot stays, as the mutex is held. */
static void post_all(trib_engine *engine, const trib_request *requests, size_t count)
{
    uint32_t unwoken = 0;
    for (size_t i = 0; trib_carry_parks(engine) && i < count; i++) {
        trib_carry_park(requests[i].op);
    }
    if (trib_carry_parks(engine)) {
        return; /* no core may have it before the next epoch */
    }
    for (uint32_t core = 0; core < engine->core_count; core++) {
        trib_post_list posts = {.newest = NULL};
        for (size_t i = 0; i < count; i++) {
            const trib_request *request = &requests[i];
            if (core == 0 || (request->spread && trib_tensor_is_used(request->tensor, core))) {
                trib_post_list_add(&posts, &request->op->cores[core].submit_post);
            }
        }
        if (posts.newest != NULL) {
            trib_reactor_post_list_nowake(engine->reactors[core].reactor, &posts);
            unwoken |= 1u << core;
        }
    }
    bool is_woken = false;
    for (size_t i = 0; i < count; i++) {
        if (hooks_of(&requests[i]) != NULL) {
            hooks_of(&requests[i])->wake(requests[i].op, unwoken);
            is_woken = true;
        }
    }
    if (!is_woken) {
        trib_engine_wake(engine, unwoken);
    }
}

/* Others may have begun the operations that were refused here. */
static void note_gaps(trib_engine *engine, const trib_request *requests, size_t count)
{
    pthread_mutex_lock(&engine->mutex);
    for (size_t i = 0; i < count; i++) {
        if (requests[i].tensor != NULL && requests[i].tensor->name_length > 0) {
            *trib_rank_group_gap(engine, requests[i].tensor->group) = true;
        }
    }
    pthread_mutex_unlock(&engine->mutex);
}

static trib_status submit_all(trib_engine *engine, trib_request *requests, size_t count, trib_error *error)
{
    trib_status status = record_markers(engine, requests, count, error);
    pthread_mutex_lock(&engine->mutex);
    status = status == TRIB_OK ? take_slots(engine, requests, count, error) : status;
    for (size_t i = 0; i < count && status == TRIB_OK; i++) {
        status = prepare_slot(engine, &requests[i], error);
    }
    if (status == TRIB_OK) {
        status = check_all(engine, requests, count, error);
    }
    const int64_t now_ns = trib_now(engine->reactors[0].reactor);
    for (size_t first = 0; status == TRIB_OK && first < count; first += POSTED_TOGETHER) {
        const size_t some = count - first < POSTED_TOGETHER ? count - first : POSTED_TOGETHER;
        for (size_t i = 0; i < some; i++) {
            begin_op(&requests[first + i], now_ns);
        }
        post_all(engine, requests + first, some);
    }
    if (status == TRIB_OK && requests[0].is_boundary) {
        trib_boundary_posted(engine);
    }
    if (status != TRIB_OK) {
        put_slots_back(requests, count);
    }
    pthread_mutex_unlock(&engine->mutex);
    if (status != TRIB_OK) {
        drop_markers(engine, requests, count);
        return status;
    }
    for (size_t i = 0; i < count; i++) {
        trib_op *before = requests[i].before;
        if (before != NULL && trib_handle_close(before->handle)) {
            trib_op_give_back(before);
        }
    }
    return TRIB_OK;
}

/* ---- Operations whose tensor the engine names ---- */

/* Declares a tensor for each of them, whose name has the operation's number among those of this worker. */
static trib_status declare_once(trib_engine *engine, trib_request *requests, size_t count, trib_error *error)
{
    trib_status status = TRIB_OK;
    uint64_t number = engine->once_count;
    for (size_t i = 0; i < count && status == TRIB_OK; i++) {
        if (!requests[i].is_once) {
            continue;
        }
        const trib_op_params *params = requests[i].params;
        char name[32];
        snprintf(name, sizeof name, "__once.%llu", (unsigned long long)++number);
        const trib_tensor_desc desc = {
            .name = name, .dtype = params->dtype, .count = params->bytes / trib_dtype_size(params->dtype)};
        status = trib_tensor_find_or_add(engine, &desc, &requests[i].tensor, NULL, error);
    }
    return status;
}

static void release_once(trib_engine *engine, const trib_request *requests, size_t count)
{
    pthread_mutex_lock(&engine->mutex);
    for (size_t i = 0; i < count; i++) {
        if (requests[i].is_once) {
            engine->once_count++;
            trib_tensor_release_once(requests[i].tensor);
        }
    }
    pthread_mutex_unlock(&engine->mutex);
}

trib_status trib_ops_submit(trib_engine *engine, trib_request *requests, size_t count, trib_error *error)
{
    bool any = false;
    for (size_t i = 0; i < count; i++) {
        requests[i].is_once = requests[i].tensor == NULL;
        any = any || requests[i].is_once;
    }
    if (!any) {
        const trib_status alone = submit_all(engine, requests, count, error);
        if (alone != TRIB_OK) {
            note_gaps(engine, requests, count);
        }
        return alone;
    }
    /* The numbers are taken when the operations are. After a failure the next attempt finds the same tensors. */
    pthread_mutex_lock(&engine->once_mutex);
    pthread_mutex_lock(&engine->mutex);
    trib_status status = trib_op_join_check(engine, error); /* an answer to a join raises the numbers */
    pthread_mutex_unlock(&engine->mutex);
    if (status == TRIB_OK) {
        status = trib_ops_reserve(engine, requests, count, error);
    }
    if (status == TRIB_OK) {
        status = declare_once(engine, requests, count, error);
        if (status == TRIB_OK) {
            status = submit_all(engine, requests, count, error);
        } else {
            trib_ops_put_back(engine, requests, count);
        }
    }
    if (status == TRIB_OK) {
        release_once(engine, requests, count);
    } else {
        note_gaps(engine, requests, count);
    }
    pthread_mutex_unlock(&engine->once_mutex);
    return status;
}

/*
 * device_op.c - operations on tensors on a device: their state, and the wait for their input.
 *
 * A thread that has slept wakes up 20 to 200 us late, and the system call that wakes it costs the caller microseconds.
 * If the cores have nothing to do before the device has, the caller wakes only the device thread, which wakes the
 * cores. In an engine that has nothing else to do, the first bytes of a sum are copied to the host at once, while the
 * cores that push them wake up. These bytes go "ahead".
 *
 * A wait for a caller's stream belongs to the operation, and outlasts an epoch: the stream may come late, or never. An
 * operation that keeps its input (op_carry.h) copies all of it to the host before a core reads it, so that the host has
 * the whole input or the device has. The wait for the stream, and then that copy, is a part of core 0's share of the
 * round, which is not over before.
 */
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/device/device_task.h"
#include "engine/worker/op_carry.h"
#include "engine/worker/pipeline.h"
#include "engine/worker/worker.h"

#define AHEAD_COPY_BYTES (1u << 20) /* 20 to 40 us over PCIe: about the time that a core takes to wake up */
#define GRACE_NS (2 * INT64_C(1000000000))
#define GRACE_PARTS 8 /* while the process stands still, one part of it passes at most */

trib_status trib_device_op_prepare(trib_op *op, trib_error *error)
{
    if (op->device == NULL) {
        op->device = calloc(1, sizeof *op->device);
        if (op->device == NULL) {
            return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for an operation on a device");
        }
        op->device->op = op;
    }
    atomic_store(&op->device->end.jobs_launched, 0);
    atomic_store(&op->device->end.is_launched, false);
    atomic_store(&op->device->notified, false);
    return TRIB_OK;
}

void trib_device_op_fill(trib_op *op)
{
    op->device->ahead_bytes = 0;
    op->device->root = TRIB_NO_MEMBER;
}

/* The call has checked it, unless it came before the roster. */
static void check_shards(trib_op *op)
{
    const trib_tensor *tensor = op->tensor;
    const bool sums_there = trib_engine_local_size(op->engine) > 1 && op->collective == TRIB_COLLECTIVE_ALL_REDUCE;
    const bool has_room = op->reduce != TRIB_AVG || trib_dtype_is_float(tensor->dtype);
    if (op->collective == TRIB_COLLECTIVE_REDUCE ||
        (sums_there && !(has_room && op->engine->env.device->reduces(tensor->dtype, op->reduce)))) {
        trib_op_fail(op, TRIB_UNSUPPORTED,
                     "the GPUs of a machine cannot reduce it so: copy the tensor to the host. They need not where the "
                     "coordinator's process has TRIB_SURVIVE=workers or continue");
    }
}

void trib_device_op_fit(trib_op *op)
{
    if (op->tensor->is_sharded) {
        const uint32_t local_size = trib_engine_local_size(op->engine);
        const bool is_broadcast = op->collective == TRIB_COLLECTIVE_BROADCAST;
        op->device->root = is_broadcast ? op->root : TRIB_NO_MEMBER;
        op->root = trib_device_root(local_size, is_broadcast ? op->root / local_size : 0);
        check_shards(op);
    }
}

/* ---- The input ---- */

/* Core 0: a job that brings the input is over. */
static void note_failure(trib_op *op, const trib_device_job *job)
{
    if (job->status != TRIB_OK) {
        trib_device_fail_if_job_lost(op, job->status);
        trib_op_fail(op, job->status, "its input did not %s: %s",
                     job->kind == TRIB_DEVICE_WAIT ? "become ready" : "come to the host", job->text);
    }
}

/* Drops the reference of a job, or of the news of it. */
static void end_job(trib_op *op)
{
    trib_engine *engine = op->engine;
    trib_op_unref(op);
    atomic_fetch_sub(&engine->device_jobs, 1);
}

/* The post of an op_core whose input has come, or has failed. */
static void take_input(trib_reactor *reactor, trib_post *post)
{
    trib_core *core = reactor->owner;
    trib_op_core *op_core = trib_container_of(post, trib_op_core, input_post);
    trib_op *op = op_core->op;
    trib_tensor *tensor = op->tensor;
    const bool is_used = !core->ended && atomic_load(&tensor->placed); /* later core 0 may free the tensor's tasks */
    trib_tensor_core *mine = is_used ? trib_tensor_core_of(core, tensor) : NULL;
    if (op_core->core == core && mine != NULL && mine->active == op_core) {
        if (atomic_load(&op->device->input) == TRIB_INPUT_FAILED) {
            trib_worker_abort_active(core, op_core);
        }
        for (uint32_t i = 0; i < mine->task_count && mine->active == op_core; i++) {
            trib_task *task = &mine->tasks[i];
            if (trib_pipeline_waits_in(task, TRIB_STAGE_INPUT)) {
                trib_pipeline_resume(core, task); /* the other tasks began after the input had come */
            }
        }
    }
    if (mine != NULL) {
        trib_worker_start_next(core, tensor);
    }
    const unsigned posts_left = atomic_fetch_sub(&op->device->posts_left, 1);
    trib_assert(posts_left > 0);
    if (posts_left == 1) {
        end_job(op);
    }
}

/* Core 0: the input is there, or will not come. */
static void tell_cores(trib_op *op, bool is_there)
{
    trib_engine *engine = op->engine;
    atomic_fetch_add(&op->references, 1); /* until the last core has heard of it */
    atomic_fetch_add(&engine->device_jobs, 1);
    atomic_store(&op->device->input, is_there ? TRIB_INPUT_READY : TRIB_INPUT_FAILED);
    /* Before the placement no other core has tasks of the tensor. */
    const uint32_t cores = atomic_load(&op->tensor->placed) ? engine->core_count : 1;
    atomic_store(&op->device->posts_left, cores > 1 ? op->tensor->cores_used : 1);
    for (uint32_t i = 0; i < cores; i++) {
        if (i == 0 || trib_tensor_is_used(op->tensor, i)) {
            op->cores[i].input_post.run = take_input;
            trib_reactor_post(engine->reactors[i].reactor, &op->cores[i].input_post);
        }
    }
}

static void take_kept_back(trib_reactor *reactor, trib_post *post)
{
    const trib_device_job *job = trib_container_of(post, trib_device_job, post);
    trib_op *op = job->owner;
    trib_op_core *op_core = &op->cores[0];
    trib_assert(trib_tensor_core_of(reactor->owner, op->tensor)->active == op_core && !op_core->is_kept);
    op_core->is_kept = job->status == TRIB_OK; /* the cores learn of this together with the input */
    if (!op_core->is_kept && trib_carry_is_cut(op)) {
        op->device->has_come = true; /* the input is copied again in the next epoch */
    } else {
        note_failure(op, job);
        tell_cores(op, op_core->is_kept);
    }
    trib_worker_part_settled(reactor->owner, op_core);
}

/* Core 0: the round does not wait for the stream any more. */
static void end_wait(trib_core *core, trib_op *op)
{
    if (op->device->holds_round) {
        op->device->holds_round = false;
        trib_worker_part_settled(core, &op->cores[0]);
    }
}

/* Core 0: the stream has come, and the round has begun. The copy takes the wait's place in it. */
static void keep_input(trib_core *core, trib_op *op)
{
    trib_device_job *job = &op->device->wait;
    trib_assert(op->kept != NULL && op->input != op->kept && job->slot == NULL);
    trib_assert(op->device->has_come && op->device->holds_round);
    op->device->has_come = false;
    if (!atomic_load(&core->engine->continues)) { /* this was not known when the operation was submitted */
        tell_cores(op, true);
        end_wait(core, op);
        return;
    }
    op->device->holds_round = false;
    *job = (trib_device_job){.post.run = take_kept_back,
                             .reactor = core->reactor,
                             .owner = op,
                             .kind = TRIB_DEVICE_TO_HOST,
                             .source = op->input,
                             .target = op->kept,
                             .bytes = op->tensor->bytes};
    core->engine->env.device->submit(core->engine->device, job);
}

void trib_device_op_round_began(trib_core *core, trib_op *op)
{
    trib_device_op *device = op->device;
    if (core->reactor->index == 0 && device->keeps && atomic_load(&device->input) == TRIB_INPUT_AWAITED) {
        trib_assert(!device->holds_round);
        device->holds_round = true;
        op->cores[0].tasks_left++;
        if (device->has_come) {
            keep_input(core, op);
        }
    }
}

void trib_device_op_given_up(trib_core *core, trib_op *op)
{
    if (core->reactor->index == 0) {
        end_wait(core, op);
    }
}

/* Core 0: the stream has reached the marker, or the copy ahead is over, or either has failed. */
static void take_input_back(trib_reactor *reactor, trib_post *post)
{
    trib_device_job *job = trib_container_of(post, trib_device_job, post);
    trib_op *op = job->owner;
    trib_core *core = reactor->owner;
    const bool was_ahead = op->device->ahead_bytes > 0, is_there = job->status == TRIB_OK;
    note_failure(op, job);
    if (is_there && op->device->keeps) {
        op->device->has_come = true;
        if (op->device->holds_round) {
            keep_input(core, op);
        }
        end_job(op);
        return;
    }
    if (was_ahead) {
        trib_assert(atomic_load(&op->tensor->ahead_round) == op->round);
        atomic_store(&op->tensor->ahead_round, 0); /* the cores learn of this together with the input */
    }
    tell_cores(op, is_there);
    end_wait(core, op);
    if (was_ahead) {
        trib_assert(!op->device->is_over && atomic_load(&op->cores_left) > 0);
        op->device->is_over = true;
        trib_timer_stop(reactor, &op->device->grace);
        trib_op_core_done(op, core);
    }
    end_job(op);
}

/* Returns how many bytes may be copied ahead. Only the sole operation of an engine may do so: no other operation uses
 * the staging memory then, and no copy of higher priority waits. */
static uint64_t count_ahead_bytes(const trib_op *op)
{
    const trib_engine *engine = op->engine;
    const trib_tensor *tensor = op->tensor;
    const bool goes_by_host = op->collective == TRIB_COLLECTIVE_ALL_REDUCE && tensor->is_sharded &&
                              !trib_engine_is_one_machine(engine) && !atomic_load(&engine->direct_logged);
    if (!goes_by_host || trib_engine_local_size(engine) > 1 || !op->spread || trib_engine_ops_in_flight(engine) > 1 ||
        trib_device_keeps(tensor)) { /* then each round is encoded there */
        return 0;
    }
    const uint64_t most = AHEAD_COPY_BYTES / tensor->partition_bytes * tensor->partition_bytes;
    return tensor->bytes < most ? tensor->bytes : most;
}

void trib_device_op_begin(trib_op *op, void *marker)
{
    trib_engine *engine = op->engine;
    trib_device_op *device = op->device;
    trib_assert(device->op == op && op->tensor->on_device);
    device->keeps = op->kept != NULL; /* a shard's, too, if the roster has come since it was reserved */
    device->ahead_bytes = marker == NULL && !device->keeps ? count_ahead_bytes(op) : 0;
    device->has_come = device->keeps && marker == NULL;
    device->holds_round = false;
    if (device->has_come) {
        atomic_store(&device->input, TRIB_INPUT_AWAITED); /* until it is kept */
        return;
    }
    if (marker == NULL && device->ahead_bytes == 0) {
        atomic_store(&device->input, TRIB_INPUT_READY);
        return;
    }
    atomic_store(&device->input, TRIB_INPUT_AWAITED);
    atomic_fetch_add(&op->references, 1);
    atomic_fetch_add(&engine->device_jobs, 1);
    device->wait = (trib_device_job){.post.run = take_input_back,
                                     .reactor = engine->reactors[0].reactor,
                                     .owner = op,
                                     .kind = TRIB_DEVICE_WAIT,
                                     .marker = marker};
    if (marker != NULL) {
        engine->env.device->submit(engine->device, &device->wait);
        return;
    }
    atomic_fetch_add(&op->cores_left, 1); /* the copy reads the caller's buffer */
    device->is_over = false;
    device->grace_parts = 0;
    trib_assert(atomic_load(&op->tensor->ahead_round) == 0);
    atomic_store(&op->tensor->ahead_round, op->round);
    device->wait.kind = TRIB_DEVICE_TO_HOST;
    device->wait.source = op->input;
    device->wait.target = op->tensor->device->staging;
    device->wait.bytes = device->ahead_bytes;
}

/* ---- Copies ahead of failed operations ---- */

static int64_t part_of_grace_ns(const trib_engine *engine)
{
    return (GRACE_NS + engine->config.peer_timeout_ns) / GRACE_PARTS;
}

static void handle_grace_passed(trib_reactor *reactor, trib_timer *timer)
{
    trib_op *op = timer->user;
    trib_engine *engine = op->engine;
    if (++op->device->grace_parts < GRACE_PARTS) {
        trib_timer_arm(reactor, timer, trib_now(reactor) + part_of_grace_ns(engine));
        return;
    }
    char text[TRIB_ERROR_TEXT_SIZE];
    snprintf(text, sizeof text,
             "tensor \"%.80s\": the operation has failed and the device has not copied its input yet: it does not work",
             op->tensor->name);
    trib_job_fail(engine, TRIB_TIMEOUT, text);
}

static void handle_failure(trib_reactor *reactor, trib_post *post)
{
    const trib_core *core = reactor->owner;
    trib_device_op *device = trib_container_of(post, trib_device_op, failed_post);
    trib_op *op = device->op;
    if (!device->is_over && !core->ended) {
        device->grace.fired = handle_grace_passed;
        device->grace.user = op;
        trib_timer_arm(reactor, &device->grace, trib_now(reactor) + part_of_grace_ns(core->engine));
    }
    trib_op_unref(op);
}

void trib_device_ahead_failed(trib_op *op)
{
    if (!atomic_exchange(&op->device->notified, true)) {
        atomic_fetch_add(&op->references, 1);
        op->device->failed_post.run = handle_failure;
        trib_reactor_post(op->engine->reactors[0].reactor, &op->device->failed_post);
    }
}

void trib_device_op_go_ahead(trib_op *op)
{
    op->engine->env.device->submit(op->engine->device, &op->device->wait);
}

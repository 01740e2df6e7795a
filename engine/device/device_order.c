/*
 * device_order.c - operations on the devices of one machine that are issued where they are handed in, as the program promises
 * one order on all local ranks (trib_config.device_order), or all have come to the door with that one (group_door_call.c).
 *
 * Such an operation is one collective, of the whole tensor. It is under way before any core has heard of it, and nobody can
 * take it back: the others have theirs. So an operation that fails here meanwhile is complete when its collective is
 * over, which counts in cores_left like a core. Its tasks, when their round has its turn, only wait for that.
 *
 * Invariants
 * - The group is told of whatever was issued; in program order at the place that the device gave it (group_order.c).
 * - What does not come back after its operation has failed ends the job, which stops the device, which gives it back. That is
 *   also so of input that goes ahead (device_op.c).
 */
#include <stdio.h>

#include "engine/base/assert.h"
#include "engine/local_group/group.h"
#include "engine/worker/pipeline.h"
#include "engine/worker/worker.h"

#define GRACE_NS (2 * INT64_C(1000000000))

static int64_t timeout_ns(const trib_engine *engine)
{
    return GRACE_NS + engine->config.peer_timeout_ns;
}

/* The tasks of the operation, if its round has its turn. */
static void go_on(trib_core *core, trib_op *op)
{
    trib_op_core *op_core = &op->cores[0];
    trib_tensor_core *mine = atomic_load(&op->tensor->placed) ? trib_tensor_core_of(core, op->tensor) : NULL;
    if (mine == NULL || mine->active != op_core) {
        return;
    }
    if (op->device->whole.status != TRIB_OK) {
        trib_worker_abort_active(core, op_core);
    }
    for (uint32_t i = 0; i < mine->task_count && mine->active == op_core; i++) {
        if (!mine->tasks[i].settled && !mine->tasks[i].failed) {
            trib_pipeline_resume(core, &mine->tasks[i]);
        }
    }
}

/* Core 0. */
static void whole_back(trib_reactor *reactor, trib_post *post)
{
    trib_core *core = reactor->owner;
    trib_device_job *job = (trib_device_job *)((char *)post - offsetof(trib_device_job, post));
    trib_op *op = job->owner;
    op->device->is_over = true;
    trib_timer_stop(reactor, &op->device->grace);
    if (job->status != TRIB_OK) {
        trib_device_fail_if_job_lost(op, job->status);
        trib_op_fail(op, job->status, "tensor \"%s\": %s", op->tensor->name, job->text);
    }
    trib_group_issued_back(core, op);
    go_on(core, op);
    atomic_fetch_sub(&core->engine->device_jobs, 1);
    trib_op_core_done(op, core);
    trib_op_unref(op);
}

/* An engine's own thread stays out of calls that another rank may hold up: without it nobody would learn that that one is
 * gone. */
bool trib_device_may_wait_here(const trib_engine *engine)
{
    if (engine->config.mode == TRIB_MODE_ATTACHED) {
        return false;
    }
    for (uint32_t i = 0; i < engine->core_count; i++) {
        if (engine->env.on_thread(engine->cores[i].reactor)) {
            return false;
        }
    }
    return true;
}

void trib_device_order_fill(trib_op *op, void *mark)
{
    trib_device_op *device = op->device;
    const trib_tensor *tensor = op->tensor;
    const bool is_broadcast = device->root != TRIB_NO_MEMBER;
    unsigned char *target = trib_device_data(op);
    trib_assert(op->collective == TRIB_COLLECTIVE_DEVICE_ALONE);
    device->whole = (trib_device_job){
        .post.run = whole_back,
        .reactor = op->engine->cores[0].reactor,
        .owner = op,
        .kind = is_broadcast ? TRIB_DEVICE_BROADCAST : TRIB_DEVICE_ALL_REDUCE,
        .dtype = tensor->dtype,
        .reduce = op->reduce,
        .source = is_broadcast && device->root != op->engine->member_id ? target : op->input,
        .target = target,
        .bytes = tensor->bytes,
        .root = is_broadcast ? device->root : 0, /* ranks of one machine: they are its members */
        .label = tensor->key + op->round,
        .keep = device->steady ? &op->tensor->kept : NULL,
        .keeps = device->steady,
        .mark = mark,
        .gate = &device->gate,
        .gate_count = &device->gate_count,
        .gate_goal = 1,
    };
}

void trib_device_order_issue(trib_op *op, bool here)
{
    trib_engine *engine = op->engine;
    atomic_store(&op->device->input, TRIB_INPUT_READY); /* the collective waits for it on the device */
    op->device->is_over = op->device->has_begun = op->device->is_booked = op->device->grace_extended = false;
    atomic_fetch_add(&op->references, 1);
    atomic_fetch_add(&engine->device_jobs, 1);
    engine->env.device->issue(engine->device, &op->device->whole, here);
}

/* ---- Failures ---- */

static void grace_passed(trib_reactor *reactor, trib_timer *timer)
{
    trib_op *op = timer->user;
    trib_engine *engine = op->engine;
    const bool is_joining = atomic_load(&engine->phase) == TRIB_PHASE_JOINING; /* nothing is launched yet; that ends */
    if (is_joining || (!op->device->grace_extended && trib_timer_stalled_locally(reactor, timer, GRACE_NS / 8))) {
        op->device->grace_extended = !is_joining;
        trib_timer_arm(reactor, timer, trib_now(reactor) + timeout_ns(engine));
        return;
    }
    char text[TRIB_ERROR_TEXT_SIZE];
    if (op->device->is_issued) {
        snprintf(
            text, sizeof text,
            "tensor \"%.80s\": the operation has failed and its collective is not over: a local rank has not handed in "
            "its own, the stream of one has not come to it, or the device does not work (trib_config.device_order "
            "is \"%s\")",
            op->tensor->name, trib_device_in_order(engine) ? "program" : "agreed");
    } else {
        snprintf(
            text, sizeof text,
            "tensor \"%.80s\": the operation has failed and the device has not copied its input yet: it does not work",
            op->tensor->name);
    }
    trib_engine_end(engine, TRIB_TIMEOUT, text);
}

static void failure_arrived(trib_reactor *reactor, trib_post *post)
{
    trib_core *core = reactor->owner;
    trib_device_op *device = (trib_device_op *)((char *)post - offsetof(trib_device_op, failed_post));
    trib_op *op = device->op;
    if (!device->is_over && !core->ended && device->is_issued && atomic_load(&op->claim) == TRIB_MISMATCH) {
        trib_engine_end(core->engine, TRIB_MISMATCH, op->text); /* collectives that do not match are under way */
    } else if (!device->is_over && !core->ended) {
        device->grace.fired = grace_passed;
        device->grace.user = op;
        trib_timer_arm(reactor, &device->grace, trib_now(reactor) + timeout_ns(core->engine));
    }
    trib_op_unref(op);
}

void trib_device_order_failed(trib_op *op)
{
    if (!atomic_exchange(&op->device->notified, true)) {
        atomic_fetch_add(&op->references, 1);
        op->device->failed_post.run = failure_arrived;
        trib_reactor_post(op->engine->cores[0].reactor, &op->device->failed_post);
    }
}

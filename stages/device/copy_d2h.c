/*
 * copy_d2h.c - the COPYD2H stage: copies the share's bytes to host memory, by priority, within a credit. In a
 * broadcast only the root's machine copies.
 *
 * The copies of all cores share a stream, so each core also waits for the other cores' copies. Each core may always
 * have two copies in flight, so that a copy runs while the end of the other is reported.
 *
 * This stage decides the path of the bytes for the whole round. If the network device reads GPU memory directly,
 * nothing is copied. The network device cannot wait for a stream, so the stage then waits for the end of the
 * reduction. A device that has the tensor's codec encodes, so that fewer bytes are copied. Bytes copied ahead
 * (engine/device/device_op.c) are already in host memory, as they are.
 */
#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/device/device_task.h"
#include "engine/worker/task_codec.h"
#include "stages/plans.h"

#define CREDIT_BYTES (8u << 20)
#define COPIES_LEAST 2u

static void copy_back(trib_reactor *reactor, trib_post *post)
{
    trib_core *core = reactor->owner;
    trib_device_job *job = trib_container_of(post, trib_device_job, post);
    trib_device_task *device = job->owner;
    trib_assert(job == &device->to_host && !device->awaits_jobs);
    trib_device_note_encoded(core, device->task, job);
    if (trib_device_job_back(core, device, job)) {
        trib_pipeline_resume(core, device->task);
    }
}

static trib_verdict copy_start(trib_core *core, trib_task *task, trib_error *error)
{
    (void)error;
    trib_device_task *device = task->device;
    const trib_op *op = task->op_core->op;
    trib_assert(device->task == task && !task->has_credit);
    const bool gives = trib_op_contributes(op), pushes = op->collective != TRIB_COLLECTIVE_BROADCAST || gives;
    device->awaits_jobs = false;
    if (task->size == 0) {
        task->io.destination.data = device->staging;
        return TRIB_VERDICT_DONE;
    }
    const bool is_direct = trib_device_route(core, task, pushes, !gives);
    if (!pushes) {
        return TRIB_VERDICT_DONE;
    }
    if (is_direct) {
        device->awaits_jobs = device->ready != NULL && task->held[TRIB_HOLD_DEVICE] > 0;
        return device->awaits_jobs ? TRIB_VERDICT_PENDING : TRIB_VERDICT_DONE;
    }
    if (trib_device_is_ahead(task)) {
        task->io.source.data = device->staging;
        return TRIB_VERDICT_DONE;
    }
    return TRIB_VERDICT_QUEUE;
}

static trib_verdict copy_run(trib_core *core, trib_task *task, trib_error *error)
{
    (void)error;
    trib_device_task *device = task->device;
    trib_assert(task->has_credit && device->staging != NULL && device->to_host.slot == NULL);
    const bool encodes = trib_device_encode_there(core, task);
    device->to_host = (trib_device_job){
        .kind = encodes ? TRIB_DEVICE_ENCODE : TRIB_DEVICE_TO_HOST,
        .dtype = task->tensor->dtype,
        .source = task->io.source.data,
        .target = device->staging,
        .bytes = task->size,
        .encoding = encodes ? &device->encoding : NULL,
        .after = device->ready,
    };
    task->io.source.data = device->staging;
    trib_device_submit(core, device, &device->to_host, copy_back);
    return TRIB_VERDICT_PENDING;
}

/* Sums land in staging memory as well, unless the engine takes memory of the host's for the output. An input that is
 * kept (op_carry.h) is on the host already. */
static trib_verdict copy_staged_start(trib_core *core, trib_task *task, trib_error *error)
{
    (void)core;
    (void)error;
    trib_device_task *device = task->device;
    const bool sends = trib_task_sends(task) || trib_task_is_own(task);
    unsigned char *output = task->io.destination.data;
    const bool is_wanted = trib_task_receives(task) || trib_task_contributes(task) || trib_task_is_own(task);
    const bool is_there =
        sends && output == task->io.source.data && !trib_task_receives(task); /* what it gives, in place */
    const trib_op *op = task->op_core->op;
    const bool on_host = op->allocates, is_kept = op->cores[0].is_kept;
    device->wanted = is_wanted && !is_there && !on_host ? output : NULL;
    if (!on_host) {
        task->io.destination.data = device->staging;
    }
    if (sends && is_kept && op->input != op->kept) {
        task->io.source.data = op->kept + (task->io.source.data - op->input);
    }
    return sends && task->size > 0 && !is_kept ? TRIB_VERDICT_QUEUE : TRIB_VERDICT_DONE;
}

const trib_stage trib_stage_copy_d2h_staged = {
    .id = TRIB_STAGE_COPY_D2H,
    .start = copy_staged_start,
    .run = copy_run,
    .credit = {.bytes = CREDIT_BYTES, .tasks_least = COPIES_LEAST},
};

const trib_stage trib_stage_copy_d2h = {
    .id = TRIB_STAGE_COPY_D2H,
    .start = copy_start,
    .run = copy_run,
    .credit = {.bytes = CREDIT_BYTES, .tasks_least = COPIES_LEAST},
};

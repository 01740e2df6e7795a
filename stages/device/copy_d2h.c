/*
 * copy_d2h.c - COPYD2H: the share's bytes go to host memory, by priority, while a credit of bytes is under way. In a
 * broadcast only those of the root's machine do.
 *
 * The credit comes back when the copy is over, which depends on this machine alone; so it cannot hold up what another
 * machine waits for.
 *
 * Which way the bytes go is decided here for the whole round. Where the network's device reads them on the GPU nothing is
 * copied; but it waits for no stream, so the stage waits until the reduction has been seen to end. What went ahead
 * (engine/device/device_op.c) is there already.
 */
#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/device/device_task.h"
#include "stages/plans.h"

static void copy_back(trib_reactor *reactor, trib_post *post);

/* Where the share's bytes lie on the device. */
static const unsigned char *source_of(const trib_core *core, const trib_task *task)
{
    const trib_op *op = task->op_core->op;
    return (trib_engine_local_size(core->engine) > 1 ? trib_device_data(op) : op->input) + task->offset;
}

static void fill(trib_core *core, trib_device_task *device)
{
    const trib_task *task = device->task;
    const bool reduced = trib_engine_local_size(core->engine) > 1;
    device->to_host = (trib_device_job){
        .kind = TRIB_DEVICE_TO_HOST,
        .source = source_of(core, task),
        .target = device->staging,
        .bytes = task->size,
        .after = reduced ? &device->reduce : NULL,
    };
}

static bool has_credit(const trib_core *core)
{
    const trib_copy_queue *queue = &core->copies;
    return queue->copies < TRIB_COPIES_LEAST || queue->in_flight < TRIB_COPY_CREDIT_BYTES / core->engine->core_count;
}

static void start_copies(trib_core *core)
{
    trib_copy_queue *queue = &core->copies;
    while (queue->head != NULL && has_credit(core)) {
        trib_device_task *device = queue->head;
        trib_copy_queue_remove(queue, device);
        queue->in_flight += device->task->size;
        queue->copies++;
        fill(core, device);
        trib_device_submit(core, device, &device->to_host, copy_back);
    }
}

static void copy_back(trib_reactor *reactor, trib_post *post)
{
    trib_core *core = reactor->owner;
    trib_device_job *job = trib_container_of(post, trib_device_job, post);
    trib_device_task *device = job->owner;
    trib_assert(core->copies.in_flight >= job->bytes && core->copies.copies > 0);
    core->copies.in_flight -= job->bytes;
    core->copies.copies--;
    if (trib_device_job_back(core, device, job)) {
        trib_pipeline_resume(core, device->task);
    }
    start_copies(core);
}

static trib_verdict copy_start(trib_core *core, trib_task *task, trib_error *error)
{
    (void)error;
    trib_device_task *device = task->device;
    const trib_op *op = task->op_core->op;
    const bool is_broadcast = op->collective == TRIB_COLLECTIVE_DEVICE_BROADCAST, gives = trib_op_gives(op);
    const bool pushes = !is_broadcast || gives;
    if (task->size == 0) {
        return TRIB_VERDICT_DONE;
    }
    trib_device_route(core, task, pushes ? source_of(core, task) : NULL, gives ? NULL : op->output + task->offset);
    if (!pushes) {
        return TRIB_VERDICT_DONE;
    }
    if (device->pushed != device->staging) {
        device->awaits_reduce = trib_engine_local_size(core->engine) > 1 && task->held[TRIB_HOLD_DEVICE] > 0;
        return device->awaits_reduce ? TRIB_VERDICT_PENDING : TRIB_VERDICT_DONE;
    }
    if (trib_device_is_ahead(task)) {
        return TRIB_VERDICT_DONE;
    }
    trib_copy_queue_add(&core->copies, task->device);
    start_copies(core);
    return TRIB_VERDICT_PENDING;
}

static void copy_cancel(trib_core *core, trib_task *task)
{
    trib_copy_queue_remove(&core->copies, task->device);
}

const trib_stage trib_stage_copy_d2h = {.id = TRIB_STAGE_COPY_D2H, .start = copy_start, .cancel = copy_cancel};

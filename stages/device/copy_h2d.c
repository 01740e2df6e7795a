/*
 * copy_h2d.c - the COPYH2D stage: copies the sum of the share to its place in the device's output.
 *
 * The stage has two versions. The first is done when the device has the copy, and later device work waits for the
 * copy there. The second completes the partition: the stage is done when the device's jobs have ended, and the
 * operation ends with it. In a broadcast the root's machine has its bytes in place and copies nothing.
 *
 * If the network device wrote the sum to its place directly, a job that makes the bytes visible to the GPU replaces
 * the copy.
 */
#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/device/device_task.h"
#include "engine/worker/task_codec.h"
#include "stages/plans.h"

static void copy_back(trib_reactor *reactor, trib_post *post)
{
    trib_device_job *job = trib_container_of(post, trib_device_job, post);
    trib_device_task *device = job->owner;
    if (job->was_full) {
        trib_device_note_full(reactor->owner, device->task);
    }
    (void)trib_device_job_back(reactor->owner, device, job);
}

/* The job that brings the sum from staging memory to its place, decoding it if it came encoded. */
static trib_device_job job_from_staging(const trib_task *task, unsigned char *target)
{
    const trib_device_task *device = task->device;
    const bool decodes = trib_task_has_handed_sums(task);
    return (trib_device_job){.kind = decodes ? TRIB_DEVICE_DECODE : TRIB_DEVICE_TO_DEVICE,
                             .dtype = task->tensor->dtype,
                             .source = device->staging,
                             .target = target,
                             .bytes = task->size,
                             .encoding = decodes ? &device->encoding : NULL};
}

static void fill(trib_task *task)
{
    trib_device_task *device = task->device;
    trib_assert(device->to_device.slot == NULL && task->chunks_received == task->chunk_count);
    unsigned char *target = task->op_core->op->output + task->offset;
    device->to_device = job_from_staging(task, target);
    if (task->io.destination.data != device->staging) {
        device->to_device.kind = TRIB_DEVICE_SEE;
    }
    task->io.destination.data = target;
}

static trib_verdict copy_start(trib_core *core, trib_task *task, trib_error *error)
{
    (void)error;
    trib_device_task *device = task->device;
    device->ready = NULL;
    if (!trib_op_contributes(task->op_core->op) && task->size > 0) {
        fill(task);
        device->ready = &device->to_device;
        trib_device_submit(core, device, &device->to_device, copy_back);
    }
    return TRIB_VERDICT_DONE;
}

const trib_stage trib_stage_copy_h2d = {.id = TRIB_STAGE_COPY_H2D, .start = copy_start};

static trib_verdict copy_last_start(trib_core *core, trib_task *task, trib_error *error)
{
    (void)error;
    trib_device_task *device = task->device;
    const trib_op *op = task->op_core->op;
    trib_assert(trib_engine_local_size(core->engine) == 1); /* several ranks end with a gather */
    device->awaits_jobs = true;
    if (trib_op_contributes(op)) {
        return task->held[TRIB_HOLD_DEVICE] == 0 ? TRIB_VERDICT_DONE : TRIB_VERDICT_PENDING;
    }
    fill(task);
    device->to_device.end = &op->device->end;
    device->to_device.end_jobs = task->tensor->device->slice_count;
    trib_device_submit(core, device, &device->to_device, copy_back);
    return TRIB_VERDICT_PENDING;
}

/* Streams that wait for the operation wait for its end in the call (trib_op_stream_wait): the device cannot tell which
 * copy is the last one, as their number depends on the collective. */
static trib_verdict copy_staged_start(trib_core *core, trib_task *task, trib_error *error)
{
    (void)error;
    trib_device_task *device = task->device;
    if (device->wanted == NULL || task->size == 0) {
        return TRIB_VERDICT_DONE;
    }
    device->awaits_jobs = true;
    device->to_device = job_from_staging(task, device->wanted);
    trib_device_submit(core, device, &device->to_device, copy_back);
    return TRIB_VERDICT_PENDING;
}

const trib_stage trib_stage_copy_h2d_staged = {.id = TRIB_STAGE_COPY_H2D, .start = copy_staged_start};

const trib_stage trib_stage_copy_h2d_last = {.id = TRIB_STAGE_COPY_H2D, .start = copy_last_start};

/*
 * copy_h2d.c - COPYH2D: the sum of the share goes back to the device, into its place in the output.
 *
 * Where the machine's GPUs gather the slice afterwards the stage is done when the copy has been given to the device: the
 * gather waits for it there. Else the copy is the last thing, and the stage waits for its end. The machine of a broadcast's
 * root has all bytes where they belong: there the stage waits for what the device still does.
 *
 * Sums that the network's device has written to their place need no copy, but a word to the GPU that they are there: that
 * job takes the copy's place, with all that waits for it.
 */
#include "engine/base/container_of.h"
#include "engine/device/device_task.h"
#include "stages/plans.h"

static void copy_back(trib_reactor *reactor, trib_post *post)
{
    trib_device_job *job = trib_container_of(post, trib_device_job, post);
    trib_device_task *device = job->owner;
    (void)trib_device_job_back(reactor->owner, device, job);
}

static trib_verdict copy_start(trib_core *core, trib_task *task, trib_error *error)
{
    (void)error;
    trib_device_task *device = task->device;
    const trib_op *op = task->op_core->op;
    const bool gathers = trib_engine_local_size(core->engine) > 1;
    device->ready = NULL;
    device->awaits_jobs = !gathers;
    if (trib_op_gives(op)) {
        return gathers || task->held[TRIB_HOLD_DEVICE] == 0 ? TRIB_VERDICT_DONE : TRIB_VERDICT_PENDING;
    }
    if (task->size == 0 && gathers) {
        return TRIB_VERDICT_DONE;
    }
    device->to_device = (trib_device_job){
        .kind = task->io.destination.data == device->staging ? TRIB_DEVICE_TO_DEVICE : TRIB_DEVICE_SEE,
        .source = device->staging,
        .target = op->output + task->offset,
        .bytes = task->size,
    };
    if (!gathers) {
        device->to_device.semaphore = &op->device->semaphore;
        device->to_device.semaphore_count = &op->device->semaphore_count;
        device->to_device.semaphore_goal = task->tensor->device->slice_count;
    }
    task->io.destination.data = op->output + task->offset;
    device->ready = &device->to_device;
    trib_device_submit(core, device, &device->to_device, copy_back);
    return gathers ? TRIB_VERDICT_DONE : TRIB_VERDICT_PENDING;
}

const trib_stage trib_stage_copy_h2d = {.id = TRIB_STAGE_COPY_H2D, .start = copy_start};

/*
 * nccl_broadcast.c - NCCL_BROADCAST: the GPUs of a machine give each other their shares of a slice: an all-gather in place.
 *
 * Announced when this rank's share is on its way to the device; ordered when all ranks have announced it. The task is
 * through when the gather is, and every job before it has been given back. The machine of a broadcast's root gathers
 * nothing: its ranks only wait for each other, so that none leaves while others still send.
 */
#include "engine/local_group/group.h"
#include "stages/plans.h"

static trib_verdict gather_start(trib_core *core, trib_task *task, trib_error *error)
{
    (void)error;
    trib_device_task *device = task->device;
    const trib_op *op = task->op_core->op;
    const trib_tensor *tensor = task->tensor;
    const bool has_all = trib_op_gives(op);
    device->gather = (trib_device_job){
        .kind = TRIB_DEVICE_ALL_GATHER,
        .dtype = tensor->dtype,
        .source = trib_device_data(op) + task->offset,
        .target = trib_device_data(op) + device->slice_offset,
        .bytes = has_all ? 0 : device->slice_bytes,
        .shard = tensor->partition_bytes,
        .label = trib_device_label(op, device->slice),
        .after = device->ready,
        .semaphore = &op->device->semaphore,
        .semaphore_count = &op->device->semaphore_count,
        .semaphore_goal = tensor->device->slice_count,
    };
    device->awaits_jobs = true;
    trib_group_announce(core, device, &device->gather);
    return TRIB_VERDICT_PENDING;
}

const trib_stage trib_stage_nccl_broadcast = {.id = TRIB_STAGE_NCCL_BROADCAST, .start = gather_start};

/*
 * nccl_broadcast.c - the NCCL_BROADCAST stage: an in-place all-gather in which the GPUs of a machine exchange their
 * shares of a slice.
 *
 * A rank announces the gather when its share is on the way to the device. The gather is ordered when all local ranks
 * have announced it. The task is done when the gather and all jobs before it have ended.
 *
 * The machine of a broadcast's root gathers nothing: its ranks only wait for each other, so that none leaves while
 * others still send.
 */
#include "engine/base/assert.h"
#include "engine/local_group/group.h"
#include "stages/plans.h"

static trib_verdict gather_start(trib_core *core, trib_task *task, trib_error *error)
{
    (void)error;
    trib_device_task *device = task->device;
    const trib_op *op = task->op_core->op;
    const trib_tensor *tensor = task->tensor;
    trib_assert(trib_engine_local_size(core->engine) > 1 && device->gather.slot == NULL);
    const bool has_all = trib_op_contributes(op);
    device->gather = (trib_device_job){
        .kind = TRIB_DEVICE_ALL_GATHER,
        .dtype = tensor->dtype,
        .source = trib_device_data(op) + task->offset,
        .target = trib_device_data(op) + device->slice_offset,
        .bytes = has_all ? 0 : device->slice_bytes,
        .shard = tensor->partition_bytes,
        .label = trib_device_label(op, device->slice),
        .after = device->ready,
        .end = &op->device->end,
        .end_jobs = tensor->device->slice_count,
    };
    device->awaits_jobs = true;
    trib_group_announce(core, device, &device->gather);
    return TRIB_VERDICT_PENDING;
}

const trib_stage trib_stage_nccl_broadcast = {.id = TRIB_STAGE_NCCL_BROADCAST, .start = gather_start};

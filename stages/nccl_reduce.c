/*
 * nccl_reduce.c - NCCL_REDUCE: the GPUs of a machine sum a slice, and each gets its share of the sum.
 *
 * A reduce-scatter into the output: a rank's share of the slice lands where it belongs, so that the copy to the host and
 * the gather behind it need no memory of their own. The stage is done when the collective has been ordered and given to
 * the device; the copy waits for it there. Where there is no other machine it is an all-reduce, and waits for its end.
 */
#include "engine/group.h"
#include "stages/plans.h"

static void alone_back(trib_reactor *reactor, trib_post *post)
{
    trib_device_job *job = (trib_device_job *)((char *)post - offsetof(trib_device_job, post));
    trib_device_task *device = job->owner;
    device->last_job = true;
    (void)trib_device_job_back(reactor->owner, device, job);
}

static void fill(trib_device_task *device, bool alone)
{
    const trib_task *task = device->task;
    const trib_op *op = task->node->op;
    const trib_tensor *tensor = task->tensor;
    device->reduce = (trib_device_job){
        .kind = alone ? TRIB_DEVICE_ALL_REDUCE : TRIB_DEVICE_REDUCE_SCATTER,
        .dtype = tensor->dtype,
        .reduce = alone || op->reduce != TRIB_AVG ? op->reduce : TRIB_SUM, /* the server divides, once for all */
        .source = op->input + device->slice_offset,
        .target = op->output + (alone ? device->slice_offset : task->offset),
        .bytes = device->slice_bytes,
        .share = tensor->partition_bytes,
        .label = (uint64_t)tensor->id << 32 ^ (uint64_t)op->round << 16 ^ device->slice,
    };
    if (alone) {
        device->reduce.gate = &op->device->gate;
        device->reduce.gate_count = &op->device->gate_count;
        device->reduce.gate_goal = tensor->device->slice_count;
    }
}

static trib_verdict reduce_start(trib_core *core, trib_task *task, trib_error *error)
{
    (void)error;
    trib_device_task *device = task->device;
    const bool alone = task->node->op->exchange == TRIB_EXCHANGE_DEVICE_ALONE;
    const bool others = trib_device_lanes(core->engine) > 1;
    if (!others && !alone) {
        return TRIB_VERDICT_DONE;
    }
    fill(device, alone);
    if (others) {
        trib_group_announce(core, device, &device->reduce);
    } else {
        trib_device_submit(core, device, &device->reduce, alone_back);
    }
    return TRIB_VERDICT_PENDING;
}

/* What was announced stays so until it is ordered or called off; the task holds on for that long. */
static void reduce_cancel(trib_core *core, trib_task *task)
{
    (void)core;
    (void)task;
}

const trib_stage trib_stage_nccl_reduce = {"NCCL_REDUCE", reduce_start, reduce_cancel};

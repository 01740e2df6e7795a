/*
 * nccl_reduce.c - the NCCL_REDUCE stage: the GPUs of a machine sum a slice, and each gets its share of the sum. In a
 * broadcast the root's GPU sends the slice to the GPUs of its machine; other machines do nothing.
 *
 * The collective is a reduce-scatter into the output. A rank's share lands in its final place, so the copy to the
 * host and the later gather need no extra memory. The stage is done when the device has the collective; the copy
 * waits for it there.
 *
 * In a job of one machine the collective is an all-reduce, and the stage waits for its end.
 */
#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/local_group/group.h"
#include "stages/plans.h"

static void job_back(trib_reactor *reactor, trib_post *post)
{
    trib_device_job *job = trib_container_of(post, trib_device_job, post);
    (void)trib_device_job_back(reactor->owner, job->owner, job);
}

static void fill_broadcast(trib_device_task *device, uint32_t local_size)
{
    const trib_op *op = device->task->op_core->op;
    const trib_tensor *tensor = device->task->tensor;
    trib_assert(trib_op_contributes(op) || trib_engine_is_one_machine(op->engine));
    trib_assert(op->device->root != TRIB_NO_MEMBER && device->reduce.slot == NULL);
    const bool is_root = op->device->root == op->engine->member_id;
    unsigned char *target = trib_device_data(op) + device->slice_offset;
    device->reduce = (trib_device_job){
        .kind = TRIB_DEVICE_BROADCAST,
        .dtype = tensor->dtype,
        .source = is_root ? op->input + device->slice_offset : target,
        .target = target,
        .bytes = device->slice_bytes,
        .shard = tensor->partition_bytes,
        .root = op->device->root % local_size,
        .label = trib_device_label(op, device->slice),
    };
}

static void fill(trib_device_task *device, bool alone)
{
    const trib_task *task = device->task;
    const trib_op *op = task->op_core->op;
    const trib_tensor *tensor = task->tensor;
    trib_assert(device->reduce.slot == NULL && device->slice_offset + device->slice_bytes <= tensor->bytes);
    device->reduce = (trib_device_job){
        .kind = alone ? TRIB_DEVICE_ALL_REDUCE : TRIB_DEVICE_REDUCE_SCATTER,
        .dtype = tensor->dtype,
        .reduce = alone || op->reduce != TRIB_AVG ? op->reduce : TRIB_SUM, /* the server divides the total for AVG */
        .source = op->input + device->slice_offset,
        .target = op->output + (alone ? device->slice_offset : task->offset),
        .bytes = device->slice_bytes,
        .shard = tensor->partition_bytes,
        .label = trib_device_label(op, device->slice),
    };
}

/* An announcement lasts until the collective is ordered or called off, and holds the task until then. */
static trib_verdict reduce_start(trib_core *core, trib_task *task, trib_error *error)
{
    (void)error;
    trib_device_task *device = task->device;
    const trib_op *op = task->op_core->op;
    const bool is_broadcast = op->collective == TRIB_COLLECTIVE_BROADCAST;
    const uint32_t local_size = trib_engine_local_size(core->engine);
    if (is_broadcast ? !trib_op_contributes(op) : local_size == 1) {
        return TRIB_VERDICT_DONE;
    }
    if (is_broadcast) {
        fill_broadcast(device, local_size);
    } else {
        fill(device, false);
    }
    if (local_size == 1) { /* the root copies to its own output while the bytes are sent from the input */
        trib_device_submit(core, device, &device->reduce, job_back);
        return TRIB_VERDICT_DONE;
    }
    task->io.source.data = trib_device_data(op) + task->offset;
    device->ready = &device->reduce;
    trib_group_announce(core, device, &device->reduce);
    return TRIB_VERDICT_PENDING;
}

const trib_stage trib_stage_nccl_reduce = {.id = TRIB_STAGE_NCCL_REDUCE, .start = reduce_start};

static trib_verdict all_reduce_start(trib_core *core, trib_task *task, trib_error *error)
{
    (void)error;
    trib_device_task *device = task->device;
    const trib_op *op = task->op_core->op;
    const uint32_t local_size = trib_engine_local_size(core->engine);
    if (op->collective == TRIB_COLLECTIVE_BROADCAST) {
        fill_broadcast(device, local_size);
    } else {
        fill(device, true);
    }
    device->reduce.end = &op->device->end;
    device->reduce.end_jobs = task->tensor->device->slice_count;
    device->awaits_jobs = true;
    if (local_size > 1) {
        trib_group_announce(core, device, &device->reduce);
    } else {
        trib_device_submit(core, device, &device->reduce, job_back);
    }
    return TRIB_VERDICT_PENDING;
}

const trib_stage trib_stage_nccl_all_reduce = {.id = TRIB_STAGE_NCCL_REDUCE, .start = all_reduce_start};

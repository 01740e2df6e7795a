/*
 * device_input.c - INPUT: a device tensor's bytes are there when the caller's stream has come to the call.
 *
 * The device tells (engine/device/device_op.c); then all partitions of the operation go on.
 */
#include "engine/device/device_task.h"
#include "stages/plans.h"

static trib_verdict input_start(trib_core *core, trib_task *task, trib_error *error)
{
    (void)core;
    task->device->awaits_jobs = false;
    task->device->ready = NULL;
    switch ((trib_device_input)atomic_load(&task->op_core->op->device->input)) {
    case TRIB_INPUT_AWAITED:
        return TRIB_VERDICT_PENDING;
    case TRIB_INPUT_READY:
        return TRIB_VERDICT_DONE;
    default:
        trib_error_set(error, TRIB_SYSTEM, "its input did not become ready");
        return TRIB_VERDICT_FAILED;
    }
}

const trib_stage trib_stage_input = {.id = TRIB_STAGE_INPUT, .start = input_start};

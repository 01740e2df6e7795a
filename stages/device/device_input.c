/*
 * device_input.c - the INPUT stage: waits until the caller's stream reaches the call, so that a device tensor's
 * bytes are ready.
 *
 * The device reports this (engine/device/device_op.c), and all partitions of the operation continue.
 */
#include "engine/base/assert.h"
#include "engine/device/device_task.h"
#include "stages/plans.h"

static trib_verdict input_start(trib_core *core, trib_task *task, trib_error *error)
{
    (void)core;
    trib_assert(task->held[TRIB_HOLD_DEVICE] == 0); /* the last round's jobs are back */
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

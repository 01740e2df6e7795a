/*
 * decompress.c - the DECOMPRESS stage: the tensor's codec decodes the complete sum, if it came encoded.
 *
 * A device that has the codec decodes on the way to its memory. What it is to decode is checked here, and laid out.
 *
 * As in COMPRESS, a core decodes one partition at a time, by priority, and a chunk of it in each step.
 */
#include "engine/device/device_task.h"
#include "engine/worker/task_codec.h"
#include "stages/plans.h"

static trib_verdict decompress_start(trib_core *core, trib_task *task, trib_error *error)
{
    (void)core;
    (void)error;
    return trib_task_decode_prepare(task) ? TRIB_VERDICT_QUEUE : TRIB_VERDICT_DONE;
}

static trib_verdict decompress_run(trib_core *core, trib_task *task, trib_error *error)
{
    (void)error;
    if (task->device != NULL) {
        trib_device_decode_there(core, task);
    }
    trib_task_decode_begin(core, task);
    return TRIB_VERDICT_PENDING;
}

const trib_stage trib_stage_decompress = {
    .id = TRIB_STAGE_DECOMPRESS, .start = decompress_start, .run = decompress_run, .credit = {.tasks_least = 1}};

/*
 * compress.c - the COMPRESS stage: the tensor's codec encodes the contribution.
 *
 * A core encodes one partition at a time, by priority, and a chunk of it in each step: a large tensor has hundreds of
 * partitions that begin at once.
 */
#include "engine/worker/task_codec.h"
#include "stages/plans.h"

static trib_verdict compress_start(trib_core *core, trib_task *task, trib_error *error)
{
    (void)core;
    (void)error;
    return trib_task_encode_prepare(task) ? TRIB_VERDICT_QUEUE : TRIB_VERDICT_DONE;
}

static trib_verdict compress_run(trib_core *core, trib_task *task, trib_error *error)
{
    (void)error;
    trib_task_encode_begin(core, task);
    return TRIB_VERDICT_PENDING;
}

const trib_stage trib_stage_compress = {
    .id = TRIB_STAGE_COMPRESS, .start = compress_start, .run = compress_run, .credit = {.tasks_least = 1}};

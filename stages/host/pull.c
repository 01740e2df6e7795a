/*
 * pull.c - the PULL stage: waits for the rest of the partition's sum. A server sends each chunk as soon as it has
 * summed it.
 *
 * Chunks arrive in the caller's buffer, possibly while later chunks are still being pushed.
 */
#include "engine/base/assert.h"
#include "engine/worker/worker.h"
#include "stages/plans.h"

static trib_verdict pull_start(trib_core *core, trib_task *task, trib_error *error)
{
    (void)core;
    (void)error;
    trib_assert(task->chunks_received <= task->chunk_count && task->chunks_sent <= task->chunk_count);
    return task->chunks_received == task->chunk_count ? TRIB_VERDICT_DONE : TRIB_VERDICT_PENDING;
}

const trib_stage trib_stage_pull = {.id = TRIB_STAGE_PULL, .start = pull_start, .cancel = trib_worker_give_up_exchange};

/*
 * pull.c - PULL: the partition's sum comes back, each chunk as soon as the last contributor's chunk was in.
 *
 * Chunks land in the caller's buffer as they arrive, possibly while later ones are still being pushed; the stage only
 * waits for the rest of them.
 */
#include "engine/worker/worker.h"
#include "stages/plans.h"

static trib_verdict pull_start(trib_core *core, trib_task *task, trib_error *error)
{
    (void)core;
    (void)error;
    return task->chunks_received == task->chunk_count ? TRIB_VERDICT_DONE : TRIB_VERDICT_PENDING;
}

const trib_stage trib_stage_pull = {.id = TRIB_STAGE_PULL, .start = pull_start, .cancel = trib_worker_give_up_exchange};

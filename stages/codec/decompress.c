/* decompress.c - the DECOMPRESS stage: the plan's codec decodes the complete sum. */
#include "stages/codec/codec.h"
#include "stages/plans.h"

static trib_verdict decompress_start(trib_core *core, trib_task *task, trib_error *error)
{
    (void)core;
    (void)error;
    task->tensor->plan->codec->decode(&task->io);
    return TRIB_VERDICT_DONE;
}

const trib_stage trib_stage_decompress = {.id = TRIB_STAGE_DECOMPRESS, .start = decompress_start};

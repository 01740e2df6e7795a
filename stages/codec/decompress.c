/* decompress.c - the DECOMPRESS stage: the tensor's codec decodes the complete sum, if it came encoded. */
#include "engine/worker/task_codec.h"
#include "stages/plans.h"

static trib_verdict decompress_start(trib_core *core, trib_task *task, trib_error *error)
{
    return trib_task_decode(core, task, error) == TRIB_OK ? TRIB_VERDICT_DONE : TRIB_VERDICT_FAILED;
}

const trib_stage trib_stage_decompress = {.id = TRIB_STAGE_DECOMPRESS, .start = decompress_start};

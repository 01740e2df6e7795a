/* compress.c - the COMPRESS stage: the tensor's codec encodes the contribution. */
#include "engine/worker/task_codec.h"
#include "stages/plans.h"

static trib_verdict compress_start(trib_core *core, trib_task *task, trib_error *error)
{
    return trib_task_encode(core, task, error) == TRIB_OK ? TRIB_VERDICT_DONE : TRIB_VERDICT_FAILED;
}

const trib_stage trib_stage_compress = {.id = TRIB_STAGE_COMPRESS, .start = compress_start};

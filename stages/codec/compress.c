/* compress.c - the COMPRESS stage: the plan's codec encodes the contribution. */
#include "engine/base/assert.h"
#include "stages/codec/codec.h"
#include "stages/plans.h"

static trib_verdict compress_start(trib_core *core, trib_task *task, trib_error *error)
{
    (void)core;
    (void)error;
    const trib_codec *codec = task->tensor->plan->codec;
    codec->encode(&task->io);
    trib_assert(task->io.encoded.bytes <= codec->bound(task->size));
    return TRIB_VERDICT_DONE;
}

const trib_stage trib_stage_compress = {.id = TRIB_STAGE_COMPRESS, .start = compress_start};

/* compress.c - the COMPRESS stage: makes of the contribution what travels. Integers get their factor here, and the
 * tensor's codec encodes what has one. */
#include "engine/aggregate/sum_scale.h"
#include "engine/worker/task_codec.h"
#include "stages/plans.h"

/* The output has room for the product. The operation goes on as one in place. */
static void prescale(trib_core *core, trib_task *task)
{
    trib_task_io *io = &task->io;
    const double factor = task->op_core->op->prescale;
    if (factor != 1 && task->size > 0) {
        const trib_dtype dtype = task->tensor->dtype;
        trib_scale_integers(dtype, io->destination.data, io->source.data, task->size / trib_dtype_size(dtype), factor);
        trib_charge(core->reactor, TRIB_COST_COPY, task->size);
        io->source.data = io->destination.data;
    }
}

static trib_verdict compress_start(trib_core *core, trib_task *task, trib_error *error)
{
    prescale(core, task);
    return trib_task_encode(core, task, error) == TRIB_OK ? TRIB_VERDICT_DONE : TRIB_VERDICT_FAILED;
}

const trib_stage trib_stage_compress = {.id = TRIB_STAGE_COMPRESS, .start = compress_start};

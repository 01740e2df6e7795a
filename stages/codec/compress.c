/*
 * compress.c - the COMPRESS stage: makes of the contribution what travels. Integers get their factor here, and the
 * tensor's codec encodes what has one.
 *
 * A core encodes one partition at a time, by priority, and a chunk of it in each step: a large tensor has hundreds of
 * partitions that begin at once.
 */
#include "engine/aggregate/sum_scale.h"
#include "engine/base/assert.h"
#include "engine/worker/task_codec.h"
#include "stages/plans.h"

/* The output has room for the product. The operation goes on as one in place. */
static void prescale(trib_core *core, trib_task *task)
{
    trib_task_io *io = &task->io;
    trib_assert(io->source.bytes == task->size && io->destination.bytes == task->size);
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
    (void)error;
    prescale(core, task);
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

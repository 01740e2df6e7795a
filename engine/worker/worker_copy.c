/* worker_copy.c - where the sums of a partition land whose server may be lost, and who keeps them (worker_orphan.h). */
#include "engine/base/assert.h"
#include "engine/cluster/succession.h"
#include "engine/worker/worker_orphan.h"

bool trib_copy_is_made(const trib_core *core, const trib_task *task)
{
    return task->tensor->is_covered && task->owner.member >= core->engine->roster->worker_count;
}

/* The other workers wait for the keeper, which is worth it where there are other partitions to exchange meanwhile. */
static bool may_be_kept(const trib_core *core, const trib_task *task)
{
    const uint32_t workers = core->engine->roster->worker_count;
    return task->op_core->op->collective == TRIB_COLLECTIVE_ALL_REDUCE && workers > 1 &&
           task->tensor->partition_count > 1;
}

void trib_copy_prepare(const trib_core *core, trib_task *task)
{
    const trib_op *op = task->op_core->op;
    task->lands_in_copy = trib_copy_is_made(core, task) && task->size > 0 && trib_collective_is_sum(op->collective) &&
                          trib_task_receives(task);
    task->is_kept = task->has_landed = false;
    task->keeps = task->lands_in_copy && may_be_kept(core, task) &&
                  trib_keeper_rank(core->engine->roster, task->partition) == core->engine->member_id;
    if (task->tensor->is_covered) {
        task->io.received.data = task->lands_in_copy ? task->copy : task->io.destination.data;
    }
}

static void copy_bytes(const trib_core *core, const trib_task *task, unsigned char *to, const unsigned char *from,
                       size_t size)
{
    const trib_kernels *kernels = core->engine->env.kernels;
    if (size > 0) {
        (task->tensor->bytes >= TRIB_NONTEMPORAL_BYTES ? kernels->copy_nontemporal : kernels->copy)(to, from, size);
        trib_charge(core->reactor, TRIB_COST_COPY, size);
    }
}

/* True if the output may be written to before all of the sum is there. */
static bool is_apart(const trib_task_io *io)
{
    return io->source.data == NULL || io->destination.data + io->destination.bytes <= io->source.data ||
           io->source.data + io->source.bytes <= io->destination.data;
}

void trib_copy_take(const trib_core *core, trib_task *task, uint32_t chunk)
{
    const trib_op *op = task->op_core->op;
    trib_task_io *io = &task->io;
    const bool is_last = task->chunks_received + 1 == task->chunk_count, apart = task->lands_in_copy && is_apart(io);
    if (!trib_copy_is_made(core, task) || task->is_kept) {
        return;
    }
    if (apart) {
        copy_bytes(core, task, trib_view_chunk(&io->destination, chunk), trib_view_chunk(&io->received, chunk),
                   trib_view_chunk_size(&io->received, chunk));
    }
    if (!is_last) {
        return;
    }
    const bool gives = op->collective == TRIB_COLLECTIVE_BROADCAST && trib_task_contributes(task);
    if (task->lands_in_copy && !apart) {
        copy_bytes(core, task, io->destination.data, task->copy, task->size);
    } else if (gives) {
        copy_bytes(core, task, task->copy, io->source.data, task->size);
    }
    io->received.data = io->destination.data;
    if (gives || (trib_collective_is_sum(op->collective) && trib_task_receives(task))) {
        task->copy_round = op->round;
        task->copy_step = op->step;
        task->copy_reduce = (uint8_t)op->reduce;
    }
    if (task->keeps) {
        trib_link_send_copy(trib_worker_owner_link(core, task), trib_task_frame(task, TRIB_FRAME_KEPT), NULL, 0);
    }
}

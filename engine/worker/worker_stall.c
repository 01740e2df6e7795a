/*
 * worker_stall.c - says in the log what a stalled job waits for.
 *
 * A worker that stops contributing without failing stops all others, which then show no sign of trouble. So each worker
 * says once which contribution its oldest operation lacks, and again whenever the operation is twice as old.
 */
#include "engine/worker/worker.h"

#define NAME_MAX_SHOWN 120 /* bytes of a tensor's name, so that what is missing fits into the line */

static bool lacks_contribution(trib_core *core, trib_op_core *op_core)
{
    trib_tensor *tensor = op_core->op->tensor;
    if (!atomic_load(&tensor->placed) || trib_tensor_core_of(core, tensor)->active != op_core) {
        return false;
    }
    const trib_tensor_core *mine = trib_tensor_core_of(core, tensor);
    for (uint32_t i = 0; i < mine->task_count; i++) {
        if (mine->tasks[i].state != TRIB_TASK_SETTLED && mine->tasks[i].missing_rank != TRIB_NO_MEMBER) {
            return true;
        }
    }
    return false;
}

void trib_worker_check_stall(trib_core *core)
{
    trib_op_core *oldest = NULL; /* the core's list is newest first */
    for (trib_op_core *op_core = core->op_cores; op_core != NULL; op_core = op_core->next) {
        oldest = !op_core->released ? op_core : oldest;
    }
    if (oldest == NULL) {
        return;
    }
    trib_op *op = oldest->op;
    const int64_t age_ns = trib_now(core->reactor) - op->submit_ns;
    int64_t due_ns = atomic_load(&op->stall_ns);
    /* Several cores may have the operation: one of them speaks. */
    if (age_ns < due_ns || !lacks_contribution(core, oldest) ||
        !atomic_compare_exchange_strong(&op->stall_ns, &due_ns, 2 * age_ns)) {
        return;
    }
    char waiting[256];
    trib_log(core->reactor->logger, TRIB_LOG_WARN, "stalled for %.0f s: round %u of tensor \"%.*s\": %s",
             (double)age_ns / 1e9, op->round, NAME_MAX_SHOWN, op->tensor->name,
             trib_worker_waiting_text(core, oldest, waiting, sizeof waiting));
}

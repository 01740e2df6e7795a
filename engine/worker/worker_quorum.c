/* worker_quorum.c - sums that lack the contributions of late workers (server/quorum.h). */
#include "engine/server/quorum.h"
#include "engine/worker/worker.h"

trib_status trib_worker_take_set(const trib_link *link, trib_task *task, const trib_frame *frame, const void *payload,
                                 trib_error *error)
{
    const uint32_t workers = link->core->engine->roster->worker_count;
    if (frame->payload_size != (workers + 7) / 8 || frame->partition != 0 ||
        (task != NULL && task->tensor->quorum == 0)) {
        return trib_error_set(error, TRIB_PROTOCOL, "malformed QUORUM_SET, or one about a tensor without a quorum");
    }
    const uint32_t count = task == NULL ? 0 : trib_quorum_count(payload, workers);
    if (task != NULL && count < task->tensor->quorum) {
        return trib_error_set(error, TRIB_PROTOCOL, "QUORUM_SET of %u workers about a tensor with a quorum of %u",
                              count, task->tensor->quorum);
    }
    if (task != NULL) { /* else it is over here */
        trib_op_take_set(task->op_core->op, payload);
    }
    return TRIB_OK;
}

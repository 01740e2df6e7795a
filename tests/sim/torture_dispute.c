/* torture_dispute.c - draws a worker that disagrees with all others about an operation on a device tensor. */
#include "tests/sim/torture.h"

static uint32_t below(trib_sim_stream *stream, uint32_t end)
{
    return (uint32_t)trib_sim_draw_below(stream, end);
}

/* Returns true if the odd worker may ask for the next reduction: a mean only of floats, and none that its machine
 * cannot compute. */
static bool has_next_reduction(const torture_tensor *what)
{
    return what->root >= 0 || what->reduce != TRIB_SUM || what->dtype == TRIB_FLOAT32 || what->dtype == TRIB_FLOAT64;
}

/* Drawn last and from a stream of its own, so that older seeds keep their other draws. */
void torture_draw_dispute(torture_plan *plan)
{
    trib_sim_stream stream = {.state = plan->seed * UINT64_C(0x9e3779b97f4a7c15) + 71};
    const uint32_t tensor = below(&stream, plan->tensor_count), rank = below(&stream, plan->job.workers);
    const torture_tensor *what = &plan->tensors[tensor];
    const bool by_exchange = !trib_sim_draw_one_in(&stream, 3), is_peaceful = trib_sim_draw_one_in(&stream, 4);
    const bool is_free = plan->local_size > 0 && plan->odd_rank == TORTURE_NOBODY;
    if (!is_free || !what->on_device || plan->job.workers < 2 || is_peaceful) {
        return;
    }
    plan->odd_rank = rank;
    plan->odd_tensor = tensor;
    plan->odd_round = (int32_t)below(&stream, what->rounds);
    plan->odd_exchange = by_exchange || !has_next_reduction(what);
}

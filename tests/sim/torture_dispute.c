/* torture_dispute.c - draws a worker that disagrees with all others about an operation on a device tensor, or about
 * the root of a broadcast. And groups that are released while other members still use them, and names that several
 * tensors have. */
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

/* A member of a broadcast of host memory takes another one for the root. */
static void draw_roots(torture_plan *plan)
{
    trib_sim_stream stream = {.state = plan->seed * UINT64_C(0x9e3779b97f4a7c15) + 181};
    const uint32_t first = below(&stream, plan->tensor_count);
    if (plan->odd_rank != TORTURE_NOBODY || plan->lap > 0 || plan->narrow != TORTURE_NOBODY || plan->prompt ||
        plan->attack != TORTURE_NO_ATTACK || plan->job.engine.survive != TRIB_SURVIVE_NOTHING) {
        return;
    }
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        const uint32_t index = (first + i) % plan->tensor_count;
        const torture_tensor *what = &plan->tensors[index];
        const uint32_t members = torture_members(what, plan->job.workers);
        const bool is_broadcast = what->exchange == TORTURE_WHOLE && what->root >= 0;
        if (is_broadcast && !what->on_device && members > 1 && plan->odd_rank == TORTURE_NOBODY) {
            plan->odd_rank = torture_rank_at(what, plan->job.workers, below(&stream, members));
            plan->odd_tensor = index;
            plan->odd_round = (int32_t)below(&stream, what->rounds);
            plan->odd_exchange = false;
        }
    }
}

/* Two or three tensors of all workers have one name. */
static void draw_mates(torture_plan *plan)
{
    trib_sim_stream stream = {.state = plan->seed * UINT64_C(0xd6e8feb86659fd93) + 211};
    uint32_t left = trib_sim_draw_one_in(&stream, 2) ? 2 + below(&stream, 2) : 0;
    const uint32_t first = below(&stream, plan->tensor_count);
    for (uint32_t i = 0; i < plan->tensor_count && left > 0; i++) {
        const uint32_t index = (first + i) % plan->tensor_count;
        const bool is_disputed = plan->odd_rank != TORTURE_NOBODY && plan->odd_tensor == index;
        plan->tensors[index].has_mates = plan->tensors[index].group == 0 && !is_disputed;
        left -= plan->tensors[index].has_mates;
    }
}

void torture_draw_regroups(torture_plan *plan)
{
    torture_draw_scales(plan);
    draw_roots(plan);
    trib_sim_stream stream = {.state = plan->seed * UINT64_C(0xd6e8feb86659fd93) + 191};
    for (uint32_t i = 0; i < plan->tensor_count && plan->lives > 0; i++) {
        plan->tensors[i].regroups = plan->tensors[i].group != 0 && !trib_sim_draw_one_in(&stream, 3);
    }
    stream.state = plan->seed * UINT64_C(0xd6e8feb86659fd93) + 199;
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        const uint32_t other = 1 + below(&stream, (1u << plan->job.workers) - 1);
        const bool keeps = trib_sim_draw_one_in(&stream, 3);
        const bool is_disputed = plan->odd_rank != TORTURE_NOBODY && plan->odd_tensor == i;
        plan->tensors[i].other_group = plan->tensors[i].regroups && !keeps && !is_disputed ? other : 0;
    }
    draw_mates(plan);
}

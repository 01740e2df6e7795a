/* torture_exchange.c - tensors that are exchanged in slices, or in a group: which they are, and how they are declared
 * and submitted. */
#include <string.h>

#include "tests/sim/torture_internal.h"

static uint32_t between(trib_sim_stream *stream, uint32_t low, uint32_t high)
{
    return low + (uint32_t)trib_sim_draw_below(stream, high - low + 1);
}

/* Some tensors are exchanged in other ways, or in a group. Those that workers disagree about stay, and so does half of
 * those on devices, as few of them would be whole and of all workers otherwise. */
void torture_draw_exchanges(torture_plan *plan)
{
    trib_sim_stream stream = {.state = plan->seed * UINT64_C(0x9e3779b97f4a7c15) + 83};
    const uint32_t workers = plan->job.workers;
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        torture_tensor *what = &plan->tensors[i];
        const bool is_disputed = plan->odd_rank != TORTURE_NOBODY && plan->odd_tensor == i;
        if (is_disputed || (what->on_device && (plan->seed + i) % 2 == 0)) {
            continue;
        }
        what->shape = between(&stream, 0, 1000000);
        if (trib_sim_draw_one_in(&stream, 2)) {
            what->exchange = (torture_exchange)between(&stream, TORTURE_WHOLE, TORTURE_EXCHANGES - 1);
        }
        if (trib_sim_draw_one_in(&stream, 3)) {
            what->group = between(&stream, 1, (1u << workers) - 1);
            what->backwards = trib_sim_draw_one_in(&stream, 2);
        }
        if (what->on_device && what->exchange == TORTURE_REDUCE && what->group == 0) {
            what->group = (1u << workers) - 1; /* on devices only groups reduce to one rank */
        }
        const uint32_t members = torture_members(what, workers);
        what->root = what->exchange == TORTURE_REDUCE  ? (int32_t)between(&stream, 0, members - 1)
                     : what->exchange != TORTURE_WHOLE ? -1
                     : what->root >= 0                 ? what->root % (int32_t)members
                                                       : -1;
    }
}

/* Sums in host memory whose workers agree. No scaled sum is too large for its type. The oracle of encoded sums knows no
 * factors. */
void torture_draw_scales(torture_plan *plan)
{
    torture_draw_joins(plan);
    static const double before[] = {0, 0.7, 1 / 3.0, 0.5}, after[] = {0, 0.3, 0.77, 1.5};
    trib_sim_stream stream = {.state = plan->seed * UINT64_C(0x9e3779b97f4a7c15) + 167};
    for (uint32_t i = 0; i < plan->tensor_count && plan->job.engine.codec == NULL; i++) {
        torture_tensor *what = &plan->tensors[i];
        const bool draws = trib_sim_draw_one_in(&stream, 3);
        const double prescale = before[between(&stream, 0, 3)], postscale = after[between(&stream, 0, 3)];
        const bool is_whole = what->exchange == TORTURE_WHOLE && what->root < 0;
        const bool is_sum = is_whole || what->exchange == TORTURE_REDUCE || what->exchange == TORTURE_SCATTER;
        const bool is_disputed = plan->odd_rank != TORTURE_NOBODY && plan->odd_tensor == i;
        if (draws && is_sum && !what->on_device && !is_disputed && what->dtype != TRIB_BOOL &&
            (what->reduce == TRIB_SUM || what->reduce == TRIB_AVG)) {
            what->prescale = is_whole || trib_dtype_is_float(what->dtype) ? prescale : 0;
            what->postscale = postscale;
        }
    }
}

static size_t offset_of(const attempt *what, torture_exchange exchange)
{
    const torture_plan *plan = what->run->plan;
    const torture_tensor tensor = torture_tensor_of(plan, what->tensor, what->round);
    return what->input == what->output && tensor.exchange == exchange
               ? torture_before(&tensor, plan->job.workers, what->driver->rank) * trib_dtype_size(tensor.dtype)
               : 0;
}

unsigned char *torture_input(const attempt *what)
{
    return what->input + offset_of(what, TORTURE_GATHER);
}

unsigned char *torture_output(const attempt *what)
{
    return what->output + offset_of(what, TORTURE_SCATTER);
}

void torture_describe_slices(const driver *self, const torture_tensor *what, trib_tensor_desc *desc, uint64_t *splits)
{
    const uint32_t workers = self->run->plan->job.workers, place = torture_place_of(what, workers, self->rank);
    if (what->exchange == TORTURE_GATHER || what->exchange == TORTURE_SCATTER) {
        desc->layout = TRIB_SLICES;
        desc->count = torture_slice(what, place, 0);
    } else if (what->exchange == TORTURE_PAIRS) {
        desc->layout = TRIB_PAIRS;
        desc->splits = splits;
        desc->split_count = torture_members(what, workers);
        for (uint32_t i = 0; i < desc->split_count; i++) {
            splits[i] = torture_slice(what, place, i);
        }
    }
}

bool torture_make_group(driver *self, uint32_t index, const torture_tensor *what)
{
    const uint32_t workers = self->run->plan->job.workers;
    int32_t ranks[TORTURE_WORKERS_MAX];
    char name[32];
    snprintf(name, sizeof name, "group %u", index);
    trib_group_desc desc;
    trib_group_desc_init(&desc, sizeof desc);
    desc.name = name;
    desc.ranks = ranks;
    desc.rank_count = torture_members(what, workers);
    for (uint32_t i = 0; i < desc.rank_count; i++) {
        ranks[i] = (int32_t)torture_rank_at(what, workers, i);
    }
    return trib_group_create(self->run->job->members[self->rank].engine, &desc, &self->groups[index], NULL) == TRIB_OK;
}

trib_status torture_submit_other(trib_engine *engine, const torture_tensor *tensor, size_t room, trib_op_params *params,
                                 trib_op **op_out, trib_error *error)
{
    params->reduce = tensor->reduce;
    params->root = tensor->root >= 0 ? tensor->root : 0;
    params->output_bytes = room;
    switch (tensor->exchange) {
    case TORTURE_REDUCE:
        return trib_reduce_to(engine, params, op_out, error);
    case TORTURE_GATHER:
        return trib_all_gather(engine, params, op_out, error);
    case TORTURE_SCATTER:
        return trib_reduce_scatter(engine, params, op_out, error);
    default:
        return trib_all_to_all(engine, params, op_out, error);
    }
}

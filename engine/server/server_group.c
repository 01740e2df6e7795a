/* server_group.c - the aggregators of groups on one core, from their first frame to the end of their group. */
#include <stdlib.h>

#include "engine/base/assert.h"
#include "engine/server/server_sum.h"

trib_status trib_server_find_group(const trib_link *link, const trib_frame *frame, trib_server_sum **sum_out,
                                   trib_error *error)
{
    trib_core *core = link->core;
    const trib_rank_set *ranks = trib_engine_rank_set(core->engine, frame->group); /* the frame has been checked */
    if (core->group_sums == NULL) {
        core->group_sums = trib_core_zalloc(core, TRIB_GROUPS_MAX * sizeof(trib_server_sum *));
    }
    trib_server_sum *sum = core->group_sums == NULL ? NULL : core->group_sums[frame->group];
    if (sum == NULL && core->group_sums != NULL && (sum = trib_core_zalloc(core, sizeof *sum)) != NULL) {
        trib_assert(ranks != NULL && frame->group < TRIB_GROUPS_MAX);
        *sum = (trib_server_sum){
            .core = core, .level = TRIB_SUM_GROUP, .rank_step = 1, .count = ranks->count, .ranks = ranks};
        if (trib_server_open_sum(sum) != TRIB_OK) {
            free(sum);
            sum = NULL;
        } else {
            trib_rank_set_ref(ranks);
            sum->next = core->group_sum_list;
            core->group_sum_list = core->group_sums[frame->group] = sum;
        }
    }
    *sum_out = sum;
    return sum != NULL ? TRIB_OK : trib_error_set(error, TRIB_NO_MEMORY, "out of memory for the server");
}

/* ---- The end of a group ---- */

/* True if a frame for the aggregator is being received. */
static bool is_claimed(const trib_core *core, const trib_server_sum *sum)
{
    for (trib_link *link = core->host.links; link != NULL; link = link->next) {
        for (uint32_t i = 0; i < trib_link_connections(link); i++) {
            const trib_link *connection = trib_link_connection(link, i);
            for (uint32_t k = 0; connection != NULL && k < connection->arrival_count; k++) {
                if (trib_link_arrival(connection, k)->recv_claim.owner == sum) {
                    return true;
                }
            }
        }
    }
    return false;
}

void trib_server_free_ended_groups(trib_core *core)
{
    for (trib_server_sum **at = &core->group_sum_list; *at != NULL;) {
        trib_server_sum *sum = *at;
        if (!sum->is_over || !sum->aggregator->ops->is_idle(sum->aggregator) || is_claimed(core, sum)) {
            at = &sum->next;
            continue;
        }
        *at = sum->next;
        sum->aggregator->ops->destroy(sum->aggregator);
        trib_rank_set_unref(sum->ranks);
        free(sum);
    }
}

void trib_server_end_group(trib_core *core, uint32_t group)
{
    trib_assert(group > 0 && group < TRIB_GROUPS_MAX && trib_core_is_here(core));
    trib_server_sum *sum = core->group_sums == NULL ? NULL : core->group_sums[group];
    if (sum != NULL) {
        trib_assert(sum->level == TRIB_SUM_GROUP && !sum->is_over);
        core->group_sums[group] = NULL;
        sum->is_over = true;
        trib_server_free_ended_groups(core);
    }
}

/* server_departed.c - members that have left the job, and the moment from which no contribution of theirs can still
 * arrive. */
#include <stdio.h>

#include "engine/base/assert.h"
#include "engine/server/server_sum.h"

/* The coordinator's news of a departure can overtake frames on the member's own connections. A member that also sums
 * keeps its connections while it is owed something, and shows life on them. So no further frame is enough here, and
 * the end of the link is not awaited. */
static bool may_be_on_its_way(const trib_core *core, uint32_t rank, int64_t left_ns)
{
    trib_assert(rank < core->engine->roster->worker_count);
    trib_link *link = core->worker_links[rank];
    int64_t received_ns = left_ns;
    for (uint32_t i = 0; link != NULL && i < trib_link_connections(link); i++) {
        const trib_link *connection = trib_link_connection(link, i);
        if (connection != NULL && connection->last_frame_ns > received_ns) {
            received_ns = connection->last_frame_ns;
        }
    }
    return link != NULL && trib_now(core->reactor) - received_ns < TRIB_STALL_NOTICE_NS;
}

bool trib_server_is_gone(const trib_core *core, uint32_t rank, uint32_t round, char *text, size_t size)
{
    int64_t left_ns = 0;
    if (!trib_departed_has(&core->engine->departed, rank, &left_ns) || may_be_on_its_way(core, rank, left_ns)) {
        return false;
    }
    snprintf(text, size, "%s left the job without contributing to round %u",
             trib_roster_name(core->engine->roster, rank), round);
    return true;
}

uint32_t trib_server_stall_chunk(const trib_core *core, uint32_t missing_rank)
{
    int64_t left_ns = 0;
    trib_assert(missing_rank < core->engine->roster->worker_count);
    const bool is_gone =
        core->worker_links[missing_rank] == NULL && trib_departed_has(&core->engine->departed, missing_rank, &left_ns);
    return is_gone ? TRIB_STALL_FOR_GOOD : 0;
}

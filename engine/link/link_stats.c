/* link_stats.c - see link_stats.h. */
#include "engine/link/link_stats.h"

#include "engine/link/link_host.h"

static trib_link_stats *stats_of(const trib_link *link)
{
    trib_link_stats *loads = link->host->loads;
    const bool counts = loads != NULL && link->conn != NULL && trib_link_carries_data(link) &&
                        link->peer < link->host->engine->roster->member_count;
    return counts ? &loads[link->peer] : NULL;
}

void trib_link_stats_handed(trib_link *link)
{
    trib_link_stats *load = link->in_flight == 0 ? stats_of(link) : NULL;
    if (load != NULL) {
        link->busy_since_ns = trib_now(link->host->reactor);
        link->is_busy = true;
        atomic_fetch_add(&load->busy_links, 1);
        if (!link->is_counted) {
            link->is_counted = true;
            atomic_fetch_add(&load->links, 1);
        }
    }
}

/* Returns for how many ns the link was busy since the last call. Time that the transport had counted before the first
 * call is left out. */
static uint64_t busy_since(trib_link *link)
{
    const int64_t now_ns = trib_now(link->host->reactor), from_ns = link->busy_since_ns;
    const uint64_t counted_ns = link->conn != NULL ? link->conn->busy_ns : 0, seen_ns = link->busy_seen_ns;
    link->busy_since_ns = now_ns;
    link->busy_seen_ns = counted_ns;
    if (counted_ns == 0) {
        return (uint64_t)(now_ns - from_ns);
    }
    return seen_ns == 0 ? 0 : counted_ns - seen_ns;
}

void trib_link_stats_returned(trib_link *link, uint32_t bytes)
{
    if (!link->is_busy || link->host->loads == NULL) {
        return;
    }
    trib_link_stats *load = &link->host->loads[link->peer];
    trib_assert(link->is_counted && link->in_flight >= bytes);
    trib_counter_add(&load->bytes, bytes);
    trib_counter_add(&load->busy_ns, busy_since(link));
    if (link->in_flight == bytes) {
        link->is_busy = false;
        atomic_fetch_sub(&load->busy_links, 1);
    }
}

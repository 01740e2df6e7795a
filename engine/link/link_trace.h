/* link_trace.h - puts records about links into the trace of their reactor. */
#ifndef TRIB_ENGINE_LINK_LINK_TRACE_H
#define TRIB_ENGINE_LINK_LINK_TRACE_H

#include "engine/link/link_host.h"

/* link NULL: the record is about the core itself. */
static inline void trib_trace_link(trib_link_host *host, trib_trace_kind kind, const trib_link *link, uint32_t value)
{
    if (trib_trace_ring_is_on(host->trace)) {
        const trib_trace_record record = {
            .at_ns = trib_now_fast(host->reactor),
            .value = value,
            .extra = link != NULL ? link->peer_reactor : 0,
            .peer = link != NULL ? trib_trace_peer(link->peer) : TRIB_TRACE_NO_PEER,
            .kind = (uint8_t)kind,
            .stage = TRIB_TRACE_NO_STAGE,
        };
        trib_trace_ring_put(host->trace, &record);
    }
}

#endif

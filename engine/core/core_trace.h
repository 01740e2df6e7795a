/* core_trace.h - traces the sums of a core. A hook costs one predictable branch while tracing is off. */
#ifndef TRIB_ENGINE_CORE_TRACE_H
#define TRIB_ENGINE_CORE_TRACE_H

#include "engine/core/core.h"
#include "engine/link/link_trace.h"

static inline bool trib_trace_on(const trib_core *core)
{
    return trib_trace_ring_is_on(&core->trace);
}

/* Called only while tracing is on. */
void trib_trace_sum_put(trib_core *core, trib_trace_kind kind, const trib_contribution *what, uint32_t peer,
                        uint32_t value, int64_t at_ns);

static inline void trib_trace_sum(trib_core *core, trib_trace_kind kind, const trib_contribution *what, uint32_t peer,
                                  uint32_t value)
{
    if (trib_trace_on(core)) {
        trib_trace_sum_put(core, kind, what, peer, value, trib_now_fast(core->reactor));
    }
}

#endif

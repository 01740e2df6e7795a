/* core_trace.c - writes a trace record about a sum (core_trace.h). */
#include "engine/core/core_trace.h"

void trib_trace_sum_put(trib_core *core, trib_trace_kind kind, const trib_contribution *what, uint32_t peer,
                        uint32_t value, int64_t at_ns)
{
    if (kind == TRIB_TRACE_SUM_ARRIVE || kind == TRIB_TRACE_NEAR_ARRIVE) {
        core->engine->hooks->data_began(core, at_ns);
    }
    trib_trace_record record = {
        .at_ns = at_ns,
        .tensor = what->tensor,
        .partition = what->partition,
        .round = what->round,
        .value = value,
        .extra = what->chunk,
        .peer = trib_trace_peer(peer),
        .kind = (uint8_t)kind,
        .stage = TRIB_TRACE_NO_STAGE,
    };
    trib_trace_ring_put(&core->trace, &record);
}

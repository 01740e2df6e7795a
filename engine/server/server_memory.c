/*
 * server_memory.c - a server that has no memory for contributions says so, and ends the job if that does not pass.
 *
 * A contribution that finds no memory waits on its link until sums have gone out and their blocks come back. Where no
 * sum is on its way out either, nothing in this process will give any back: what is here waits for contributions that
 * find no room, and workers would wait for their deadlines, with words about each other.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "engine/core/core.h"

#define NS_PER_S 1e9

void trib_server_note_memory(trib_core *core, trib_status status, uint32_t size)
{
    if (status != TRIB_AGAIN) {
        core->out_of_memory_at_ns = 0;
        return;
    }
    core->out_of_memory_asks = true;
    if (core->out_of_memory_at_ns != 0) {
        return;
    }
    core->out_of_memory_at_ns = trib_now(core->reactor);
    core->out_of_memory_ns = 0;
    if (!core->out_of_memory_logged) {
        core->out_of_memory_logged = true;
        char why[TRIB_REASON_MAX];
        trib_log(core->reactor->logger, TRIB_LOG_WARN,
                 "out of memory for a contribution of %" PRIu32
                 " bytes: contributions wait until sums have gone out (%s)",
                 size, trib_log_reason(ENOMEM, why));
    }
}

void trib_server_check_memory(trib_core *core)
{
    /* Links ask again every tick. Where none does, the one that waited has ended. */
    const bool asks = core->out_of_memory_asks;
    core->out_of_memory_asks = false;
    if (core->out_of_memory_at_ns == 0 || !asks) {
        core->out_of_memory_at_ns = 0;
        return;
    }
    const int64_t now_ns = trib_now(core->reactor), limit_ns = core->engine->roster->peer_timeout_ns;
    const int64_t step_ns = now_ns - core->out_of_memory_at_ns;
    core->out_of_memory_at_ns = now_ns;
    core->out_of_memory_ns += step_ns < limit_ns / 4 ? step_ns : limit_ns / 4; /* this process may have stood still */
    if (core->entries_waiting > 0) {
        core->out_of_memory_ns = 0; /* memory comes back as they go */
    } else if (core->out_of_memory_ns >= limit_ns) {
        char detail[TRIB_ERROR_TEXT_SIZE];
        snprintf(detail, sizeof detail,
                 "found no memory for contributions for %.1f s: raise its limit (ulimit -v, a container's), or start "
                 "more servers",
                 (double)core->out_of_memory_ns / NS_PER_S);
        core->out_of_memory_at_ns = 0;
        const uint32_t me = core->engine->member_id;
        const trib_cause cause =
            trib_cause_about(TRIB_NO_MEMORY, TRIB_CAUSE_SHORTAGE, TRIB_SUBJECT_MEMBER, me, me, detail);
        trib_job_end(core->engine, &cause);
    }
}

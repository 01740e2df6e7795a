/*
 * server_memory.c - reports a lack of memory for contributions, and ends the job when the lack persists.
 *
 * A contribution that finds no memory waits on its link until sent sums give their blocks back. While no sum is being
 * sent, no block can come back: the rounds here wait for contributions that find no room. The workers would then wait
 * until their deadlines and blame each other. So the server ends the job after the peer timeout and names the cause.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "engine/base/assert.h"
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
    /* Waiting links ask again every tick. A tick without a request means that the waiting link has ended. */
    const bool asks = core->out_of_memory_asks;
    core->out_of_memory_asks = false;
    if (core->out_of_memory_at_ns == 0 || !asks) {
        core->out_of_memory_at_ns = 0;
        return;
    }
    const int64_t now_ns = trib_now(core->reactor), limit_ns = core->engine->roster->peer_timeout_ns;
    const int64_t step_ns = now_ns - core->out_of_memory_at_ns;
    trib_assert(step_ns >= 0 && core->out_of_memory_logged);
    core->out_of_memory_at_ns = now_ns;
    /* the process may have been stopped, so a long step counts as a quarter of the limit */
    core->out_of_memory_ns += step_ns < limit_ns / 4 ? step_ns : limit_ns / 4;
    if (core->entries_waiting > 0) {
        core->out_of_memory_ns = 0; /* sums that wait give memory back once they are sent */
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

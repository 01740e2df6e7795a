/* quorum_bed.c - see quorum_bed.h. */
#include "tests/sim/quorum_bed.h"

#include "engine/server/quorum.h"

bool quorum_is_any_done(sim_job *job, void *argument)
{
    (void)job;
    const exchange *all = argument;
    return all[0].done + all[1].done + all[2].done > 0;
}

bool quorum_are_all_done(sim_job *job, void *argument)
{
    (void)job;
    const exchange *all = argument;
    return all[0].done > 0 && all[1].done > 0 && all[2].done > 0;
}

bool quorum_has_no_records(sim_job *job, void *argument)
{
    (void)argument;
    for (uint32_t i = 0; i < job->member_count; i++) {
        const trib_engine *engine = job->members[i].engine;
        for (uint32_t k = 0; k < engine->core_count; k++) {
            if (engine->cores[k].quorums != NULL) {
                return false;
            }
        }
    }
    return true;
}

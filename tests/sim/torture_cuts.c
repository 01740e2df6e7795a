/* torture_cuts.c - draws a member that is cut off for a while and connections that break. */
#include "tests/sim/torture.h"

#define MS INT64_C(1000000)
#define SECOND (1000 * MS)

static uint32_t below(trib_sim_stream *stream, uint32_t end)
{
    return (uint32_t)trib_sim_draw_below(stream, end);
}

/* Draws every order of magnitude from a millisecond on with the same probability. */
static int64_t below_ns(trib_sim_stream *stream, int64_t end)
{
    uint32_t doublings = 0;
    while (MS << (doublings + 1) <= end) {
        doublings++;
    }
    const int64_t most = end >> below(stream, doublings + 1);
    return most / 2 + (int64_t)trib_sim_draw_below(stream, (uint64_t)(most - most / 2) + 1);
}

/* A connection that a gateway has forgotten is dead until the cut behind it is over, which may be too long: a loss
 * counts from the break of the connection. It is reset instead, so that it is made again before the cut. */
static void end_before_cut(torture_plan *plan, int64_t longest_ns)
{
    const torture_fault *cut = &plan->faults[0];
    for (uint32_t i = 1; i < plan->fault_count; i++) {
        torture_fault *fault = &plan->faults[i];
        if (fault->kind == TORTURE_FORGET && fault->at_ns < cut->at_ns &&
            cut->at_ns + cut->for_ns - fault->at_ns > longest_ns) {
            fault->kind = TORTURE_RESET;
        }
    }
}

/* A clock that jumps during the cut sees it last so much longer, which may be too long, too. */
static void shorten_jumps(torture_plan *plan, int64_t longest_ns)
{
    const torture_fault *cut = &plan->faults[0];
    for (uint32_t i = 1; i < plan->fault_count; i++) {
        torture_fault *fault = &plan->faults[i];
        if (fault->kind == TORTURE_JUMP && fault->at_ns < cut->at_ns + cut->for_ns &&
            fault->for_ns > longest_ns - cut->for_ns) {
            fault->for_ns = longest_ns - cut->for_ns + 1;
        }
    }
}

/* Cuts one member off for up to 0.8 of the peer timeout, both ways or one way, and breaks several connections. All
 * operations must succeed. */
void torture_draw_cuts(torture_plan *plan)
{
    trib_sim_stream stream = {.state = plan->seed * UINT64_C(0xff51afd7ed558ccd) + 19};
    if (plan->may_end || plan->narrow != TORTURE_NOBODY || !trib_sim_draw_one_in(&stream, 2)) {
        return;
    }
    const int64_t horizon_ns = below_ns(&stream, SECOND);
    const uint32_t count = 1 + below(&stream, TORTURE_FAULTS_MAX);
    for (uint32_t i = 0; i < TORTURE_FAULTS_MAX; i++) {
        torture_fault *fault = &plan->faults[i];
        const bool cuts =
            fault->kind == TORTURE_PARTITION || fault->kind == TORTURE_FREEZE || fault->kind == TORTURE_HALF;
        if (i < plan->fault_count && !cuts && i > 0) {
            continue;
        }
        *fault = (torture_fault){.kind = trib_sim_draw_one_in(&stream, 3) ? TORTURE_FORGET : TORTURE_RESET,
                                 .member = below(&stream, plan->job.workers + plan->job.servers),
                                 .at_ns = (int64_t)trib_sim_draw_below(&stream, (uint64_t)horizon_ns),
                                 .for_ns = 1};
    }
    plan->fault_count = count > plan->fault_count ? count : plan->fault_count;
    plan->faults[0].kind = trib_sim_draw_one_in(&stream, 2) ? TORTURE_PARTITION : TORTURE_HALF;
    const int64_t longest_ns = plan->job.engine.peer_timeout_ns * 8 / 10;
    plan->faults[0].for_ns = below_ns(&stream, longest_ns);
    plan->faults[0].amount = below(&stream, 2);
    end_before_cut(plan, longest_ns);
    shorten_jumps(plan, longest_ns);
}

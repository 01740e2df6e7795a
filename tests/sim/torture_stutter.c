/* torture_stutter.c - processes that stand still for moments while the job forms, as on a busy machine: some workers are
 * ready, and even done, before others have connected. See torture.h. */
#include "tests/sim/torture_internal.h"

#define ONCE_IN 30u          /* events */
#define UNTIL_NS (300 * MS)  /* the job has formed by then, unless a member comes late */
#define LONGEST_LOG2 15u     /* in microseconds */

static void thaw_fired(trib_sim *sim, trib_sim_event *event)
{
    (void)sim;
    stutter *at = (stutter *)event;
    if (--at->run->frozen[at->member->index] == 0 && !at->member->killed) {
        trib_sim_process_freeze(at->member->process, false);
    }
}

void torture_stutter(run *self)
{
    sim_job *job = self->job;
    if (!self->plan->prompt || trib_sim_now(job->sim) > UNTIL_NS) {
        return;
    }
    const uint32_t index = (uint32_t)trib_sim_draw_below(&self->stutters, job->member_count);
    const int64_t for_ns = INT64_C(1000) << trib_sim_draw_below(&self->stutters, LONGEST_LOG2);
    stutter *at = &self->stutter[index];
    sim_member *member = &job->members[index];
    if (!trib_sim_draw_one_in(&self->stutters, ONCE_IN) || trib_sim_event_is_set(&at->thaw) || member->killed) {
        return;
    }
    at->run = self;
    at->member = member;
    at->thaw.fired = thaw_fired;
    self->frozen[index]++;
    trib_sim_process_freeze(member->process, true);
    trib_sim_set(job->sim, &at->thaw, trib_sim_now(job->sim) + for_ns);
}

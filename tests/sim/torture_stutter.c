/* torture_stutter.c - processes that stand still for moments while the job forms, as on a busy machine: some workers
 * are ready, and even done, before others have connected. And reactors that stand still before they look at some of the
 * posts from others of their process, or at what has been sent. See torture.h. */
#include "tests/sim/torture_internal.h"

#define ONCE_IN 30u         /* events */
#define UNTIL_NS (300 * MS) /* the job has formed by then, unless a member comes late */
#define LONGEST_LOG2 15u    /* in microseconds */
#define LONGEST_STAGGER_LOG2 12u
#define LATEST_REPORT_LOG2 15u

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

/* Workers leave at once after joining, while others are still connecting. An early leaver may have done nothing at all.
 * Processes stand still for moments in which others finish. */
static void draw_prompt(torture_plan *plan)
{
    trib_sim_stream stream = {.state = plan->seed * UINT64_C(0xc2b2ae3d27d4eb4f) + 71};
    const uint32_t early_leaver = (uint32_t)trib_sim_draw_below(&stream, plan->job.workers);
    const bool is_apart = plan->narrow == TORTURE_NOBODY && plan->pace_ns == 0 && plan->job.workers > 1;
    plan->prompt = is_apart && trib_sim_draw_one_in(&stream, 3);
    const uint32_t use = (uint32_t)trib_sim_draw_below(&stream, 3);
    if (plan->prompt && use == 0) {
        plan->early_leaver = early_leaver;
        plan->early_leaver_rounds = 0;
    } else if (plan->prompt && use == 1) { /* nobody does anything */
        plan->leaves = true;
        plan->crowd = 0;
        plan->odd_rank = TORTURE_NOBODY;
        for (uint32_t i = 0; i < plan->job.workers;
             i++) { /* rank 0 does not wait longer than it may for workers to leave */
            plan->late_ns[i] = plan->late_ns[i] < SECOND ? plan->late_ns[i] : SECOND;
        }
        for (uint32_t i = 0; i < plan->tensor_count; i++) {
            plan->tensors[i].rounds = 0;
        }
    }
}

/* Numbers of its own, so that a seed's other draws do not depend on it. */
static void draw_staggers(torture_plan *plan)
{
    trib_sim_stream stream = {.state = plan->seed * UINT64_C(0xa0761d6478bd642f) + 83};
    const uint32_t one_in = 2u << trib_sim_draw_below(&stream, 4);
    const int64_t longest_ns = INT64_C(1000) << trib_sim_draw_below(&stream, LONGEST_STAGGER_LOG2);
    if (trib_sim_draw_one_in(&stream, 3)) {
        plan->job.stagger_one_in = one_in;
        plan->job.stagger_ns = longest_ns;
    }
}

/* Messages are reported as sent when the peer has acknowledged them, as over RDMA, or later. */
static void draw_reports(torture_plan *plan)
{
    trib_sim_stream stream = {.state = plan->seed * UINT64_C(0xe7037ed1a0b428db) + 89};
    const int64_t late_ns = INT64_C(1000) << trib_sim_draw_below(&stream, LATEST_REPORT_LOG2);
    if (plan->narrow == TORTURE_NOBODY && trib_sim_draw_one_in(&stream, 4)) {
        plan->job.net.sent_late_ns = late_ns;
    }
}

void torture_draw_stutters(torture_plan *plan)
{
    draw_prompt(plan);
    draw_staggers(plan);
    draw_reports(plan);
}

static bool has_nothing_in_flight(sim_job *job, void *argument)
{
    const trib_core *core = argument;
    const trib_link *link = core->host.links;
    (void)job;
    while (link != NULL && link->in_flight == 0) {
        link = link->next;
    }
    return link == NULL;
}

void torture_await_reports(const run *self, trib_core *core)
{
    if (self->plan->job.net.sent_late_ns > 0) {
        (void)sim_job_run(self->job, trib_sim_now(self->job->sim) + SECOND, has_nothing_in_flight, core);
    }
}

bool torture_will_leave(const run *self, uint32_t rank)
{
    const sim_member *member = &self->job->members[rank];
    return self->plan->prompt && !member->closing && !member->ended_told &&
           trib_sim_event_is_set(&self->drivers[rank].leave);
}

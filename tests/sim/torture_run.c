/* torture_run.c - runs what was drawn, lets the faults happen, and checks what is left; see torture.h. */
#include <stdarg.h>
#include <stdlib.h>

#include "engine/op.h"
#include "engine/server_lane.h"
#include "tests/sim/torture_internal.h"

#define LIMIT_NS (400 * SECOND) /* by then everything has succeeded or failed */

void torture_broken(run *self, const char *format, ...)
{
    if (self->verdict.held) {
        self->verdict.held = false;
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(self->verdict.why, sizeof self->verdict.why, format, arguments);
        va_end(arguments);
    }
}

/* ---- Faults ---- */

static bool may_alloc(void *user, size_t size)
{
    (void)size;
    sim_member *member = user;
    run *self = member->job->config.user;
    const uint64_t one_in = self->famine_one_in[member->index];
    return one_in == 0 || !trib_sim_draw_one_in(&self->famine, one_in);
}

static void fault_begins(trib_sim *sim, trib_sim_event *event)
{
    running_fault *fault = (running_fault *)((char *)event - offsetof(running_fault, begin));
    run *self = fault->run;
    const torture_fault *what = fault->what;
    sim_member *member = &self->job->members[what->member];
    trib_sim_link link = self->plan->job.link;
    switch (what->kind) {
    case TORTURE_FREEZE:
        self->frozen[what->member]++;
        self->excused_ns[what->member] += what->for_ns;
        trib_sim_process_freeze(member->process, true);
        break;
    case TORTURE_SLOW:
        trib_sim_process_slow(member->process, what->amount);
        break;
    case TORTURE_PARTITION:
        trib_sim_node_regroup(member->node, 1 + what->member);
        break;
    case TORTURE_RELINK:
        link.egress_bits = link.ingress_bits = (uint64_t)what->amount;
        trib_sim_node_relink(member->node, &link);
        break;
    case TORTURE_JUMP:
        self->excused_ns[what->member] += what->for_ns;
        trib_sim_process_jump(member->process, what->for_ns);
        break;
    case TORTURE_RESET:
        trib_sim_net_reset(self->job->net, (uint64_t)what->at_ns);
        break;
    case TORTURE_DEVICE:
        trib_host_world_fault(self->world, (int32_t)(what->member / self->plan->lanes),
                              (int32_t)(what->member % self->plan->lanes), (trib_host_fault)what->amount);
        break;
    case TORTURE_KILL:
        self->lost_one = self->lost_one || sim_job_all_ready(self->job, NULL);
        sim_job_kill(self->job, what->member);
        break;
    default:
        self->famine_one_in[what->member] = (uint64_t)what->amount;
        break;
    }
    trib_sim_set(sim, &fault->end, trib_sim_now(sim) + what->for_ns);
}

static void fault_ends(trib_sim *sim, trib_sim_event *event)
{
    (void)sim;
    running_fault *fault = (running_fault *)((char *)event - offsetof(running_fault, end));
    run *self = fault->run;
    sim_member *member = &self->job->members[fault->what->member];
    switch (fault->what->kind) {
    case TORTURE_FREEZE:
        if (--self->frozen[member->index] == 0 && !member->killed) {
            trib_sim_process_freeze(member->process, false);
        }
        break;
    case TORTURE_PARTITION:
        trib_sim_node_regroup(member->node, 0);
        break;
    case TORTURE_FAMINE:
        self->famine_one_in[member->index] = 0;
        break;
    default:
        break;
    }
}

static void set_faults(run *self)
{
    for (uint32_t i = 0; i < self->plan->fault_count; i++) {
        running_fault *fault = &self->faults[i];
        *fault = (running_fault){.run = self, .what = &self->plan->faults[i]};
        fault->begin.fired = fault_begins;
        fault->end.fired = fault_ends;
        trib_sim_set(self->job->sim, &fault->begin, fault->what->at_ns);
    }
    trib_sim_net_weather(self->job->net, &self->plan->weather);
}

/* Is every fault over, and nothing of any worker that lives under way? */
static bool is_settled(sim_job *job, void *argument)
{
    const run *self = argument;
    for (uint32_t i = 0; i < self->plan->fault_count; i++) {
        if (self->faults[i].begin.place != 0 || self->faults[i].end.place != 0) {
            return false;
        }
    }
    for (uint32_t rank = 0; rank < self->plan->job.workers; rank++) {
        if (self->drivers[rank].in_flight > 0 && !job->members[rank].killed) {
            return false;
        }
    }
    return true;
}

/* ---- At rest ---- */

static void check_core(run *self, uint32_t member, const trib_core *core)
{
    for (const trib_link *link = core->links; link != NULL; link = link->next) {
        if (link->heap_size > 0 || link->in_flight > 0 || link->landed != NULL) {
            torture_broken(self, "at rest, member %u has %u waiting and %u bytes under way on a link", member,
                           link->heap_size, (unsigned)link->in_flight);
        }
    }
    if (core->nodes != NULL || core->entries_waiting > 0) {
        torture_broken(self, "at rest, member %u has operations or sums left", member);
    }
    if (core->summation != NULL && !trib_summation_is_idle(core->summation)) {
        torture_broken(self, "at rest, member %u is still summing", member);
    }
    for (uint32_t i = 0; i < core->lane_count; i++) {
        if (core->lanes[i].summation != NULL && !trib_summation_is_idle(core->lanes[i].summation)) {
            torture_broken(self, "at rest, member %u is still summing for local ranks %u", member, i);
        }
    }
}

static void check_rest(run *self)
{
    /* What goes without saying is under way for a moment yet. */
    sim_job_run(self->job, trib_sim_now(self->job->sim) + SECOND / 2, NULL, NULL);
    for (uint32_t i = 0; i < self->job->member_count; i++) {
        const trib_engine *engine = self->job->members[i].engine;
        if (atomic_load(&engine->ops_in_flight) > 0) {
            torture_broken(self, "at rest, member %u counts operations in flight", i);
        }
        for (uint32_t core = 0; core < engine->core_count; core++) {
            check_core(self, i, &engine->cores[core]);
        }
    }
    for (uint32_t rank = 0; rank < self->plan->job.workers; rank++) {
        for (uint32_t i = 0; i < self->plan->tensor_count; i++) {
            if (self->drivers[rank].next_round[i] < self->plan->tensors[i].rounds) {
                torture_broken(self, "rank %u stopped before the last round of tensor %u", rank, i);
            }
        }
    }
}

static bool all_told(sim_job *job, void *unused)
{
    (void)unused;
    for (uint32_t i = 0; i < job->member_count; i++) {
        if (!job->members[i].killed && !job->members[i].ended_told) {
            return false;
        }
    }
    return true;
}

static void check_all_told(run *self)
{
    const int64_t until_ns = trib_sim_now(self->job->sim) + 5 * self->plan->job.engine.peer_timeout_ns;
    if (!sim_job_run(self->job, until_ns, all_told, NULL)) {
        torture_broken(self, "a member was lost, and not every other has been told");
    }
}

/* ---- The whole ---- */

static void finish(run *self)
{
    sim_job *job = self->job;
    if (self->world != NULL && trib_host_world_disorders(self->world) > 0) {
        torture_broken(self, "the local ranks of a machine came to collectives in different orders");
    }
    if (!is_settled(job, self)) {
        torture_broken(self, "after %.0f s there are operations that neither succeeded nor failed",
                       (double)LIMIT_NS / 1e9);
    }
    trib_sim_net_weather(job->net, &(trib_sim_weather){.shred_one_in = 0});
    if (self->lost_one && !self->plan->leaves) {
        check_all_told(self);
    }
    if (!self->plan->may_end && self->plan->cancels == 0 && self->plan->hurried == 0 && !self->plan->leaves) {
        check_rest(self);
    }
    if (!sim_job_close(job, 60 * SECOND)) {
        torture_broken(self, "not every engine could be closed");
        return; /* its memory is lost: there is no way to free what still runs */
    }
    for (uint32_t rank = 0; rank < self->plan->job.workers; rank++) {
        if (self->drivers[rank].in_flight > 0) {
            torture_broken(self, "rank %u was closed, and an operation has not been called back", rank);
        }
    }
    self->verdict.steps = trib_sim_steps(job->sim);
    self->verdict.virtual_ns = trib_sim_now(job->sim);
    torture_drive_close(self);
    sim_job_free(job);
}

static void give_device(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    (void)link;
    const run *self = job->config.user;
    const uint32_t lanes = self->plan->lanes;
    config->local_size = (int32_t)lanes;
    config->local_rank = config->rank >= 0 ? (int32_t)(member % lanes) : 0;
    config->device = config->rank >= 0 ? "host" : "none";
}

torture_verdict torture_run(const torture_plan *plan)
{
    run *self = calloc(1, sizeof *self);
    torture_verdict verdict = {.held = false, .why = "out of memory for the test"};
    if (self == NULL) {
        return verdict;
    }
    self->plan = plan;
    self->verdict.held = true;
    sim_job_config config = plan->job;
    config.user = self;
    config.may_alloc = may_alloc;
    if (plan->lanes > 0) {
        self->world = config.device_world = trib_host_world_create();
        config.tweak = give_device;
    }
    trib_error error = {.status = TRIB_OK};
    self->job = sim_job_open(&config, &error);
    if (self->job == NULL) {
        torture_broken(self, "could not be set up: %s", error.text);
    } else {
        self->famine = trib_sim_stream_make(self->job->sim, UINT64_C(0xfa3));
        set_faults(self);
        torture_drive_open(self);
        sim_job_run(self->job, LIMIT_NS, is_settled, self);
        finish(self);
    }
    verdict = self->verdict;
    if (verdict.held) {
        trib_host_world_free(self->world);
    }
    free(self);
    return verdict;
}

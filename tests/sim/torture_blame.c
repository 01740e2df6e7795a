/*
 * torture_blame.c - checks that errors name the right member; see torture.h. Only errors with one possible cause are
 * checked: a killed, departed, disagreeing or late member.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/torture_internal.h"

#define LONG_AGO_NS (300 * MS)

/* Finds the member's name in a text by its address, which tools/study/job.c makes. Server numbers follow the order of
 * joining, so they do not help. NULL: not found. */
static const char *find_name(uint32_t member, const char *text)
{
    char place[16];
    snprintf(place, sizeof place, ":%u)", 1000 + member);
    return strstr(text, place);
}

/* Returns the member that the text names first, or TORTURE_NOBODY. */
static uint32_t named_first(const run *self, const char *text)
{
    const char *first = NULL;
    uint32_t member = TORTURE_NOBODY;
    for (uint32_t i = 0; i < self->job->member_count; i++) {
        const char *at = find_name(i, text);
        if (at != NULL && (first == NULL || at < first)) {
            first = at;
            member = i;
        }
    }
    return member;
}

/* Returns true if only deaths and harmless faults happened, after the job had formed. Before that, a member that closes
 * a connection does not say why. */
static bool is_lost_by_death(const run *self)
{
    const torture_plan *plan = self->plan;
    uint32_t deaths = 0;
    for (uint32_t i = 0; i < plan->fault_count; i++) {
        const torture_kind kind = plan->faults[i].kind;
        if (kind != TORTURE_KILL && kind != TORTURE_JUMP) {
            return false;
        }
        deaths += kind == TORTURE_KILL;
    }
    return deaths > 0 && self->lost_one && plan->early_leaver == TORTURE_NOBODY && torture_is_calm(plan);
}

void torture_blame_lost(run *self, uint32_t member, const char *text)
{
    const uint32_t named = named_first(self, text);
    self->verdict.checks[TORTURE_CHECK_BLAME] += is_lost_by_death(self);
    if (is_lost_by_death(self) && (named == TORTURE_NOBODY || !self->job->members[named].killed)) {
        torture_broken(self, "member %u: the error does not name the member that died first: %s", member, text);
    }
}

/* A worker that leaves in the middle of a collective on devices ends the job of others on its machine. One of them that
 * is cut off cannot tell anybody, and closes without waiting for long, because its job has failed (core_life.c). All
 * others then find its process gone. */
bool torture_is_silenced(const run *self, const char *text)
{
    const torture_plan *plan = self->plan;
    const uint32_t named = plan->early_leaver == TORTURE_NOBODY ? TORTURE_NOBODY : named_first(self, text);
    const bool is_neighbour = named < plan->job.workers && named != plan->early_leaver && plan->local_size > 1 &&
                              named / plan->local_size == plan->early_leaver / plan->local_size;
    bool is_cut_off = false;
    for (uint32_t i = 0; i < plan->fault_count; i++) {
        const torture_fault *fault = &plan->faults[i];
        is_cut_off = is_cut_off || ((fault->kind == TORTURE_PARTITION || fault->kind == TORTURE_HALF) &&
                                    fault->member == named && !trib_sim_event_is_set(&self->faults[i].begin));
    }
    return is_neighbour && is_cut_off && self->job->members[named].ended_told &&
           self->job->members[named].ended.status == TRIB_PEER_LEFT;
}

/* Returns the rank that the text names after those words, or TORTURE_NOBODY. */
static uint32_t rank_behind(const char *text, const char *words)
{
    const char *at = strstr(text, words);
    return at == NULL ? TORTURE_NOBODY : (uint32_t)strtoul(at + strlen(words), NULL, 10);
}

/* Returns how long the links may need for everybody's contributions to one round of each tensor. A stream has a window
 * under way at most, so it carries no more than that in a round trip. */
static int64_t carry_ns(const torture_plan *plan)
{
    const sim_job_config *job = &plan->job;
    const trib_sim_link *link = &job->link;
    const uint64_t bits = link->egress_bits < link->ingress_bits ? link->egress_bits : link->ingress_bits;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        bytes += (uint64_t)plan->tensors[i].count * trib_dtype_size(plan->tensors[i].dtype);
    }
    bytes *= job->workers;
    const double wire_ns = (double)bytes * 8e9 / (double)bits;
    const double window_ns = (double)bytes / job->net.window_bytes * 2 * (double)link->latency_ns;
    return (int64_t)(wire_ns > window_ns ? wire_ns : window_ns);
}

/* Returns true if the rank sent its contribution to that round so long ago that it has arrived, in a job that nothing
 * holds up. */
static bool has_contributed(run *self, uint32_t rank, const attempt *what)
{
    const uint32_t index = what->tensor, round = what->round;
    const attempt *mine = torture_attempt(&self->drivers[rank], index, round);
    const attempt *before = round > 0 ? torture_attempt(&self->drivers[rank], index, round - 1) : NULL;
    const int64_t long_ago_ns = trib_sim_now(self->job->sim) - LONG_AGO_NS - carry_ns(self->plan);
    return mine->busy && mine->round == round && mine->submit_ns < long_ago_ns &&
           (before == NULL || before == mine || (!before->busy && before->done_ns < long_ago_ns));
}

static void blame_late(attempt *what, const char *text)
{
    run *self = what->run;
    const uint32_t late = rank_behind(text, "still lacked the contribution of rank ");
    const uint32_t left = self->plan->early_leaver == 0 ? TORTURE_NOBODY : rank_behind(text, ": rank ");
    if (late < self->plan->job.workers && has_contributed(self, late, what)) {
        torture_broken(self, "rank %u, tensor %u, round %u: the error names rank %u, which contributed long ago: %s",
                       what->driver->rank, what->tensor, what->round, late, text);
    }
    if (left < self->plan->job.workers && strstr(text, "left the job without contributing") != NULL &&
        !self->job->members[left].closing) {
        torture_broken(self, "rank %u, tensor %u, round %u: the error says that rank %u has left, but it has not: %s",
                       what->driver->rank, what->tensor, what->round, left, text);
    }
}

void torture_blame(attempt *what, const trib_result *result)
{
    run *self = what->run;
    const torture_plan *plan = self->plan;
    char name[16];
    if (plan->job.per_machine > 0 || plan->local_size > 1) {
        return; /* the text may mean any worker of a machine */
    }
    if (result->status == TRIB_PEER_LOST && !self->job->members[what->driver->rank].killed) {
        torture_blame_lost(self, what->driver->rank, result->text);
    }
    snprintf(name, sizeof name, "rank %u ", plan->odd_rank);
    if (result->status == TRIB_MISMATCH && strstr(result->text, name) == NULL) {
        torture_broken(self, "rank %u, tensor %u, round %u: rank %u disagreed, but the error does not name it: %s",
                       what->driver->rank, what->tensor, what->round, plan->odd_rank, result->text);
    }
    const bool is_attacked = plan->attack == TORTURE_FLIPS || plan->attack == TORTURE_FORGERY;
    if (torture_is_calm(plan) || (plan->fault_count == 0 && plan->narrow == TORTURE_NOBODY && !is_attacked)) {
        blame_late(what, result->text);
    }
}

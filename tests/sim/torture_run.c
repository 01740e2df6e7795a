/* torture_run.c - runs a drawn job, triggers its faults, and checks what is left at the end; see torture.h. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "engine/worker/op.h"
#include "engine/server/relay.h"
#include "engine/server/server_sum.h"
#include "engine/membership/rebalance.h"
#include "tests/sim/torture_internal.h"

#define WATCH_EVERY 16u /* events */
#define RARE 8u
#define LOSE_AGAIN_NS (5 * INT64_C(1000000)) /* until a job is asked again whether it has formed */
#define DEALS_MAX 1000u                      /* a job may wait for deadlines, in which more would find nothing */
#define LIMIT_NS (4000 * SECOND)             /* every operation has ended by then */

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

/* Returns true if this allocation fails. Sizes that come with every message never fail. */
static bool misses(torture_miss *self, size_t size)
{
    uint32_t site = 0;
    while (site < self->size_count && self->sizes[site] != size) {
        site++;
    }
    if (site == TORTURE_SITES) {
        return false;
    }
    self->size_count += site == self->size_count;
    self->sizes[site] = size;
    return self->counts[site]++ < RARE && self->left > 0 && --self->left == 0;
}

static bool may_alloc(void *user, size_t size)
{
    sim_member *member = user;
    run *self = member->job->config.user;
    const uint64_t one_in = self->alloc_fails_one_in[member->index];
    if (self->plan->faults[0].kind == TORTURE_MISS && member->index == self->plan->faults[0].member &&
        misses(&self->miss, size)) {
        return false;
    }
    return one_in == 0 || !trib_sim_draw_one_in(&self->alloc_failures, one_in);
}

static void fault_begins(trib_sim *sim, trib_sim_event *event)
{
    running_fault *fault = (running_fault *)((char *)event - offsetof(running_fault, begin));
    run *self = fault->run;
    const torture_fault *what = fault->what;
    sim_member *member = &self->job->members[what->member];
    trib_sim_link link = self->plan->job.link;
    fault->formed = sim_job_all_ready(self->job, NULL);
    switch (what->kind) {
    case TORTURE_FREEZE:
        self->frozen[what->member]++;
        self->grace_extended_ns[what->member] += what->for_ns;
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
        self->grace_extended_ns[what->member] += what->for_ns;
        trib_sim_process_jump(member->process, what->for_ns);
        break;
    case TORTURE_RESET:
        trib_sim_net_reset(self->job->net, (uint64_t)what->at_ns);
        break;
    case TORTURE_HALF:
        trib_sim_node_block(member->node, what->amount > 0, what->amount <= 0);
        break;
    case TORTURE_FORGET:
        trib_sim_net_forget(self->job->net, (uint64_t)what->at_ns);
        break;
    case TORTURE_DEVICE:
        trib_host_world_fault(self->world, (int32_t)(what->member / self->plan->local_size),
                              (int32_t)(what->member % self->plan->local_size), (trib_host_fault)what->amount);
        break;
    case TORTURE_LOSE:
        if (!sim_job_all_ready(self->job, NULL)) {
            trib_sim_set(sim, &fault->begin, trib_sim_now(sim) + LOSE_AGAIN_NS);
            return;
        }
        torture_lose(self, what);
        break;
    case TORTURE_KILL:
        /* a job that survives the loss of a server may go on, and nobody is told then */
        self->lost_one =
            self->lost_one ||
            (sim_job_all_ready(self->job, NULL) &&
             (what->member < self->plan->job.workers || self->plan->job.engine.survive != TRIB_SURVIVE_SERVERS));
        sim_job_kill(self->job, what->member);
        if (self->world != NULL && what->member < self->plan->job.workers) {
            trib_host_world_kill(self->world, (int32_t)(what->member / self->plan->local_size),
                                 (int32_t)(what->member % self->plan->local_size));
        }
        break;
    case TORTURE_MISS:
        self->miss.left = (uint64_t)what->amount;
        break;
    default:
        self->alloc_fails_one_in[what->member] = (uint64_t)what->amount;
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
    torture_attack_check_silence(self, fault->what, fault->formed);
    switch (fault->what->kind) {
    case TORTURE_FREEZE:
        if (--self->frozen[member->index] == 0 && !member->killed) {
            trib_sim_process_freeze(member->process, false);
        }
        break;
    case TORTURE_PARTITION:
        trib_sim_node_regroup(member->node, 0);
        break;
    case TORTURE_HALF:
        trib_sim_node_block(member->node, false, false);
        break;
    case TORTURE_ALLOC_FAILURE:
        self->alloc_fails_one_in[member->index] = 0;
        break;
    default:
        break;
    }
}

/* Deals random shares to the members that can sum. Often a member gets nothing, and sometimes one gets everything. */
static void deal_anew(trib_reactor *reactor, trib_post *post)
{
    run *self = (run *)((char *)post - offsetof(run, restless_post));
    trib_core *core = reactor->owner;
    double weights[TORTURE_MEMBERS_MAX];
    self->restless_posted = false;
    if (core->engine->coordinator == NULL || core->ended) {
        return;
    }
    for (uint32_t i = 0; i < TORTURE_MEMBERS_MAX; i++) {
        weights[i] =
            trib_sim_draw_one_in(&self->weights, 3) ? 0 : (double)trib_sim_draw_below(&self->weights, 1000) / 1000;
    }
    self->deals += trib_rebalance_deal(core->engine->coordinator, weights);
}

static void restless(trib_sim *sim, trib_sim_event *event)
{
    run *self = (run *)((char *)event - offsetof(run, restless));
    sim_member *first = &self->job->members[0];
    if (self->rests || self->deals == DEALS_MAX) {
        return;
    }
    if (!first->killed && !first->closing && !self->restless_posted) {
        self->restless_posted = true;
        self->restless_post.run = deal_anew;
        trib_reactor_post(first->engine->cores[0].reactor, &self->restless_post);
    }
    trib_sim_set(sim, event,
                 trib_sim_now(sim) + 1 +
                     (int64_t)trib_sim_draw_below(&self->weights, (uint64_t)self->plan->restless_ns * 2));
}

static void absence_ends(trib_sim *sim, trib_sim_event *event)
{
    (void)sim;
    run *self = (run *)((char *)event - offsetof(run, absence));
    trib_sim_node_regroup(self->job->members[self->plan->absent].node, 0);
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
    if (self->plan->restless_ns > 0) {
        self->weights = trib_sim_stream_make(self->job->sim, UINT64_C(0x54a));
        self->restless.fired = restless;
        trib_sim_set(self->job->sim, &self->restless, self->plan->restless_ns);
    }
    if (self->plan->absent != TORTURE_NOBODY) {
        self->absence.fired = absence_ends;
        trib_sim_node_regroup(self->job->members[self->plan->absent].node, 1 + TORTURE_MEMBERS_MAX);
        trib_sim_set(self->job->sim, &self->absence, self->plan->absent_ns);
    }
}

/* Returns true if every fault is over and no live worker has an operation in flight. */
static bool is_settled(sim_job *job, void *argument)
{
    run *self = argument;
    torture_stutter(self);
    torture_attack_flip(self);
    if (trib_sim_steps(job->sim) % WATCH_EVERY == 0) {
        torture_watch(self);
    }
    if (!self->verdict.held) {
        return true;
    }
    for (uint32_t i = 0; i < self->plan->fault_count; i++) {
        if (trib_sim_event_is_set(&self->faults[i].begin) || trib_sim_event_is_set(&self->faults[i].end)) {
            return false;
        }
    }
    if (trib_sim_event_is_set(&self->absence)) {
        return false;
    }
    for (uint32_t rank = 0; rank < self->plan->job.workers; rank++) {
        const driver *mine = &self->drivers[rank];
        const bool is_busy =
            mine->in_flight + mine->crowd_in_flight > 0 || mine->joins || trib_sim_event_is_set(&mine->begin);
        if ((is_busy || torture_will_leave(self, rank)) && !job->members[rank].killed) {
            return false;
        }
    }
    return true;
}

/* ---- At rest ---- */

static void check_core(run *self, uint32_t member, trib_core *core)
{
    torture_await_reports(self, core);
    for (const trib_link *link = core->host.links; link != NULL; link = link->next) {
        if (link->outbox.count > 0 || link->in_flight > 0 || link->arrival_count > 0) {
            torture_broken(self, "at rest, member %u has %u requests waiting and %u bytes in flight on a link", member,
                           link->outbox.count, (unsigned)link->in_flight);
        }
    }
    if (core->op_cores != NULL || core->entries_waiting > 0) {
        torture_broken(self, "at rest, member %u has operations or sums left", member);
    }
    /* A round of a disputed tensor waits for workers that never contribute. */
    const bool may_wait = self->plan->odd_rank != TORTURE_NOBODY && self->plan->odd_round < 0;
    for (const trib_server_sum *sum = NULL; (sum = trib_server_sums_next(core, sum)) != NULL;) {
        const trib_aggregator *aggregator = sum->aggregator;
        const bool is_of_ranks = sum->level == TRIB_SUM_RANK || sum->level == TRIB_SUM_HOST;
        if (aggregator != NULL && !aggregator->ops->is_idle(aggregator) && !(is_of_ranks && may_wait)) {
            torture_broken(self, "at rest, member %u is still summing (%d)", member, (int)sum->level);
        }
    }
    if (!trib_relay_is_idle(core)) {
        torture_broken(self, "at rest, member %u still has partial sums to push", member);
    }
}

/* Messages without an acknowledgement are on their way for a moment: on a slow link, the partitions of cancelled
 * operations; on a connection that was forgotten, what is sent again once its silence is noticed. */
static int64_t moment_ns(const torture_plan *plan)
{
    if (plan->narrow == TORTURE_NOBODY) {
        return plan->job.engine.peer_timeout_ns;
    }
    const uint64_t bytes = (uint64_t)plan->job.engine.partition_bytes * (plan->job.workers + plan->job.servers);
    return 4 * SECOND + (int64_t)(bytes * 8 * SECOND / plan->narrow_bits);
}

static void check_rest(run *self)
{
    self->rests = true;
    torture_await_drained(self);
    (void)sim_job_run(self->job, trib_sim_now(self->job->sim) + 30 * SECOND, torture_has_begun, NULL);
    sim_job_run(self->job, trib_sim_now(self->job->sim) + moment_ns(self->plan), NULL, NULL);
    for (uint32_t i = 0; i < self->job->member_count; i++) {
        trib_engine *engine = self->job->members[i].engine;
        if (self->job->members[i].killed || self->drained[i]) { /* its tensors are elsewhere */
            continue;
        }
        if (trib_engine_ops_in_flight(engine) > 0) {
            torture_broken(self, "at rest, member %u counts operations in flight", i);
        }
        for (uint32_t core = 0; core < engine->core_count; core++) {
            check_core(self, i, &engine->cores[core]);
        }
    }
    torture_watch_rest(self);
    self->verdict.checks[TORTURE_CHECK_REST]++;
    for (uint32_t rank = 0; rank < self->plan->job.workers; rank++) {
        for (uint32_t i = 0; i < self->plan->tensor_count; i++) {
            const torture_tensor *what = &self->plan->tensors[i];
            if (self->verdict.held && self->drivers[rank].next_round[i] < what->rounds) {
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
        torture_broken(self, "a member was lost, but not every other member heard of it");
    }
    self->verdict.checks[TORTURE_CHECK_TOLD] += self->job->member_count - 1;
}

/* A control connection that is reset before the job forms is made again. */
static bool should_have_joined(const run *self)
{
    if (self->plan->attack == TORTURE_FLIPS && self->plan->may_end) {
        return false;
    }
    for (uint32_t i = 0; i < self->plan->fault_count; i++) {
        if (self->plan->faults[i].kind != TORTURE_RESET) {
            return false;
        }
    }
    return true;
}

/* Checks that each member's job ended for a reason that exists. */
static void check_ends(run *self)
{
    uint32_t not_joined = 0;
    for (uint32_t i = 0; i < self->job->member_count; i++) {
        not_joined += self->job->members[i].ready.status == TRIB_JOIN_FAILED;
    }
    /* The exception: the job had just formed, and the roster was on that connection. */
    const bool had_begun = strstr(self->job->members[0].ready.text, "when the job had already begun") != NULL;
    if (not_joined == self->job->member_count && should_have_joined(self) && !had_begun) {
        torture_broken(self, "nobody has joined: %s", self->job->members[0].ready.text);
    }
    for (uint32_t i = 0; i < self->job->member_count; i++) {
        const sim_member *member = &self->job->members[i];
        const bool deserted = self->plan->early_leaver != TORTURE_NOBODY;
        const trib_status status = member->ended.status;
        /* If rank 0 leaves early, a member that hears of it from others first takes them for lost. */
        const bool orderly = (status == TRIB_OK && (self->plan->leaves || deserted || self->drained[i])) ||
                             (status == TRIB_PEER_LEFT && (deserted || torture_may_leave_early(self->plan))) ||
                             (status == TRIB_PEER_LOST && self->plan->early_leaver == 0) ||
                             (status == TRIB_PEER_LOST && torture_is_silenced(self, member->ended.text));
        if (member->ended_told && !member->killed && status == TRIB_PEER_LOST) {
            torture_blame_lost(self, i, member->ended.text);
        }
        if (member->ended_told && !member->killed && !orderly && !torture_may_end_so(self, member->ended.status)) {
            torture_broken(self,
                           "for member %u the job ended with \"%s\", though nothing happened that explains it: %s", i,
                           trib_status_text(member->ended.status), member->ended.text);
        }
    }
}

/* No member has left and nothing may have ended the job, so it can stay idle, and every tensor can be summed again. */
static void sum_once_more(run *self)
{
    sim_job *job = self->job;
    const trib_config *engine = &self->plan->job.engine;
    const int64_t long_ns = self->plan->seed % 2 == 0 ? engine->join_timeout_ns : 3 * engine->peer_timeout_ns;
    const int64_t idle_ns = self->plan->idles ? long_ns : SECOND;
    sim_job_run(job, trib_sim_now(job->sim) + idle_ns, NULL, NULL);
    check_ends(self);
    if (self->verdict.held) {
        torture_drive_last(self);
        if (!sim_job_run(job, trib_sim_now(job->sim) + 60 * SECOND, is_settled, self)) {
            torture_broken(self, "after the job had stood idle there are operations that neither succeeded nor failed");
        }
    }
    check_rest(self);
}

/* ---- The whole ---- */

static void finish(run *self)
{
    sim_job *job = self->job;
    if (self->world != NULL && trib_host_world_order_conflicts(self->world) > 0) {
        torture_broken(self, "the local ranks of a machine came to collectives in different orders");
    }
    if (!is_settled(job, self)) {
        torture_broken(self, "after %.0f s there are operations that neither succeeded nor failed",
                       (double)LIMIT_NS / 1e9);
    }
    trib_sim_net_weather(job->net, &(trib_sim_weather){.shred_one_in = 0});
    if (self->lost_one && !self->plan->leaves && self->plan->early_leaver == TORTURE_NOBODY) {
        check_all_told(self);
    }
    check_ends(self);
    const bool all_stay = !self->plan->leaves && self->plan->early_leaver == TORTURE_NOBODY;
    if (self->verdict.held && !self->plan->may_end && all_stay) {
        check_rest(self);
        sum_once_more(self);
    }
    trib_sim_clear(job->sim, &self->restless);
    if (!sim_job_close(job, 60 * SECOND)) {
        torture_broken(self, "not every engine could be closed");
        return; /* the memory is leaked, because what still runs cannot be freed */
    }
    for (uint32_t rank = 0; rank < self->plan->job.workers; rank++) {
        if (self->drivers[rank].in_flight + self->drivers[rank].crowd_in_flight > 0 || self->drivers[rank].joins) {
            torture_broken(self, "rank %u was closed, but an operation's callback has not run", rank);
        }
    }
    self->verdict.steps = trib_sim_steps(job->sim);
    self->verdict.virtual_ns = trib_sim_now(job->sim);
    torture_buffers_check(self);
    torture_drive_close(self);
    torture_watch_closed(self);
    self->verdict.checks[TORTURE_CHECK_CLOSED]++;
    torture_attack_close(self);
    sim_job_free(job);
}

static void tweak_member(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    const run *self = job->config.user;
    const uint32_t local_size = self->plan->local_size;
    link->ingress_bits = member == self->plan->narrow ? self->plan->narrow_bits : link->ingress_bits;
    config->reactors = self->plan->reactors[member];
    config->bandwidth_bits = self->plan->bandwidths[member];
    if (local_size == 0) {
        return;
    }
    config->local_size = (int32_t)local_size;
    config->local_rank = config->rank >= 0 ? (int32_t)(member % local_size) : 0;
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
    config.tweak = tweak_member;
    if (plan->local_size > 0) {
        self->world = config.device_world = trib_host_world_create();
    }
    trib_error error = {.status = TRIB_OK};
    self->job = sim_job_open(&config, &error);
    if (self->job == NULL) {
        torture_broken(self, "could not be set up: %s", error.text);
    } else {
        self->stutters = trib_sim_stream_make(self->job->sim, UINT64_C(0x5077));
        self->alloc_failures = trib_sim_stream_make(self->job->sim, UINT64_C(0xfa3));
        set_faults(self);
        torture_drive_open(self);
        if (!torture_attack_open(self)) {
            torture_broken(self, "out of memory for an attacker");
        }
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

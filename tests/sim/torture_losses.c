/* torture_losses.c - draws servers that die, or are drained, in jobs that survive that (TRIB_SURVIVE=servers). */
#include "tests/sim/torture_internal.h"

#define MS INT64_C(1000000)

static uint32_t below(trib_sim_stream *stream, uint32_t end)
{
    return (uint32_t)trib_sim_draw_below(stream, end);
}

bool torture_is_to_lose(uint64_t seed)
{
    const uint64_t block = seed / 1000 % 10;
    return block == 5 || block == 6;
}

/* Only whole tensors in host memory survive, on reactors that all members have. */
static void make_plain(torture_plan *plan)
{
    plan->local_size = 0;
    plan->pace_ns = 0;
    plan->dawdler = TORTURE_NOBODY;
    plan->job.per_machine = 0;
    plan->restless_ns = 0;
    plan->lives = 0;
    plan->leaves = plan->prompt = false;
    plan->early_leaver = TORTURE_NOBODY;
    plan->haste_ns = 0;
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        plan->tensors[i].on_device = false;
        plan->tensors[i].exchange = TORTURE_WHOLE;
        plan->tensors[i].group = 0;
        plan->tensors[i].backwards = false;
    }
    for (uint32_t i = 0; i < plan->job.workers + plan->job.servers; i++) {
        plan->reactors[i] = plan->job.engine.reactors;
        plan->bandwidths[i] = 0;
    }
}

/* Some tensors are reduced to one rank, which alone has the sum. */
static void draw_reduces(torture_plan *plan)
{
    trib_sim_stream stream = {.state = plan->seed * UINT64_C(0xd6e8feb86659fd93) + 211};
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        const uint32_t root = below(&stream, plan->job.workers);
        if (trib_sim_draw_one_in(&stream, 4)) {
            plan->tensors[i].exchange = TORTURE_REDUCE;
            plan->tensors[i].root = (int32_t)root;
        }
    }
}

/* All servers but one go, or all of them where workers sum, too, which they do where there are more workers than
 * servers. Other faults are harmless, and no operation may notice any. A job that may end anyway has the setting and no
 * such loss. One that is attacked has neither. */
void torture_draw_losses(torture_plan *plan)
{
    const bool always = torture_is_to_lose(plan->seed);
    if (always) {
        plan->odd_rank = TORTURE_NOBODY;
    } else {
        torture_draw_attack(plan);
    }
    trib_sim_stream stream = {.state = plan->seed * UINT64_C(0xd6e8feb86659fd93) + 67};
    const uint32_t servers = plan->job.servers;
    const bool draws = trib_sim_draw_one_in(&stream, 2) || always;
    const bool colocates = trib_sim_draw_one_in(&stream, 3) || (always && servers == 1);
    const uint32_t dying = servers - (colocates && plan->job.workers > servers ? 0 : 1);
    if (!draws || servers == 0 || plan->attack != TORTURE_NO_ATTACK) {
        return;
    }
    plan->job.engine.survive = TRIB_SURVIVE_SERVERS;
    if (plan->may_end || dying == 0 || plan->narrow != TORTURE_NOBODY || plan->odd_rank != TORTURE_NOBODY) {
        return;
    }
    make_plain(plan);
    plan->job.engine.colocate = colocates ? TRIB_COLOCATE_ON : plan->job.engine.colocate;
    draw_reduces(plan);
    const int64_t horizon_ns = (5 * MS) << below(&stream, 8);
    const uint32_t count = 1 + below(&stream, dying), first = below(&stream, servers);
    /* Only tensors of several partitions have keepers. */
    if (below(&stream, 3) > 0 && plan->job.engine.partition_bytes > 2 * plan->job.engine.chunk_bytes) {
        plan->job.engine.partition_bytes = 2 * plan->job.engine.chunk_bytes;
    }
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t place =
            plan->fault_count < TORTURE_FAULTS_MAX ? plan->fault_count++ : TORTURE_FAULTS_MAX - 1 - i;
        plan->faults[place] = (torture_fault){.kind = TORTURE_LOSE,
                                              .member = plan->job.workers + (first + i) % servers,
                                              .at_ns = (int64_t)trib_sim_draw_below(&stream, (uint64_t)horizon_ns),
                                              .for_ns = 1};
        plan->faults[place].amount = trib_sim_draw_one_in(&stream, 3) ? 1 : 0;
    }
}

void torture_lose(run *self, const torture_fault *what)
{
    const bool drains = what->amount > 0;
    self->verdict.checks[drains ? TORTURE_CHECK_DRAIN : TORTURE_CHECK_LOSE]++;
    if (drains) {
        self->drained[what->member] = sim_job_drain(self->job, what->member);
    } else {
        sim_job_kill(self->job, what->member);
    }
}

static bool has_drained(sim_job *job, void *argument)
{
    const run *self = argument;
    bool all = true;
    for (uint32_t i = 0; i < job->member_count; i++) {
        all = all && (!self->drained[i] || job->members[i].killed || job->members[i].ended_told);
    }
    return all;
}

void torture_await_drained(run *self)
{
    /* A connection that was lost unseen is noticed within the peer timeout. */
    const int64_t patience_ns = 2 * self->plan->job.engine.peer_timeout_ns;
    if (!sim_job_run(self->job, trib_sim_now(self->job->sim) + patience_ns, has_drained, self)) {
        torture_broken(self, "at rest, a server was drained, and is still there");
    }
}

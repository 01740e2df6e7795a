/*
 * torture_join.c - workers with different amounts of data: which jobs have them, and how their workers join.
 *
 * The rounds of every tensor are cut into laps. Of each lap a worker does the first so many rounds, and then joins; one
 * worker does them all. So it is certain who contributes to a round, however the workers' times fall.
 */
#include "tests/sim/torture_internal.h"

static uint32_t between(trib_sim_stream *stream, uint32_t low, uint32_t high)
{
    return low + (uint32_t)trib_sim_draw_below(stream, high - low + 1);
}

static bool has_device_fault(const torture_plan *plan)
{
    for (uint32_t i = 0; i < plan->fault_count; i++) {
        if (plan->faults[i].kind == TORTURE_DEVICE) {
            return true;
        }
    }
    return false;
}

/* Only all-reduces of all workers, of tensors in host memory, go on without those that have joined. Who leaves early or
 * disagrees would leave others waiting. */
static void make_plain(torture_plan *plan)
{
    plan->local_size = 0;
    plan->pace_ns = plan->haste_ns = 0;
    plan->dawdler = plan->odd_rank = plan->early_leaver = TORTURE_NOBODY;
    plan->job.net.offloads = false;
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        torture_tensor *what = &plan->tensors[i];
        what->exchange = TORTURE_WHOLE;
        what->root = -1;
        what->group = what->stays = 0;
        what->backwards = what->on_device = false;
    }
}

void torture_draw_joins(torture_plan *plan)
{
    torture_draw_codec(plan);
    trib_sim_stream stream = {.state = plan->seed * UINT64_C(0xc2b2ae3d27d4eb4f) + 151};
    const bool draws = trib_sim_draw_one_in(&stream, 4);
    if (!draws || plan->job.workers < 2 || plan->narrow != TORTURE_NOBODY || plan->prompt || has_device_fault(plan) ||
        plan->job.engine.survive != TRIB_SURVIVE_NOTHING) {
        return;
    }
    make_plain(plan);
    plan->lap = between(&stream, 1, 5);
    for (uint32_t rank = 0; rank < plan->job.workers; rank++) {
        plan->stops[rank] = between(&stream, 0, plan->lap);
    }
    plan->stops[between(&stream, 0, plan->job.workers - 1)] = plan->lap;
}

uint32_t torture_absent(const torture_plan *plan, uint32_t index, uint32_t round)
{
    uint32_t absent = 0;
    if (plan->lap == 0 || index >= plan->tensor_count || round >= plan->tensors[index].rounds) {
        return 0;
    }
    for (uint32_t rank = 0; rank < plan->job.workers; rank++) {
        absent |= (uint32_t)(round % plan->lap >= plan->stops[rank]) << rank;
    }
    return absent;
}

static uint32_t lesser(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

uint32_t torture_lap_ends(const driver *self, uint32_t index)
{
    const torture_plan *plan = self->run->plan;
    const uint32_t rounds = plan->tensors[index].rounds;
    return plan->lap == 0 ? rounds : lesser(rounds, self->lap * plan->lap + plan->stops[self->rank]);
}

bool torture_has_laps(const driver *self)
{
    const torture_plan *plan = self->run->plan;
    uint32_t most = 0;
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        most = most < plan->tensors[i].rounds ? plan->tensors[i].rounds : most;
    }
    return plan->lap > 0 && self->lap * plan->lap < most;
}

static void on_joined(const trib_result *result, void *user)
{
    driver *mine = user;
    run *self = mine->run;
    const torture_plan *plan = self->plan;
    mine->joins = false;
    if (result->status != TRIB_OK) {
        if (!torture_may_end_so(self, result->status)) {
            torture_broken(self, "rank %u, join %u: %s, though nothing happened that explains it: %s", mine->rank,
                           mine->lap, trib_status_text(result->status), result->text);
        }
        mine->refused = true;
        return;
    }
    if (mine->lap == self->laps_over) {
        self->laps_over++;
        self->joined_last = mine->joined_last;
    }
    self->verdict.checks[TORTURE_CHECK_JOIN]++;
    if (mine->lap + 1 != self->laps_over || mine->joined_last != self->joined_last) {
        torture_broken(self, "rank %u, join %u: rank %d joined last, but others were told rank %d", mine->rank,
                       mine->lap, (int)mine->joined_last, (int)self->joined_last);
    }
    mine->lap++;
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        mine->next_round[i] = lesser(plan->tensors[i].rounds, mine->lap * plan->lap);
    }
    torture_submit_more(mine);
}

/* A tensor is there while somebody has a handle of an operation on it. */
static void release_all(driver *self)
{
    for (uint32_t i = 0; i < self->run->plan->tensor_count; i++) {
        for (uint32_t k = 0; k < SLOTS; k++) {
            attempt *what = &self->attempts[i][k];
            trib_sim_clear(self->run->job->sim, &what->cancel);
            trib_op_release(what->op);
            what->op = NULL;
        }
        torture_release_last(self, i);
    }
}

/* Operations may still be under way. Tensors that do not stay are released first: those that have joined know nothing
 * of them, and a worker can release only what it has declared. */
void torture_join_if_done(driver *self)
{
    const torture_plan *plan = self->run->plan;
    if (!torture_has_laps(self) || self->joins || self->refused || self->run->is_last ||
        (plan->lives > 0 && self->in_flight > 0)) {
        return;
    }
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        if (self->next_round[i] < torture_lap_ends(self, i)) {
            return;
        }
    }
    if (plan->lives > 0) {
        release_all(self);
    }
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.output = &self->joined_last;
    params.done_cb = on_joined;
    params.user = self;
    trib_error error = {.text = ""};
    self->joins = true;
    if (trib_join(self->run->job->members[self->rank].engine, &params, NULL, &error) != TRIB_OK) {
        self->joins = false;
        self->refused = true;
        if (!plan->may_end) {
            torture_broken(self->run, "rank %u could not join: %s", self->rank, error.text);
        }
    }
}

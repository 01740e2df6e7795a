/*
 * test_loss_cost.c - the loss of a worker costs no operation that the others are through with: they wait for that
 * worker's word alone, which does not come any more (membership/commits.h).
 */
#include "engine/membership/commits.h"
#include "engine/worker/op.h"
#include "tests/sim/worker_loss.h"

enum { WORKERS = 3, SEEDS = 40 };

static bool is_planted; /* what the others are through with is forgotten */

__typeof__(trib_commits_worker_left) __real_trib_commits_worker_left, __wrap_trib_commits_worker_left;
void __wrap_trib_commits_worker_left(trib_coordinator *self)
{
    if (!is_planted) {
        __real_trib_commits_worker_left(self);
    }
}

/* True if the worker has the result of that operation of the first epoch, and its caller does not know. */
static bool holds(const bed *self, uint32_t rank, uint32_t tensor, uint32_t round)
{
    const trib_op *op = self->job->members[rank].engine->cores[0].held;
    while (op != NULL && (op->tensor->name[0] != 'a' + (char)tensor || op->round != round + 1)) {
        op = op->next;
    }
    return op != NULL;
}

static bool have_gone_on(sim_job *job, void *argument)
{
    const bed *self = argument;
    bool have = true;
    (void)job;
    for (uint32_t rank = 0; rank + 1 < WORKERS; rank++) {
        const worker *at = &self->workers[rank];
        have = have && !at->changing && at->epoch == 2 && at->through == TENSORS;
    }
    return have;
}

/* The last worker stands still at some moment, and dies when all others wait for it. Returns how many operations they
 * hold then, and *lost_out is the number of those that fail. */
static uint32_t run(uint64_t seed, uint32_t *lost_out)
{
    const setting what = {.workers = WORKERS, .servers = 1, .in_place = seed % 2 == 0, .reactors = 1 + seed / 2 % 2};
    bool is_held[TENSORS][ROUNDS];
    bed *self = worker_loss_open(&what, seed);
    sim_job *job = self->job;
    (void)sim_job_run(job, trib_sim_now(job->sim) + (int64_t)seed * 37 % 1000 * 1000, NULL, NULL);
    trib_sim_process_freeze(job->members[WORKERS - 1].process, true);
    (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND, NULL, NULL);
    for (uint32_t i = 0; i < TENSORS * ROUNDS; i++) {
        const uint32_t tensor = i / ROUNDS, round = i % ROUNDS;
        is_held[tensor][round] = holds(self, 0, tensor, round) && holds(self, 1, tensor, round);
    }
    sim_job_kill(job, WORKERS - 1);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 60 * SECOND, have_gone_on, self));
    uint32_t held = 0;
    for (uint32_t i = 0; i < TENSORS * ROUNDS; i++) {
        const uint32_t tensor = i / ROUNDS, round = i % ROUNDS;
        for (uint32_t rank = 0; rank + 1 < WORKERS && is_held[tensor][round]; rank++) {
            held++;
            *lost_out += self->results[1][tensor][round][rank] != TRIB_OK;
        }
    }
    assert_int_equal(self->wrong, 0);
    worker_loss_check_alike(self);
    worker_loss_close(self);
    return held;
}

static void what_the_others_have_succeeds(void **state)
{
    (void)state;
    uint32_t held = 0, lost = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        held += run(seed, &lost);
    }
    assert_in_range(held, 1, UINT32_MAX);
    assert_int_equal(lost, 0);
    is_planted = true;
    for (uint64_t seed = 1; seed <= SEEDS && lost == 0; seed++) {
        (void)run(seed, &lost);
    }
    assert_in_range(lost, 1, UINT32_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_the_others_have_succeeds)};
    return cmocka_run_group_tests_name("cost of a loss", tests, NULL, NULL);
}

/* test_store.c - jobs in a store (TRIB_STORE) whose answers are late, on purpose; storm.h has those at random. */
#include "tests/sim/worker_loss.h"

static bool is_late(sim_job *job, void *argument)
{
    (void)argument;
    return job->store.late_of != NULL;
}

static bool two_go_on(sim_job *job, void *argument)
{
    const bed *self = argument;
    bool go_on = true;
    for (uint32_t i = 0; i < 2; i++) {
        const worker *at = &self->workers[i];
        go_on = go_on && !at->changing && at->count == 2 && at->through == TENSORS;
    }
    return go_on || job->members[0].ended_told;
}

/* A coordinator in a process of its own asks for a swap that the store carries out when the epoch is over already. The
 * record names an epoch that has never begun then, and is the coordinator's own nevertheless. */
static void late_swap_of_an_epoch_that_is_over(void **state)
{
    (void)state;
    const setting what = {
        .workers = 4, .servers = 1, .apart = true, .colocated = true, .reactors = 1, .has_store = true};
    bed *self = worker_loss_open(&what, 1);
    self->job->store.late_one_in = 1;
    sim_job_kill(self->job, 3);
    assert_true(sim_job_run(self->job, trib_sim_now(self->job->sim) + 30 * SECOND, is_late, NULL));
    self->job->store.late_one_in = 0;
    sim_job_kill(self->job, 2);
    assert_true(sim_job_run(self->job, trib_sim_now(self->job->sim) + 60 * SECOND, two_go_on, self));
    if (self->job->members[0].ended_told) {
        fail_msg("the job has ended: %s", self->job->members[0].ended.text);
    }
    assert_int_equal(self->wrong, 0);
    worker_loss_close(self);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(late_swap_of_an_epoch_that_is_over)};
    return cmocka_run_group_tests_name("store", tests, NULL, NULL);
}

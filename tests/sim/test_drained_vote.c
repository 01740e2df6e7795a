/*
 * test_drained_vote.c - a server asks the coordinator to leave, loses it, and votes for another one then. The
 * coordinator reads that later, while it reaches one worker alone, and the server counts in its majority, as it has
 * voted. Or it has sent the word to go, which does not reach the server. Then all workers have heard that the server
 * leaves, and its vote does not count. Another server is told to leave between two epochs.
 */
#include <string.h>

#include "engine/membership/coordinator_internal.h"
#include "tests/sim/worker_loss.h"

enum { WORKERS = 4, SERVER = WORKERS };

static bool is_elected(sim_job *job, void *argument)
{
    (void)argument;
    return job->members[2].engine->formation.coordinates;
}

static bool others_have_ended(sim_job *job, void *argument)
{
    (void)argument;
    return job->members[0].ended_told && job->members[1].ended_told;
}

static void freeze(const sim_job *job, bool begins)
{
    trib_sim_process_freeze(job->members[0].process, begins);
    trib_sim_process_freeze(job->members[1].process, begins);
}

static void half_are_alone(bool has_groups)
{
    const setting what = {.workers = WORKERS, .servers = 1, .reactors = 1, .colocated = true, .has_groups = has_groups};
    bed *self = worker_loss_open(&what, 1);
    sim_job *job = self->job;
    (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND / 2, NULL, NULL);
    assert_int_equal(job->members[0].engine->coordinator->groups != NULL, has_groups);
    freeze(job, true);
    assert_true(sim_job_drain(job, SERVER));
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 100 * SECOND, is_elected, self));
    trib_sim_node_regroup(job->members[0].node, 1);
    trib_sim_node_regroup(job->members[1].node, 1);
    freeze(job, false);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 100 * SECOND, others_have_ended, self));
    assert_false(job->members[2].ended_told || job->members[3].ended_told);
    worker_loss_close(self);
}

static void half_is_no_majority(void **state)
{
    (void)state;
    half_are_alone(false);
}

/* The epoch ends then, as nobody else can sum the share of the server. */
static void half_is_no_majority_after_an_epoch(void **state)
{
    (void)state;
    half_are_alone(true);
}

static bool is_changing(sim_job *job, void *argument)
{
    (void)argument;
    return atomic_load(&job->members[SERVER].engine->changing);
}

static bool server_has_ended(sim_job *job, void *argument)
{
    (void)argument;
    return job->members[SERVER].ended_told;
}

/* It is told to go while the membership changes, when nobody listens. It asks in the next epoch. */
static void asked_between_epochs(void **state)
{
    (void)state;
    const setting what = {.workers = WORKERS, .servers = 1, .reactors = 1, .colocated = true};
    bed *self = worker_loss_open(&what, 1);
    sim_job *job = self->job;
    sim_job_kill(job, WORKERS - 1);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 100 * SECOND, is_changing, self));
    assert_true(sim_job_drain(job, SERVER));
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 100 * SECOND, server_has_ended, self));
    assert_int_equal(job->members[SERVER].ended.status, TRIB_OK);
    assert_false(job->members[0].ended_told || job->members[1].ended_told || job->members[2].ended_told);
    worker_loss_close(self);
}

static bool second_epoch_begins(sim_job *job, void *argument)
{
    (void)argument;
    const trib_coordinator *coordinator = job->members[0].engine->coordinator;
    return coordinator->running && trib_epoch_number(coordinator->roster->epoch) > 1;
}

/* A worker has yet to get the next roster when the coordinator is lost. So the votes must be a majority of the five
 * members that were there before, and the server has one, as it has not been let go. */
static void who_leaves_before_all_have_the_roster_has_a_vote(void **state)
{
    (void)state;
    const setting what = {.workers = WORKERS, .servers = 1, .reactors = 1};
    bed *self = worker_loss_open(&what, 1);
    sim_job *job = self->job;
    sim_job_kill(job, WORKERS - 1);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 100 * SECOND, is_changing, self));
    assert_true(sim_job_drain(job, SERVER));
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 100 * SECOND, second_epoch_begins, self));
    trib_sim_process_freeze(job->members[1].process, true);
    (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND, NULL, NULL);
    sim_job_kill(job, 0);
    trib_sim_process_freeze(job->members[1].process, false);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 100 * SECOND, server_has_ended, self));
    assert_int_equal(job->members[SERVER].ended.status, TRIB_OK);
    (void)sim_job_run(job, trib_sim_now(job->sim) + 100 * SECOND, NULL, NULL);
    assert_false(job->members[1].ended_told || job->members[2].ended_told);
    worker_loss_close(self);
}

static bool may_go(sim_job *job, void *argument)
{
    (void)argument;
    const trib_coordinator *coordinator = job->members[0].engine->coordinator;
    return coordinator != NULL && coordinator->slots[SERVER].is_let_go && !coordinator->slots[SERVER].drains;
}

/* The coordinator has let the server go, and goes on with one of the other three workers. */
static void who_may_go_has_no_vote(void **state)
{
    (void)state;
    const setting what = {.workers = WORKERS, .servers = 1, .reactors = 1, .colocated = true};
    bed *self = worker_loss_open(&what, 1);
    sim_job *job = self->job;
    assert_true(sim_job_drain(job, SERVER));
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 100 * SECOND, may_go, self));
    trib_sim_node_regroup(job->members[0].node, 1);
    trib_sim_node_regroup(job->members[1].node, 1);
    (void)sim_job_run(job, trib_sim_now(job->sim) + 100 * SECOND, NULL, NULL);
    assert_false(job->members[0].ended_told || job->members[1].ended_told);
    assert_true(job->members[2].ended_told && job->members[3].ended_told && job->members[SERVER].ended_told);
    assert_non_null(strstr(job->members[2].ended.text, "the last epoch's 4 members is here (2 vote)"));
    worker_loss_close(self);
}

static bool drains(sim_job *job, void *argument)
{
    (void)argument;
    return job->members[0].engine->coordinator->slots[SERVER].drains;
}

static void on_advanced(trib_engine *engine, const trib_membership *now, void *user)
{
    (void)engine;
    (void)now;
    (void)user;
}

/* The server is lost before two of the workers hear that it leaves, and before these are lost, too. The three have its
 * vote, so the coordinator does not go on without it. */
static void who_is_lost_before_it_may_go_has_a_vote(void **state)
{
    (void)state;
    const setting what = {.workers = WORKERS, .servers = 1, .reactors = 1, .colocated = true};
    bed *self = worker_loss_open(&what, 1);
    sim_job *job = self->job;
    assert_true(sim_job_drain(job, SERVER));
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 100 * SECOND, drains, self));
    trib_sim_node_regroup(job->members[SERVER].node, 1);
    for (uint32_t i = 2; i < WORKERS; i++) {
        trib_sim_node_block(job->members[i].node, false, true);
    }
    (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND / 2, NULL, NULL);
    for (uint32_t i = 2; i < WORKERS; i++) {
        trib_error error;
        self->workers[i].changing = true; /* it asks for a boundary, which the coordinator hears */
        assert_int_equal(trib_membership_advance(job->members[i].engine, on_advanced, NULL, &error), TRIB_OK);
    }
    (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND / 10, NULL, NULL);
    for (uint32_t i = 2; i < WORKERS; i++) {
        trib_sim_node_block(job->members[i].node, false, false);
        trib_sim_node_regroup(job->members[i].node, 1);
    }
    (void)sim_job_run(job, trib_sim_now(job->sim) + 100 * SECOND, NULL, NULL);
    assert_true(job->members[0].ended_told && job->members[1].ended_told);
    assert_false(job->members[2].ended_told || job->members[3].ended_told);
    worker_loss_close(self);
}

enum { MANY = 5, SERVERS = 2, APART = MANY + SERVERS };

static bool some_know_of_drains(sim_job *job, void *argument)
{
    (void)argument;
    const trib_coordinator *coordinator = job->members[APART].engine->coordinator;
    uint32_t drains = 0;
    for (uint32_t i = MANY; i < APART; i++) {
        drains += coordinator->slots[i].drains;
    }
    return drains > 0;
}

/* True if one of these workers has gone on to another epoch. */
static bool some_went_on(const sim_job *job, uint32_t first, uint32_t end)
{
    bool some = false;
    for (uint32_t i = first; i < end; i++) {
        some = some || trib_epoch_number(job->members[i].engine->roster->epoch) > 1;
    }
    return some;
}

/* Three of five workers hear that both servers leave, and would be a majority without these. The other two, which hear
 * of nothing, and the servers would be one, too, four of seven. So one server leaves at a time. */
static void two_servers_leave(void **state)
{
    (void)state;
    const setting what = {.workers = MANY, .servers = SERVERS + 1, .reactors = 1, .colocated = true, .apart = true};
    bed *self = worker_loss_open(&what, 1);
    sim_job *job = self->job;
    (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND / 2, NULL, NULL);
    for (uint32_t i = 3; i < MANY; i++) {
        trib_sim_node_block(job->members[i].node, false, true);
    }
    for (uint32_t i = MANY; i < APART; i++) {
        assert_true(sim_job_drain(job, i));
    }
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 100 * SECOND, some_know_of_drains, self));
    (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND / 10, NULL, NULL);
    sim_job_kill(job, APART);
    for (uint32_t i = 3; i < APART; i++) {
        trib_sim_node_block(job->members[i].node, false, false);
        trib_sim_node_regroup(job->members[i].node, 1);
    }
    (void)sim_job_run(job, trib_sim_now(job->sim) + 100 * SECOND, NULL, NULL);
    assert_false(some_went_on(job, 0, 3) && some_went_on(job, 3, MANY));
    worker_loss_close(self);
}

/* Where nothing happens they leave one after the other. */
static void all_servers_leave(void **state)
{
    (void)state;
    const setting what = {.workers = WORKERS, .servers = SERVERS_MAX, .reactors = 2, .colocated = true};
    bed *self = worker_loss_open(&what, 1);
    sim_job *job = self->job;
    const int64_t began_ns = trib_sim_now(job->sim);
    for (uint32_t i = 0; i < SERVERS_MAX; i++) {
        assert_true(sim_job_drain(job, WORKERS + i));
    }
    (void)sim_job_run(job, began_ns + SECOND, NULL, NULL);
    for (uint32_t i = 0; i < SERVERS_MAX; i++) {
        assert_true(job->members[WORKERS + i].ended_told);
        assert_int_equal(job->members[WORKERS + i].ended.status, TRIB_OK);
    }
    assert_false(some_went_on(job, 0, WORKERS));
    worker_loss_close(self);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(half_is_no_majority),    cmocka_unit_test(half_is_no_majority_after_an_epoch),
        cmocka_unit_test(two_servers_leave),      cmocka_unit_test(all_servers_leave),
        cmocka_unit_test(who_may_go_has_no_vote), cmocka_unit_test(who_is_lost_before_it_may_go_has_a_vote),
        cmocka_unit_test(asked_between_epochs),   cmocka_unit_test(who_leaves_before_all_have_the_roster_has_a_vote),
    };
    return cmocka_run_group_tests_name("a drained server's vote", tests, NULL, NULL);
}

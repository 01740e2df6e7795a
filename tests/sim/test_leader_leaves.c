/* test_leader_leaves.c - the first worker of a machine leaves while the second one has yet to connect to it for the
 * order of their devices' work. No member is lost by that, and the second one hears of all that concerns it. */
#include <stdlib.h>

#include "engine/device/host/device_host.h"
#include "tests/sim/sim_bed.h"

enum { COUNT = 1000 };

static void on_machines_of_two(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    (void)link;
    config->device = member < job->config.workers ? "host" : "none";
    config->local_size = 2;
    config->local_rank = member < job->config.workers ? (int32_t)(member % 2) : 0;
}

/* Stops rank 3 so many events after it has the roster, and waits for rank 2. */
static bool leader_is_ready(sim_job *job, void *argument)
{
    uint32_t *after = argument;
    *after -= *after > 0 && job->members[3].engine->roster != NULL;
    trib_sim_process_freeze(job->members[3].process, *after == 0);
    return job->members[2].ready_told;
}

/* Workers sum nothing, and connect to each other for their devices alone. */
static sim_job *open_apart(trib_host_world *world)
{
    sim_job_config config = sim_job_config_default(4, 1);
    trib_error error = {.status = TRIB_OK};
    config.per_machine = 2;
    config.tweak = on_machines_of_two;
    config.engine.local_sum = TRIB_LOCAL_SUM_OFF;
    config.engine.colocate = TRIB_COLOCATE_OFF;
    config.device_world = world;
    sim_job *job = sim_job_open(&config, &error);
    assert_non_null(job);
    return job;
}

/* Returns true if rank 2 was ready while rank 3 was connecting, and left. */
static bool leave_behind(uint32_t after)
{
    trib_host_world *world = trib_host_world_create();
    sim_job *job = open_apart(world);
    const bool leaves = sim_job_run(job, SECOND, leader_is_ready, &after) && !job->members[3].ready_told;
    if (leaves) {
        sim_job_leave(job, 2);
        (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND, NULL, NULL);
    }
    trib_sim_process_freeze(job->members[3].process, false);
    (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND, NULL, NULL);
    assert_true(job->members[3].ready_told);
    assert_int_equal(job->members[3].ready.status, TRIB_OK);
    assert_false(job->members[3].ended_told);
    assert_int_equal(job->members[2].closed, leaves);
    assert_true(sim_job_close(job, 20 * SECOND));
    sim_job_free(job);
    trib_host_world_free(world);
    return leaves;
}

/* The first worker of a machine leaves while the second one has yet to connect to it for the order of their devices'
 * work. */
static void leader_waits_for_its_machine(void **state)
{
    (void)state;
    uint32_t left = 0;
    for (uint32_t after = 1; after < 300; after += 7) {
        left += leave_behind(after);
    }
    assert_true(left > 0);
}

static bool steps_are_over(sim_job *job, void *argument)
{
    uint32_t *steps = argument;
    return job->members[0].engine->roster != NULL && (*steps)-- == 0;
}

/* The first worker of a machine leaves at any moment while the job forms, also before it knows that there are others on
 * its machine. The devices cannot meet then, but nobody is lost. */
static void leader_leaves_at_any_time(void **state)
{
    (void)state;
    uint32_t early = 0;
    for (uint32_t steps = 0; steps < 200; steps += 3) {
        trib_host_world *world = trib_host_world_create();
        sim_job *job = open_apart(world);
        uint32_t left = steps;
        assert_true(sim_job_run(job, SECOND, steps_are_over, &left));
        sim_job_leave(job, 2);
        (void)sim_job_run(job, trib_sim_now(job->sim) + 4 * SECOND, NULL, NULL);
        assert_true(job->members[3].ready_told);
        const trib_status status = job->members[3].ready.status;
        assert_true(status == TRIB_OK || status == TRIB_PEER_LEFT);
        early += status == TRIB_PEER_LEFT;
        assert_true(sim_job_close(job, 20 * SECOND));
        sim_job_free(job);
        trib_host_world_free(world);
    }
    assert_true(early > 0);
}

/* An operation of the first worker of a machine fails, and the worker leaves, while the second one has yet to connect
 * to it for the order of their devices' work. The second one hears why the operation failed, and not only that the
 * first one has left. */
static void leader_tells_late_ranks_of_failures(void **state)
{
    (void)state;
    exchange what[] = {{.timeout_ns = SECOND / 10}, {.timeout_ns = 0}};
    trib_host_world *world = trib_host_world_create();
    sim_job *job = open_apart(world);
    trib_sim_node_shun(job->members[3].node, job->members[2].node, true);
    for (uint32_t i = 0; i < 2; i++) {
        what[i].buffer = calloc(COUNT, sizeof(int32_t));
        assert_int_equal(sim_bed_hand_in_on_device(job, 2 + i, COUNT, -1, &what[i]), TRIB_OK);
    }
    (void)sim_job_run(job, SECOND / 2, NULL, NULL);
    assert_int_equal(what[0].done, 1);
    assert_int_equal(what[0].status, TRIB_TIMEOUT);
    sim_job_leave(job, 2);
    (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND / 2, NULL, NULL);
    assert_int_equal(what[1].done, 0);
    trib_sim_node_shun(job->members[3].node, job->members[2].node, false);
    (void)sim_job_run(job, trib_sim_now(job->sim) + 2 * SECOND, NULL, NULL);
    assert_int_equal(what[1].done, 1);
    assert_int_equal(what[1].status, TRIB_TIMEOUT);
    assert_true(sim_job_close(job, 20 * SECOND));
    sim_job_free(job);
    trib_host_world_free(world);
    free(what[0].buffer);
    free(what[1].buffer);
}

static bool leader_has_closed(sim_job *job, void *unused)
{
    (void)unused;
    return job->members[2].closed;
}

/* The first worker of a machine has left, and waited as long as it may for the second one, which cannot reach it. The
 * second one then finds nobody there, whether it has heard of the departure or not. The devices cannot meet, but nobody
 * is lost. */
static void absent_leader_is_not_lost(void **state)
{
    (void)state;
    for (uint32_t hears = 0; hears < 2; hears++) {
        trib_host_world *world = trib_host_world_create();
        sim_job *job = open_apart(world);
        trib_sim_node_shun(job->members[3].node, job->members[2].node, true);
        (void)sim_job_run(job, SECOND / 10, NULL, NULL);
        assert_false(job->members[3].ready_told);
        trib_sim_node_shun(job->members[3].node, job->members[0].node, hears == 0);
        sim_job_leave(job, 2);
        assert_true(sim_job_run(job, trib_sim_now(job->sim) + 10 * SECOND, leader_has_closed, NULL));
        trib_sim_node_shun(job->members[3].node, job->members[0].node, false);
        trib_sim_node_shun(job->members[3].node, job->members[2].node, false);
        (void)sim_job_run(job, trib_sim_now(job->sim) + 2 * SECOND, NULL, NULL);
        assert_true(job->members[3].ready_told);
        if (job->members[3].ready.status != TRIB_PEER_LEFT) {
            fail_msg("rank 3: %s", job->members[3].ready.text);
        }
        assert_true(sim_job_close(job, 20 * SECOND));
        sim_job_free(job);
        trib_host_world_free(world);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(leader_waits_for_its_machine),
        cmocka_unit_test(leader_leaves_at_any_time),
        cmocka_unit_test(leader_tells_late_ranks_of_failures),
        cmocka_unit_test(absent_leader_is_not_lost),
    };
    return cmocka_run_group_tests_name("the leader of a machine leaves", tests, NULL, NULL);
}

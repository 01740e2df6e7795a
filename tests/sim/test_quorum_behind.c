/* test_quorum_behind.c - how far a late worker may be behind where there is a quorum (TRIB_QUORUM): the others wait for
 * it before they go on to another operation. */
#include "engine/server/quorum.h"
#include "tests/sim/sim_bed.h"

enum { WORKERS = 3, OPS = 8 };

static bool all_done(sim_job *job, void *argument)
{
    const exchange(*ops)[OPS] = argument;
    bool done = true;
    (void)job;
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        for (uint32_t i = 0; i < OPS; i++) {
            done = done && ops[rank][i].done > 0;
        }
    }
    return done;
}

static void the_others_wait_for_a_worker_that_is_far_behind(void **state)
{
    (void)state;
    static int32_t data[WORKERS][OPS];
    static exchange ops[WORKERS][OPS];
    sim_job_config config = sim_job_config_default(WORKERS, 1);
    config.engine.quorum = 2;
    config.engine.quorum_timeout_ns = SECOND / 1000;
    sim_job *job = sim_bed_open(&config);
    (void)sim_bed_declare(job, 2, "a", 1);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        for (uint32_t i = 0; i < OPS; i++) {
            data[rank][i] = 1;
            ops[rank][i] = (exchange){.buffer = &data[rank][i]};
            sim_bed_begin(job, rank, "a", 1, &ops[rank][i], 0, NULL);
        }
        if (rank == 1) {
            (void)sim_job_run(job, trib_sim_now(job->sim) + 5 * SECOND, NULL, NULL);
        }
        for (uint32_t i = 0; rank == 1 && i < OPS; i++) {
            assert_int_equal(ops[0][i].done, i < TRIB_QUORUM_BEHIND_MAX);
            assert_int_equal(ops[1][i].done, i < TRIB_QUORUM_BEHIND_MAX);
        }
    }
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 5 * SECOND, all_done, ops));
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        for (uint32_t i = 0; i < OPS; i++) {
            assert_int_equal(ops[rank][i].status, TRIB_OK);
            assert_int_equal(data[rank][i], i < TRIB_QUORUM_BEHIND_MAX ? 2 : data[0][i]);
        }
    }
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_others_wait_for_a_worker_that_is_far_behind)};
    return cmocka_run_group_tests_name("behind a quorum", tests, NULL, NULL);
}

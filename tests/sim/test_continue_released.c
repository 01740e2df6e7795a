/*
 * test_continue_released.c - a tensor that all workers have released does not come back in the next epoch of a job
 * whose operations go on (TRIB_SURVIVE=continue), though a worker still keeps the handle of an operation on it.
 */
#include "tests/sim/sim_bed.h"

enum { WORKERS = 3, BEFORE = 100, BEHIND = 200 };

static bool two_are_done(sim_job *job, void *argument)
{
    const exchange *exchanges = argument;
    (void)job;
    return exchanges[0].done > 0 && exchanges[1].done > 0;
}

static bool never(sim_job *job, void *argument)
{
    (void)job;
    (void)argument;
    return false;
}

static bool has_next_epoch(sim_job *job, void *argument)
{
    (void)argument;
    bool has = true;
    for (uint32_t i = 0; i < WORKERS - 1; i++) {
        const trib_engine *engine = job->members[i].engine;
        has = has && trib_epoch_number(engine->roster->epoch) == 2 && !atomic_load(&engine->changing);
    }
    return has;
}

static void name_is_free(void **state)
{
    (void)state;
    sim_job_config config = sim_job_config_default(WORKERS, 0);
    config.engine.survive = TRIB_SURVIVE_CONTINUE;
    sim_job *job = sim_bed_open(&config);
    int32_t buffers[WORKERS][BEHIND] = {{0}};
    exchange exchanges[WORKERS];
    trib_op *ops[WORKERS];
    trib_error error = {.status = TRIB_OK};
    for (uint32_t i = 0; i < WORKERS; i++) {
        exchanges[i] = (exchange){.buffer = buffers[i], .reduce = TRIB_SUM};
        sim_bed_begin(job, i, "x", BEFORE, &exchanges[i], 0, &ops[i]);
    }
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 10 * SECOND, sim_bed_all_done, exchanges));
    for (uint32_t i = 0; i < WORKERS; i++) {
        assert_int_equal(trib_tensor_release(sim_bed_declare(job, i, "x", BEFORE), &error), TRIB_OK);
        if (i > 0) {
            trib_op_release(ops[i]); /* worker 0 reads its result later */
        }
    }
    (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND, never, NULL);
    sim_job_kill(job, WORKERS - 1);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 20 * SECOND, has_next_epoch, NULL));
    for (uint32_t i = 0; i < WORKERS - 1; i++) {
        exchanges[i] = (exchange){.buffer = buffers[i], .reduce = TRIB_SUM};
        sim_bed_submit(job, i, "x", BEHIND, &exchanges[i], 0);
    }
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 20 * SECOND, two_are_done, exchanges));
    for (uint32_t i = 0; i < WORKERS - 1; i++) {
        assert_int_equal(exchanges[i].status, TRIB_OK);
    }
    trib_op_release(ops[0]);
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(name_is_free)};
    return cmocka_run_group_tests_name("released tensors", tests, NULL, NULL);
}

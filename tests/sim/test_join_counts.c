/*
 * test_join_counts.c - workers submit different numbers of operations before all have joined (trib_join). The numbers
 * by which their next ones find each other are the same again.
 */
#include <stdlib.h>

#include "tests/sim/sim_bed.h"

enum { WORKERS = 3, COUNT = 1000 };

static int32_t buffers[WORKERS][COUNT];

static bool are_done(sim_job *job, void *argument)
{
    (void)job;
    bool all = true;
    for (uint32_t i = 0; i < WORKERS; i++) {
        const exchange *what = (const exchange *)argument + i;
        all = all && (what->buffer == NULL || what->done > 0);
    }
    return all;
}

/* Waits for those that have begun, which have a buffer. */
static void await(sim_job *job, exchange exchanges[WORKERS])
{
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 20 * SECOND, are_done, exchanges));
    for (uint32_t i = 0; i < WORKERS; i++) {
        assert_int_equal(exchanges[i].status, TRIB_OK);
    }
}

static trib_op_params params_of(exchange *what, uint32_t rank)
{
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    what->buffer = buffers[rank];
    params.done_cb = sim_bed_on_done;
    params.user = what;
    return params;
}

static void join(sim_job *job, uint32_t rank, exchange *what)
{
    const trib_op_params params = params_of(what, rank);
    assert_int_equal(trib_join(job->members[rank].engine, &params, NULL, NULL), TRIB_OK);
}

/* The ranks from `first` on sum a tensor of that name; NULL: one that the engine names. */
static void sum_from(sim_job *job, uint32_t first, const char *name)
{
    exchange exchanges[WORKERS] = {{0}};
    for (uint32_t rank = first; rank < WORKERS; rank++) {
        trib_op_params params = params_of(&exchanges[rank], rank);
        for (uint32_t i = 0; i < COUNT; i++) {
            buffers[rank][i] = (int32_t)rank + 1;
        }
        params.tensor = name == NULL ? NULL : sim_bed_declare(job, rank, name, COUNT);
        params.flags = name == NULL ? TRIB_OP_ONCE : 0;
        params.dtype = TRIB_INT32;
        params.bytes = name == NULL ? COUNT * sizeof(int32_t) : 0;
        params.input = params.output = buffers[rank];
        assert_int_equal(trib_all_reduce(job->members[rank].engine, &params, NULL, NULL), TRIB_OK);
    }
    await(job, exchanges);
    for (uint32_t rank = first; rank < WORKERS; rank++) {
        assert_int_equal(buffers[rank][0], WORKERS * (WORKERS + 1) / 2 - first * (first + 1) / 2);
    }
}

/* Rank 0 joins, the others sum more, and join. */
static void join_apart(sim_job *job, const char *name)
{
    exchange joins[WORKERS] = {{0}};
    join(job, 0, &joins[0]);
    sum_from(job, 1, name);
    sum_from(job, 1, name);
    join(job, 1, &joins[1]);
    join(job, 2, &joins[2]);
    await(job, joins);
}

static void close_job(sim_job *job)
{
    assert_true(sim_job_close(job, 20 * SECOND));
    sim_job_free(job);
}

static void tensors_that_the_engine_names(void **state)
{
    (void)state;
    const sim_job_config config = sim_job_config_default(WORKERS, 0);
    sim_job *job = sim_bed_open(&config);
    sum_from(job, 0, NULL);
    join_apart(job, NULL);
    sum_from(job, 0, NULL);
    close_job(job);
}

static void operations_before_a_checkpoint(void **state)
{
    (void)state;
    const sim_job_config config = sim_job_config_default(WORKERS, 0);
    sim_job *job = sim_bed_open(&config);
    exchange exchanges[WORKERS] = {{0}};
    join_apart(job, "x");
    sum_from(job, 0, "x");
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        const trib_op_params params = params_of(&exchanges[rank], rank);
        assert_int_equal(trib_checkpoint(job->members[rank].engine, &params, NULL, NULL), TRIB_OK);
    }
    await(job, exchanges);
    close_job(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_that_the_engine_names),
        cmocka_unit_test(operations_before_a_checkpoint),
    };
    return cmocka_run_group_tests_name("counts after joins", tests, NULL, NULL);
}

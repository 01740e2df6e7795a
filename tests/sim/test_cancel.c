/*
 * test_cancel.c - operations that no other worker comes to are cancelled, or pass their deadlines, on members with two
 * reactors, each of which has partitions that would wait for ever; or on a slow link.
 */
#include <stdio.h>
#include <stdlib.h>

#include "tests/sim/sim_bed.h"

enum { WORKERS = 2, COUNT = 1 << 20, MOMENTS = 400 };

static bool is_done(sim_job *job, void *argument)
{
    (void)job;
    return ((const exchange *)argument)->done > 0;
}

static sim_job *open_job(void)
{
    sim_job_config config = sim_job_config_default(WORKERS, 1);
    config.engine.colocate = TRIB_COLOCATE_OFF;
    config.engine.reactors = 2;
    return sim_bed_open(&config);
}

static void close_job(sim_job *job, exchange *what)
{
    assert_true(sim_job_close(job, 20 * SECOND));
    sim_job_free(job);
    free(what->buffer);
}

static void cancel_at_each_moment(uint64_t count)
{
    sim_job *job = open_job();
    exchange what = {.buffer = calloc(COUNT, sizeof(int32_t))};
    for (uint32_t i = 0; i < MOMENTS; i++) {
        char name[16];
        trib_op *op = NULL;
        snprintf(name, sizeof name, "%u", i);
        (void)sim_bed_declare(job, 1, name, count);
        what.done = 0;
        sim_bed_begin(job, 0, name, count, &what, 0, &op);
        (void)sim_job_run(job, trib_sim_now(job->sim) + i * SECOND / 1000000, NULL, NULL);
        trib_op_cancel(op);
        trib_op_release(op);
        assert_true(sim_job_run(job, trib_sim_now(job->sim) + 3 * SECOND, is_done, &what));
        assert_int_equal(what.status, TRIB_CANCELLED);
    }
    close_job(job, &what);
}

/* The operation is on its way to the cores, at one of them, or waits for the tensor's place. */
static void cancelled_at_each_moment(void **state)
{
    (void)state;
    cancel_at_each_moment(COUNT);
}

/* One of the cores has all of it. That core may hear of the end before the first core has sent the operation there. */
static void cancelled_on_one_core(void **state)
{
    (void)state;
    cancel_at_each_moment(1);
}

static void deadline(void **state)
{
    (void)state;
    sim_job *job = open_job();
    exchange what = {.buffer = calloc(COUNT, sizeof(int32_t))};
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    (void)sim_bed_declare(job, 1, "late", COUNT);
    params.tensor = sim_bed_declare(job, 0, "late", COUNT);
    params.input = params.output = what.buffer;
    params.done_cb = sim_bed_on_done;
    params.user = &what;
    params.timeout_ns = SECOND;
    assert_int_equal(trib_push_pull(job->members[0].engine, &params, NULL, NULL), TRIB_OK);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 4 * SECOND, is_done, &what));
    assert_int_equal(what.status, TRIB_TIMEOUT);
    close_job(job, &what);
}

static void narrow_rank_1(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    (void)job;
    (void)config;
    link->egress_bits = member == 1 ? UINT64_C(500000) : link->egress_bits;
}

/* A chunk takes 4 s on a slow link. Its buffer is waited for 2 s, before the link goes on with a copy. */
static void buffers_are_waited_for(void **state)
{
    (void)state;
    sim_job_config config = sim_job_config_default(WORKERS, 1);
    config.engine.colocate = TRIB_COLOCATE_OFF;
    config.tweak = narrow_rank_1;
    sim_job *job = sim_bed_open(&config);
    exchange what = {.buffer = calloc(COUNT, sizeof(int32_t))};
    trib_op *op = NULL;
    (void)sim_bed_declare(job, 0, "slow", COUNT);
    sim_bed_begin(job, 1, "slow", COUNT, &what, 0, &op);
    (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND / 100, NULL, NULL);
    const int64_t began_ns = trib_sim_now(job->sim);
    trib_op_cancel(op);
    trib_op_release(op);
    assert_true(sim_job_run(job, began_ns + 3 * SECOND, is_done, &what));
    assert_int_equal(what.status, TRIB_CANCELLED);
    assert_true(trib_sim_now(job->sim) - began_ns >= 2 * SECOND);
    close_job(job, &what);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cancelled_at_each_moment),
        cmocka_unit_test(cancelled_on_one_core),
        cmocka_unit_test(deadline),
        cmocka_unit_test(buffers_are_waited_for),
    };
    return cmocka_run_group_tests_name("cancel", tests, NULL, NULL);
}

/* test_given_up.c - all workers join after rounds that one of them has given up, while its contribution to them may be
 * on its way. The sums behind are those of all. */
#include <stdlib.h>

#include "tests/sim/sim_bed.h"

enum { WORKERS = 3, COUNT = 64 << 10, GIVEN_UP = 2 };

static void narrow_rank_1(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    (void)job;
    (void)config;
    link->egress_bits = member == 1 ? UINT64_C(10000000) : link->egress_bits;
}

static void sum_all(sim_job *job, exchange exchanges[WORKERS])
{
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        exchanges[rank].done = 0;
        for (int32_t i = 0; i < COUNT; i++) {
            exchanges[rank].buffer[i] = i + (int32_t)rank;
        }
        sim_bed_submit(job, rank, "sum", COUNT, &exchanges[rank], 0);
    }
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 20 * SECOND, sim_bed_all_done, exchanges));
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        assert_int_equal(exchanges[rank].status, TRIB_OK);
        for (int32_t i = 0; i < COUNT; i++) {
            assert_int_equal(exchanges[rank].buffer[i], 3 * i + 3);
        }
    }
}

static bool is_done(sim_job *job, void *argument)
{
    (void)job;
    return ((const exchange *)argument)->done > 0;
}

/* The kernel takes everything that a worker sends at once, so all of the round is sent when it is given up. */
static void give_up(sim_job *job, exchange *what)
{
    trib_op *op = NULL;
    what->done = 0;
    sim_bed_begin(job, 1, "sum", COUNT, what, 0, &op);
    (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND / 100, NULL, NULL);
    trib_op_cancel(op);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 20 * SECOND, is_done, what));
    assert_int_equal(what->status, TRIB_CANCELLED);
    trib_op_release(op);
}

static void join_all(sim_job *job)
{
    exchange joins[WORKERS] = {{0}};
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        trib_error error = {.text = ""};
        trib_op_params params;
        trib_op_params_init(&params, sizeof params);
        params.done_cb = sim_bed_on_done;
        params.user = &joins[rank];
        assert_int_equal(trib_join(job->members[rank].engine, &params, NULL, &error), TRIB_OK);
    }
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 20 * SECOND, sim_bed_all_done, joins));
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        assert_int_equal(joins[rank].status, TRIB_OK);
    }
}

static void join_after(uint32_t given_up, bool narrow, bool colocates)
{
    sim_job_config config = sim_job_config_default(WORKERS, colocates ? 0 : 1);
    config.engine.colocate = colocates ? TRIB_COLOCATE_ON : TRIB_COLOCATE_OFF;
    config.engine.push_credit_bytes = 4 << 20;
    config.net.unsent_bytes = 4 << 20;
    config.tweak = narrow ? narrow_rank_1 : NULL;
    sim_job *job = sim_bed_open(&config);
    exchange exchanges[WORKERS] = {{0}};
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        exchanges[rank].buffer = calloc(COUNT, sizeof(int32_t));
    }
    for (int lap = 0; lap < 3; lap++) {
        sum_all(job, exchanges);
        for (uint32_t i = 0; i < given_up; i++) {
            give_up(job, &exchanges[1]);
        }
        join_all(job);
    }
    sum_all(job, exchanges);
    assert_true(sim_job_close(job, 20 * SECOND));
    sim_job_free(job);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        free(exchanges[rank].buffer);
    }
}

static void rounds_that_have_arrived(void **state)
{
    (void)state;
    for (uint32_t given_up = 0; given_up <= GIVEN_UP; given_up++) {
        join_after(given_up, false, false);
        join_after(given_up, false, true);
    }
}

static void rounds_on_their_way(void **state)
{
    (void)state;
    for (uint32_t given_up = 1; given_up <= GIVEN_UP; given_up++) {
        join_after(given_up, true, false);
        join_after(given_up, true, true);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounds_that_have_arrived),
        cmocka_unit_test(rounds_on_their_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_given_up.c - workers join after rounds that one of them has given up, while its contribution to them may be on
 * its way. It counts where the others sum these rounds, and else nothing of it is left. The sums behind are those of
 * all. */
#include <stdlib.h>

#include "engine/server/server_sum.h"
#include "tests/sim/sim_bed.h"

enum { WORKERS = 3, MACHINE_WORKERS = 4, WORKERS_MAX = 4, COUNT = 64 << 10, GIVEN_UP = 2 };

/* The buffers of a round that was given up come back after 2 s, before all of it has been sent. */
static void narrow_rank_1(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    (void)job;
    (void)config;
    link->egress_bits = member == 1 ? UINT64_C(500000) : link->egress_bits;
}

static void fill(exchange *what, uint32_t rank)
{
    what->done = 0;
    for (int32_t i = 0; i < COUNT; i++) {
        what->buffer[i] = i + (int32_t)rank;
    }
}

static void sum_all(sim_job *job, exchange exchanges[WORKERS_MAX])
{
    const int32_t workers = (int32_t)job->config.workers;
    for (uint32_t rank = 0; rank < job->config.workers; rank++) {
        fill(&exchanges[rank], rank);
        sim_bed_submit(job, rank, "sum", COUNT, &exchanges[rank], 0);
    }
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 20 * SECOND, sim_bed_all_done, exchanges));
    for (uint32_t rank = 0; rank < job->config.workers; rank++) {
        assert_int_equal(exchanges[rank].status, TRIB_OK);
        for (int32_t i = 0; i < COUNT; i++) {
            assert_int_equal(exchanges[rank].buffer[i], workers * i + workers * (workers - 1) / 2);
        }
    }
}

static bool are_done(sim_job *job, void *argument)
{
    (void)job;
    bool all = true;
    for (const exchange *what = argument; what->buffer != NULL; what++) {
        all = all && what->done > 0;
    }
    return all;
}

/* The kernel takes everything that a worker sends at once, so all of the round is sent when it is given up. */
static void give_up(sim_job *job, uint32_t first, uint32_t count, exchange exchanges[WORKERS_MAX])
{
    trib_op *ops[WORKERS_MAX] = {NULL};
    exchange what[WORKERS_MAX + 1] = {{0}};
    for (uint32_t i = 0; i < count; i++) {
        what[i].buffer = exchanges[first + i].buffer;
        sim_bed_begin(job, first + i, "sum", COUNT, &what[i], 0, &ops[i]);
    }
    (void)sim_job_run(job, trib_sim_now(job->sim) + SECOND / 100, NULL, NULL);
    for (uint32_t i = 0; i < count; i++) {
        trib_op_cancel(ops[i]);
    }
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 20 * SECOND, are_done, what));
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(what[i].status, TRIB_CANCELLED);
        trib_op_release(ops[i]);
    }
}

static void begin_join(sim_job *job, uint32_t rank, exchange *what)
{
    trib_error error = {.text = ""};
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.done_cb = sim_bed_on_done;
    params.user = what;
    assert_int_equal(trib_join(job->members[rank].engine, &params, NULL, &error), TRIB_OK);
}

static void join_all(sim_job *job)
{
    exchange joins[WORKERS_MAX] = {{0}};
    for (uint32_t rank = 0; rank < job->config.workers; rank++) {
        begin_join(job, rank, &joins[rank]);
    }
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 20 * SECOND, sim_bed_all_done, joins));
    for (uint32_t rank = 0; rank < job->config.workers; rank++) {
        assert_int_equal(joins[rank].status, TRIB_OK);
    }
}

/* Nothing of the rounds that were given up is left at members that sum. */
static void check_rest(sim_job *job)
{
    (void)sim_job_run(job, trib_sim_now(job->sim) + 20 * SECOND, NULL, NULL);
    for (uint32_t i = 0; i < job->member_count; i++) {
        const trib_engine *engine = job->members[i].engine;
        for (uint32_t k = 0; k < engine->core_count; k++) {
            for (trib_server_sum *sum = NULL; (sum = trib_server_sums_next(&engine->cores[k], sum)) != NULL;) {
                assert_true(sum->aggregator == NULL || sum->aggregator->ops->is_idle(sum->aggregator));
            }
        }
    }
}

/* Ranks [first, first + count) give up so many rounds before each join. */
static void run_laps(const sim_job_config *config, uint32_t given_up, uint32_t first, uint32_t count)
{
    sim_job *job = sim_bed_open(config);
    exchange exchanges[WORKERS_MAX] = {{0}};
    for (uint32_t rank = 0; rank < config->workers; rank++) {
        exchanges[rank].buffer = calloc(COUNT, sizeof(int32_t));
    }
    for (int lap = 0; lap < 3; lap++) {
        sum_all(job, exchanges);
        for (uint32_t i = 0; i < given_up; i++) {
            give_up(job, first, count, exchanges);
        }
        join_all(job);
    }
    check_rest(job);
    sum_all(job, exchanges);
    const int64_t began_ns = trib_sim_now(job->sim);
    assert_true(sim_job_close(job, 20 * SECOND));
    assert_true(trib_sim_now(job->sim) - began_ns < SECOND);
    sim_job_free(job);
    for (uint32_t rank = 0; rank < config->workers; rank++) {
        free(exchanges[rank].buffer);
    }
}

static sim_job_config config_of(uint32_t workers, bool colocates)
{
    sim_job_config config = sim_job_config_default(workers, colocates ? 0 : 1);
    config.engine.colocate = colocates ? TRIB_COLOCATE_ON : TRIB_COLOCATE_OFF;
    config.engine.push_credit_bytes = 4 << 20;
    config.net.unsent_bytes = 4 << 20;
    return config;
}

static void join_after(uint32_t given_up, bool narrow, bool colocates)
{
    sim_job_config config = config_of(WORKERS, colocates);
    config.tweak = narrow ? narrow_rank_1 : NULL;
    run_laps(&config, given_up, 1, 1);
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

/* All workers of a machine give up what its relay has sent in their name. */
static void rounds_of_a_machine(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 2 * GIVEN_UP; i++) {
        sim_job_config config = config_of(MACHINE_WORKERS, i % 2 != 0);
        config.per_machine = 2;
        config.engine.local_sum = TRIB_LOCAL_SUM_ON;
        config.engine.reactors = 1;
        run_laps(&config, i / 2 + 1, 2, 2);
        run_laps(&config, i / 2 + 1, 0, 2);
        run_laps(&config, i / 2 + 1, 3, 1);
    }
}

/* Both other workers sum, `with` or without rank 1. */
static void sum_others(sim_job *job, exchange exchanges[WORKERS_MAX], bool with)
{
    exchange what[] = {{.buffer = exchanges[0].buffer}, {.buffer = exchanges[2].buffer}, {0}};
    for (uint32_t i = 0; i < 2; i++) {
        fill(&what[i], 2 * i);
        sim_bed_submit(job, 2 * i, "sum", COUNT, &what[i], 0);
    }
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 20 * SECOND, are_done, what));
    for (uint32_t k = 0; k < 2; k++) {
        assert_int_equal(what[k].status, TRIB_OK);
        for (int32_t i = 0; i < COUNT; i++) {
            assert_int_equal(what[k].buffer[i], with ? 3 * i + 3 : 2 * i + 2);
        }
    }
}

/* Rank 1 gives rounds up and joins, while what it has sent to them is on its way. The others sum those rounds: that
 * contribution counts, and no neutral elements take its place. */
static void rounds_that_others_sum(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 2 * GIVEN_UP; i++) {
        sim_job_config config = config_of(WORKERS, i % 2 != 0);
        config.tweak = narrow_rank_1;
        config.engine.partition_bytes = config.engine.chunk_bytes =
            COUNT; /* four, the last of which is on its way for long */
        sim_job *job = sim_bed_open(&config);
        exchange exchanges[WORKERS_MAX] = {{0}}, joins[WORKERS_MAX] = {{0}};
        for (uint32_t rank = 0; rank < WORKERS; rank++) {
            exchanges[rank].buffer = calloc(COUNT, sizeof(int32_t));
        }
        sum_all(job, exchanges);
        for (uint32_t k = 0; k <= i / 2; k++) {
            fill(&exchanges[1], 1);
            give_up(job, 1, 1, exchanges);
        }
        begin_join(job, 1, &joins[1]);
        for (uint32_t k = 0; k <= i / 2; k++) {
            sum_others(job, exchanges, true);
        }
        sum_others(job, exchanges, false);
        begin_join(job, 0, &joins[0]);
        begin_join(job, 2, &joins[2]);
        assert_true(sim_job_run(job, trib_sim_now(job->sim) + 20 * SECOND, sim_bed_all_done, joins));
        sum_all(job, exchanges);
        assert_true(sim_job_close(job, 20 * SECOND));
        sim_job_free(job);
        for (uint32_t rank = 0; rank < WORKERS; rank++) {
            free(exchanges[rank].buffer);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounds_that_have_arrived),
        cmocka_unit_test(rounds_on_their_way),
        cmocka_unit_test(rounds_of_a_machine),
        cmocka_unit_test(rounds_that_others_sum),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

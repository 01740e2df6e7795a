/*
 * test_continue_alone.c - operations that have failed on some workers alone, before a worker is lost in a job whose
 * operations go on (TRIB_SURVIVE=continue). The survivors' next rounds match.
 */
#include "tests/sim/sim_bed.h"

enum { WORKERS = 4, COUNT = 100, LOST = WORKERS - 1 };

static bool has_next_epoch(sim_job *job, void *argument)
{
    bool has = true;
    (void)argument;
    for (uint32_t i = 0; i < WORKERS; i++) {
        const trib_engine *engine = job->members[i].engine;
        has = has && (job->members[i].killed ||
                      (trib_epoch_number(engine->roster->epoch) > 1 && !atomic_load(&engine->changing)));
    }
    return has;
}

static void run_for(sim_job *job, int64_t for_ns)
{
    (void)sim_job_run(job, trib_sim_now(job->sim) + for_ns, NULL, NULL);
}

static sim_job *open_job(exchange exchanges[WORKERS], int32_t buffers[WORKERS][2 * COUNT])
{
    sim_job_config config = sim_job_config_default(WORKERS, 1);
    config.engine.survive = TRIB_SURVIVE_CONTINUE;
    config.engine.colocate = TRIB_COLOCATE_OFF;
    for (uint32_t i = 0; i < WORKERS; i++) {
        exchanges[i] = (exchange){.buffer = buffers[i], .reduce = TRIB_SUM};
    }
    return sim_bed_open(&config);
}

static void lose(sim_job *job, uint32_t lost)
{
    sim_job_kill(job, lost);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 60 * SECOND, has_next_epoch, NULL));
}

/* The ranks from `first` up to `end` contribute their rank + 1 each. */
static void submit(sim_job *job, exchange exchanges[WORKERS], uint32_t first, uint32_t end)
{
    for (uint32_t i = first; i < end; i++) {
        exchanges[i].done = 0;
        for (uint32_t k = 0; k < COUNT; k++) {
            exchanges[i].buffer[k] = (int32_t)i + 1;
        }
        sim_bed_submit(job, i, "x", COUNT, &exchanges[i], 0);
    }
}

static bool survivors_are_done(sim_job *job, void *argument)
{
    const exchange *exchanges = argument;
    bool are = true;
    for (uint32_t i = 0; i < WORKERS; i++) {
        are = are && (job->members[i].killed || exchanges[i].done > 0);
    }
    return are;
}

/* All but rank `lost` contribute, and get that status and the sum of what they have contributed. */
static void survivors_sum(sim_job *job, exchange exchanges[WORKERS], uint32_t lost, trib_status status)
{
    submit(job, exchanges, 0, lost);
    submit(job, exchanges, lost + 1, WORKERS);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 20 * SECOND, survivors_are_done, exchanges));
    for (uint32_t i = 0; i < WORKERS; i++) {
        if (i == lost) {
            continue;
        }
        assert_int_equal(exchanges[i].status, status);
        if (status == TRIB_OK) {
            assert_int_equal(exchanges[i].buffer[0], WORKERS * (WORKERS + 1) / 2 - lost - 1);
        }
    }
}

static void close_job(sim_job *job)
{
    assert_true(sim_job_close(job, 60 * SECOND));
    sim_job_free(job);
}

/* Rank 0 gives up a round whose sum all others have. All are through with it then, so it is not spent a second time in
 * the next epoch. */
static void what_all_are_through_with_is_over(void **state)
{
    (void)state;
    int32_t buffers[WORKERS][2 * COUNT] = {{0}};
    exchange exchanges[WORKERS];
    sim_job *job = open_job(exchanges, buffers);
    trib_op *op = NULL;
    sim_bed_begin(job, 0, "x", COUNT, &exchanges[0], 0, &op);
    submit(job, exchanges, 1, LOST);
    run_for(job, SECOND / 10);
    trib_op_cancel(op);
    trib_op_release(op);
    submit(job, exchanges, LOST, WORKERS);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 20 * SECOND, sim_bed_all_done, exchanges));
    assert_int_equal(exchanges[0].status, TRIB_CANCELLED);
    assert_int_equal(exchanges[1].status, TRIB_OK);
    run_for(job, SECOND);
    lose(job, LOST);
    survivors_sum(job, exchanges, LOST, TRIB_OK);
    close_job(job);
}

/* The lost worker has disagreed about the tensor, and the others have failed different numbers of operations on it:
 * their next ones are not each other's. */
static void a_bad_tensor_stays_bad(void **state)
{
    (void)state;
    int32_t buffers[WORKERS][2 * COUNT] = {{0}};
    exchange exchanges[WORKERS];
    sim_job *job = open_job(exchanges, buffers);
    submit(job, exchanges, 0, LOST);
    sim_bed_submit(job, LOST, "x", 2 * COUNT, &exchanges[LOST], 0);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 20 * SECOND, sim_bed_all_done, exchanges));
    submit(job, exchanges, 0, 1);
    run_for(job, SECOND);
    lose(job, LOST);
    survivors_sum(job, exchanges, LOST, TRIB_MISMATCH);
    close_job(job);
}

/* The same, and the coordinator dies after it has told all others. Rank 1 hears of it with the votes. */
static void what_the_votes_say_is_over(void **state)
{
    (void)state;
    int32_t buffers[WORKERS][2 * COUNT] = {{0}};
    exchange exchanges[WORKERS];
    sim_job *job = open_job(exchanges, buffers);
    trib_op *op = NULL;
    sim_bed_begin(job, 1, "x", COUNT, &exchanges[1], 0, &op);
    run_for(job, SECOND / 10);
    trib_op_cancel(op);
    trib_op_release(op);
    run_for(job, SECOND / 10);
    trib_sim_node_shun(job->members[0].node, job->members[1].node, true);
    submit(job, exchanges, 0, 1);
    submit(job, exchanges, 2, WORKERS);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 20 * SECOND, sim_bed_all_done, exchanges));
    assert_int_equal(exchanges[1].status, TRIB_CANCELLED);
    assert_int_equal(exchanges[2].status, TRIB_OK);
    lose(job, 0);
    survivors_sum(job, exchanges, 0, TRIB_OK);
    close_job(job);
}

static bool rank_0_is_done(sim_job *job, void *argument)
{
    (void)job;
    return ((const exchange *)argument)->done > 0;
}

static bool is_between_epochs(sim_job *job, void *unused)
{
    (void)unused;
    return atomic_load(&job->members[0].engine->changing);
}

/* Rank 0 has the sum, and waits until rank 2, which does not hear the server, is through with the round, too. The
 * caller ends the wait, and then another worker is lost: the others' round is over in the next epoch. */
static void what_has_waited_for_others_is_spent(void **state)
{
    (void)state;
    int32_t buffers[WORKERS][2 * COUNT] = {{0}};
    exchange exchanges[WORKERS];
    sim_job *job = open_job(exchanges, buffers);
    submit(job, exchanges, 0, WORKERS);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 20 * SECOND, sim_bed_all_done, exchanges));
    submit(job, exchanges, 2, WORKERS);
    run_for(job, SECOND / 10);
    trib_sim_node_shun(job->members[WORKERS].node, job->members[2].node, true);
    trib_op *op = NULL;
    exchanges[0].done = 0;
    sim_bed_begin(job, 0, "x", COUNT, &exchanges[0], 0, &op);
    submit(job, exchanges, 1, 2);
    run_for(job, SECOND / 10);
    assert_int_equal(exchanges[0].done, 0);
    trib_op_cancel(op);
    trib_op_release(op);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 5 * SECOND, rank_0_is_done, exchanges));
    assert_int_equal(exchanges[0].status, TRIB_CANCELLED);
    assert_int_equal(exchanges[1].done, 0);
    sim_job_kill(job, LOST);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 20 * SECOND, is_between_epochs, NULL));
    trib_sim_node_shun(job->members[WORKERS].node, job->members[2].node, false);
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 60 * SECOND, has_next_epoch, NULL));
    assert_true(sim_job_run(job, trib_sim_now(job->sim) + 20 * SECOND, survivors_are_done, exchanges));
    assert_int_equal(exchanges[1].status, TRIB_CANCELLED);
    assert_int_equal(exchanges[2].status, TRIB_CANCELLED);
    survivors_sum(job, exchanges, LOST, TRIB_OK);
    close_job(job);
}

/* Rank 0 cancels an operation that goes on in the next epoch, where rank 2 does not come to it. */
static void what_is_cancelled_between_epochs_is_over(void **state)
{
    (void)state;
    for (int64_t i = 0; i < 20; i++) {
        int32_t buffers[WORKERS][2 * COUNT] = {{0}};
        exchange exchanges[WORKERS];
        sim_job *job = open_job(exchanges, buffers);
        trib_op *op = NULL;
        sim_bed_begin(job, 0, "x", COUNT, &exchanges[0], 0, &op);
        submit(job, exchanges, 1, 2);
        run_for(job, SECOND / 10);
        sim_job_kill(job, LOST);
        assert_true(sim_job_run(job, trib_sim_now(job->sim) + 20 * SECOND, is_between_epochs, NULL));
        run_for(job, i * SECOND / 1000);
        trib_op_cancel(op);
        trib_op_release(op);
        if (!sim_job_run(job, trib_sim_now(job->sim) + 20 * SECOND, rank_0_is_done, &exchanges[0])) {
            fail_msg("the operation goes on, cancelled %lld ms after the end of the epoch", (long long)i);
        }
        assert_int_equal(exchanges[0].status, TRIB_CANCELLED);
        close_job(job);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_all_are_through_with_is_over),
        cmocka_unit_test(a_bad_tensor_stays_bad),
        cmocka_unit_test(what_the_votes_say_is_over),
        cmocka_unit_test(what_has_waited_for_others_is_spent),
        cmocka_unit_test(what_is_cancelled_between_epochs_is_over),
    };
    return cmocka_run_group_tests_name("what some have failed alone", tests, NULL, NULL);
}

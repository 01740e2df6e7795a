/* test_join.c - workers with different amounts of data: who has no more joins, and the others' sums go on. */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "tests/loop/machines.h"

enum { COUNT = 3000, WORKERS = 4 };

static trib_op *join(trib_engine *engine, int32_t *last)
{
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.output = last;
    trib_op *op = NULL;
    trib_error error = {.text = ""};
    if (trib_join(engine, &params, &op, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
    return op;
}

static trib_op *broadcast(trib_engine *engine, trib_tensor *tensor, float *data)
{
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = tensor;
    params.input = params.output = data;
    trib_op *op = NULL;
    assert_int_equal(trib_broadcast(engine, &params, &op, NULL), TRIB_OK);
    return op;
}

static float value(int rank, int i)
{
    return (float)((rank + 2) * (i % 17 + 1));
}

/* The result of a reduction among the ranks from `first` on. */
static float expected(trib_reduce reduce, int first, int i)
{
    float result = value(first, i);
    for (int rank = first + 1; rank < WORKERS; rank++) {
        const float next = value(rank, i);
        result = reduce == TRIB_MIN       ? (next < result ? next : result)
                 : reduce == TRIB_MAX     ? (next > result ? next : result)
                 : reduce == TRIB_PRODUCT ? result * next
                                          : result + next;
    }
    return reduce == TRIB_AVG ? result / WORKERS : result;
}

/* Ranks from `first` on sum a tensor, and the others have joined. */
static void sum_from(job *jobs, int first, const char *name, trib_reduce reduce)
{
    static float data[WORKERS][COUNT];
    trib_op *ops[WORKERS];
    for (int rank = first; rank < WORKERS; rank++) {
        for (int i = 0; i < COUNT; i++) {
            data[rank][i] = value(rank, i);
        }
        trib_tensor *tensor = job_declare(jobs->engines[rank], name, TRIB_FLOAT32, COUNT);
        ops[rank] = job_push_pull(jobs->engines[rank], tensor, data[rank], data[rank], reduce);
    }
    for (int rank = first; rank < WORKERS; rank++) {
        trib_error error = {.text = ""};
        if (job_wait(ops[rank], &error) != TRIB_OK) {
            fail_msg("%s", error.text);
        }
        for (int i = 0; i < COUNT; i++) {
            assert_true(data[rank][i] == expected(reduce, first, i));
        }
    }
}

static void broadcast_is_refused(job *jobs, int first)
{
    static float data[WORKERS][COUNT];
    trib_op *ops[WORKERS];
    for (int rank = first; rank < WORKERS; rank++) {
        trib_tensor *tensor = job_declare(jobs->engines[rank], "both", TRIB_FLOAT32, COUNT);
        ops[rank] = broadcast(jobs->engines[rank], tensor, data[rank]);
    }
    for (int rank = first; rank < WORKERS; rank++) {
        trib_error error = {.text = ""};
        assert_int_equal(job_wait(ops[rank], &error), TRIB_UNSUPPORTED);
        assert_non_null(strstr(error.text, "has joined (trib_join)"));
    }
}

/* Rank 0 joins first, then rank 1, and so on; in between the others sum tensors that all know, and new ones. */
static void join_one_by_one(job *jobs, int turn)
{
    static const trib_reduce reduces[] = {TRIB_SUM, TRIB_AVG, TRIB_MIN, TRIB_MAX, TRIB_PRODUCT};
    int32_t last[WORKERS];
    trib_op *joins[WORKERS];
    for (int rank = 0; rank < WORKERS; rank++) {
        joins[rank] = join(jobs->engines[rank], &last[rank]);
        for (int i = 0; rank + 1 < WORKERS && i < 5; i++) {
            sum_from(jobs, rank + 1, "both", reduces[i]);
        }
        if (rank + 1 < WORKERS) {
            sum_from(jobs, rank + 1, turn == 0 ? "new" : "newer", TRIB_SUM);
        }
    }
    for (int rank = 0; rank < WORKERS; rank++) {
        assert_int_equal(job_wait(joins[rank], NULL), TRIB_OK);
        assert_int_equal(last[rank], WORKERS - 1);
    }
    sum_from(jobs, 0, "both", TRIB_SUM);
    sum_from(jobs, 0, "new", TRIB_SUM);
}

static void sums_go_on_without_those_that_joined(void **state)
{
    (void)state;
    for (int servers = 0; servers < 2; servers++) {
        job jobs;
        job_open(&jobs, WORKERS, servers, NULL);
        sum_from(&jobs, 0, "both", TRIB_SUM);
        join_one_by_one(&jobs, 0);
        join_one_by_one(&jobs, 1);
        job_close(&jobs);
    }
}

/* Machines of two workers: the first machine has joined when two workers have. */
static void machines_that_sum_first(void **state)
{
    (void)state;
    job jobs;
    machines_shape shape = {.local = 2, .mode = TRIB_LOCAL_SUM_ON};
    machines_open(&jobs, WORKERS, 0, shape);
    sum_from(&jobs, 0, "both", TRIB_SUM);
    join_one_by_one(&jobs, 0);
    job_close(&jobs);
}

static void all_but_all_reduce_is_refused(void **state)
{
    (void)state;
    job jobs;
    int32_t last;
    job_open(&jobs, WORKERS, 0, NULL);
    trib_op *first = join(jobs.engines[0], &last);
    broadcast_is_refused(&jobs, 1);
    trib_op *others[WORKERS];
    for (int rank = 1; rank < WORKERS; rank++) {
        others[rank] = join(jobs.engines[rank], NULL);
    }
    assert_int_equal(job_wait(first, NULL), TRIB_OK);
    for (int rank = 1; rank < WORKERS; rank++) {
        assert_int_equal(job_wait(others[rank], NULL), TRIB_OK);
    }
    sum_from(&jobs, 0, "both", TRIB_SUM);
    job_close(&jobs);
}

static void nothing_is_submitted_after_it(void **state)
{
    (void)state;
    job jobs;
    trib_error error;
    job_open(&jobs, 2, 0, NULL);
    trib_op *mine = join(jobs.engines[0], NULL);
    assert_int_equal(trib_barrier(jobs.engines[0], NULL, NULL, &error), TRIB_STATE);
    assert_non_null(strstr(error.text, "this worker has joined (trib_join)"));
    assert_int_equal(trib_join(jobs.engines[0], NULL, NULL, &error), TRIB_STATE);
    trib_op *other = NULL;
    assert_int_equal(trib_barrier(jobs.engines[1], NULL, &other, NULL), TRIB_OK);
    assert_int_equal(job_wait(other, NULL), TRIB_OK);
    other = join(jobs.engines[1], NULL);
    assert_int_equal(job_wait(other, NULL), TRIB_OK);
    assert_int_equal(job_wait(mine, NULL), TRIB_OK);
    job_close(&jobs);
}

static void a_worker_that_leaves_never_joins(void **state)
{
    (void)state;
    job jobs;
    trib_error error = {.text = ""};
    job_open(&jobs, 2, 0, NULL);
    trib_op *mine = join(jobs.engines[0], NULL);
    trib_engine_destroy(jobs.engines[1]);
    assert_int_equal(job_wait(mine, &error), TRIB_PEER_LEFT);
    assert_non_null(strstr(error.text, "rank 1"));
    /* Others may have gone on in rounds of which this worker knows nothing. */
    assert_int_equal(trib_barrier(jobs.engines[0], NULL, NULL, &error), TRIB_PEER_LEFT);
    assert_non_null(strstr(error.text, "rank 1"));
    assert_int_equal(trib_join(jobs.engines[0], NULL, NULL, &error), TRIB_PEER_LEFT);
    trib_engine_destroy(jobs.engines[0]);
}

/* Rounds that one worker has given up lack the others for good. Those that join last must not be waited for in them. */
static void rounds_that_were_given_up(void **state)
{
    (void)state;
    static float data[WORKERS][COUNT];
    for (int servers = 0; servers < 2; servers++) {
        job jobs;
        trib_op *joins[WORKERS];
        job_open(&jobs, WORKERS, servers, NULL);
        sum_from(&jobs, 0, "both", TRIB_SUM);
        for (int rank = WORKERS - 1; rank >= 0; rank--) {
            for (int i = 0; i < rank; i++) {
                trib_tensor *tensor = job_declare(jobs.engines[rank], i % 2 == 0 ? "both" : "new", TRIB_FLOAT32, COUNT);
                trib_op *op = job_push_pull(jobs.engines[rank], tensor, data[rank], data[rank], TRIB_SUM);
                trib_op_cancel(op);
                assert_int_equal(job_wait(op, NULL), TRIB_CANCELLED);
            }
            joins[rank] = join(jobs.engines[rank], NULL);
        }
        for (int rank = 0; rank < WORKERS; rank++) {
            assert_int_equal(job_wait(joins[rank], NULL), TRIB_OK);
        }
        sum_from(&jobs, 0, "both", TRIB_SUM);
        sum_from(&jobs, 0, "new", TRIB_SUM);
        job_close(&jobs);
    }
}

static void survive(trib_config *config, int member)
{
    (void)member;
    config->survive = TRIB_SURVIVE_WORKERS;
}

static void jobs_that_survive_refuse_it(void **state)
{
    (void)state;
    job jobs;
    trib_error error;
    job_open(&jobs, 2, 0, survive);
    assert_int_equal(trib_join(jobs.engines[0], NULL, NULL, &error), TRIB_UNSUPPORTED);
    assert_non_null(strstr(error.text, "TRIB_SURVIVE"));
    job_close(&jobs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_go_on_without_those_that_joined),
        cmocka_unit_test(machines_that_sum_first),
        cmocka_unit_test(all_but_all_reduce_is_refused),
        cmocka_unit_test(nothing_is_submitted_after_it),
        cmocka_unit_test(a_worker_that_leaves_never_joins),
        cmocka_unit_test(jobs_that_survive_refuse_it),
        cmocka_unit_test(rounds_that_were_given_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

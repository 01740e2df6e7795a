/*
 * test_batch.c - many operations in one call, operations that are prepared once and started again, waits for a list,
 * results from handles, and handles that are refused.
 */
#include <ev.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/loop/job.h"

enum { WORKERS = 2, TENSORS = 40, COUNT = 1000, ROUNDS = 8 };

static float values[WORKERS][TENSORS][COUNT];
static trib_op_params params[WORKERS][TENSORS];

static void two_reactors(trib_config *config, int member)
{
    (void)member;
    config->reactors = 2;
    config->ops_max = 100;
}

static void declare_all(const job *jobs)
{
    for (int rank = 0; rank < WORKERS; rank++) {
        for (int i = 0; i < TENSORS; i++) {
            char name[16];
            snprintf(name, sizeof name, "tensor %d", i);
            trib_op_params_init(&params[rank][i], sizeof params[rank][i]);
            params[rank][i].tensor = job_declare(jobs->engines[rank], name, TRIB_FLOAT32, (uint64_t)i * 20 + 1);
            params[rank][i].input = params[rank][i].output = values[rank][i];
            params[rank][i].kind = i % 5 == 4 ? TRIB_OP_BROADCAST : TRIB_OP_PUSH_PULL;
            params[rank][i].root = i % WORKERS;
        }
    }
}

static void fill(int round)
{
    for (int rank = 0; rank < WORKERS; rank++) {
        for (int i = 0; i < TENSORS; i++) {
            for (int k = 0; k < COUNT; k++) {
                values[rank][i][k] = (float)(rank * 1000 + i + round + k);
            }
        }
    }
}

static void expect_sums(int round)
{
    for (int rank = 0; rank < WORKERS; rank++) {
        for (int i = 0; i < TENSORS; i++) {
            for (int k = 0; k < i * 20 + 1; k++) {
                const float one = (float)(i + round + k);
                const float expected = i % 5 == 4 ? (float)(i % WORKERS * 1000) + one : 2 * one + 1000;
                assert_true(values[rank][i][k] == expected);
            }
            assert_true(values[rank][i][i * 20 + 1] == (float)(rank * 1000 + i + round + i * 20 + 1));
        }
    }
}

static void a_batch_is_its_operations(void **state)
{
    (void)state;
    job jobs;
    trib_op *ops[WORKERS][TENSORS];
    job_open(&jobs, WORKERS, 1, two_reactors);
    declare_all(&jobs);
    for (int round = 0; round < ROUNDS; round++) {
        fill(round);
        for (int rank = 0; rank < WORKERS; rank++) {
            assert_int_equal(trib_submit_batch(jobs.engines[rank], params[rank], TENSORS, ops[rank], NULL), TRIB_OK);
        }
        for (int rank = 0; rank < WORKERS; rank++) {
            size_t done = 0;
            assert_int_equal(trib_op_wait_some(ops[rank], TENSORS, TENSORS, -1, NULL, &done, NULL), TRIB_OK);
            assert_int_equal(done, TENSORS);
            for (int i = 0; i < TENSORS; i++) {
                trib_op_release(ops[rank][i]);
            }
        }
        expect_sums(round);
    }
    job_close(&jobs);
}

static void a_batch_is_taken_as_a_whole_or_not_at_all(void **state)
{
    (void)state;
    job jobs;
    job_open(&jobs, WORKERS, 0, two_reactors);
    declare_all(&jobs);
    trib_op *ops[3 * TENSORS] = {NULL};
    trib_op_params many[3 * TENSORS];
    trib_error error;
    trib_stats stats = {.struct_size = sizeof stats};
    for (int i = 0; i < 3 * TENSORS; i++) {
        many[i] = params[0][i % TENSORS];
    }
    many[17].reduce = (trib_reduce)99;
    assert_int_equal(trib_submit_batch(jobs.engines[0], many, TENSORS, ops, &error), TRIB_INVALID);
    assert_non_null(strstr(error.text, "operation 17 of the list: tensor \"tensor 17\": unknown reduction 99"));
    many[17] = params[1][17];
    assert_int_equal(trib_submit_batch(jobs.engines[0], many, TENSORS, ops, &error), TRIB_INVALID);
    assert_non_null(strstr(error.text, "a tensor of another engine"));
    many[17] = params[0][17];
    assert_int_equal(trib_submit_batch(jobs.engines[0], many, 101, ops, &error), TRIB_BUSY); /* ops_max */
    assert_int_equal(trib_submit_batch(jobs.engines[0], NULL, 0, NULL, &error), TRIB_OK);
    assert_int_equal(trib_engine_get_stats(jobs.engines[0], &stats), TRIB_OK);
    assert_int_equal(stats.ops_in_flight, 0);
    for (int i = 0; i < 3 * TENSORS; i++) {
        assert_null(ops[i]);
    }
    assert_int_equal(trib_submit_batch(jobs.engines[0], many, 100, ops, &error), TRIB_OK);
    for (int i = 0; i < 100; i++) {
        trib_op_cancel(ops[i]);
    }
    assert_int_equal(trib_op_wait_some(ops, 100, 100, -1, NULL, NULL, &error), TRIB_CANCELLED);
    for (int i = 0; i < 100; i++) {
        trib_op_release(ops[i]);
    }
    job_close(&jobs);
}

static void prepared_operations_start_again(void **state)
{
    (void)state;
    job jobs;
    trib_op *ops[WORKERS][TENSORS];
    trib_result result;
    trib_error error;
    job_open(&jobs, WORKERS, 1, two_reactors);
    declare_all(&jobs);
    for (int rank = 0; rank < WORKERS; rank++) {
        for (int i = 0; i < TENSORS; i++) {
            assert_int_equal(trib_op_prepare(jobs.engines[rank], &params[rank][i], &ops[rank][i], NULL), TRIB_OK);
        }
    }
    assert_int_equal(trib_op_status(ops[0][0]), TRIB_OK);
    assert_int_equal(trib_op_wait(ops[0][0], 0, NULL), TRIB_OK);
    assert_int_equal(trib_op_get_result(ops[0][0], &result, &error), TRIB_STATE);
    assert_int_equal(trib_tensor_release(params[0][0].tensor, &error), TRIB_STATE);
    assert_non_null(strstr(error.text, "1 operations are prepared on it"));
    for (int round = 0; round < ROUNDS; round++) {
        fill(round);
        for (int rank = 0; rank < WORKERS; rank++) {
            assert_int_equal(trib_op_start(ops[rank], TENSORS, (uint32_t)round, NULL), TRIB_OK);
            if (rank == 0) {
                assert_int_equal(trib_op_start(ops[0], 1, 0, &error), TRIB_STATE);
                assert_non_null(strstr(error.text, "was started before and is not complete"));
                assert_int_equal(trib_op_get_result(ops[0][0], &result, &error), TRIB_PENDING);
            }
        }
        for (int rank = 0; rank < WORKERS; rank++) {
            assert_int_equal(trib_op_wait_some(ops[rank], TENSORS, TENSORS, -1, NULL, NULL, &error), TRIB_OK);
        }
        expect_sums(round);
        assert_int_equal(trib_op_get_result(ops[1][7], &result, &error), TRIB_OK);
        assert_string_equal(result.tensor, "tensor 7");
        assert_int_equal(result.bytes, 141 * 4);
        assert_int_equal(result.contributors, WORKERS);
        assert_true(result.duration_ns > 0);
    }
    trib_op *const twice[] = {ops[0][1], ops[0][2], ops[0][1]};
    assert_int_equal(trib_op_start(twice, 3, 0, &error), TRIB_STATE);
    assert_non_null(strstr(error.text, "is in the list twice"));
    for (int rank = 0; rank < WORKERS; rank++) {
        for (int i = 0; i < TENSORS; i++) {
            trib_op *const stale = ops[rank][i];
            trib_op_release(stale);
            assert_int_equal(trib_op_start(&stale, 1, 0, NULL), TRIB_INVALID);
            assert_int_equal(trib_tensor_release(params[rank][i].tensor, NULL), TRIB_OK);
        }
    }
    job_close(&jobs);
}

typedef struct chain {
    trib_op *op;
    int left;
} chain;

static void start_again(const trib_result *result, void *user)
{
    chain *self = user;
    assert_int_equal(result->status, TRIB_OK);
    if (--self->left > 0) {
        assert_int_equal(trib_op_start(&self->op, 1, 0, NULL), TRIB_OK);
    }
}

static void a_callback_starts_its_own_operation(void **state)
{
    (void)state;
    enum { TIMES = 200 };
    job jobs;
    chain chains[WORKERS];
    job_open(&jobs, WORKERS, 0, two_reactors);
    declare_all(&jobs);
    for (int rank = 0; rank < WORKERS; rank++) {
        values[rank][1][3] = 1;
        chains[rank].left = TIMES;
        params[rank][1].done_cb = start_again;
        params[rank][1].user = &chains[rank];
        assert_int_equal(trib_op_prepare(jobs.engines[rank], &params[rank][1], &chains[rank].op, NULL), TRIB_OK);
    }
    for (int rank = 0; rank < WORKERS; rank++) {
        assert_int_equal(trib_op_start(&chains[rank].op, 1, 0, NULL), TRIB_OK);
    }
    for (int rank = 0; rank < WORKERS; rank++) {
        trib_stats stats = {.struct_size = sizeof stats};
        while (stats.ops_completed < TIMES) {
            assert_int_equal(trib_op_wait(chains[rank].op, -1, NULL), TRIB_OK);
            assert_int_equal(trib_engine_get_stats(jobs.engines[rank], &stats), TRIB_OK);
        }
        assert_int_equal(chains[rank].left, 0);
        trib_op_release(chains[rank].op);
    }
    job_close(&jobs);
}

static void waits_for_any_and_some(void **state)
{
    (void)state;
    job jobs;
    trib_op *ops[WORKERS][TENSORS];
    size_t done[TENSORS], count = 0;
    trib_error error;
    job_open(&jobs, WORKERS, 0, two_reactors);
    declare_all(&jobs);
    for (int i = 0; i < TENSORS; i++) {
        params[0][i].kind = params[1][i].kind = TRIB_OP_PUSH_PULL;
    }
    assert_int_equal(trib_submit_batch(jobs.engines[0], params[0], TENSORS, ops[0], NULL), TRIB_OK);
    assert_int_equal(trib_op_wait_some(ops[0], TENSORS, 0, -1, done, &count, &error), TRIB_OK);
    assert_int_equal(count, 0);
    assert_int_equal(trib_op_wait_some(ops[0], TENSORS, 1, 1000000, done, &count, &error), TRIB_TIMEOUT);
    assert_int_equal(count, 0);
    assert_int_equal(trib_op_wait_some(ops[0], TENSORS, TENSORS + 1, -1, done, &count, &error), TRIB_INVALID);
    assert_int_equal(trib_submit_batch(jobs.engines[1], &params[1][9], 1, &ops[1][9], NULL), TRIB_OK);
    assert_int_equal(trib_op_wait_some(ops[0], TENSORS, 1, -1, done, &count, &error), TRIB_OK);
    assert_int_equal(count, 1);
    assert_int_equal(done[0], 9);
    assert_int_equal(trib_submit_batch(jobs.engines[1], &params[1][20], 5, &ops[1][20], NULL), TRIB_OK);
    assert_int_equal(trib_op_wait_some(ops[0], TENSORS, 6, -1, done, &count, &error), TRIB_OK);
    assert_int_equal(count, 6);
    assert_true(done[0] == 9 && done[1] == 20 && done[5] == 24);
    trib_op_cancel(ops[0][3]);
    assert_int_equal(trib_op_wait_some(ops[0], TENSORS, 7, -1, done, &count, &error), TRIB_CANCELLED);
    assert_non_null(strstr(error.text, "tensor \"tensor 3\""));
    assert_int_equal(count, 7);
    assert_int_equal(done[0], 3);
    trib_result result;
    assert_int_equal(trib_op_get_result(ops[0][3], &result, &error), TRIB_OK);
    assert_int_equal(result.status, TRIB_CANCELLED);
    assert_int_equal(result.contributors, 0);
    assert_non_null(strstr(result.text, "tensor \"tensor 3\""));
    job_close(&jobs);
}

static void queue(trib_config *config, int member)
{
    (void)member;
    config->mode = TRIB_MODE_QUEUE;
}

static void count_down(const trib_result *result, void *user)
{
    assert_int_equal(result->status, TRIB_OK);
    --*(int *)user;
}

static void a_wait_dispatches(void **state)
{
    (void)state;
    job jobs;
    trib_op *ops[WORKERS][TENSORS];
    int left = WORKERS * TENSORS;
    job_open(&jobs, WORKERS, 0, queue);
    declare_all(&jobs);
    for (int rank = 0; rank < WORKERS; rank++) {
        for (int i = 0; i < TENSORS; i++) {
            params[rank][i].done_cb = count_down;
            params[rank][i].user = &left;
        }
        assert_int_equal(trib_submit_batch(jobs.engines[rank], params[rank], TENSORS, ops[rank], NULL), TRIB_OK);
    }
    for (int rank = 0; rank < WORKERS; rank++) {
        assert_int_equal(trib_op_wait_some(ops[rank], TENSORS, TENSORS, -1, NULL, NULL, NULL), TRIB_OK);
        for (int i = 0; i < TENSORS; i++) {
            trib_op_release(ops[rank][i]);
        }
    }
    assert_int_equal(left, 0);
    job_close(&jobs);
}

static void a_handle_on_your_own_loop(void **state)
{
    (void)state;
    struct ev_loop *loop = ev_loop_new(EVFLAG_AUTO);
    trib_config config;
    trib_engine *engine = NULL;
    trib_config_init(&config, sizeof config);
    config.mode = TRIB_MODE_ATTACHED;
    config.loop = loop;
    assert_int_equal(trib_engine_create(&config, &engine, NULL), TRIB_OK);
    float value = 2;
    trib_tensor *tensor = job_declare(engine, "alone", TRIB_FLOAT32, 1);
    trib_op *op = job_push_pull(engine, tensor, &value, &value, TRIB_SUM);
    size_t done = 0;
    trib_result result;
    assert_int_equal(trib_op_wait_some(&op, 1, 1, -1, NULL, NULL, NULL), TRIB_STATE);
    for (int i = 0; i < 100000 && done == 0; i++) {
        ev_run(loop, EVRUN_ONCE);
        assert_int_equal(trib_op_wait_some(&op, 1, 0, 0, NULL, &done, NULL), TRIB_OK);
    }
    assert_int_equal(trib_op_get_result(op, &result, NULL), TRIB_OK);
    assert_int_equal(result.contributors, 1);
    trib_op_release(op);
    assert_int_equal(trib_engine_destroy(engine), TRIB_OK);
    ev_loop_destroy(loop);
}

static void what_is_no_handle_is_refused(void **state)
{
    (void)state;
    job jobs;
    trib_error error;
    job_open(&jobs, 1, 0, NULL);
    float value = 1;
    trib_tensor *tensor = job_declare(jobs.engines[0], "one", TRIB_FLOAT32, 1);
    trib_op *op = job_push_pull(jobs.engines[0], tensor, &value, &value, TRIB_SUM);
    assert_int_equal(trib_op_wait(op, -1, NULL), TRIB_OK);
    trib_op *const stale = op;
    trib_op_release(op);
    trib_op_release(op);
    op = job_push_pull(jobs.engines[0], tensor, &value, &value, TRIB_SUM); /* in the same memory */
    assert_ptr_not_equal(op, stale);
    trib_op *const wrong[] = {stale, NULL, (trib_op *)tensor, (trib_op *)&value, (trib_op *)1, (trib_op *)-1};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        trib_result result;
        assert_int_equal(trib_op_status(wrong[i]), TRIB_INVALID);
        assert_int_equal(trib_op_wait(wrong[i], 0, &error), TRIB_INVALID);
        assert_int_equal(trib_op_get_result(wrong[i], &result, &error), TRIB_INVALID);
        assert_int_equal(trib_op_wait_some(&wrong[i], 1, 1, 0, NULL, NULL, &error), TRIB_INVALID);
        assert_int_equal(trib_op_start(&wrong[i], 1, 0, &error), TRIB_INVALID);
        if (wrong[i] != NULL && wrong[i] != (trib_op *)tensor) {
            assert_int_equal(trib_tensor_release((trib_tensor *)wrong[i], &error), TRIB_INVALID);
        }
        trib_op_cancel(wrong[i]);
        trib_op_release(wrong[i]);
        if (i == 0) {
            assert_int_equal(trib_op_wait(op, -1, &error), TRIB_OK); /* neither cancelled nor released */
            trib_op_release(op);
            op = job_push_pull(jobs.engines[0], tensor, &value, &value, TRIB_SUM);
        }
    }
    trib_op_release(op);
    job_close(&jobs);
    assert_int_equal(trib_op_status(op), TRIB_INVALID); /* the engine has gone, too */
    trib_op_release(op);
    assert_int_equal(trib_tensor_release(tensor, &error), TRIB_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_batch_is_its_operations),       cmocka_unit_test(a_batch_is_taken_as_a_whole_or_not_at_all),
        cmocka_unit_test(prepared_operations_start_again), cmocka_unit_test(a_callback_starts_its_own_operation),
        cmocka_unit_test(waits_for_any_and_some),          cmocka_unit_test(a_wait_dispatches),
        cmocka_unit_test(a_handle_on_your_own_loop),       cmocka_unit_test(what_is_no_handle_is_refused),
    };
    return cmocka_run_group_tests_name("batches", tests, NULL, NULL);
}

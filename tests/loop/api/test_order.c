/* test_order.c - many operations at once: urgent ones overtake, ten thousand tensors work, and so do as many rounds of
 * one tensor as an engine takes, submitted before the job has formed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "tests/loop/job.h"

/* Order of completion on rank 0, as the callbacks saw it. */
typedef struct finish_line {
    _Atomic int next;
    int big, small;
} finish_line;

static finish_line line_of_rank_0;

static void finish_big(const trib_result *result, void *user)
{
    finish_line *line = user;
    assert_int_equal(result->status, TRIB_OK);
    line->big = ++line->next;
}

static void finish_small(const trib_result *result, void *user)
{
    finish_line *line = user;
    assert_int_equal(result->status, TRIB_OK);
    line->small = ++line->next;
}

static trib_op *submit_with(trib_engine *engine, trib_tensor *tensor, float *data, int32_t priority, trib_done_cb cb)
{
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = tensor;
    params.input = params.output = data;
    params.has_priority = true;
    params.priority = priority;
    params.done_cb = cb;
    params.user = &line_of_rank_0;
    trib_op *op = NULL;
    assert_int_equal(trib_push_pull(engine, &params, &op, NULL), TRIB_OK);
    return op;
}

/* A tensor that is submitted later with a higher priority completes before a large one that was submitted first. */
static void urgent_overtakes(void **state)
{
    (void)state;
    enum { BIG = 16 << 20, SMALL = 1000 };
    job jobs;
    job_open(&jobs, 2, 1, NULL);
    float *big[2];
    static float small[2][SMALL];
    trib_tensor *tensors[2][2];
    trib_op *ops[2][2];
    for (int i = 0; i < 2; i++) {
        big[i] = calloc(BIG, sizeof(float));
        tensors[i][0] = job_declare(jobs.engines[i], "big", TRIB_FLOAT32, BIG);
        tensors[i][1] = job_declare(jobs.engines[i], "small", TRIB_FLOAT32, SMALL);
    }
    for (int i = 0; i < 2; i++) {
        ops[i][0] = submit_with(jobs.engines[i], tensors[i][0], big[i], 0, i == 0 ? finish_big : NULL);
    }
    for (int i = 0; i < 2; i++) {
        ops[i][1] = submit_with(jobs.engines[i], tensors[i][1], small[i], 5, i == 0 ? finish_small : NULL);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(job_wait(ops[i][0], NULL), TRIB_OK);
        assert_int_equal(job_wait(ops[i][1], NULL), TRIB_OK);
    }
    assert_int_equal(line_of_rank_0.small, 1);
    assert_int_equal(line_of_rank_0.big, 2);
    job_close(&jobs);
    free(big[0]);
    free(big[1]);
}

static void ten_thousand_tensors(void **state)
{
    (void)state;
    enum { TENSORS = 10000 };
    job jobs;
    job_open(&jobs, 2, 1, NULL);
    static int32_t data[2][TENSORS];
    static trib_op *ops[2][TENSORS];
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < TENSORS; k++) {
            char name[32];
            snprintf(name, sizeof name, "t%d", k);
            data[i][k] = k * (i + 1);
            trib_tensor *tensor = job_declare(jobs.engines[i], name, TRIB_INT32, 1);
            ops[i][k] = job_push_pull(jobs.engines[i], tensor, &data[i][k], &data[i][k], TRIB_SUM);
        }
    }
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < TENSORS; k++) {
            assert_int_equal(job_wait(ops[i][k], NULL), TRIB_OK);
            assert_int_equal(data[i][k], k * 3);
        }
    }
    job_close(&jobs);
}

/* ---- Rounds ---- */

/* Half of the rounds are submitted before the other worker exists, and the rest while the job forms. On the reactor
 * that sums, some arrive before the rounds that had to wait for the placement. */
enum { ROUNDS = 60000 };

typedef struct series {
    int32_t sums[ROUNDS];
    atomic_int done, good;
} series;

static void count_round(const trib_result *result, void *user)
{
    series *self = user;
    atomic_fetch_add(&self->good, result->status == TRIB_OK);
    atomic_fetch_add(&self->done, 1);
}

static trib_engine *join_series(const char *address, int rank)
{
    trib_config config;
    trib_config_init(&config, sizeof config);
    config.coordinator = address;
    config.worker_count = 2;
    config.rank = rank;
    config.reactors = 2;
    trib_engine *engine = NULL;
    trib_error error = {.status = TRIB_OK};
    if (trib_engine_create(&config, &engine, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
    return engine;
}

static void submit_rounds(series *self, trib_engine *engine, const int32_t *inputs, int from, int to)
{
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = job_declare(engine, "series", TRIB_INT32, 1);
    params.done_cb = count_round;
    params.user = self;
    for (int i = from; i < to; i++) {
        params.input = &inputs[i];
        params.output = &self->sums[i];
        assert_int_equal(trib_push_pull(engine, &params, NULL, NULL), TRIB_OK);
    }
}

static void all_rounds_that_are_taken(void **state)
{
    (void)state;
    static series all[2];
    static int32_t inputs[ROUNDS];
    char address[32];
    job_free_address(address, sizeof address);
    for (int i = 0; i < ROUNDS; i++) {
        inputs[i] = i;
    }
    trib_engine *engines[2] = {join_series(address, 0)};
    submit_rounds(&all[0], engines[0], inputs, 0, ROUNDS / 2);
    engines[1] = join_series(address, 1);
    submit_rounds(&all[0], engines[0], inputs, ROUNDS / 2, ROUNDS);
    submit_rounds(&all[1], engines[1], inputs, 0, ROUNDS);
    for (int i = 0; i < 2; i++) {
        const struct timespec moment = {.tv_nsec = 1000000};
        while (atomic_load(&all[i].done) < ROUNDS) {
            nanosleep(&moment, NULL);
        }
        assert_int_equal(atomic_load(&all[i].good), ROUNDS);
        for (int k = 0; k < ROUNDS; k++) {
            assert_int_equal(all[i].sums[k], 2 * k);
        }
    }
    for (int i = 0; i < 2; i++) {
        trib_engine_close(engines[i], NULL, NULL);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(trib_engine_destroy(engines[i]), TRIB_OK);
    }
}

#ifdef TRIB_SLOW_CHECKS
enum { MANY = 2000 }; /* slow checks count all rounds again and again */
#else
enum { MANY = ROUNDS };
#endif

/* One worker cancels all of them before the other one submits. The other worker is told of each cancellation, and none
 * delays it. */
static void all_rounds_are_given_up(void **state)
{
    (void)state;
    static trib_op *ops[2][MANY];
    static int32_t data[2][MANY];
    job jobs;
    job_open(&jobs, 2, 1, NULL);
    trib_tensor *tensors[2];
    for (int i = 0; i < 2; i++) {
        tensors[i] = job_declare(jobs.engines[i], "series", TRIB_INT32, 1);
    }
    for (int k = 0; k < MANY; k++) {
        ops[1][k] = job_push_pull(jobs.engines[1], tensors[1], &data[1][k], &data[1][k], TRIB_SUM);
    }
    for (int k = MANY - 1; k > 0; k--) {
        trib_op_cancel(ops[1][k]);
    }
    for (int k = 1; k < MANY; k++) {
        assert_int_equal(trib_op_wait(ops[1][k], -1, NULL), TRIB_CANCELLED);
    }
    for (int k = 0; k < MANY; k++) {
        ops[0][k] = job_push_pull(jobs.engines[0], tensors[0], &data[0][k], &data[0][k], TRIB_SUM);
    }
    assert_int_equal(job_wait(ops[1][0], NULL), TRIB_OK);
    for (int k = 0; k < MANY; k++) {
        assert_int_equal(job_wait(ops[0][k], NULL), k == 0 ? TRIB_OK : TRIB_CANCELLED);
        if (k > 0) {
            trib_op_release(ops[1][k]);
        }
    }
    job_close(&jobs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(urgent_overtakes),
        cmocka_unit_test(ten_thousand_tensors),
        cmocka_unit_test(all_rounds_that_are_taken),
        cmocka_unit_test(all_rounds_are_given_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

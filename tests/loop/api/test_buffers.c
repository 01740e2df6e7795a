/* test_buffers.c - an operation touches the caller's buffers when its turn has come, and a rejected one never does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/loop/job.h"

enum { COUNT = 300000, WORKERS = 2 };

static void fill(float *data, float value)
{
    for (int i = 0; i < COUNT; i++) {
        data[i] = value;
    }
}

static void all_are(const float *data, float value)
{
    for (int i = 0; i < COUNT; i++) {
        assert_true(data[i] == value);
    }
}

static trib_status broadcast(trib_engine *engine, trib_tensor *tensor, const void *input, void *output, trib_op **op)
{
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = tensor;
    params.input = input;
    params.output = output;
    return trib_broadcast(engine, &params, op, NULL);
}

static void several_reactors(trib_config *config, int member)
{
    (void)member;
    config->reactors = 2;
}

/* This holds on the root of a broadcast, too: its own output is written after the sum that was submitted before. */
static void one_after_the_other(void **state)
{
    const bool reads = *(const bool *)*state;
    static float data[WORKERS][COUNT], given[COUNT], sums[WORKERS][COUNT];
    job jobs;
    job_open(&jobs, WORKERS, 1, several_reactors);
    trib_op *ops[WORKERS][2];
    fill(given, 7);
    for (int i = WORKERS - 1; i >= 0; i--) {
        trib_tensor *tensor = job_declare(jobs.engines[i], "both", TRIB_FLOAT32, COUNT);
        fill(data[i], (float)(i + 1));
        /* The second operation writes to the output of the first one, or to its input. */
        float *sum = reads ? sums[i] : data[i];
        ops[i][0] = job_push_pull(jobs.engines[i], tensor, data[i], sum, TRIB_SUM);
        assert_int_equal(broadcast(jobs.engines[i], tensor, given, data[i], &ops[i][1]), TRIB_OK);
    }
    for (int i = 0; i < WORKERS; i++) {
        assert_int_equal(job_wait(ops[i][0], NULL), TRIB_OK);
        assert_int_equal(job_wait(ops[i][1], NULL), TRIB_OK);
        all_are(data[i], 7);
        if (reads) {
            all_are(sums[i], 3);
        }
    }
    job_close(&jobs);
}

static void one_at_a_time(trib_config *config, int member)
{
    (void)member;
    config->ops_max = 1;
}

static void rejected_operation_leaves_its_buffers(void **state)
{
    (void)state;
    static float data[WORKERS][COUNT], output[COUNT];
    job jobs;
    job_open(&jobs, WORKERS, 0, one_at_a_time);
    trib_tensor *tensors[WORKERS];
    for (int i = 0; i < WORKERS; i++) {
        fill(data[i], 1);
        tensors[i] = job_declare(jobs.engines[i], "t", TRIB_FLOAT32, COUNT);
    }
    fill(output, 5);
    trib_op *first = job_push_pull(jobs.engines[0], tensors[0], data[0], data[0], TRIB_SUM), *none = NULL;
    assert_int_equal(broadcast(jobs.engines[0], tensors[0], data[0], output, &none), TRIB_BUSY);
    all_are(output, 5);
    assert_int_equal(job_wait(job_push_pull(jobs.engines[1], tensors[1], data[1], data[1], TRIB_SUM), NULL), TRIB_OK);
    assert_int_equal(job_wait(first, NULL), TRIB_OK);
    job_close(&jobs);
}

/* A broadcast of an empty tensor writes nothing. */
static void nothing_is_given(void **state)
{
    (void)state;
    float output = 5;
    job jobs;
    job_open(&jobs, 1, 0, NULL);
    trib_tensor *tensor = job_declare(jobs.engines[0], "empty", TRIB_FLOAT32, 0);
    trib_op *op = NULL;
    assert_int_equal(broadcast(jobs.engines[0], tensor, NULL, &output, &op), TRIB_OK);
    assert_int_equal(job_wait(op, NULL), TRIB_OK);
    assert_true(output == 5);
    job_close(&jobs);
}

int main(void)
{
    static bool reads = true, writes = false;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(one_after_the_other, &writes),
        cmocka_unit_test_prestate(one_after_the_other, &reads),
        cmocka_unit_test(rejected_operation_leaves_its_buffers),
        cmocka_unit_test(nothing_is_given),
    };
    return cmocka_run_group_tests_name("buffers", tests, NULL, NULL);
}

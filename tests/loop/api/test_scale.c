/* test_scale.c - prescale and postscale of every type, alone and with others, against results that are computed element
 * by element in a wider type; and what is refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/loop/machines.h"
#include "tests/support/values.h"

#define COUNT 1027u
#define WORKERS_MAX 4

/* Small enough for all types. */
static double value(trib_dtype dtype, int rank, uint32_t i)
{
    const bool is_signed = trib_dtype_is_float(dtype) || dtype == TRIB_INT8 || dtype == TRIB_INT16 ||
                           dtype == TRIB_INT32 || dtype == TRIB_INT64;
    return (double)(((uint32_t)rank * 5 + i * 3 + i / 11) % 8) - (is_signed && i % 2 == 1 ? 6 : 0);
}

/* Of integers each product is truncated. Floats have one factor, the product of both. */
static double expected(trib_dtype dtype, trib_reduce reduce, int workers, uint32_t i, double before, double after)
{
    const bool is_float = trib_dtype_is_float(dtype);
    long double sum = 0;
    for (int rank = 0; rank < workers; rank++) {
        const long double one = (long double)value(dtype, rank, i) * before;
        sum += is_float ? value(dtype, rank, i) : trunc((double)one);
    }
    sum = sum * (is_float ? before * after : after) / (reduce == TRIB_AVG ? workers : 1);
    return is_float ? values_round(dtype, (double)sum) : trunc((double)sum);
}

static trib_op *submit(const job *self, int rank, trib_op_params params)
{
    trib_op_params all;
    trib_op_params_init(&all, sizeof all);
    all.tensor = params.tensor;
    all.input = params.input;
    all.output = params.output;
    all.reduce = params.reduce;
    all.prescale = params.prescale;
    all.postscale = params.postscale;
    trib_op *op = NULL;
    trib_error error;
    if (trib_all_reduce(self->engines[rank], &all, &op, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
    return op;
}

static void exchange(const job *self, trib_dtype dtype, trib_reduce reduce, double before, double after, bool in_place)
{
    unsigned char *inputs[WORKERS_MAX], *outputs[WORKERS_MAX];
    trib_op *ops[WORKERS_MAX];
    for (int rank = 0; rank < self->worker_count; rank++) {
        trib_tensor *tensor = job_declare(self->engines[rank], trib_dtype_name(dtype), dtype, COUNT);
        inputs[rank] = malloc(COUNT * trib_dtype_size(dtype));
        outputs[rank] = in_place ? inputs[rank] : malloc(COUNT * trib_dtype_size(dtype));
        assert_true(inputs[rank] != NULL && outputs[rank] != NULL);
        for (uint32_t i = 0; i < COUNT; i++) {
            values_store(dtype, inputs[rank], i, value(dtype, rank, i));
        }
        ops[rank] = submit(self, rank,
                           (trib_op_params){.tensor = tensor,
                                            .input = inputs[rank],
                                            .output = outputs[rank],
                                            .reduce = reduce,
                                            .prescale = before,
                                            .postscale = after});
    }
    for (int rank = 0; rank < self->worker_count; rank++) {
        trib_error error;
        assert_int_equal(job_wait(ops[rank], &error), TRIB_OK);
        for (uint32_t i = 0; i < COUNT; i++) {
            const double want =
                expected(dtype, reduce, self->worker_count, i, before == 0 ? 1 : before, after == 0 ? 1 : after);
            if (values_load(dtype, outputs[rank], i) != want) {
                fail_msg("%s %s of %d, %.17g and %.17g: element %u is %.17g, not %.17g", trib_reduce_name(reduce),
                         trib_dtype_name(dtype), self->worker_count, before, after, i,
                         values_load(dtype, outputs[rank], i), want);
            }
        }
    }
    for (int rank = 0; rank < self->worker_count; rank++) {
        free(in_place ? NULL : outputs[rank]);
        free(inputs[rank]);
    }
}

/* Factors that are no sum of few powers of two show a result that is rounded twice. */
static void scale_all(const job *self)
{
    static const double factors[][2] = {{0.7, 0}, {0, 0.3}, {1.3, 0.77}, {0.5, 2}, {1 / 3.0, 1}};
    for (trib_dtype dtype = 0; dtype < TRIB_DTYPE_COUNT; dtype++) {
        for (size_t k = 0; dtype != TRIB_BOOL && k < sizeof factors / sizeof factors[0]; k++) {
            exchange(self, dtype, TRIB_SUM, factors[k][0], factors[k][1], k % 2 == 0);
            exchange(self, dtype, TRIB_AVG, factors[k][0], factors[k][1], k % 2 == 1);
        }
    }
}

static void test_every_type(void **state)
{
    (void)state;
    job whole;
    job_open(&whole, 3, 1, NULL);
    scale_all(&whole);
    job_close(&whole);
}

/* The one contribution is the result, in its own form. */
static void test_alone(void **state)
{
    (void)state;
    job whole;
    job_open(&whole, 1, 1, NULL);
    scale_all(&whole);
    job_close(&whole);
}

static void small_chunks(trib_config *config, int member)
{
    (void)member;
    config->chunk_bytes = 4096;
    config->partition_bytes = 4096;
}

static void by_arrival(trib_config *config, int member)
{
    small_chunks(config, member);
    config->sum_order = TRIB_ORDER_ARRIVAL;
}

static void by_machine(trib_config *config, int member)
{
    (void)member;
    config->local_sum = TRIB_LOCAL_SUM_ON;
}

static void test_in_other_ways(void **state)
{
    (void)state;
    const job_tweak ways[] = {small_chunks, by_arrival, by_machine};
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        job whole;
        job_open(&whole, 2, 1, ways[i]);
        exchange(&whole, TRIB_FLOAT16, TRIB_AVG, 0.7, 1.3, true);
        exchange(&whole, TRIB_FLOAT64, TRIB_SUM, 0.7, 0, false);
        exchange(&whole, TRIB_INT64, TRIB_SUM, 0.7, 1.9, false);
        job_close(&whole);
    }
}

/* A sum that 16 bits do not hold has a result nevertheless, and integers that do not fit become the nearest. */
static void test_limits(void **state)
{
    (void)state;
    job whole;
    trib_error error;
    job_open(&whole, 1, 1, NULL);
    int8_t small[3] = {100, -100, 7}, fitted[3] = {0};
    trib_tensor *tensor = job_declare(whole.engines[0], "small", TRIB_INT8, 3);
    trib_op *op =
        submit(&whole, 0, (trib_op_params){.tensor = tensor, .input = small, .output = fitted, .postscale = 2.5});
    assert_int_equal(job_wait(op, &error), TRIB_OK);
    assert_true(fitted[0] == INT8_MAX && fitted[1] == INT8_MIN && fitted[2] == 17);
    float numbers[4] = {NAN, -0.0f, INFINITY, 3e38f}, scaled[4];
    tensor = job_declare(whole.engines[0], "numbers", TRIB_FLOAT32, 4);
    op = submit(&whole, 0, (trib_op_params){.tensor = tensor, .input = numbers, .output = scaled, .postscale = -2});
    assert_int_equal(job_wait(op, &error), TRIB_OK);
    assert_true(isnan(scaled[0]) && !signbit(scaled[0]) && scaled[1] == 0 && !signbit(scaled[1]));
    assert_true(isinf(scaled[2]) && scaled[2] < 0 && isinf(scaled[3]) && scaled[3] < 0);
    job_close(&whole);
    job_open(&whole, 2, 1, NULL);
    uint16_t large[2] = {0x7bff, 0x7bff}; /* 65504, the largest float16 */
    float opposite[2] = {1, -1};          /* the average of both, times -1, is -0 */
    trib_op *ops[2];
    for (int rank = 0; rank < 2; rank++) {
        tensor = job_declare(whole.engines[rank], "large", TRIB_FLOAT16, 1);
        ops[rank] =
            submit(&whole, rank,
                   (trib_op_params){.tensor = tensor, .input = &large[rank], .output = &large[rank], .prescale = 0.5});
    }
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(job_wait(ops[rank], &error), TRIB_OK);
        assert_int_equal(large[rank], 0x7bff);
    }
    for (int rank = 0; rank < 2; rank++) {
        trib_op_params params = {.input = &opposite[rank], .output = &opposite[rank], .postscale = -1};
        params.tensor = job_declare(whole.engines[rank], "opposite", TRIB_FLOAT32, 1);
        params.reduce = TRIB_AVG;
        ops[rank] = submit(&whole, rank, params);
    }
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(job_wait(ops[rank], &error), TRIB_OK);
        assert_true(opposite[rank] == 0 && signbit(opposite[rank]));
    }
    job_close(&whole);
}

/* One worker gives another factor than the others. */
static void disagree(const job *self, trib_dtype dtype, bool before, const char *words)
{
    trib_op *ops[WORKERS_MAX];
    uint64_t numbers[WORKERS_MAX] = {0};
    for (int rank = 0; rank < self->worker_count; rank++) {
        const double factor = rank == 0 ? 0.5 : 0.25;
        trib_tensor *tensor = job_declare(self->engines[rank], trib_dtype_name(dtype), dtype, 1);
        ops[rank] = submit(self, rank,
                           (trib_op_params){.tensor = tensor,
                                            .input = &numbers[rank],
                                            .output = &numbers[rank],
                                            .prescale = before ? factor : 0,
                                            .postscale = before ? 0 : factor});
    }
    for (int rank = 0; rank < self->worker_count; rank++) {
        trib_error error;
        assert_int_equal(job_wait(ops[rank], &error), TRIB_MISMATCH);
        assert_non_null(strstr(error.text, "0.25"));
        assert_non_null(strstr(error.text, "0.5"));
        assert_non_null(strstr(error.text, words));
    }
}

static void test_disagreement(void **state)
{
    (void)state;
    for (int machines = 0; machines <= 2; machines += 2) {
        job whole;
        if (machines > 0) {
            machines_open(&whole, WORKERS_MAX, 0,
                          (machines_shape){.local = 2, .mode = TRIB_LOCAL_SUM_ON, .reactors = 1});
        } else {
            job_open(&whole, 3, 1, NULL);
        }
        disagree(&whole, TRIB_FLOAT32, false, "scales the sum by");
        disagree(&whole, TRIB_FLOAT16, true, "scales the sum by");
        disagree(&whole, TRIB_INT64, false, "scales the sum by");
        disagree(&whole, TRIB_INT32, true, "scales the integers by");
        job_close(&whole);
    }
}

typedef trib_status submitter(trib_engine *engine, const trib_op_params *params, trib_op **op_out, trib_error *error);

static void assert_refused(submitter *call, trib_engine *engine, trib_op_params params, trib_status status,
                           const char *words)
{
    trib_op_params all;
    trib_error error;
    int64_t room[4] = {0};
    trib_op_params_init(&all, sizeof all);
    all.tensor = params.tensor;
    all.flags = params.flags;
    all.input = all.output = room;
    all.reduce = params.reduce;
    all.prescale = params.prescale;
    all.postscale = params.postscale;
    assert_int_equal(call(engine, &all, NULL, &error), status);
    if (strstr(error.text, words) == NULL) {
        fail_msg("no \"%s\" in \"%s\"", words, error.text);
    }
}

/* Operations that do not reduce refuse factors, and those without a tensor refuse flags, too. */
static void test_refused_elsewhere(void **state)
{
    (void)state;
    job whole;
    job_open(&whole, 1, 1, NULL);
    trib_engine *engine = whole.engines[0];
    trib_tensor *tensor = job_declare(engine, "floats", TRIB_FLOAT32, 1), *slices = NULL;
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = "slices";
    desc.layout = TRIB_SLICES;
    assert_int_equal(trib_tensor_declare(engine, &desc, &slices, NULL), TRIB_OK);
    assert_refused(trib_broadcast, engine, (trib_op_params){.tensor = tensor, .prescale = 2}, TRIB_UNSUPPORTED,
                   "does not reduce");
    assert_refused(trib_all_gather, engine, (trib_op_params){.tensor = slices, .postscale = (double)NAN},
                   TRIB_UNSUPPORTED, "does not reduce");
    submitter *const plain[] = {trib_barrier, trib_checkpoint, trib_join, trib_broadcast_bytes, trib_all_gather_bytes};
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
        assert_refused(plain[i], engine, (trib_op_params){.postscale = 2}, TRIB_UNSUPPORTED, "does not reduce");
        assert_refused(plain[i], engine, (trib_op_params){.flags = TRIB_OP_ONCE}, TRIB_UNSUPPORTED, "has no flags");
    }
    job_close(&whole);
}

static void test_refused(void **state)
{
    (void)state;
    job whole;
    job_open(&whole, 1, 1, NULL);
    trib_engine *engine = whole.engines[0];
    trib_tensor *floats = job_declare(engine, "floats", TRIB_FLOAT32, 1);
    trib_tensor *integers = job_declare(engine, "integers", TRIB_INT32, 1);
    trib_tensor *bools = job_declare(engine, "bools", TRIB_BOOL, 1);
    assert_refused(trib_all_reduce, engine, (trib_op_params){.tensor = floats, .reduce = TRIB_MAX, .prescale = 2},
                   TRIB_UNSUPPORTED, "multiply by yourself");
    assert_refused(trib_all_reduce, engine, (trib_op_params){.tensor = floats, .reduce = TRIB_PRODUCT, .postscale = 2},
                   TRIB_UNSUPPORTED, "multiply by yourself");
    assert_refused(trib_all_reduce, engine, (trib_op_params){.tensor = bools, .postscale = 2}, TRIB_UNSUPPORTED,
                   "sum of bool");
    assert_refused(trib_reduce_to, engine, (trib_op_params){.tensor = integers, .prescale = 2}, TRIB_UNSUPPORTED,
                   "multiply the input by yourself");
    assert_refused(trib_all_reduce, engine, (trib_op_params){.tensor = floats, .postscale = (double)NAN}, TRIB_INVALID,
                   "finite");
    assert_refused(trib_all_reduce, engine, (trib_op_params){.tensor = floats, .prescale = 1e200, .postscale = 1e200},
                   TRIB_INVALID, "finite");
    job_close(&whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_type),        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_in_other_ways),     cmocka_unit_test(test_limits),
        cmocka_unit_test(test_disagreement),      cmocka_unit_test(test_refused),
        cmocka_unit_test(test_refused_elsewhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

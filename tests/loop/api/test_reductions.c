/* test_reductions.c - every reduction of every type, between workers, against results that are concluded from
 * counts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/loop/party.h"
#include "tests/support/values.h"

#define LENGTH 301u

/* A byte behind the elements shows that nothing was written past their end. */
static void *blank(trib_dtype dtype)
{
    unsigned char *data = malloc(LENGTH * trib_dtype_size(dtype) + 1);
    assert_non_null(data);
    memset(data, 0x55, LENGTH * trib_dtype_size(dtype) + 1);
    return data;
}

/* The factors are 1 and 2, because every type holds their products; 0 and 1 for bools. */
static int64_t factor(trib_dtype dtype, uint32_t giver, uint64_t i)
{
    const int64_t bit = (int64_t)((i >> giver % 6) & 1);
    return dtype == TRIB_BOOL ? bit : bit + 1;
}

/* Counts how many gave 2, or 1 of bools, and concludes the result from the number. */
static double reduced(const party *self, trib_dtype dtype, trib_reduce reduce, uint64_t i)
{
    const double few = dtype == TRIB_BOOL ? 0 : 1, many = few + 1;
    uint32_t high = 0;
    for (uint32_t k = 0; k < self->count; k++) {
        high += factor(dtype, k, i) == (int64_t)many;
    }
    const uint32_t low = self->count - high;
    const double sum = high * many + low * few;
    switch (reduce) {
    case TRIB_SUM:
        return sum;
    case TRIB_AVG:
        if (self->count == 0) {
            fail_msg("nothing was reduced");
            return 0;
        }
        return trib_dtype_is_float(dtype) ? sum / self->count : (double)((int64_t)sum / self->count);
    case TRIB_MIN:
        return low > 0 ? few : many;
    case TRIB_MAX:
        return high > 0 ? many : few;
    case TRIB_PRODUCT:
        return dtype == TRIB_BOOL ? low == 0 : (double)(1u << high);
    case TRIB_BIT_AND:
        return low == 0 ? many : high == 0 ? few : 0;
    case TRIB_BIT_OR:
        return (high > 0 ? many : 0) + (low > 0 ? few : 0);
    default:
        return (high % 2 == 1 ? many : 0) + (low % 2 == 1 ? few : 0);
    }
}

static void reduce_once(const party *self, trib_dtype dtype, trib_reduce reduce)
{
    void *inputs[PARTY_MAX], *outputs[PARTY_MAX];
    trib_op *ops[PARTY_MAX];
    char name[32];
    snprintf(name, sizeof name, "%s of %s", trib_reduce_name(reduce), trib_dtype_name(dtype));
    for (uint32_t i = 0; i < self->count; i++) {
        trib_tensor *tensor = party_declare(self, i, (trib_tensor_desc){.name = name, .dtype = dtype, .count = LENGTH});
        inputs[i] = blank(dtype);
        outputs[i] = blank(dtype);
        for (uint64_t e = 0; e < LENGTH; e++) {
            values_store(dtype, inputs[i], e, (double)factor(dtype, i, e));
        }
        ops[i] = party_submit(
            self, i, trib_all_reduce,
            (trib_op_params){.tensor = tensor, .input = inputs[i], .output = outputs[i], .reduce = reduce});
    }
    for (uint32_t i = 0; i < self->count; i++) {
        party_succeeds(ops[i]);
        for (uint64_t e = 0; e < LENGTH; e++) {
            const double exact = reduced(self, dtype, reduce, e);
            const double wanted = dtype == TRIB_BOOL ? exact != 0 : values_round(dtype, exact);
            assert_true(values_load(dtype, outputs[i], e) == wanted);
        }
        assert_int_equal(((unsigned char *)outputs[i])[LENGTH * trib_dtype_size(dtype)], 0x55);
    }
    for (uint32_t i = 0; i < self->count; i++) {
        free(inputs[i]);
        free(outputs[i]);
    }
}

static void test_every_reduction(void **state)
{
    (void)state;
    party self;
    job_open(&self.jobs, 4, 1, party_small_pieces);
    party_all_workers(&self);
    for (int dtype = 0; dtype < TRIB_DTYPE_COUNT; dtype++) {
        for (int reduce = 0; reduce < TRIB_REDUCE_COUNT; reduce++) {
            if (trib_reduce_suits((trib_dtype)dtype, (trib_reduce)reduce)) {
                reduce_once(&self, (trib_dtype)dtype, (trib_reduce)reduce);
            }
        }
    }
    job_close(&self.jobs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_reduction)};
    return cmocka_run_group_tests_name("reductions", tests, NULL, NULL);
}

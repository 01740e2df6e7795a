/* test_neutral.c - the elements that workers without more data contribute change no other element. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/aggregate/sum_tree.h"
#include "stages/kernels/kernels.h"

/* Bit patterns that are numbers in every type, among them zeros, both signs, ends of ranges and infinities. */
static uint64_t pattern(trib_dtype dtype, uint32_t i)
{
    const uint64_t spread = (uint64_t)i * UINT64_C(0x9e3779b97f4a7c15);
    if (dtype == TRIB_BOOL) {
        return i & 1;
    }
    return i < 256 ? (uint64_t)i << (8 * trib_dtype_size(dtype) - 8) : spread >> (64 - 8 * trib_dtype_size(dtype));
}

static bool is_nan(trib_dtype dtype, uint64_t bits)
{
    switch (dtype) {
    case TRIB_FLOAT32:
        return (bits & 0x7fffffff) > 0x7f800000;
    case TRIB_FLOAT64:
        return (bits & INT64_MAX) > UINT64_C(0x7ff) << 52;
    case TRIB_FLOAT16:
        return (bits & 0x7fff) > 0x7c00;
    case TRIB_BFLOAT16:
        return (bits & 0x7fff) > 0x7f80;
    case TRIB_FLOAT8_E4M3:
        return (bits & 0x7f) == 0x7f;
    case TRIB_FLOAT8_E5M2:
        return (bits & 0x7f) > 0x7c;
    default:
        return false;
    }
}

static void changes_nothing(trib_dtype dtype, trib_reduce reduce)
{
    const trib_kernels *kernels = trib_kernels_by_name("scalar");
    const uint64_t neutral = trib_sum_neutral(dtype, reduce);
    for (uint32_t i = 0; i < 2000; i++) {
        const uint64_t before = pattern(dtype, i);
        uint64_t sum[2] = {0}, after = 0;
        if (is_nan(dtype, before)) {
            continue;
        }
        kernels->combine(dtype, reduce, sum, &before, TRIB_FORM_WIRE, &neutral, TRIB_FORM_WIRE, 1);
        kernels->finish(dtype, reduce, &after, sum, TRIB_FORM_ACC, 1, 1);
        if (memcmp(&before, &after, trib_dtype_size(dtype)) != 0) {
            fail_msg("dtype %d, reduce %d: %llx became %llx", (int)dtype, (int)reduce, (unsigned long long)before,
                     (unsigned long long)after);
        }
    }
}

static void neutral_elements_change_nothing(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < TRIB_DTYPE_COUNT; dtype++) {
        for (int reduce = 0; reduce < TRIB_REDUCE_COUNT; reduce++) {
            if (trib_reduce_suits((trib_dtype)dtype, (trib_reduce)reduce)) {
                changes_nothing((trib_dtype)dtype, (trib_reduce)reduce);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(neutral_elements_change_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

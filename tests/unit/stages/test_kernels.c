/*
 * test_kernels.c - every kernel gives the reference's bits on every implementation that this processor runs. The
 * reference is written in another way (kernels_reference.h). The tests take all types, operations and forms, special
 * values, counts around the sizes of vectors, misaligned buffers and buffers in place, with canaries around the
 * output.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "stages/kernels/kernels.h"
#include "tests/unit/stages/kernels_reference.h"

#define COUNT_MAX 1100
#define BYTES_MAX (COUNT_MAX * 8)
#define GUARD 64
#define CANARY 0xa5

/* Room for a buffer at any misalignment, with canaries before and after it. */
typedef struct guarded {
    unsigned char bytes[GUARD + 64 + BYTES_MAX + GUARD];
} guarded;

static const size_t counts[] = {0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 129, 256, 511, COUNT_MAX};
static const size_t misalignments[] = {0, 1, 6, 16, 63};
static const uint32_t contributor_counts[] = {1,     2,     3,          7,          10,         255,       256,
                                              65535, 65537, 0x7fffffff, 0x80000000, 0x80000001, 0xffffffff};

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static uint64_t random_next(uint64_t *state)
{
    /* splitmix64 */
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Returns zeros, the ends of the denormals and of the normals, 1, infinity or NaNs of both kinds, with either sign. */
static uint64_t special_float(const ref_type *type, uint64_t random)
{
    const uint64_t sign = random & 1 ? ref_sign_bit(type) : 0;
    const uint64_t one = (uint64_t)1 << type->fraction_bits;
    const uint64_t infinity = ref_infinity(type);
    const uint64_t specials[] = {0,
                                 1,
                                 one - 1,
                                 one,
                                 (uint64_t)type->bias << type->fraction_bits,
                                 infinity - 1,
                                 infinity,
                                 infinity | 1,
                                 ref_nan(type),
                                 ref_nan(type) | (random >> 8 & (one - 1))};
    return sign | specials[(random >> 1 & 0x7f) % LENGTH(specials)];
}

/* Returns small numbers and the ends of the range. */
static uint64_t special_integer(const ref_type *type, uint64_t random)
{
    const uint64_t specials[] = {0, 1, 2, 100, ref_sign_bit(type) - 1, ref_sign_bit(type) - 2};
    const uint64_t bits = specials[(random >> 1 & 0x7f) % LENGTH(specials)];
    return random & 1 ? ~bits : bits;
}

static uint64_t special_bits(const ref_type *type, uint64_t random)
{
    return type == &ref_types[TRIB_BOOL] ? random & 1
           : type->is_float              ? special_float(type, random)
                                         : special_integer(type, random);
}

/* Returns numbers near 1 in magnitude, where sums of floats cancel and round. */
static uint64_t moderate_bits(const ref_type *type, uint64_t random)
{
    if (!type->is_float) {
        return random & (type == &ref_types[TRIB_BOOL] ? 1 : 0x3f);
    }
    const uint64_t fraction = random & (((uint64_t)1 << type->fraction_bits) - 1);
    const uint64_t exponent = (uint64_t)type->bias - 4 + (random >> 60 & 7);
    const uint64_t sign = random >> 59 & 1 ? ref_sign_bit(type) : 0;
    return sign | exponent << type->fraction_bits | fraction;
}

static void fill(const ref_type *type, unsigned char *at, size_t count, uint64_t *state)
{
    for (size_t i = 0; i < count; i++) {
        const uint64_t kind = random_next(state) % 3;
        const uint64_t random = random_next(state) & (type == &ref_types[TRIB_BOOL] ? 1 : UINT64_MAX);
        const uint64_t bits = kind == 0 ? special_bits(type, random) : kind == 1 ? moderate_bits(type, random) : random;
        ref_store(type, at + i * type->bytes, bits);
    }
}

static unsigned char *guard(guarded *buffer, size_t misalignment)
{
    memset(buffer->bytes, CANARY, sizeof(buffer->bytes));
    return buffer->bytes + GUARD + misalignment;
}

static bool is_untouched(const unsigned char *at, size_t size)
{
    return at[0] == CANARY && memcmp(at, at + 1, size - 1) == 0;
}

static void assert_guarded(const guarded *buffer, size_t misalignment, size_t bytes)
{
    const size_t end = GUARD + misalignment + bytes;
    if (is_untouched(buffer->bytes, GUARD + misalignment) &&
        is_untouched(buffer->bytes + end, sizeof(buffer->bytes) - end)) {
        return;
    }
    for (size_t i = 0; i < sizeof(buffer->bytes); i++) {
        if ((i < GUARD + misalignment || i >= end) && buffer->bytes[i] != CANARY) {
            fail_msg("byte %zd from the start, %zd from the end of the buffer was written",
                     (ptrdiff_t)(i - GUARD - misalignment), (ptrdiff_t)(i - end));
        }
    }
}

static void assert_same(const char *what, const trib_kernels *kernels, trib_dtype dtype, trib_reduce reduce,
                        const unsigned char *got, const unsigned char *wanted, size_t count, const ref_type *type)
{
    for (size_t i = 0; i < count; i++) {
        const uint64_t a = ref_load(type, got + i * type->bytes);
        const uint64_t b = ref_load(type, wanted + i * type->bytes);
        if (a != b) {
            fail_msg("%s %s dtype %d reduce %d: element %zu of %zu is %#llx, should be %#llx", what, kernels->name,
                     (int)dtype, (int)reduce, i, count, (unsigned long long)a, (unsigned long long)b);
        }
    }
}

/* ---- Combining --------------------------------------------------------------------------------------------------- */

typedef enum place { PLACE_APART, PLACE_LEFT, PLACE_RIGHT, PLACE_COUNT } place;

/* Checks one call. `where` names the operand that the destination is, if that operand is in accumulator form. */
static void check_combine(const trib_kernels *kernels, trib_dtype dtype, trib_reduce reduce, trib_form left_form,
                          trib_form right_form, place where, size_t count, size_t misalignment, uint64_t *state)
{
    static guarded dst_buffer, left_buffer, right_buffer;
    static unsigned char wanted[BYTES_MAX];
    const ref_type *acc = ref_form_type(dtype, reduce, TRIB_FORM_ACC);
    const ref_type *left_type = ref_form_type(dtype, reduce, left_form);
    const ref_type *right_type = ref_form_type(dtype, reduce, right_form);
    unsigned char *dst = guard(&dst_buffer, misalignment);
    unsigned char *left = guard(&left_buffer, (misalignment * 3) % 64);
    unsigned char *right = guard(&right_buffer, (misalignment * 5) % 64);

    if (where == PLACE_LEFT) {
        left = dst;
    } else if (where == PLACE_RIGHT) {
        right = dst;
    }
    fill(left_type, left, count, state);
    fill(right_type, right, count, state);
    ref_combine(dtype, reduce, wanted, left, left_form, right, right_form, count);
    trib_kernel_combine(kernels, dtype, reduce, dst, left, left_form, right, right_form, count);
    assert_same("combine", kernels, dtype, reduce, dst, wanted, count, acc);
    assert_guarded(&dst_buffer, misalignment, count * acc->bytes);
}

static void check_combine_forms(const trib_kernels *kernels, trib_dtype dtype, trib_reduce reduce, size_t count,
                                size_t misalignment, uint64_t *state)
{
    const bool is_wire = trib_acc_is_wire(dtype, reduce);
    for (int forms = 0; forms < 4; forms++) {
        const trib_form left_form = forms & 1 ? TRIB_FORM_ACC : TRIB_FORM_WIRE;
        const trib_form right_form = forms & 2 ? TRIB_FORM_ACC : TRIB_FORM_WIRE;
        for (place where = PLACE_APART; where < PLACE_COUNT; where++) {
            const trib_form form = where == PLACE_LEFT ? left_form : right_form;
            if (where == PLACE_APART || is_wire || form == TRIB_FORM_ACC) {
                check_combine(kernels, dtype, reduce, left_form, right_form, where, count, misalignment, state);
            }
        }
    }
}

static void test_combine(void **unused)
{
    uint64_t state = 1;
    (void)unused;
    for (size_t k = 0; trib_kernels_at(k) != NULL; k++) {
        for (trib_dtype dtype = 0; dtype < TRIB_DTYPE_COUNT; dtype++) {
            for (trib_reduce reduce = 0; reduce < TRIB_REDUCE_COUNT; reduce++) {
                for (size_t i = 0; trib_reduce_suits(dtype, reduce) && i < LENGTH(counts) * LENGTH(misalignments);
                     i++) {
                    check_combine_forms(trib_kernels_at(k), dtype, reduce, counts[i % LENGTH(counts)],
                                        misalignments[i / LENGTH(counts)], &state);
                }
            }
        }
    }
}

/* All pairs of 16-bit floats would be too many. Each value is combined with a few others, both ways round, in every
 * operation. */
static void test_combine_every_16_bit_value(void **unused)
{
    static const uint16_t others[] = {0x0000, 0x8000, 0x0001, 0x83ff, 0x3c00, 0xbc01, 0x7bff, 0x7c00,
                                      0xfc00, 0x7c01, 0x3f80, 0xff7f, 0x7f80, 0xff80, 0x7fc0, 0x0080};
    static unsigned char values[65536 * 2], other[65536 * 2], got[65536 * 4], swapped[65536 * 4], wanted[65536 * 4];
    (void)unused;
    for (size_t i = 0; i < 65536; i++) {
        ref_store(&ref_types[TRIB_FLOAT16], values + i * 2, i);
    }
    for (size_t call = 0; call < LENGTH(others) * 2 * 3; call++) {
        static const trib_reduce reduces[] = {TRIB_SUM, TRIB_MIN, TRIB_MAX};
        const trib_dtype dtype = call % 2 ? TRIB_FLOAT16 : TRIB_BFLOAT16;
        const trib_reduce reduce = reduces[call / 2 % 3];
        for (size_t i = 0; i < 65536; i++) {
            ref_store(&ref_types[dtype], other + i * 2, others[call / 6]);
        }
        ref_combine(dtype, reduce, wanted, values, TRIB_FORM_WIRE, other, TRIB_FORM_WIRE, 65536);
        for (size_t k = 0; trib_kernels_at(k) != NULL; k++) {
            const trib_kernels *kernels = trib_kernels_at(k);
            const ref_type *acc = ref_form_type(dtype, reduce, TRIB_FORM_ACC);
            trib_kernel_combine(kernels, dtype, reduce, got, values, TRIB_FORM_WIRE, other, TRIB_FORM_WIRE, 65536);
            trib_kernel_combine(kernels, dtype, reduce, swapped, other, TRIB_FORM_WIRE, values, TRIB_FORM_WIRE, 65536);
            assert_same("every value", kernels, dtype, reduce, got, wanted, 65536, acc);
            assert_same("swapped", kernels, dtype, reduce, swapped, wanted, 65536, acc);
        }
    }
}

/* Every pair of 8-bit floats, in every operation; then the result is rounded. */
static void test_every_pair_of_8_bit_floats(void **unused)
{
    static const trib_reduce reduces[] = {TRIB_SUM, TRIB_PRODUCT, TRIB_MIN, TRIB_MAX, TRIB_AVG};
    static unsigned char left[65536], right[65536], got[65536 * 4], wanted[65536 * 4];
    (void)unused;
    for (size_t i = 0; i < 65536; i++) {
        left[i] = (unsigned char)i;
        right[i] = (unsigned char)(i >> 8);
    }
    for (size_t call = 0; call < LENGTH(reduces) * 2; call++) {
        const trib_dtype dtype = call % 2 ? TRIB_FLOAT8_E4M3 : TRIB_FLOAT8_E5M2;
        const trib_reduce reduce = reduces[call / 2];
        for (size_t k = 0; trib_kernels_at(k) != NULL; k++) {
            const trib_kernels *kernels = trib_kernels_at(k);
            ref_combine(dtype, reduce, wanted, left, TRIB_FORM_WIRE, right, TRIB_FORM_WIRE, 65536);
            trib_kernel_combine(kernels, dtype, reduce, got, left, TRIB_FORM_WIRE, right, TRIB_FORM_WIRE, 65536);
            assert_same("every pair", kernels, dtype, reduce, got, wanted, 65536,
                        ref_form_type(dtype, reduce, TRIB_FORM_ACC));
            ref_finish(dtype, reduce, wanted, wanted, TRIB_FORM_ACC, 65536, 3);
            trib_kernel_finish(kernels, dtype, reduce, got, got, TRIB_FORM_ACC, 65536, 3);
            assert_same("rounded", kernels, dtype, reduce, got, wanted, 65536, &ref_types[dtype]);
        }
    }
}

/* ---- Finishing --------------------------------------------------------------------------------------------------- */

static void check_finish(const trib_kernels *kernels, trib_dtype dtype, trib_reduce reduce, trib_form form,
                         bool in_place, size_t count, uint32_t contributors, size_t misalignment, uint64_t *state)
{
    static guarded dst_buffer, src_buffer;
    static unsigned char wanted[BYTES_MAX];
    const ref_type *wire = &ref_types[dtype];
    const ref_type *type = ref_form_type(dtype, reduce, form);
    unsigned char *dst = guard(&dst_buffer, misalignment);
    unsigned char *src = in_place ? dst : guard(&src_buffer, (misalignment * 3) % 64);

    fill(type, src, count, state);
    ref_finish(dtype, reduce, wanted, src, form, count, contributors);
    trib_kernel_finish(kernels, dtype, reduce, dst, src, form, count, contributors);
    assert_same("finish", kernels, dtype, reduce, dst, wanted, count, wire);
    assert_guarded(&dst_buffer, misalignment, count * (in_place ? type->bytes : wire->bytes));
}

static void test_finish(void **unused)
{
    uint64_t state = 2;
    (void)unused;
    for (size_t k = 0; trib_kernels_at(k) != NULL; k++) {
        for (unsigned kind = 0; kind < TRIB_DTYPE_COUNT * TRIB_REDUCE_COUNT * 4; kind++) {
            const trib_dtype dtype = kind % TRIB_DTYPE_COUNT;
            const trib_reduce reduce = kind / TRIB_DTYPE_COUNT % TRIB_REDUCE_COUNT;
            const trib_form form = kind / (TRIB_DTYPE_COUNT * TRIB_REDUCE_COUNT) % 2 ? TRIB_FORM_ACC : TRIB_FORM_WIRE;
            const bool in_place = kind / (TRIB_DTYPE_COUNT * TRIB_REDUCE_COUNT * 2) != 0;
            for (size_t i = 0; trib_reduce_suits(dtype, reduce) && i < LENGTH(counts) * LENGTH(contributor_counts);
                 i++) {
                check_finish(trib_kernels_at(k), dtype, reduce, form, in_place, counts[i % LENGTH(counts)],
                             contributor_counts[i / LENGTH(counts)], misalignments[i % LENGTH(misalignments)], &state);
            }
        }
    }
}

/* Every 8-bit and 16-bit value survives the way to float32 and back. Between neighbours, the middle and the values next
 * to it round correctly. */
static void test_finish_rounds_to_nearest_even(void **unused)
{
    enum { POINTS = 4, COUNT = 65536 * POINTS };
    static unsigned char src[COUNT * 4], got[COUNT * 2], wanted[COUNT * 2];
    (void)unused;
    static const trib_dtype dtypes[] = {TRIB_FLOAT16, TRIB_BFLOAT16, TRIB_FLOAT8_E4M3, TRIB_FLOAT8_E5M2};
    for (size_t d = 0; d < LENGTH(dtypes); d++) {
        const trib_dtype dtype = dtypes[d];
        const ref_type *type = &ref_types[dtype];
        const uint64_t values = UINT64_C(1) << 8 * type->bytes, sign_bit = ref_sign_bit(type);
        for (uint64_t bits = 0; bits < values; bits++) {
            const uint64_t magnitude = bits & (sign_bit - 1);
            const double sign = bits & sign_bit ? -1.0 : 1.0;
            const double middle = (ref_magnitude(type, magnitude) + ref_magnitude(type, magnitude + 1)) / 2;
            const float points[POINTS] = {(float)ref_float(type, bits), (float)(sign * middle),
                                          nextafterf((float)(sign * middle), 0.0f),
                                          nextafterf((float)(sign * middle), (float)sign * HUGE_VALF)};
            memcpy(src + bits * sizeof(points), points, sizeof(points));
        }
        ref_finish(dtype, TRIB_SUM, wanted, src, TRIB_FORM_ACC, values * POINTS, 2);
        for (size_t k = 0; trib_kernels_at(k) != NULL; k++) {
            trib_kernel_finish(trib_kernels_at(k), dtype, TRIB_SUM, got, src, TRIB_FORM_ACC, values * POINTS, 2);
            assert_same("rounding", trib_kernels_at(k), dtype, TRIB_SUM, got, wanted, values * POINTS, type);
        }
        for (uint64_t bits = 0; bits < values; bits++) {
            const uint64_t expected = isnan(ref_float(type, bits)) ? ref_nan(type) : bits;
            assert_int_equal(ref_load(type, got + bits * POINTS * type->bytes), expected);
        }
    }
}

/* Known results, computed by hand, so that kernels and reference cannot be wrong in the same way. */
static void test_known_results(void **unused)
{
    static const uint32_t floats[] = {0x3f800000, 0x477fefff, 0x477ff000, 0x33000000,
                                      0x33000001, 0x38ffffff, 0xff800001};
    static const uint16_t halves[] = {0x3c00, 0x7bff, 0x7c00, 0x0000, 0x0001, 0x0800, 0x7e00};
    static const uint16_t brains[] = {0x3f80, 0x4780, 0x4780, 0x3300, 0x3300, 0x3900, 0x7fc0};
    /* OCP's E4M3 and E5M2: 448 and 57344 are the largest, 464 and 61440 the first ties beyond */
    static const float large[] = {448, 464, 465, -465, 57344, 61439, -61440, 0x1p-9f, 0x1p-10f, -0x1.8p-10f, 1.0625f};
    static const uint8_t e4m3[] = {0x7e, 0x7e, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x01, 0x00, 0x81, 0x38};
    static const uint8_t e5m2[] = {0x5f, 0x5f, 0x5f, 0xdf, 0x7b, 0x7b, 0xfc, 0x18, 0x14, 0x96, 0x3c};
    static const int32_t sums[] = {-7, 7, -1, 381};
    static const int8_t averages[] = {-2, 2, 0, 127};
    const float zeros[] = {-0.0f, 0.0f};
    const float swapped[] = {0.0f, -0.0f};
    (void)unused;
    for (size_t k = 0; trib_kernels_at(k) != NULL; k++) {
        const trib_kernels *kernels = trib_kernels_at(k);
        uint16_t rounded[LENGTH(floats)];
        int8_t divided[LENGTH(sums)];
        float extreme[2];
        trib_kernel_finish(kernels, TRIB_FLOAT16, TRIB_SUM, rounded, floats, TRIB_FORM_ACC, LENGTH(floats), 2);
        assert_memory_equal(rounded, halves, sizeof(halves));
        trib_kernel_finish(kernels, TRIB_BFLOAT16, TRIB_SUM, rounded, floats, TRIB_FORM_ACC, LENGTH(floats), 2);
        assert_memory_equal(rounded, brains, sizeof(brains));
        uint8_t small[LENGTH(large)];
        trib_kernel_finish(kernels, TRIB_FLOAT8_E4M3, TRIB_SUM, small, large, TRIB_FORM_ACC, LENGTH(large), 2);
        assert_memory_equal(small, e4m3, sizeof(e4m3));
        trib_kernel_finish(kernels, TRIB_FLOAT8_E5M2, TRIB_SUM, small, large, TRIB_FORM_ACC, LENGTH(large), 2);
        assert_memory_equal(small, e5m2, sizeof(e5m2));
        trib_kernel_finish(kernels, TRIB_INT8, TRIB_AVG, divided, sums, TRIB_FORM_ACC, LENGTH(sums), 3);
        assert_memory_equal(divided, averages, sizeof(averages));
        trib_kernel_combine(kernels, TRIB_FLOAT32, TRIB_MIN, extreme, zeros, TRIB_FORM_WIRE, swapped, TRIB_FORM_WIRE,
                            2);
        assert_true(signbit(extreme[0]) && signbit(extreme[1]));
        trib_kernel_combine(kernels, TRIB_FLOAT32, TRIB_MAX, extreme, zeros, TRIB_FORM_WIRE, swapped, TRIB_FORM_WIRE,
                            2);
        assert_true(!signbit(extreme[0]) && !signbit(extreme[1]));
    }
}

/* ---- Trees ------------------------------------------------------------------------------------------------------- */

enum { TREE_RANKS = 13, TREE_COUNT = 203 };

/* Combines ranks first..first+ranks-1 into dst, in accumulator form; scratch holds a buffer for each level below. */
static void sum_tree(const trib_kernels *kernels, trib_dtype dtype, trib_reduce reduce,
                     unsigned char contributions[TREE_RANKS][TREE_COUNT * 8], size_t first, size_t ranks,
                     unsigned char *dst, unsigned char *scratch)
{
    const size_t half = ranks / 2;
    const unsigned char *left = contributions[first];
    const unsigned char *right = contributions[first + half];
    trib_form left_form = TRIB_FORM_WIRE;
    trib_form right_form = TRIB_FORM_WIRE;
    if (half > 1) {
        sum_tree(kernels, dtype, reduce, contributions, first, half, dst, scratch);
        left = dst;
        left_form = TRIB_FORM_ACC;
    }
    if (ranks - half > 1) {
        sum_tree(kernels, dtype, reduce, contributions, first + half, ranks - half, scratch,
                 scratch + (size_t)TREE_COUNT * 8);
        right = scratch;
        right_form = TRIB_FORM_ACC;
    }
    if (kernels == NULL) {
        ref_combine(dtype, reduce, dst, left, left_form, right, right_form, TREE_COUNT);
    } else {
        trib_kernel_combine(kernels, dtype, reduce, dst, left, left_form, right, right_form, TREE_COUNT);
    }
}

/* A whole round, computed as on a server, gives the reference's bits on every implementation, for any number of
 * ranks. */
static void test_trees_agree(void **unused)
{
    static unsigned char contributions[TREE_RANKS][TREE_COUNT * 8];
    static unsigned char wanted[TREE_COUNT * 8], got[TREE_COUNT * 8], scratch[TREE_RANKS][TREE_COUNT * 8];
    uint64_t state = 3;
    (void)unused;
    for (unsigned kind = 0; kind < TRIB_DTYPE_COUNT * TRIB_REDUCE_COUNT * (TREE_RANKS - 1); kind++) {
        const trib_dtype dtype = kind % TRIB_DTYPE_COUNT;
        const trib_reduce reduce = kind / TRIB_DTYPE_COUNT % TRIB_REDUCE_COUNT;
        const uint32_t ranks = 2 + kind / (TRIB_DTYPE_COUNT * TRIB_REDUCE_COUNT);
        if (!trib_reduce_suits(dtype, reduce)) {
            continue;
        }
        for (size_t rank = 0; rank < ranks; rank++) {
            fill(&ref_types[dtype], contributions[rank], TREE_COUNT, &state);
        }
        sum_tree(NULL, dtype, reduce, contributions, 0, ranks, wanted, scratch[0]);
        ref_finish(dtype, reduce, wanted, wanted, TRIB_FORM_ACC, TREE_COUNT, ranks);
        for (size_t k = 0; trib_kernels_at(k) != NULL; k++) {
            const trib_kernels *kernels = trib_kernels_at(k);
            sum_tree(kernels, dtype, reduce, contributions, 0, ranks, got, scratch[0]);
            trib_kernel_finish(kernels, dtype, reduce, got, got, TRIB_FORM_ACC, TREE_COUNT, ranks);
            assert_same("tree", kernels, dtype, reduce, got, wanted, TREE_COUNT, &ref_types[dtype]);
        }
    }
}

/* ---- Choosing ---------------------------------------------------------------------------------------------------- */

static void test_choice(void **unused)
{
    size_t count = 0;
    (void)unused;
    while (trib_kernels_at(count) != NULL) {
        const trib_kernels *kernels = trib_kernels_at(count);
        assert_ptr_equal(trib_kernels_by_name(kernels->name), kernels);
        count++;
    }
    assert_true(count >= 1);
    assert_null(trib_kernels_at(count + 1));
    assert_ptr_equal(trib_kernels_best(), trib_kernels_at(count - 1));
    assert_string_equal(trib_kernels_at(0)->name, "scalar");
    assert_null(trib_kernels_by_name(""));
    assert_null(trib_kernels_by_name("avx"));
}

static void test_accumulators(void **unused)
{
    static const unsigned char sizes[TRIB_DTYPE_COUNT][TRIB_REDUCE_COUNT] = {
        [TRIB_FLOAT32] = {4, 4, 4, 4, 4},        [TRIB_FLOAT64] = {8, 8, 8, 8, 8},
        [TRIB_FLOAT16] = {4, 4, 2, 2, 4},        [TRIB_BFLOAT16] = {4, 4, 2, 2, 4},
        [TRIB_FLOAT8_E4M3] = {4, 4, 1, 1, 4},    [TRIB_FLOAT8_E5M2] = {4, 4, 1, 1, 4},
        [TRIB_INT8] = {1, 4, 1, 1, 1, 1, 1, 1},  [TRIB_UINT8] = {1, 4, 1, 1, 1, 1, 1, 1},
        [TRIB_INT16] = {2, 4, 2, 2, 2, 2, 2, 2}, [TRIB_UINT16] = {2, 4, 2, 2, 2, 2, 2, 2},
        [TRIB_INT32] = {4, 8, 4, 4, 4, 4, 4, 4}, [TRIB_UINT32] = {4, 8, 4, 4, 4, 4, 4, 4},
        [TRIB_INT64] = {8, 8, 8, 8, 8, 8, 8, 8}, [TRIB_UINT64] = {8, 8, 8, 8, 8, 8, 8, 8},
        [TRIB_BOOL] = {1, 0, 1, 1, 1, 1, 1, 1},
    };
    (void)unused;
    for (trib_dtype dtype = 0; dtype < TRIB_DTYPE_COUNT; dtype++) {
        for (trib_reduce reduce = 0; reduce < TRIB_REDUCE_COUNT; reduce++) {
            assert_int_equal(trib_reduce_suits(dtype, reduce), sizes[dtype][reduce] > 0);
            if (trib_reduce_suits(dtype, reduce)) {
                assert_int_equal(trib_acc_size(dtype, reduce), sizes[dtype][reduce]);
                assert_int_equal(trib_acc_is_wire(dtype, reduce), sizes[dtype][reduce] == trib_dtype_size(dtype));
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_combine),
        cmocka_unit_test(test_combine_every_16_bit_value),
        cmocka_unit_test(test_finish),
        cmocka_unit_test(test_finish_rounds_to_nearest_even),
        cmocka_unit_test(test_known_results),
        cmocka_unit_test(test_trees_agree),
        cmocka_unit_test(test_choice),
        cmocka_unit_test(test_accumulators),
        cmocka_unit_test(test_every_pair_of_8_bit_floats),
    };
    return cmocka_run_group_tests_name("kernels", tests, NULL, NULL);
}

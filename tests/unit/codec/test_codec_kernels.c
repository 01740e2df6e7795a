/* test_codec_kernels.c - each implementation of the codecs' kernels gives the bits of the one for every processor. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <string.h>

#include "engine/codec/kernels/codec_kernels.h"

#define COUNT 1500u
#define LENGTHS 67u /* from 0 on, so that each tail is met; then COUNT */

/* Floats of all kinds, one byte from any alignment; doubles' bits, where these are wanted, are as wild. */
typedef struct inputs {
    unsigned char room[COUNT * 8 + 1];
    uint64_t draws[COUNT];
} inputs;

static uint64_t state_of_draws = 88172645463325252u;

static uint64_t draw(void)
{
    state_of_draws ^= state_of_draws << 13;
    state_of_draws ^= state_of_draws >> 7;
    return state_of_draws ^= state_of_draws << 17;
}

static void fill(inputs *bed)
{
    static const uint32_t special[] = {0,          0x80000000, 1,          0x807fffff, 0x00800000,
                                       0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000,
                                       0xffa00001, 0x33000000, 0x33000001, 0x477fefff, 0x477ff000,
                                       0x387fc000, 0x38800000, 0x3a000000, 0xb6800000, 0x43e80000};
    for (size_t i = 0; i < COUNT * 2; i++) {
        const uint64_t number = draw();
        uint32_t bits = (uint32_t)number;
        if (number >> 60 < 4) {
            bits = special[(number >> 32) % (sizeof special / sizeof special[0])];
        } else if (number >> 60 < 12) { /* around 1 */
            bits = (bits & 0x83ffffff) + 0x3c000000;
        }
        memcpy(bed->room + 1 + i * 4, &bits, 4);
    }
    for (size_t i = 0; i < COUNT; i++) {
        bed->draws[i] = i % 50 == 0 ? UINT64_MAX - i : draw();
    }
}

typedef void run(const codec_kernels *kernels, const inputs *bed, void *to, size_t count);

static void run_f16(const codec_kernels *kernels, const inputs *bed, void *to, size_t count)
{
    kernels->f32_to_f16(to, bed->room + 1, count);
}

static void run_from_f16(const codec_kernels *kernels, const inputs *bed, void *to, size_t count)
{
    kernels->f16_to_f32(to, bed->room + 1, count);
}

static void run_bf16(const codec_kernels *kernels, const inputs *bed, void *to, size_t count)
{
    kernels->f32_to_bf16(to, bed->room + 1, count);
}

static void run_from_bf16(const codec_kernels *kernels, const inputs *bed, void *to, size_t count)
{
    kernels->bf16_to_f32(to, bed->room + 1, count);
}

static void run_e4m3(const codec_kernels *kernels, const inputs *bed, void *to, size_t count)
{
    kernels->f32_to_e4m3(to, bed->room + 1, count, 0x1p3f);
}

static void run_from_e4m3(const codec_kernels *kernels, const inputs *bed, void *to, size_t count)
{
    kernels->e4m3_to_f32(to, bed->room + 1, count, 0x1p120f);
}

static void run_e5m2(const codec_kernels *kernels, const inputs *bed, void *to, size_t count)
{
    kernels->f32_to_e5m2(to, bed->room + 1, count, 0x1p-2f);
}

static void run_from_e5m2(const codec_kernels *kernels, const inputs *bed, void *to, size_t count)
{
    kernels->e5m2_to_f32(to, bed->room + 1, count, 0x1p-126f);
}

static void run_int8(const codec_kernels *kernels, const inputs *bed, void *to, size_t count)
{
    static float small[COUNT];
    for (size_t i = 0; i < count; i++) { /* the largest magnitude found so far */
        memcpy(&small[i], bed->room + 1 + i * 4, 4);
        small[i] = small[i] > 2 || small[i] < -2 ? (float)i / 1024 : small[i];
    }
    const codec_draws draws = {.key = {0x12345678, 0x9abcdef0}, .first = UINT32_MAX - 5};
    kernels->f32_to_int8(to, small, count, 63.5f, &draws);
}

static void run_from_int8(const codec_kernels *kernels, const inputs *bed, void *to, size_t count)
{
    kernels->int8_to_f32(to, bed->room + 1, count, 0x1.fp120f);
}

static void run_int16(const codec_kernels *kernels, const inputs *bed, void *to, size_t count)
{
    static float small[COUNT];
    for (size_t i = 0; i < count; i++) {
        memcpy(&small[i], bed->room + 1 + i * 4, 4);
        small[i] = small[i] > 2 || small[i] < -2 ? (float)i / 1024 : small[i];
    }
    kernels->f32_to_int16(to, small, count, 16383.5f);
}

static void run_from_int16(const codec_kernels *kernels, const inputs *bed, void *to, size_t count)
{
    kernels->int16_to_f32(to, bed->room + 1, count, 0x1p113f);
}

static void run_add(const codec_kernels *kernels, const inputs *bed, void *to, size_t count)
{
    memcpy(to, bed->draws, count * 4);
    kernels->add_f32(to, bed->room + 1, count);
}

static void run_largest(const codec_kernels *kernels, const inputs *bed, void *to, size_t count)
{
    const uint32_t found[] = {kernels->largest_finite(bed->room + 1, count), kernels->largest(bed->room + 1, count)};
    memcpy(to, found, sizeof found);
}

static void run_signs(const codec_kernels *kernels, const inputs *bed, void *to, size_t count)
{
    unsigned char *at = to;
    kernels->signs_16(at, bed->room + 1, count / 16, 0x7c00);
    kernels->signs_32(at + 1000, bed->room + 1, count / 32, CODEC_F32_INFINITY);
    kernels->signs_64(at + 2000, bed->room + 1, count / 64, 0x7ff0000000000000u);
}

static void run_spread(const codec_kernels *kernels, const inputs *bed, void *to, size_t count)
{
    kernels->spread_16(to, bed->room + 1, count / 16, 0x1234);
    kernels->spread_32((uint32_t *)to + COUNT / 2, bed->room + 1, count / 64, 0x12345678);
    kernels->spread_64((uint64_t *)to + COUNT / 2, bed->room + 1, count / 128, 0x123456789abcdef0u);
}

static void run_screen(const codec_kernels *kernels, const inputs *bed, void *to, size_t count)
{
    uint64_t *found = to;
    const size_t blocks = count / CODEC_SCREEN_BLOCK;
    for (size_t i = 0; i < blocks; i++) {
        found[i] = kernels->screen_16(bed->room + 1, i, blocks, 0x7e00) << 40 |
                   kernels->screen_32(bed->room + 1, i, blocks, 0x7f000000) << 20 |
                   kernels->screen_64(bed->room + 1, i, blocks, 0x7f00000000000000u);
    }
}

static void run_dither(const codec_kernels *kernels, const inputs *bed, void *to, size_t count)
{
    static float small[COUNT];
    for (size_t i = 0; i < count; i++) {
        memcpy(&small[i], bed->room + 1 + i * 4, 4);
        small[i] = small[i] > 2 || small[i] < -2 || small[i] != small[i] ? (float)(i % 300) / 256 : small[i];
    }
    kernels->dither_linear(to, small, count, 2, 127, bed->draws);
    kernels->dither_natural((uint32_t *)to + COUNT, small, count, 2.5, 1u << 9, bed->draws);
}

static void test_implementations_agree(void **state)
{
    (void)state;
    static run *const runs[] = {run_f16,  run_from_f16,  run_bf16,  run_from_bf16, run_e4m3,   run_from_e4m3,
                                run_e5m2, run_from_e5m2, run_int8,  run_from_int8, run_int16,  run_from_int16,
                                run_add,  run_largest,   run_signs, run_spread,    run_screen, run_dither};
    static inputs bed;
    static uint64_t expected[COUNT * 2], found[COUNT * 2];
    fill(&bed);
    assert_string_equal(trib_codec_kernels_at(0)->name, "scalar");
    for (size_t k = 1; trib_codec_kernels_at(k) != NULL; k++) {
        print_message("# %s\n", trib_codec_kernels_at(k)->name);
        for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
            for (size_t length = 0; length <= LENGTHS; length++) {
                const size_t count = length == LENGTHS ? COUNT : length;
                memset(expected, 0x55, sizeof expected);
                memset(found, 0x55, sizeof found);
                runs[i](trib_codec_kernels_at(0), &bed, expected, count);
                runs[i](trib_codec_kernels_at(k), &bed, found, count);
                assert_memory_equal(expected, found, sizeof found);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_implementations_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

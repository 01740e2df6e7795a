/*
 * test_crc32c.c - every implementation of the CRC32C that this processor runs gives the published values, and those of
 * a reference that works bit by bit: at lengths around the blocks of the lanes, at every misalignment, and for every
 * bit that flips.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "stages/kernels/crc32c.h"

#define POLYNOMIAL 0x82f63b78u /* 1EDC6F41, its bits reflected */
#define SHORT_BLOCK 768u
#define LONG_BLOCK 12288u
#define SIZE_MOST (2u * LONG_BLOCK + 2u * SHORT_BLOCK + 64u)

static uint32_t reference(const unsigned char *at, size_t size)
{
    uint32_t sum = UINT32_MAX;
    for (size_t i = 0; i < size; i++) {
        sum ^= at[i];
        for (int bit = 0; bit < 8; bit++) {
            sum = (sum & 1) != 0 ? sum >> 1 ^ POLYNOMIAL : sum >> 1;
        }
    }
    return ~sum;
}

static unsigned char *random_bytes(size_t size)
{
    unsigned char *bytes = malloc(size);
    assert_non_null(bytes);
    uint64_t state = 88172645463325252u;
    for (size_t i = 0; i < size; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes[i] = (unsigned char)(state >> 32);
    }
    return bytes;
}

/* The values of RFC 3720, appendix B.4, and the usual check value. */
static void published_values(void **state)
{
    (void)state;
    unsigned char zeros[32] = {0}, ones[32], up[32], down[32];
    memset(ones, 0xff, sizeof ones);
    for (unsigned char i = 0; i < 32; i++) {
        up[i] = i;
        down[i] = (unsigned char)(31 - i);
    }
    for (size_t i = 0; trib_crc32c_at(i) != NULL; i++) {
        const trib_crc32c *crc = trib_crc32c_at(i);
        assert_int_equal(crc->compute(zeros, 32), 0x8a9136aau);
        assert_int_equal(crc->compute(ones, 32), 0x62a8ab43u);
        assert_int_equal(crc->compute(up, 32), 0x46dd794eu);
        assert_int_equal(crc->compute(down, 32), 0x113fdb5cu);
        assert_int_equal(crc->compute("123456789", 9), 0xe3069283u);
        assert_int_equal(crc->compute(NULL, 0), 0);
    }
}

static void every_length_and_misalignment(void **state)
{
    (void)state;
    unsigned char *bytes = random_bytes(SIZE_MOST + 8);
    static const size_t around[] = {
        0, SHORT_BLOCK, 2 * SHORT_BLOCK, LONG_BLOCK, LONG_BLOCK + SHORT_BLOCK, 2 * LONG_BLOCK + SHORT_BLOCK};
    for (size_t k = 0; k < sizeof around / sizeof around[0]; k++) {
        for (size_t size = around[k] > 20 ? around[k] - 20 : 0; size < around[k] + 20; size++) {
            const size_t shift = size % 8;
            const uint32_t expected = reference(bytes + shift, size);
            for (size_t i = 0; trib_crc32c_at(i) != NULL; i++) {
                assert_int_equal(trib_crc32c_at(i)->compute(bytes + shift, size), expected);
            }
        }
    }
    free(bytes);
}

static void every_flipped_bit(void **state)
{
    (void)state;
    const size_t size = SHORT_BLOCK + 13;
    unsigned char *bytes = random_bytes(size);
    for (size_t i = 0; trib_crc32c_at(i) != NULL; i++) {
        const trib_crc32c *crc = trib_crc32c_at(i);
        const uint32_t whole = crc->compute(bytes, size);
        for (size_t bit = 0; bit < size * 8; bit++) {
            bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
            assert_int_not_equal(crc->compute(bytes, size), whole);
            bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        }
    }
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_values),
        cmocka_unit_test(every_length_and_misalignment),
        cmocka_unit_test(every_flipped_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

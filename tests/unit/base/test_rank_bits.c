/* test_rank_bits.c - sets of workers as text: runs are put together, and what does not fit is said to be there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/rank_bits.h"

static void expect(uint32_t workers, uint32_t except, uint32_t step, uint32_t first, const char *wanted)
{
    unsigned char bits[TRIB_RANK_BITS_BYTES] = {0};
    char text[TRIB_RANK_BITS_TEXT_SIZE];
    for (uint32_t rank = first; rank < workers; rank += step) {
        trib_rank_bits_put(bits, rank, true);
    }
    trib_rank_bits_describe(bits, workers, except, text);
    assert_string_equal(text, wanted);
}

static void ranks_as_text(void **state)
{
    (void)state;
    expect(8, 8, 1, 7, "rank 7");
    expect(8, 7, 1, 6, "rank 6");
    expect(8, 8, 1, 6, "ranks 6, 7");
    expect(8, 3, 1, 1, "ranks 1, 2, 4 to 7");
    expect(8, 0, 2, 0, "ranks 2, 4, 6");
    expect(TRIB_CONTRIBUTORS_MAX, 0, 1, 0, "ranks 1 to 4095");
}

static void many_ranks_are_cut(void **state)
{
    (void)state;
    unsigned char bits[TRIB_RANK_BITS_BYTES] = {0};
    char text[TRIB_RANK_BITS_TEXT_SIZE];
    for (uint32_t rank = 1000; rank < TRIB_CONTRIBUTORS_MAX; rank += 1 + rank % 4 / 3) {
        trib_rank_bits_put(bits, rank, true);
    }
    trib_rank_bits_describe(bits, TRIB_CONTRIBUTORS_MAX, 0, text);
    assert_true(strlen(text) < TRIB_RANK_BITS_TEXT_SIZE);
    assert_string_equal(text + strlen(text) - 9, " and more");
    assert_int_equal(trib_rank_bits_count(bits, 1000), 0);
    assert_int_equal(trib_rank_bits_count(bits, 1002), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_as_text),
        cmocka_unit_test(many_ranks_are_cut),
    };
    return cmocka_run_group_tests_name("rank bits", tests, NULL, NULL);
}

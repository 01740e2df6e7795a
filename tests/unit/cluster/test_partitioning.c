/* test_partitioning.c - tensors cut into slices and partitions: nothing is left out, nothing twice, no partition
 * crosses the border of a slice. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine/cluster/partitioning.h"

#define PARTITION 4096u
#define MEMBERS 4u

static trib_partitioning *cut_of(trib_layout layout, uint32_t members, const uint64_t *counts, uint32_t partition_bytes)
{
    trib_partitioning *cut = trib_partitioning_create(layout, members, counts, 4);
    assert_non_null(cut);
    trib_partitioning_divide(cut, partition_bytes);
    return cut;
}

/* The partitions of each slice lie one behind the other, and fill it. */
static void is_whole(const trib_partitioning *cut, const uint64_t *counts, uint32_t count)
{
    uint32_t partition = 0;
    uint64_t at = 0;
    assert_int_equal(cut->slice_count, count);
    for (uint32_t slice = 0; slice < count; slice++) {
        uint64_t left = counts[slice] * 4;
        assert_true(cut->slices[slice].begin == at && cut->slices[slice].bytes == left);
        for (; left > 0; partition++) {
            assert_int_equal(trib_partitioning_slice_of(cut, partition), slice);
            assert_true(trib_partitioning_offset(cut, partition) == at);
            const uint64_t size = trib_partitioning_size(cut, partition);
            assert_true(size == (left < cut->partition_bytes ? left : cut->partition_bytes));
            at += size;
            left -= size;
        }
    }
    assert_int_equal(partition, cut->partition_count);
    assert_true(cut->bytes == at);
}

static void test_slices_of_all_lengths(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {0, 1, 1023, 1024, 1025, 5003};
    enum { COUNT = sizeof lengths / sizeof lengths[0] };
    for (uint32_t seed = 0; seed < COUNT * COUNT * COUNT * COUNT; seed++) {
        uint64_t counts[MEMBERS];
        for (uint32_t i = 0, rest = seed; i < MEMBERS; i++, rest /= COUNT) {
            counts[i] = lengths[rest % COUNT];
        }
        trib_partitioning *cut = cut_of(TRIB_SLICES, MEMBERS, counts, PARTITION);
        is_whole(cut, counts, MEMBERS);
        for (uint32_t i = 0; i < MEMBERS; i++) {
            assert_true(trib_partitioning_send_bytes(cut, i) == counts[i] * 4 &&
                        trib_partitioning_recv_bytes(cut, i) == cut->bytes);
        }
        free(cut);
    }
}

static void test_pairs(void **state)
{
    (void)state;
    uint64_t counts[MEMBERS * MEMBERS];
    for (uint32_t i = 0; i < MEMBERS * MEMBERS; i++) {
        counts[i] = i % 3 == 0 ? 0 : i * 701;
    }
    trib_partitioning *cut = cut_of(TRIB_PAIRS, MEMBERS, counts, PARTITION);
    is_whole(cut, counts, MEMBERS * MEMBERS);
    for (uint32_t i = 0; i < MEMBERS; i++) {
        uint64_t given = 0, taken = 0;
        for (uint32_t j = 0; j < MEMBERS; j++) {
            given += counts[i * MEMBERS + j] * 4;
            taken += counts[j * MEMBERS + i] * 4;
        }
        assert_true(trib_partitioning_send_bytes(cut, i) == given && trib_partitioning_recv_bytes(cut, i) == taken);
    }
    free(cut);
}

/* An empty whole tensor has a partition, so that workers meet in it; empty slices have none. */
static void test_nothing(void **state)
{
    (void)state;
    static const uint64_t none[MEMBERS * MEMBERS] = {0};
    static const struct {
        trib_layout layout;
        uint32_t partitions;
    } cases[] = {{TRIB_WHOLE, 1}, {TRIB_SLICES, 0}, {TRIB_PAIRS, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        trib_partitioning *cut = cut_of(cases[i].layout, MEMBERS, none, PARTITION);
        assert_int_equal(cut->partition_count, cases[i].partitions);
        assert_true(cut->bytes == 0);
        free(cut);
    }
}

/* The limit of partitions makes them larger; the limit of bytes is an error. */
static void test_bounds(void **state)
{
    (void)state;
    const uint64_t most = TRIB_TENSOR_BYTES_MAX / 4;
    const uint64_t large[2] = {most / 2, most / 2}, larger[2] = {most / 2, most / 2 + 1},
                   wraps[2] = {1, UINT64_MAX / 4};
    trib_partitioning *cut = cut_of(TRIB_SLICES, 2, large, PARTITION);
    assert_true(cut->partition_count <= TRIB_PARTITIONS_MAX && cut->partition_bytes % PARTITION == 0);
    is_whole(cut, large, 2);
    free(cut);
    const uint64_t *const too_large[] = {larger, wraps};
    for (size_t i = 0; i < 2; i++) {
        cut = trib_partitioning_create(TRIB_SLICES, 2, too_large[i], 4);
        assert_true(cut->bytes == UINT64_MAX);
        free(cut);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slices_of_all_lengths),
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_nothing),
        cmocka_unit_test(test_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

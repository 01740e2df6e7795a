/*
 * test_summation.c - sums agree with an oracle in wide arithmetic for every type, operation and order of arrival.
 * The tests also cover failures: duplicates, mismatch, withdrawal, no memory, rounds out of turn. Every test ends
 * idle, with all blocks returned. Rounds that end without a sum are in test_summation_ends.c.
 */
#include "tests/unit/aggregate/summation_bed.h"

/* Runs a round of one chunk, in random order of arrival. */
static void run_round(uint32_t round, trib_dtype dtype, trib_reduce reduce)
{
    uint32_t order[RANKS_MAX];
    unsigned char bytes[CHUNK_BYTES];
    shuffle(order, the.n);
    for (uint32_t i = 0; i < the.n; i++) {
        const trib_contribution what = make(round, order[i], dtype, reduce);
        assert_int_equal(the.event_count, 0);
        fill_for(bytes, dtype, reduce, order[i]);
        must_give(&what, bytes);
    }
    assert_int_equal(the.event_count, the.n);
}

/* Checks that all have their sum, the bed's own worker last and the others in the order of ranks. */
static void check_round(uint32_t n, trib_dtype dtype, trib_reduce reduce)
{
    const uint32_t last = n / 2; /* the bed's own worker */
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t want = last == 0 || i + 1 < last ? i : i + 1 < n ? i + 1 : last - 1;
        assert_int_equal(the.events[i].receiver, want);
        check_sum(&the.events[i], dtype, reduce, n);
    }
    the.event_count = 0;
}

static void test_sums(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= RANKS_MAX; n++) {
        for (int order = TRIB_ORDER_RANK; order <= TRIB_ORDER_ARRIVAL; order++) {
            open_bed(n, (trib_sum_order)order);
            uint32_t round = 0;
            for (int dtype = 0; dtype < TRIB_DTYPE_COUNT; dtype++) {
                for (int reduce = 0; reduce < TRIB_REDUCE_COUNT; reduce++) {
                    for (uint32_t times = trib_reduce_suits((trib_dtype)dtype, (trib_reduce)reduce) ? 0 : 4; times < 4;
                         times++) {
                        run_round(++round, (trib_dtype)dtype, (trib_reduce)reduce);
                        check_round(n, (trib_dtype)dtype, (trib_reduce)reduce);
                    }
                }
            }
            assert_int_equal(the.charged_sum, (uint64_t)round * (n - 1) * CHUNK_BYTES);
            close_bed();
        }
    }
}

static float awkward(uint32_t rank, uint32_t index)
{
    const uint32_t mixed = (rank * 2654435761u + index * 40503u) * 2246822519u;
    return ldexpf((float)(int32_t)mixed, (int)(mixed >> 7 & 31) - 40);
}

static float tree_sum(uint32_t n, uint32_t index, uint32_t first, uint32_t width)
{
    if (width == 1) {
        return awkward(first, index);
    }
    const float left = tree_sum(n, index, first, width / 2);
    return first + width / 2 < n ? left + tree_sum(n, index, first + width / 2, width / 2) : left;
}

static void test_rank_order_bits(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= RANKS_MAX; n++) {
        open_bed(n, TRIB_ORDER_RANK);
        for (uint32_t round = 1; round <= 100; round++) {
            uint32_t order[RANKS_MAX];
            float values[CHUNK_BYTES / 4], wanted[CHUNK_BYTES / 4];
            shuffle(order, n);
            for (uint32_t i = 0; i < n; i++) {
                const trib_contribution what = make(round, order[i], TRIB_FLOAT32, TRIB_SUM);
                for (uint32_t at = 0; at < CHUNK_BYTES / 4; at++) {
                    values[at] = awkward(order[i], at);
                    wanted[at] = tree_sum(n, at, 0, 16);
                }
                must_give(&what, values);
            }
            assert_memory_equal(the.events[n - 1].bytes, wanted, CHUNK_BYTES);
            the.event_count = 0;
        }
        close_bed();
    }
}

/* ---- Rounds ---- */

static void test_two_rounds_alive(void **state)
{
    (void)state;
    unsigned char bytes[CHUNK_BYTES];
    trib_error error;
    open_bed(3, TRIB_ORDER_RANK);
    the.holds_sums = true;
    run_round(1, TRIB_BFLOAT16, TRIB_AVG);
    for (uint32_t rank = 0; rank < 3; rank++) {
        const trib_contribution what = make(2, rank, TRIB_INT32, TRIB_SUM);
        fill(bytes, TRIB_INT32, rank);
        must_give(&what, bytes);
    }
    assert_int_equal(the.event_count, 6);
    assert_int_equal(the.summation->live_rounds, 2);
    for (uint32_t i = 0; i < 3; i++) {
        /* the first round's sum was not overwritten */
        assert_memory_equal(the.events[i].sum->data, the.events[i].bytes, CHUNK_BYTES);
        check_sum(&the.events[3 + i], TRIB_INT32, TRIB_SUM, 3);
    }
    release_all();
    check_idle();
    /* Contributions out of turn: too late, too early, and ahead of the contributor's own part in the round before. */
    trib_contribution what = make(0, 0, TRIB_INT32, TRIB_SUM);
    assert_int_equal(give(&what, bytes, &error), TRIB_PROTOCOL);
    what.round = 2;
    assert_int_equal(give(&what, bytes, &error), TRIB_PROTOCOL);
    what.round = 4;
    assert_int_equal(give(&what, bytes, &error), TRIB_PROTOCOL);
    what.round = 3;
    must_give(&what, bytes);
    what.round = 4;
    what.contributor = 1;
    assert_int_equal(give(&what, bytes, &error), TRIB_PROTOCOL);
    assert_true(strlen(error.text) > 0);
    for (what.round = 3; what.contributor < 3; what.contributor++) {
        must_give(&what, bytes);
    }
    release_all();
    close_bed();
}

/* A contributor that came too late names a number of chunks that cannot be, in its withdrawal for instance. */
static void test_late_with_impossible_chunks(void **state)
{
    (void)state;
    const uint32_t counts[] = {0, TRIB_SUM_CHUNKS_MAX + 1, UINT32_MAX};
    const unsigned char set[] = {1 | 2};
    open_bed(3, TRIB_ORDER_RANK);
    trib_contribution what = make(1, 2, TRIB_INT32, TRIB_SUM);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        what.chunk_count = counts[i];
        assert_int_equal(trib_summation_begin_late(the.summation, &what, set), TRIB_OK); /* the withdrawal is refused */
        assert_int_equal(the.summation->live_rounds, 0);
        assert_int_equal(trib_summation_withdraw(the.summation, &what, TRIB_TIMEOUT, "late"), TRIB_PROTOCOL);
    }
    close_bed();
}

enum { OPEN_MAX = 2 * (TRIB_SUM_KEPT_ROUNDS_MAX + 1) };

static void test_running_ahead_is_bounded(void **state)
{
    (void)state;
    unsigned char bytes[CHUNK_BYTES] = {0};
    open_bed(2, TRIB_ORDER_RANK);
    for (uint32_t round = 1; round <= 50; round++) {
        const trib_contribution what = make(round, 0, TRIB_FLOAT16, TRIB_SUM);
        must_give(&what, bytes);
        assert_int_equal(the.event_count, round > OPEN_MAX ? round - OPEN_MAX : 0);
    }
    assert_true(the.summation->blocks_out <= 2 * OPEN_MAX);
    the.event_count = 0;
    for (uint32_t round = 1; round <= 50; round++) {
        const trib_contribution what = make(round, 1, TRIB_FLOAT16, TRIB_SUM);
        must_give(&what, bytes);
        assert_int_equal(the.events[the.event_count - 1].status, round > OPEN_MAX ? TRIB_BUSY : TRIB_OK);
    }
    the.event_count = 0;
    run_round(51, TRIB_FLOAT16, TRIB_SUM);
    close_bed();
}

static void test_duplicates_and_nonsense(void **state)
{
    (void)state;
    unsigned char bytes[CHUNK_BYTES * 2] = {0};
    void *first = NULL, *second = NULL;
    trib_error error;
    open_bed(2, TRIB_ORDER_RANK);
    const trib_contribution good = make(1, 0, TRIB_FLOAT16, TRIB_SUM);
    trib_contribution bad[11];
    for (uint32_t i = 0; i < 11; i++) {
        bad[i] = good;
    }
    bad[0].contributor = 2;
    bad[1].chunk = 1;
    bad[2].chunk_count = 0;
    bad[3].chunk_count = 65537;
    bad[4].size = CHUNK_BYTES + 2;
    bad[5].size = 3;
    bad[6].root = 2;
    bad[7].dtype = (trib_dtype)99;
    bad[8].reduce = (trib_reduce)99;
    bad[9].collective = (trib_collective)9;
    bad[10].round = 2;
    for (uint32_t i = 0; i < 11; i++) {
        assert_int_equal(trib_summation_recv_target(the.summation, &bad[i], &first, &error), TRIB_PROTOCOL);
        assert_int_equal(trib_summation_arrived(the.summation, &bad[i], &(trib_arrived){.payload = bytes}, &error),
                         TRIB_PROTOCOL);
    }
    /* its payload is missing */
    assert_int_equal(trib_summation_arrived(the.summation, &good, &(trib_arrived){0}, &error), TRIB_PROTOCOL);
    check_idle();
    /* Only one of two landings of the same chunk counts. */
    assert_int_equal(trib_summation_recv_target(the.summation, &good, &first, &error), TRIB_OK);
    assert_int_equal(trib_summation_recv_target(the.summation, &good, &second, &error), TRIB_OK);
    memset(first, 0, CHUNK_BYTES);
    memset(second, 0, CHUNK_BYTES);
    assert_int_equal(
        trib_summation_arrived(the.summation, &good, &(trib_arrived){.buffer = first, .payload = first}, &error),
        TRIB_OK);
    assert_int_equal(
        trib_summation_arrived(the.summation, &good, &(trib_arrived){.buffer = second, .payload = second}, &error),
        TRIB_PROTOCOL);
    assert_int_equal(give(&good, bytes, &error), TRIB_PROTOCOL);
    trib_contribution other = make(1, 1, TRIB_FLOAT16, TRIB_SUM);
    assert_int_equal(trib_summation_recv_target(the.summation, &other, &first, &error), TRIB_OK);
    trib_summation_abandon(the.summation, first);
    must_give(&other, bytes);
    assert_int_equal(the.event_count, 2);
    close_bed();
}

static void test_mismatch(void **state)
{
    (void)state;
    unsigned char bytes[CHUNK_BYTES] = {0};
    void *early = NULL, *late = NULL;
    trib_error error;
    open_bed(4, TRIB_ORDER_RANK);
    trib_contribution what = make(1, 0, TRIB_FLOAT32, TRIB_SUM);
    must_give(&what, bytes);
    what = make(1, 3, TRIB_FLOAT32, TRIB_MAX);
    must_give(&what, bytes);
    assert_int_equal(the.event_count, 2);
    assert_int_equal(the.events[0].status, TRIB_MISMATCH);
    assert_non_null(strstr(the.text, "rank 0 says sum of float32, rank 3 says max of float32"));
    must_give(&what, bytes); /* the payload that follows is dropped */
    for (uint32_t rank = 1; rank <= 2; rank++) {
        what = make(1, rank, TRIB_FLOAT32, TRIB_SUM);
        must_give(&what, bytes);
    }
    assert_int_equal(the.event_count, 4);
    check_idle();
    must_give(&what, bytes); /* the refusal holds after the end of the round, too */
    /* Two payloads of different sizes land at the same time: neither may be summed with the other. */
    what = make(2, 0, TRIB_FLOAT32, TRIB_SUM);
    trib_contribution shorter = make(2, 1, TRIB_FLOAT32, TRIB_SUM);
    shorter.size = 64;
    assert_int_equal(trib_summation_recv_target(the.summation, &what, &early, &error), TRIB_OK);
    assert_int_equal(trib_summation_recv_target(the.summation, &shorter, &late, &error), TRIB_OK);
    assert_int_equal(
        trib_summation_arrived(the.summation, &what, &(trib_arrived){.buffer = early, .payload = early}, &error),
        TRIB_OK);
    assert_int_equal(
        trib_summation_arrived(the.summation, &shorter, &(trib_arrived){.buffer = late, .payload = late}, &error),
        TRIB_OK);
    assert_int_equal(the.event_count, 6);
    assert_non_null(strstr(the.text, "rank 0 says 256 bytes, rank 1 says 64 bytes"));
    for (uint32_t rank = 2; rank <= 3; rank++) {
        what = make(2, rank, TRIB_FLOAT32, TRIB_SUM);
        must_give(&what, bytes);
    }
    check_idle();
    the.event_count = 0;
    run_round(3, TRIB_FLOAT32, TRIB_SUM);
    close_bed();
}

static void test_withdraw(void **state)
{
    (void)state;
    unsigned char bytes[CHUNK_BYTES] = {0};
    open_bed(3, TRIB_ORDER_RANK);
    trib_contribution what = make(1, 0, TRIB_INT8, TRIB_AVG);
    must_give(&what, bytes);
    /* The contribution has arrived: the withdrawal has no effect. */
    assert_int_equal(trib_summation_withdraw(the.summation, &what, TRIB_CANCELLED, "no"), TRIB_OK);
    assert_int_equal(the.event_count, 0);
    what.contributor = 1;
    assert_int_equal(trib_summation_withdraw(the.summation, &what, TRIB_TIMEOUT, "too late"), TRIB_OK);
    assert_int_equal(the.event_count, 1);
    assert_int_equal(the.events[0].receiver, 0);
    assert_int_equal(the.events[0].status, TRIB_TIMEOUT);
    assert_string_equal(the.text, "too late");
    /* Ranks 0 and 1 cancel many rounds before rank 2 contributes. */
    for (what.round = 2; what.round <= 40; what.round++) {
        for (what.contributor = 0; what.contributor < 2; what.contributor++) {
            assert_int_equal(trib_summation_withdraw(the.summation, &what, TRIB_CANCELLED, "x"), TRIB_OK);
        }
    }
    the.event_count = 0;
    for (what.round = 1; what.round <= 40; what.round++) {
        must_give(&what, bytes);
    }
    assert_int_equal(the.event_count, 40);
    check_idle();
    the.event_count = 0;
    run_round(41, TRIB_INT8, TRIB_AVG);
    close_bed();
}

static void test_broadcast(void **state)
{
    (void)state;
    unsigned char bytes[CHUNK_BYTES];
    trib_error error;
    memset(bytes, 0x5a, sizeof bytes);
    open_bed(4, TRIB_ORDER_RANK);
    static const uint32_t orders[3][4] = {{0, 2, 1, 3}, {2, 0, 1, 3}, {3, 1, 0, 2}};
    for (uint32_t round = 1; round <= 6; round++) {
        const bool is_eager = round > 3; /* else nobody gets it before all have come */
        the.event_count = 0;
        uint32_t wanted = 0;
        bool root_came = false;
        for (uint32_t i = 0; i < 4; i++) {
            trib_contribution what = make(round, orders[(round - 1) % 3][i], TRIB_FLOAT32, TRIB_SUM);
            what.collective = TRIB_COLLECTIVE_BROADCAST;
            what.root = 2;
            what.is_eager = is_eager;
            if (what.contributor == 2) {
                must_give(&what, bytes);
                root_came = true;
                wanted = i;
            } else {
                void *buffer = NULL;
                assert_int_equal(trib_summation_recv_target(the.summation, &what, &buffer, &error), TRIB_PROTOCOL);
                assert_int_equal(trib_summation_arrived(the.summation, &what, &(trib_arrived){0}, &error), TRIB_OK);
                wanted += root_came;
            }
            assert_int_equal(the.event_count, is_eager ? wanted + (i == 3) : i == 3 ? 4 : 0);
        }
        for (uint32_t i = 0; i < 4; i++) {
            assert_int_equal(the.events[i].size, the.events[i].receiver == 2 ? 0 : CHUNK_BYTES);
            assert_memory_equal(the.events[i].bytes, bytes, the.events[i].size);
        }
    }
    close_bed();
}

/* Each root withdraws from two rounds that the others have received, and the next round has another root. All rounds
 * wait for the last rank. */
static void test_roots_that_give_up_in_turns(void **state)
{
    (void)state;
    enum { ROOTS = 3, ROUNDS = ROOTS * TRIB_SUM_KEPT_ROUNDS_MAX };
    unsigned char bytes[CHUNK_BYTES] = {0};
    trib_error error;
    open_bed(ROOTS + 1, TRIB_ORDER_RANK);
    /* First up to the round where each rank is held back (worker_held.c), then the rest. */
    for (uint32_t last = 0; last < 2; last++) {
        for (uint32_t rank = 0; rank <= ROOTS; rank++) {
            const uint32_t reach = rank < ROOTS ? (rank + 1) * TRIB_SUM_KEPT_ROUNDS_MAX : 0;
            for (uint32_t round = last ? reach + 1 : 1; round <= (last ? (uint32_t)ROUNDS : reach); round++) {
                trib_contribution what = make(round, rank, TRIB_FLOAT32, TRIB_SUM);
                what.collective = TRIB_COLLECTIVE_BROADCAST;
                what.root = (round - 1) / TRIB_SUM_KEPT_ROUNDS_MAX;
                if (what.root == rank) {
                    must_give(&what, bytes);
                } else {
                    assert_int_equal(trib_summation_arrived(the.summation, &what, &(trib_arrived){0}, &error), TRIB_OK);
                }
            }
        }
    }
    assert_int_equal(the.event_count, ROUNDS * (ROOTS + 1));
    for (uint32_t i = 0; i < the.event_count; i++) {
        assert_int_equal(the.events[i].status, TRIB_OK);
    }
    close_bed();
}

static void test_empty_and_many_chunks(void **state)
{
    (void)state;
    unsigned char bytes[CHUNK_BYTES];
    trib_error error;
    open_bed(3, TRIB_ORDER_ARRIVAL);
    trib_contribution what = make(1, 0, TRIB_FLOAT32, TRIB_SUM);
    what.size = 0;
    for (; what.contributor < 3; what.contributor++) {
        assert_int_equal(the.event_count, 0);
        assert_int_equal(trib_summation_arrived(the.summation, &what, &(trib_arrived){0}, &error), TRIB_OK);
    }
    assert_int_equal(the.event_count, 3);
    for (uint32_t chunk = 0; chunk < 5; chunk++) { /* each chunk is handed out when it is complete, not at the end */
        for (uint32_t rank = 0; rank < 3; rank++) {
            what = make(2, rank, TRIB_INT64, TRIB_SUM);
            what.chunk_count = 5;
            what.chunk = 4 - chunk;
            fill(bytes, TRIB_INT64, rank);
            must_give(&what, bytes);
        }
        assert_int_equal(the.event_count, 3 + 3 * (chunk + 1));
        assert_int_equal(the.events[the.event_count - 1].what.chunk, 4 - chunk);
        check_sum(&the.events[the.event_count - 1], TRIB_INT64, TRIB_SUM, 3);
    }
    close_bed();
}

/* ---- Memory ---- */

static void test_steady_state_allocates_nothing(void **state)
{
    (void)state;
    open_bed(5, TRIB_ORDER_RANK);
    uint64_t before = 0;
    for (uint32_t round = 1; round <= 1064; round++) {
        the.event_count = 0;
        run_round(round, (trib_dtype)(round % TRIB_DTYPE_COUNT), round % 3 == 0 ? TRIB_AVG : TRIB_SUM);
        before = round == 64 ? the.summation->allocations : before;
        the.allocs_left = round == 64 ? 0 : the.allocs_left; /* an allocation would fail from here on */
    }
    assert_true(before > 0);
    assert_int_equal(the.summation->allocations, before);
    close_bed();
}

static void test_no_memory_loses_nothing(void **state)
{
    (void)state;
    for (int order = TRIB_ORDER_RANK; order <= TRIB_ORDER_ARRIVAL; order++) {
        for (uint32_t fails_at = 0; fails_at < 24; fails_at++) {
            open_bed(5, (trib_sum_order)order);
            the.random += fails_at;
            the.allocs_left = fails_at;
            uint32_t sequence[RANKS_MAX], failures = 0;
            unsigned char bytes[CHUNK_BYTES];
            trib_error error;
            shuffle(sequence, 5);
            for (uint32_t i = 0; i < 5; i++) {
                const trib_contribution what = make(1, sequence[i], TRIB_BFLOAT16, TRIB_AVG);
                fill(bytes, TRIB_BFLOAT16, sequence[i]);
                trib_status status;
                while ((status = give(&what, bytes, &error)) != TRIB_OK) {
                    assert_true(status == TRIB_AGAIN || status == TRIB_NO_MEMORY);
                    assert_int_equal(the.event_count, 0);
                    /* one more allocation fails, then there is memory again */
                    the.allocs_left = failures++ == 0 ? 1 : -1;
                }
            }
            assert_true(fails_at > 3 || failures > 0);
            assert_int_equal(the.event_count, 5);
            check_sum(&the.events[4], TRIB_BFLOAT16, TRIB_AVG, 5);
            close_bed();
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_rank_order_bits),
        cmocka_unit_test(test_two_rounds_alive),
        cmocka_unit_test(test_running_ahead_is_bounded),
        cmocka_unit_test(test_duplicates_and_nonsense),
        cmocka_unit_test(test_mismatch),
        cmocka_unit_test(test_withdraw),
        cmocka_unit_test(test_broadcast),
        cmocka_unit_test(test_roots_that_give_up_in_turns),
        cmocka_unit_test(test_empty_and_many_chunks),
        cmocka_unit_test(test_late_with_impossible_chunks),
        cmocka_unit_test(test_steady_state_allocates_nothing),
        cmocka_unit_test(test_no_memory_loses_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

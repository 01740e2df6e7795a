/*
 * test_summation_lease.c - payloads that are summed in place: at once, or leased until their partner comes or the
 * lease is recalled. Every sum has the bits of the oracle, and those of a summation that copies each payload. Every
 * lease ends once, and nothing is read of a payload that may be gone.
 *
 * The connection is simulated: it gives and recalls leases in orders that a real one shows only by chance, and takes
 * away a payload's memory when its lease is over. Real connections are tested in tests/contract and
 * tests/loop/api/test_in_place.c.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "tests/unit/aggregate/summation_lease_bed.h"
#include "transports/transport_defaults.h"

/* ---- Sums ---- */

static bool is_checked_by_oracle(const shape *like, uint32_t round)
{
    return !like->takes_partials && !like->gives_partials && round % 2 == 0;
}

/* Makes numbers that the oracle can add exactly, or any bits. */
static void make_payload(const shape *like, const trib_contribution *what, unsigned char *bytes)
{
    if (is_checked_by_oracle(like, what->round)) {
        fill_for(bytes, what->dtype, what->reduce, what->contributor);
        return;
    }
    for (uint32_t i = 0; i < PART_BYTES; i++) {
        bytes[i] = (unsigned char)random_below(256);
    }
}

/* Checks what all receivers got of a complete chunk. */
static void check_chunk(const shape *like, const trib_contribution *what)
{
    assert_int_equal(the.event_count, like->n);
    for (uint32_t i = 0; i < like->n; i++) {
        const event *at = &the.events[i];
        assert_int_equal(at->status, TRIB_OK);
        assert_int_equal(at->size, what->size);
        assert_int_equal(at->what.chunk, what->chunk);
        for (uint32_t j = 0; like->gives_partials && j < at->size; j++) {
            assert_int_equal(at->bytes[j], 0x30 + what->chunk);
        }
        if (!like->gives_partials) {
            assert_memory_equal(at->bytes, twin.bytes, at->size);
        }
        if (is_checked_by_oracle(like, what->round)) {
            check_elements(at, what->dtype, what->reduce, like->n, what->size);
        }
    }
    the.event_count = 0;
}

static void contribute(const shape *like, const trib_contribution *what)
{
    trib_error error;
    unsigned char bytes[PART_BYTES];
    const uint32_t size = like->takes_partials ? trib_sum_partial_bytes(what) : what->size;
    make_payload(like, what, bytes);
    twin.size = 0;
    assert_int_equal(trib_summation_arrived(twin.summation, what, &(trib_arrived){.payload = bytes}, &error), TRIB_OK);
    if (random_below(8) == 0) { /* it has landed in a buffer, as with another transport */
        void *buffer = NULL;
        assert_int_equal(trib_summation_recv_target(the.summation, what, &buffer, &error), TRIB_OK);
        memcpy(buffer, bytes, size);
        assert_int_equal(
            trib_summation_arrived(the.summation, what, &(trib_arrived){.buffer = buffer, .payload = buffer}, &error),
            TRIB_OK);
    } else {
        assert_int_equal((random_below(3) == 0 ? arrive_in_place : present)(what, bytes, size), TRIB_OK);
    }
    if (twin.is_partial) {
        assert_int_equal(the.event_count, 0);
        trib_summation_complete(twin.summation, &twin.what);
        trib_summation_complete(the.summation, &twin.what);
        twin.is_partial = false;
    }
    if (twin.size > 0) {
        check_chunk(like, what);
    }
    assert_int_equal(the.event_count, 0);
}

static void run_round(const shape *like, uint32_t round, trib_dtype dtype, trib_reduce reduce)
{
    const uint32_t element = (uint32_t)trib_dtype_size(dtype), chunk_count = 1 + random_below(CHUNKS);
    uint32_t order[RANKS_MAX * CHUNKS], sizes[CHUNKS];
    for (uint32_t i = 0; i < chunk_count; i++) {
        sizes[i] = random_below(4) == 0 ? CHUNK_BYTES : element * (1 + random_below(CHUNK_BYTES / element));
    }
    shuffle(order, like->n * chunk_count);
    for (uint32_t i = 0; i < like->n * chunk_count; i++) {
        trib_contribution what = make(round, order[i] % like->n, dtype, reduce);
        what.chunk = order[i] / like->n;
        what.chunk_count = chunk_count;
        what.size = sizes[what.chunk];
        contribute(like, &what);
        recall_some();
    }
}

static void run_all(const shape *like, uint32_t refuses)
{
    uint32_t round = 0;
    open_both(like, refuses, 10);
    the.random += (uint64_t)like->order * 5 + refuses;
    for (trib_dtype dtype = 0; dtype < TRIB_DTYPE_COUNT; dtype++) {
        for (trib_reduce reduce = 0; reduce < TRIB_REDUCE_COUNT; reduce++) {
            for (uint32_t times = trib_reduce_suits(dtype, reduce) ? 0 : 4; times < 4; times++) {
                run_round(like, ++round, dtype, reduce);
            }
        }
    }
    assert_true(lessor.ended > round / 2 && lessor.recalled > 0); /* leases were used and recalled */
    assert_int_equal(lessor.asked + lessor.brief == lessor.given, refuses == 0);
    close_both();
}

static void test_sums_have_the_same_bits(void **state)
{
    (void)state;
    for (uint32_t n = 2; n <= 5; n++) {
        for (uint32_t i = 0; i < 16; i++) {
            const shape like = {.n = n,
                                .order = i & 1 ? TRIB_ORDER_ARRIVAL : TRIB_ORDER_RANK,
                                .takes_partials = (i & 2) != 0,
                                .gives_partials = (i & 4) != 0};
            run_all(&like, i & 8 ? 1 : 0);
        }
    }
}

/* ---- Rounds that end otherwise ---- */

static void must_present(uint32_t rank, uint32_t round, uint32_t chunk)
{
    unsigned char bytes[CHUNK_BYTES];
    trib_contribution what = make(round, rank, TRIB_BFLOAT16, TRIB_SUM);
    what.chunk = chunk;
    what.chunk_count = 2;
    fill(bytes, TRIB_BFLOAT16, rank);
    assert_int_equal(present(&what, bytes, CHUNK_BYTES), TRIB_OK);
}

/* Three of five ranks have contributed, and no payload has its partner yet. */
static void open_with_leases(bool gives_partials)
{
    slot *any = NULL;
    const shape like = {.n = 5, .order = TRIB_ORDER_RANK, .gives_partials = gives_partials};
    open_both(&like, 0, 0);
    for (uint32_t rank = 0; rank < 5; rank += 2) {
        must_present(rank, 1, 0);
    }
    assert_int_equal(leased(&any), 3);
}

static void lose_one(void)
{
    slot *one = NULL;
    (void)leased(&one);
    recall(one, false);
}

static void lose_one_after_another(void)
{
    slot *one = NULL;
    (void)leased(&one);
    recall(one, true);
    lose_one();
}

/* Contributors are told at once, so a round is over when all have contributed. */
static void lose_one_of_all(void)
{
    must_present(1, 1, 1);
    must_present(3, 1, 1);
    lose_one();
    check_idle();
}

/* A payload's landing makes the connection recall another lease. That ends the round, so the payload is not wanted
 * when it arrives. */
static void lose_one_before_the_next(void)
{
    const trib_contribution what = {.tensor = 3,
                                    .partition = 1,
                                    .round = 1,
                                    .chunk_count = 2,
                                    .size = CHUNK_BYTES,
                                    .contributor = 1,
                                    .dtype = TRIB_BFLOAT16};
    unsigned char bytes[CHUNK_BYTES] = {0};
    void *buffer = NULL;
    trib_error error;
    assert_int_equal(trib_summation_recv_target(the.summation, &what, &buffer, &error), TRIB_OK);
    lose_one();
    assert_int_equal(
        trib_summation_arrived(the.summation, &what,
                               &(trib_arrived){.buffer = buffer, .payload = bytes, .lender = &lessor.lender}, &error),
        TRIB_OK);
}

/* The sum of a torn payload is not handed out. Its partner waits under a lease, or in a copy. */
static void tear_a_sum(void)
{
    lessor.tears = true;
    must_present(1, 1, 0);
    lessor.tears = false;
}

static void tear_a_sum_with_a_copy(void)
{
    slot *one = NULL;
    while (leased(&one) > 0) {
        recall(one, true);
    }
    tear_a_sum();
}

/* The payload's partner has not come, and its lease cannot be kept. */
static void tear_a_copy(void)
{
    lessor.refuses = 4;
    lessor.tears = true;
    must_present(1, 1, 1);
    lessor.tears = false;
    lessor.refuses = 0;
}

/* The payload's partner comes, but the payload is gone by then. */
static void meet_what_is_lost(void)
{
    for (uint32_t i = 0; i < SLOTS; i++) {
        if (lessor.slots[i].is_leased) {
            lessor.slots[i].is_torn = true;
            memset(lessor.slots[i].page, 0x5a, PAGE);
        }
    }
    must_present(3, 1, 0);
}

/* The torn payload is the last of its chunk, whose sum would go out next. */
static void end_with_what_is_lost(void)
{
    must_present(3, 1, 0);
    tear_a_sum();
}

static void withdraw(void)
{
    const trib_contribution what = make(1, 1, TRIB_BFLOAT16, TRIB_SUM);
    assert_int_equal(trib_summation_withdraw(the.summation, &what, TRIB_CANCELLED, "not any more"), TRIB_OK);
}

static void disagree(void)
{
    unsigned char bytes[CHUNK_BYTES] = {0};
    trib_contribution what = make(1, 1, TRIB_BFLOAT16, TRIB_MAX);
    what.chunk_count = 2;
    assert_int_equal(present(&what, bytes, CHUNK_BYTES), TRIB_OK);
}

static bool rank_1_is_gone(void *user, const trib_contribution *what, char *text, size_t size)
{
    (void)user;
    snprintf(text, size, "rank %u has gone", what->contributor);
    return what->contributor == 1;
}

static void refuse_gone(void)
{
    trib_summation_refuse_gone(the.summation, rank_1_is_gone);
}

static void refuse_from_above(void)
{
    const trib_contribution what = make(1, 0, TRIB_BFLOAT16, TRIB_SUM);
    trib_summation_refuse(the.summation, &what, TRIB_TIMEOUT, "it takes too long");
}

static const struct way {
    void (*end)(void);
    trib_status status;
    const char *text;
    uint32_t lost, recalled;
    bool tells_rank_1; /* of the rejection */
} ways[] = {
    {lose_one, TRIB_PEER_LOST, "lost with its connection", 1, 0, true},
    {lose_one_after_another, TRIB_PEER_LOST, "lost with its connection", 1, 1, true},
    {lose_one_of_all, TRIB_PEER_LOST, "lost with its connection", 1, 0, true},
    {lose_one_before_the_next, TRIB_PEER_LOST, "lost with its connection", 1, 0, true},
    {tear_a_sum, TRIB_PEER_LOST, "lost with its connection", 0, 0, true},
    {tear_a_sum_with_a_copy, TRIB_PEER_LOST, "lost with its connection", 0, 3, true},
    {tear_a_copy, TRIB_PEER_LOST, "lost with its connection", 0, 0, true},
    {meet_what_is_lost, TRIB_PEER_LOST, "lost with its connection", 0, 0, true},
    {end_with_what_is_lost, TRIB_PEER_LOST, "lost with its connection", 0, 0, true},
    {withdraw, TRIB_CANCELLED, "not any more", 0, 0, false},
    {disagree, TRIB_MISMATCH, "rank 0 says sum of bfloat16, rank 1 says max of bfloat16", 0, 0, true},
    {refuse_gone, TRIB_PEER_LEFT, "rank 1 has gone", 0, 0, true},
    {refuse_from_above, TRIB_TIMEOUT, "it takes too long", 0, 0, true},
};

/* Every contributor hears of the rejection once, whatever it still sends, and the next round works. */
static void check_refused(const struct way *way)
{
    uint32_t notified[5] = {0};
    const uint32_t asked = lessor.asked;
    assert_true(strstr(the.text, way->text) != NULL);
    for (uint32_t i = 0; i < 10; i++) {
        if (i / 2 % 2 == 1 || i % 2 == 1) { /* except those that contributed before */
            must_present(i / 2, 1, i % 2);
        }
    }
    assert_int_equal(lessor.asked, asked);
    assert_int_equal(the.event_count, way->tells_rank_1 ? 5 : 4);
    for (uint32_t i = 0; i < the.event_count; i++) {
        assert_int_equal(the.events[i].status, way->status);
        notified[the.events[i].receiver]++;
    }
    for (uint32_t rank = 0; rank < 5; rank++) {
        assert_int_equal(notified[rank], rank == 1 && !way->tells_rank_1 ? 0 : 1);
    }
    check_idle();
    the.event_count = 0;
}

static void test_refusals_end_leases(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 2 * sizeof ways / sizeof *ways; i++) {
        const struct way *way = &ways[i / 2];
        const shape like = {.n = 5, .order = TRIB_ORDER_RANK, .gives_partials = i % 2 == 1};
        if (way->end == refuse_from_above && !like.gives_partials) {
            continue; /* no receiver of partial sums */
        }
        slot *any = NULL;
        open_with_leases(like.gives_partials);
        way->end();
        assert_int_equal(leased(&any), 0);
        assert_int_equal(lessor.lost, way->lost);
        assert_int_equal(lessor.recalled, way->recalled);
        check_refused(way);
        for (uint32_t rank = 0; rank < 5; rank++) { /* the twin needs the same contributions */
            const trib_contribution what = make(1, rank, TRIB_BFLOAT16, TRIB_SUM);
            assert_int_equal(trib_summation_withdraw(twin.summation, &what, TRIB_CANCELLED, ""), TRIB_OK);
        }
        run_round(&like, 2, TRIB_BFLOAT16, TRIB_SUM);
        close_both();
    }
}

static void test_destroy_ends_leases(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        open_with_leases(i == 1);
        must_present(3, 1, 1);
        trib_summation_destroy(the.summation);
        assert_int_equal(lessor.ended, 4);
        assert_int_equal(the.buffers, 0);
        check_lessor();
        trib_summation_destroy(twin.summation);
    }
}

/* ---- What is not leased ---- */

/* No payload waits for a partner: a contributor is alone, or is a broadcast's root. */
static void test_others_are_copied(void **state)
{
    (void)state;
    unsigned char bytes[CHUNK_BYTES];
    trib_error error;
    for (uint32_t n = 1; n <= 3; n++) {
        const shape like = {.n = n, .order = TRIB_ORDER_RANK};
        open_both(&like, 0, 0);
        for (uint32_t rank = 0; rank < n; rank++) {
            trib_contribution what = make(1, rank, TRIB_FLOAT16, TRIB_AVG);
            what.collective = n == 1 ? TRIB_COLLECTIVE_ALL_REDUCE : TRIB_COLLECTIVE_BROADCAST;
            what.root = n / 2;
            fill(bytes, TRIB_FLOAT16, 0);
            if (rank == what.root) {
                assert_int_equal(present(&what, bytes, CHUNK_BYTES), TRIB_OK);
            } else {
                assert_int_equal(trib_summation_arrived(the.summation, &what, &(trib_arrived){0}, &error), TRIB_OK);
            }
        }
        assert_int_equal(lessor.asked, 0);
        assert_int_equal(lessor.brief, 1);
        assert_int_equal(lessor.copies, 1);
        assert_int_equal(the.event_count, n);
        for (uint32_t i = 0; i < n; i++) {
            assert_memory_equal(the.events[i].bytes, bytes, the.events[i].size);
            assert_int_equal(the.events[i].size, n > 1 && the.events[i].receiver == n / 2 ? 0 : CHUNK_BYTES);
        }
        close_bed();
        trib_summation_destroy(twin.summation);
    }
}

/* A copied payload is handed out if it was there until then, and otherwise rejected to all. */
static void test_others_that_are_lost(void **state)
{
    (void)state;
    const unsigned char bytes[CHUNK_BYTES] = {0};
    trib_error error;
    for (uint32_t n = 1; n <= 3; n += 2) {
        const shape like = {.n = n, .order = TRIB_ORDER_RANK};
        open_both(&like, 0, 0);
        lessor.tears = true;
        for (uint32_t rank = 0; rank < n; rank++) {
            trib_contribution what = make(1, rank, TRIB_FLOAT16, TRIB_AVG);
            what.collective = n == 1 ? TRIB_COLLECTIVE_ALL_REDUCE : TRIB_COLLECTIVE_BROADCAST;
            what.root = n / 2;
            if (rank == what.root) {
                assert_int_equal(present(&what, bytes, CHUNK_BYTES), TRIB_OK);
            } else {
                assert_int_equal(trib_summation_arrived(the.summation, &what, &(trib_arrived){0}, &error), TRIB_OK);
            }
        }
        assert_int_equal(lessor.ended, 1);
        assert_int_equal(the.event_count, n);
        for (uint32_t i = 0; i < n; i++) {
            assert_int_equal(the.events[i].status, TRIB_PEER_LOST);
        }
        close_bed();
        trib_summation_destroy(twin.summation);
    }
}

static trib_lease *lend_nothing(void *source, bool keeps)
{
    (void)source;
    (void)keeps;
    return NULL;
}

/* The lender has no lease to give, or there is no lender. */
static void test_without_leases(void **state)
{
    (void)state;
    const trib_lender none = {.lease = lend_nothing};
    unsigned char bytes[CHUNK_BYTES];
    for (uint32_t i = 0; i < 2; i++) {
        const shape like = {.n = 2, .order = TRIB_ORDER_RANK};
        open_both(&like, 0, 0);
        for (uint32_t rank = 0; rank < 2; rank++) {
            const trib_contribution what = make(1, rank, TRIB_INT8, TRIB_AVG);
            trib_error error;
            void *buffer = NULL;
            fill(bytes, TRIB_INT8, rank);
            assert_int_equal(trib_summation_recv_target(the.summation, &what, &buffer, &error), TRIB_OK);
            assert_int_equal(trib_summation_arrived(
                                 the.summation, &what,
                                 &(trib_arrived){.buffer = buffer, .payload = bytes, .lender = i == 0 ? &none : NULL},
                                 &error),
                             TRIB_OK);
            memset(bytes, 0xee, sizeof bytes);
        }
        assert_int_equal(lessor.copies, 1);
        assert_int_equal(the.event_count, 2);
        check_sum(&the.events[0], TRIB_INT8, TRIB_AVG, 2);
        close_bed();
        trib_summation_destroy(twin.summation);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums_have_the_same_bits), cmocka_unit_test(test_refusals_end_leases),
        cmocka_unit_test(test_destroy_ends_leases),     cmocka_unit_test(test_others_are_copied),
        cmocka_unit_test(test_others_that_are_lost),    cmocka_unit_test(test_without_leases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

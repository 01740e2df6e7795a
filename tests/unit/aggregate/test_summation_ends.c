/* test_summation_ends.c - rounds that end without a sum: rejected by the caller, or because an owner or a contributor
 * has left. The tests also check which contributors are told that a round waits. */
#include "tests/unit/aggregate/summation_bed.h"

enum { PARTIALS_MAX = 16 };

/* Partial sums that the summation has given out. */
static struct partials {
    uint32_t count, reported;
    trib_contribution what[PARTIALS_MAX];
    trib_sum_buffer *sums[PARTIALS_MAX];
} partials;

static void partial_ready(void *user, const trib_contribution *what, trib_sum_buffer *sum)
{
    (void)user;
    assert_true(partials.count < PARTIALS_MAX);
    partials.what[partials.count] = *what;
    partials.sums[partials.count++] = sum;
}

static void round_refused(void *user, const trib_contribution *what, trib_status status, const char *text)
{
    (void)user;
    (void)what;
    (void)status;
    (void)text;
    partials.reported++;
}

static void open_partials(uint32_t n)
{
    memset(&partials, 0, sizeof partials);
    trib_summation_config config = bed_config(n, TRIB_ORDER_RANK);
    config.partial_ready = partial_ready;
    config.round_refused = round_refused;
    open_configured(&config);
}

/* Gives all of a partition's contributions, in two chunks, for that owner. */
static void contribute(uint32_t partition, uint32_t owner)
{
    unsigned char bytes[CHUNK_BYTES];
    uint32_t sequence[RANKS_MAX] = {0};
    for (uint32_t chunk = 0; chunk < 2; chunk++) {
        shuffle(sequence, the.n);
        for (uint32_t i = 0; i < the.n; i++) {
            trib_contribution what = make(1, sequence[i], TRIB_FLOAT32, TRIB_SUM);
            what.partition = partition;
            what.chunk = chunk;
            what.chunk_count = 2;
            what.owner = owner;
            fill(bytes, TRIB_FLOAT32, sequence[i]);
            must_give(&what, bytes);
        }
    }
}

/* The partial sum has been sent and comes back unchanged, because no other machine contributes. */
static void complete_partial(uint32_t index)
{
    trib_summation_sent(the.summation, partials.sums[index]);
    trib_summation_complete(the.summation, &partials.what[index]);
}

/* Sums that have arrived and wait to be sent are not lost when their owner leaves. */
static void test_owner_leaves_after_its_sums(void **state)
{
    (void)state;
    open_partials(3);
    the.holds_sums = true;
    contribute(0, 7);
    contribute(1, 7);
    contribute(2, 8);
    assert_int_equal(partials.count, 6);
    complete_partial(0);
    complete_partial(1); /* partition 0: all of the owner's work */
    complete_partial(2); /* partition 1: half of it */
    assert_int_equal(the.event_count, 9);
    trib_summation_refuse_owner(the.summation, 7, TRIB_PEER_LEFT, "gone");
    trib_summation_refuse(the.summation, &partials.what[0], TRIB_PEER_LEFT, "gone");
    assert_int_equal(the.event_count, 12); /* partition 1 is rejected to three contributors */
    for (uint32_t i = 0; i < the.event_count; i++) {
        assert_int_equal(the.events[i].status, i < 9 ? TRIB_OK : TRIB_PEER_LEFT);
        assert_true(i < 9 || the.events[i].what.partition == 1);
        if (i < 9) {
            check_sum(&the.events[i], TRIB_FLOAT32, TRIB_SUM, the.n);
        }
    }
    assert_int_equal(partials.reported, 0);
    trib_summation_sent(the.summation, partials.sums[3]);
    complete_partial(4);
    complete_partial(5); /* partition 2 has another owner */
    assert_int_equal(the.event_count, 18);
    release_all();
    close_bed();
}

/* ---- Waiting ---- */

static void stalled(void *user, uint32_t receiver, const trib_contribution *what, const trib_missing *missing)
{
    (void)user;
    assert_int_equal(what->contributor, receiver);
    the.stall_calls++;
    the.stall_rank = missing->lowest;
    the.stall_missing = missing->count;
}

static void test_stalls(void **state)
{
    (void)state;
    unsigned char bytes[CHUNK_BYTES] = {0};
    open_bed(4, TRIB_ORDER_RANK);
    trib_contribution what = make(1, 0, TRIB_FLOAT32, TRIB_SUM);
    must_give(&what, bytes);
    what.contributor = 3;
    must_give(&what, bytes);
    the.now_ns = 99;
    trib_summation_stalls(the.summation, 100, 10, stalled);
    assert_int_equal(the.stall_calls, 0);
    the.now_ns = 100;
    trib_summation_stalls(the.summation, 100, 10, stalled);
    assert_int_equal(the.stall_calls, 2);
    assert_int_equal(the.stall_rank, 1);
    assert_int_equal(the.stall_missing, 2);
    trib_summation_stalls(the.summation, 100, 1, stalled);
    assert_int_equal(the.stall_calls, 3);
    trib_summation_destroy(the.summation); /* the round is not complete */
    assert_int_equal(the.buffers, 0);
}

/* Gives contributions of ranks 0 to 2 to that many partitions, all in their first round. */
static void wait_for_the_last(uint32_t partitions)
{
    unsigned char bytes[CHUNK_BYTES] = {0};
    for (uint32_t partition = 0; partition < partitions; partition++) {
        for (uint32_t rank = 0; rank < 3; rank++) {
            trib_contribution what = make(1, rank, TRIB_FLOAT32, TRIB_SUM);
            what.partition = partition;
            must_give(&what, bytes);
        }
    }
}

static uint32_t notified[64], notified_count;

static void note_stall(void *user, uint32_t receiver, const trib_contribution *what, const trib_missing *missing)
{
    (void)user;
    assert_int_equal(missing->lowest, 3);
    assert_int_equal(missing->count, 1);
    assert_true(notified_count < 64);
    notified[notified_count++] = what->partition * 10 + receiver;
}

static void expect_notified(uint32_t limit, const uint32_t *wanted, uint32_t count)
{
    notified_count = 0;
    trib_summation_stalls(the.summation, 100, limit, note_stall);
    assert_int_equal(notified_count, count);
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(notified[i], wanted[i]);
    }
}

/* All receivers are told in turn, however many wait. */
static void test_stalls_go_on(void **state)
{
    (void)state;
    open_bed(4, TRIB_ORDER_RANK);
    wait_for_the_last(3);
    the.now_ns = 100;
    expect_notified(4, (uint32_t[]){0, 1, 2, 10}, 4);
    expect_notified(4, (uint32_t[]){11, 12, 20, 21}, 4);
    expect_notified(4, (uint32_t[]){22}, 1);
    expect_notified(5, (uint32_t[]){0, 1, 2, 10, 11}, 5);
    unsigned char bytes[CHUNK_BYTES] = {0};
    trib_contribution what = make(1, 3, TRIB_FLOAT32, TRIB_SUM);
    must_give(&what, bytes); /* partition 1, which was last before the limit */
    expect_notified(9, (uint32_t[]){20, 21, 22}, 3);
    expect_notified(9, (uint32_t[]){0, 1, 2, 20, 21, 22}, 6);
    for (what.partition = 0; what.partition < 3; what.partition += 2) {
        must_give(&what, bytes);
    }
    close_bed();
}

/* ---- Leaving ---- */

static bool rank_2_is_gone(void *user, const trib_contribution *what, char *text, size_t size)
{
    (void)user;
    snprintf(text, size, "rank %u has gone", what->contributor);
    return what->contributor == 2;
}

static trib_contribution of_rank(uint32_t partition, uint32_t round, uint32_t rank)
{
    trib_contribution what = make(round, rank, TRIB_FLOAT32, TRIB_SUM);
    what.partition = partition;
    return what;
}

/* A contributor that has left is named although another one is late. Rounds that do not need it, or need it no more,
 * go on. */
static void test_departed_contributor_ends_rounds(void **state)
{
    (void)state;
    unsigned char bytes[CHUNK_BYTES] = {0};
    open_bed(4, TRIB_ORDER_RANK);
    the.holds_sums = true;
    static const uint32_t missing[3] = {1u << 1 | 1u << 2, 1u << 1, 0}; /* bits of ranks, by partition */
    for (uint32_t partition = 0; partition < 3; partition++) {
        for (uint32_t rank = 0; rank < 4; rank++) {
            const trib_contribution what = of_rank(partition, 1, rank);
            if ((missing[partition] >> rank & 1) == 0) {
                must_give(&what, bytes);
            }
        }
    }
    assert_int_equal(the.event_count, 4); /* partition 2 is summed, and waits to be sent */
    trib_summation_refuse_gone(the.summation, rank_2_is_gone);
    assert_int_equal(the.event_count, 6);
    assert_string_equal(the.text, "rank 2 has gone");
    for (uint32_t i = 4; i < 6; i++) {
        assert_int_equal(the.events[i].status, TRIB_PEER_LEFT);
        assert_int_equal(the.events[i].what.partition, 0);
        assert_int_equal(the.events[i].receiver, i == 4 ? 0 : 3);
    }
    /* Later rounds end in the same way, however many there are. */
    for (uint32_t round = 2; round < 7; round++) {
        trib_contribution what = of_rank(0, round, 0);
        must_give(&what, bytes);
        assert_int_equal(the.event_count, 4 + round);
        trib_summation_refuse_gone(the.summation, rank_2_is_gone);
        assert_int_equal(the.event_count, 5 + round);
        assert_int_equal(the.events[4 + round].status, TRIB_PEER_LEFT);
    }
    /* The late contributor hears of the rounds that are over, and completes the one that needs no other contributor. */
    for (uint32_t round = 1; round < 7; round++) {
        const trib_contribution what = of_rank(0, round, 1);
        must_give(&what, bytes);
        assert_int_equal(the.events[the.event_count - 1].receiver, 1);
        assert_int_equal(the.events[the.event_count - 1].status, TRIB_PEER_LEFT);
    }
    const trib_contribution last = of_rank(1, 1, 1);
    must_give(&last, bytes);
    assert_int_equal(the.event_count, 11 + 6 + 4);
    trib_summation_destroy(the.summation); /* the rejected rounds wait for rank 2 */
    assert_int_equal(the.buffers, 0);
}

/* A server leaves only when it has reported a mismatch to all workers except those that left before. */
static void test_disagreements_are_owed(void **state)
{
    (void)state;
    unsigned char bytes[CHUNK_BYTES] = {0};
    open_bed(4, TRIB_ORDER_RANK);
    trib_contribution odd = of_rank(0, 1, 1);
    odd.reduce = TRIB_MAX;
    const trib_contribution first = of_rank(0, 1, 0), last = of_rank(0, 1, 3);
    must_give(&first, bytes);
    assert_false(trib_summation_owes(the.summation, 1, rank_2_is_gone));
    must_give(&odd, bytes);
    assert_int_equal(the.events[the.event_count - 1].status, TRIB_MISMATCH);
    assert_true(trib_summation_owes(the.summation, 1, rank_2_is_gone));
    must_give(&last, bytes);
    assert_int_equal(the.event_count, 3);
    assert_false(trib_summation_owes(the.summation, 1, rank_2_is_gone));
    trib_summation_destroy(the.summation); /* the rejected round waits for rank 2 */
    assert_int_equal(the.buffers, 0);
}

/* The end of a tensor: rounds that lack contributions are given up without a report, sums that are being sent stay
 * until they are sent, late contributions are dropped, and the key's later rounds work. */
static void test_a_tensor_ends(void **state)
{
    (void)state;
    unsigned char bytes[CHUNK_BYTES] = {0};
    trib_error error;
    void *buffer = NULL;
    open_bed(2, TRIB_ORDER_RANK);
    the.holds_sums = true;
    for (uint32_t key = 0; key < 200; key++) { /* neighbours in the table, which must be found when one has gone */
        const trib_contribution mine = of_rank(key, 1, 0), other = of_rank(key, 1, 1);
        must_give(&mine, bytes);
        must_give(&other, bytes);
        release_all();
        the.event_count = 0;
    }
    assert_int_equal(trib_summation_keys(the.summation), 200);
    for (uint32_t key = 0; key < 200; key += 2) {
        const trib_contribution end = {.tensor = of_rank(key, 1, 0).tensor, .partition = key, .round = 1};
        trib_summation_forget(the.summation, &end);
    }
    assert_int_equal(trib_summation_keys(the.summation), 100);
    for (uint32_t key = 1; key < 200; key += 2) {
        const trib_contribution mine = of_rank(key, 2, 0), other = of_rank(key, 2, 1);
        must_give(&mine, bytes);
        must_give(&other, bytes);
        release_all();
        the.event_count = 0;
    }
    /* Round 2 of key 1 is complete and being sent, round 3 lacks a contribution, round 4 is being received. */
    for (uint32_t round = 3; round <= 4; round++) {
        const trib_contribution mine = of_rank(1, round, 0);
        must_give(&mine, bytes);
        if (round == 3) {
            const trib_contribution other = of_rank(1, round, 1);
            must_give(&other, bytes);
        }
    }
    trib_contribution late = of_rank(1, 4, 1);
    assert_int_equal(trib_summation_recv_target(the.summation, &late, &buffer, &error), TRIB_OK);
    assert_int_equal(the.event_count, 2);
    const trib_contribution end = {.tensor = late.tensor, .partition = 1, .round = 5};
    trib_summation_forget(the.summation, &end);
    assert_int_equal(the.event_count, 2);
    /* Held by sums that are being sent and payloads that are being received. */
    assert_int_equal(trib_summation_keys(the.summation), 100);
    late.round_base = 5;
    assert_int_equal(
        trib_summation_arrived(the.summation, &late, &(trib_arrived){.buffer = buffer, .payload = buffer}, &error),
        TRIB_OK);
    release_all();
    assert_int_equal(the.event_count, 2);
    assert_int_equal(trib_summation_keys(the.summation), 99);
    for (uint32_t round = 1; round <= 5; round++) { /* late frames of the tensor that ended */
        late.round = round;
        must_give(&late, bytes);
        assert_int_equal(trib_summation_withdraw(the.summation, &late, TRIB_CANCELLED, "late"), TRIB_OK);
    }
    assert_int_equal(the.event_count, 2);
    assert_int_equal(trib_summation_keys(the.summation), 99);
    late.round = 7;
    assert_int_equal(trib_summation_recv_target(the.summation, &late, &buffer, &error), TRIB_PROTOCOL);
    trib_contribution first = of_rank(1, 6, 0);
    first.round_base = 5;
    late.round = 6;
    must_give(&first, bytes);
    must_give(&late, bytes);
    assert_int_equal(the.event_count, 4);
    release_all();
    trib_summation_destroy(the.summation);
    assert_int_equal(the.buffers, 0);
}

/* All have joined twice when a round comes that one gave up before, behind a gap of the first join. It begins no
 * round, so the second join's gap is left for the round with which all go on. Taken for a round behind the second join,
 * it uses that gap up. */
static void test_a_late_round_uses_up_no_gap(void **state)
{
    (void)state;
    unsigned char bytes[CHUNK_BYTES] = {0};
    for (int is_late = 1; is_late >= 0; is_late--) {
        trib_error error;
        open_bed(2, TRIB_ORDER_RANK);
        for (uint32_t rank = 0; rank < 2; rank++) {
            trib_contribution first = make(1, rank, TRIB_FLOAT32, TRIB_SUM);
            must_give(&first, bytes);
        }
        trib_contribution late = make(3, 1, TRIB_FLOAT32, TRIB_SUM), next = make(5, 0, TRIB_FLOAT32, TRIB_SUM);
        late.is_late = is_late != 0;
        late.joins = late.is_late ? 1 : 2;
        next.joins = 2;
        must_give(&late, bytes);
        if (!late.is_late) {
            assert_int_equal(give(&next, bytes, &error), TRIB_PROTOCOL);
            release_all();
            trib_summation_destroy(the.summation);
            continue;
        }
        assert_int_equal(trib_summation_withdraw(the.summation, &late, TRIB_CANCELLED, "late"), TRIB_OK);
        assert_int_equal(the.event_count, 2);
        must_give(&next, bytes);
        next.contributor = 1;
        must_give(&next, bytes);
        assert_int_equal(the.event_count, 4);
        release_all();
        close_bed();
    }
}

static bool rank_1_has_joined(void *user, const trib_contribution *what, char *text, size_t size)
{
    (void)user;
    snprintf(text, size, "rank %u has joined", what->contributor);
    return what->contributor == 1;
}

/* Neutral elements take the place of a machine's partial sum while its payload arrives. The partial sum is dropped, and
 * its relay hears of it, as it waits for the sum. */
static void test_a_relay_hears_that_its_partial_sum_is_dropped(void **state)
{
    (void)state;
    unsigned char bytes[CHUNK_BYTES];
    trib_error error;
    void *buffer = NULL;
    trib_summation_config config = bed_config(2, TRIB_ORDER_RANK);
    config.takes_partials = config.fills_absent = true;
    open_configured(&config);
    const trib_contribution mine = make(1, 0, TRIB_FLOAT32, TRIB_SUM), other = make(1, 1, TRIB_FLOAT32, TRIB_SUM);
    assert_int_equal(trib_summation_recv_target(the.summation, &other, &buffer, &error), TRIB_OK);
    fill(bytes, TRIB_FLOAT32, 0);
    must_give(&mine, bytes);
    assert_int_equal(the.event_count, 0);
    trib_summation_fill(the.summation, &mine, rank_1_has_joined);
    assert_int_equal(the.event_count, 1);
    assert_int_equal(the.events[0].receiver, 0);
    check_sum(&the.events[0], TRIB_FLOAT32, TRIB_SUM, 1);
    memcpy(buffer, bytes, sizeof bytes);
    assert_int_equal(
        trib_summation_arrived(the.summation, &other, &(trib_arrived){.buffer = buffer, .payload = buffer}, &error),
        TRIB_OK);
    assert_int_equal(the.event_count, 2);
    assert_int_equal(the.events[1].receiver, 1);
    assert_int_equal(the.events[1].status, TRIB_CANCELLED);
    assert_string_equal(the.text, TRIB_SUM_DROPPED);
    close_bed();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_owner_leaves_after_its_sums),
        cmocka_unit_test(test_stalls),
        cmocka_unit_test(test_stalls_go_on),
        cmocka_unit_test(test_departed_contributor_ends_rounds),
        cmocka_unit_test(test_disagreements_are_owed),
        cmocka_unit_test(test_a_tensor_ends),
        cmocka_unit_test(test_a_late_round_uses_up_no_gap),
        cmocka_unit_test(test_a_relay_hears_that_its_partial_sum_is_dropped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

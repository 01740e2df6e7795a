/* test_group.c - the decisions of the leader of a machine's local ranks: the order of collectives, their credit, and
 * failures. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/local_group/group_internal.h"

#define TOLD_MAX 64u

typedef struct decisions {
    trib_announcement ordered[TOLD_MAX];
    uint32_t ordered_count;
    uint32_t off_rank[TOLD_MAX], off_round[TOLD_MAX];
    char off_text[TOLD_MAX][64];
    uint32_t off_count;
} decisions;

static void on_order(void *user, const trib_announcement *what)
{
    decisions *self = user;
    assert_in_range(self->ordered_count, 0, TOLD_MAX - 1);
    self->ordered[self->ordered_count++] = *what;
}

static void on_called_off(void *user, uint32_t rank, uint32_t tensor, uint32_t round, trib_status status,
                          const char *text)
{
    (void)tensor;
    decisions *self = user;
    assert_true(status == TRIB_TIMEOUT || status == TRIB_CANCELLED || status == TRIB_MISMATCH);
    assert_in_range(self->off_count, 0, TOLD_MAX - 1);
    self->off_rank[self->off_count] = rank;
    self->off_round[self->off_count] = round;
    snprintf(self->off_text[self->off_count++], sizeof self->off_text[0], "%s", text);
}

static trib_leader *make(decisions *into, uint32_t ranks, uint64_t credit)
{
    *into = (decisions){.ordered_count = 0};
    const trib_leader_upcalls upcalls = {.order = on_order, .called_off = on_called_off, .user = into};
    trib_leader *leader = trib_leader_create(ranks, credit, &upcalls);
    assert_non_null(leader);
    return leader;
}

static trib_announcement reduce_of(uint32_t tensor, uint32_t round, int32_t priority, uint32_t bytes)
{
    return (trib_announcement){.tensor = tensor, .round = round, .priority = priority, .bytes = bytes};
}

static void ready(trib_leader *leader, uint32_t rank, const trib_announcement *what)
{
    assert_int_equal(trib_leader_ready(leader, rank, what), TRIB_OK);
    trib_leader_pump(leader);
}

/* A collective is ordered once the last rank is ready, in whatever order the ranks come, and only once. */
static void waits_for_all(void **state)
{
    (void)state;
    decisions told;
    trib_leader *leader = make(&told, 3, 1000);
    const trib_announcement one = reduce_of(1, 1, 0, 10), two = reduce_of(2, 1, 0, 10);
    ready(leader, 0, &one);
    ready(leader, 1, &two);
    ready(leader, 2, &two);
    ready(leader, 2, &one);
    assert_int_equal(told.ordered_count, 0);
    ready(leader, 0, &two);
    assert_int_equal(told.ordered_count, 1);
    assert_int_equal(told.ordered[0].tensor, 2);
    ready(leader, 1, &one);
    assert_int_equal(told.ordered_count, 2);
    assert_int_equal(told.ordered[1].tensor, 1);
    assert_int_equal(trib_leader_waiting(leader), 0);
    trib_leader_free(leader);
}

/* While the credit is spent, urgent collectives overtake; equal ones keep their order. */
static void urgent_first(void **state)
{
    (void)state;
    decisions told;
    trib_leader *leader = make(&told, 2, 100);
    const int32_t priorities[] = {0, -5, 3, 3, 7};
    for (uint32_t i = 0; i < 5; i++) {
        const trib_announcement what = reduce_of(i, 1, priorities[i], 100);
        ready(leader, 0, &what);
        ready(leader, 1, &what);
    }
    assert_int_equal(told.ordered_count, 1); /* the first one took all the credit */
    for (uint32_t i = 0; i < 4; i++) {
        trib_leader_reduced(leader, 100);
        trib_leader_pump(leader);
    }
    const uint32_t wanted[] = {0, 4, 2, 3, 1};
    assert_int_equal(told.ordered_count, 5);
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(told.ordered[i].tensor, wanted[i]);
    }
    trib_leader_free(leader);
}

/* Gathers complete what is under way. They need no credit, because otherwise a machine could wait for itself. */
static void gathers_need_no_credit(void **state)
{
    (void)state;
    decisions told;
    trib_leader *leader = make(&told, 1, 100);
    trib_announcement what = reduce_of(1, 1, 0, 100);
    ready(leader, 0, &what);
    what.kind = TRIB_ANNOUNCE_GATHER;
    what.tensor = 2;
    ready(leader, 0, &what);
    assert_int_equal(told.ordered_count, 2);
    trib_leader_free(leader);
}

/* An operation that failed on one rank fails on the ranks that have announced it, and on those that will. */
static void failure_reaches_all(void **state)
{
    (void)state;
    decisions told;
    trib_leader *leader = make(&told, 3, 1000);
    const trib_announcement first = reduce_of(1, 1, 0, 10), second = reduce_of(1, 2, 0, 10);
    ready(leader, 0, &first);
    assert_int_equal(trib_leader_fail(leader, 1, 1, 1, TRIB_TIMEOUT, "too late"), TRIB_OK);
    assert_int_equal(told.off_count, 1);
    assert_int_equal(told.off_rank[0], 0);
    ready(leader, 2, &first);
    assert_int_equal(told.off_count, 2);
    assert_int_equal(told.off_rank[1], 2);
    assert_string_equal(told.off_text[1], "too late");
    assert_int_equal(told.ordered_count, 0);
    assert_int_equal(trib_leader_waiting(leader), 0);
    for (uint32_t i = 0; i < 3; i++) { /* the next round is not affected */
        ready(leader, i, &second);
    }
    assert_int_equal(told.ordered_count, 1);
    assert_int_equal(told.ordered[0].round, 2);
    assert_int_equal(told.off_count, 2);
    trib_leader_free(leader);
}

/* The leader leaves, and tells ranks of failed rounds. Each hears of a round once, and who failed it does not. */
static void failure_is_told_once(void **state)
{
    (void)state;
    decisions told;
    trib_leader *leader = make(&told, 4, 1000);
    const trib_announcement what = reduce_of(1, 1, 0, 10);
    ready(leader, 0, &what);
    assert_int_equal(trib_leader_fail(leader, 1, 1, 1, TRIB_TIMEOUT, "too late"), TRIB_OK);
    ready(leader, 2, &what);
    assert_int_equal(told.off_count, 2);
    for (uint32_t i = 0; i < 2; i++) {
        for (uint32_t rank = 0; rank < 4; rank++) {
            trib_leader_tell_failed(leader, rank);
        }
    }
    assert_int_equal(told.off_count, 3);
    assert_int_equal(told.off_rank[2], 3);
    trib_leader_free(leader);
}

/* A collective that waits for credit is not ordered if its operation fails. */
static void failure_takes_from_the_queue(void **state)
{
    (void)state;
    decisions told;
    trib_leader *leader = make(&told, 2, 10);
    const trib_announcement first = reduce_of(1, 1, 0, 10), second = reduce_of(2, 1, 0, 10);
    for (uint32_t i = 0; i < 2; i++) {
        ready(leader, i, &first);
        ready(leader, i, &second);
    }
    assert_int_equal(told.ordered_count, 1);
    assert_int_equal(trib_leader_fail(leader, 1, 2, 1, TRIB_TIMEOUT, "too late"), TRIB_OK);
    assert_int_equal(told.off_count, 2);
    trib_leader_reduced(leader, 10);
    trib_leader_pump(leader);
    assert_int_equal(told.ordered_count, 1);
    trib_leader_free(leader);
}

static void answers_a_late_slice(void **state)
{
    (void)state;
    decisions told;
    trib_leader *leader = make(&told, 2, 1000);
    trib_announcement slice = reduce_of(1, 4, 0, 10);
    const trib_announcement later = reduce_of(1, 5, 0, 10);
    ready(leader, 0, &slice);
    assert_int_equal(trib_leader_fail(leader, 1, 1, 4, TRIB_TIMEOUT, "too late"), TRIB_OK);
    assert_int_equal(told.off_count, 1);
    ready(leader, 1, &later); /* now both ranks are known to have heard of the failure */
    slice.slice = 1;
    ready(leader, 0, &slice); /* another core of one rank had announced more of it by then */
    assert_int_equal(told.off_count, 2);
    assert_int_equal(told.off_rank[1], 0);
    assert_int_equal(told.off_round[1], 4);
    assert_string_equal(told.off_text[1], "too late");
    ready(leader, 0, &later);
    assert_int_equal(told.ordered_count, 1);
    const trib_announcement much_later = reduce_of(1, 100, 0, 10);
    ready(leader, 0, &much_later);
    ready(leader, 1, &much_later);
    assert_int_equal(told.ordered_count, 2);
    slice.slice = 2;
    ready(leader, 0, &slice); /* the reason is forgotten, but the rank gets an answer */
    assert_int_equal(told.off_count, 3);
    assert_string_equal(told.off_text[2], "the operation has failed on another local rank");
    trib_leader_free(leader);
}

/* One core of a rank is many rounds behind another: its round has not failed because a later one has. */
static void a_slice_far_behind_is_no_failed_one(void **state)
{
    (void)state;
    decisions told;
    trib_leader *leader = make(&told, 2, 1000);
    trib_announcement behind = reduce_of(1, 3, 0, 10);
    const trib_announcement ahead = reduce_of(1, 100, 0, 10);
    behind.slice = 1;
    ready(leader, 0, &behind);
    assert_int_equal(trib_leader_fail(leader, 1, 1, 5, TRIB_TIMEOUT, "too late"), TRIB_OK);
    ready(leader, 0, &ahead);
    ready(leader, 1, &ahead); /* the reason why round 5 failed is forgotten */
    assert_int_equal(told.ordered_count, 1);
    ready(leader, 1, &behind);
    assert_int_equal(told.off_count, 0);
    assert_int_equal(told.ordered_count, 2);
    assert_int_equal(told.ordered[1].round, 3);
    behind.round = 4;
    ready(leader, 0, &behind); /* a failure so far behind ends the round of a waiting rank, too */
    assert_int_equal(trib_leader_fail(leader, 1, 1, 4, TRIB_TIMEOUT, "this one, too"), TRIB_OK);
    assert_int_equal(told.off_count, 1);
    assert_int_equal(told.off_rank[0], 0);
    assert_string_equal(told.off_text[0], "this one, too");
    assert_int_equal(trib_leader_waiting(leader), 0);
    trib_leader_free(leader);
}

static bool is_called_off(trib_leader *leader, decisions *told, uint32_t round)
{
    trib_announcement late = reduce_of(1, round, 0, 10);
    late.slice = 1;
    told->off_count = told->ordered_count = 0;
    ready(leader, 0, &late);
    ready(leader, 1, &late);
    trib_leader_reduced(leader, told->ordered_count * 10);
    assert_int_equal(told->ordered_count + told->off_count / 2, 1);
    return told->off_count == 2;
}

/*
 * Rounds fail in any order, singly and many in a row. Afterwards the leader knows of each round whether it has failed.
 */
static void knows_which_have_failed(void **state)
{
    (void)state;
    enum { ROUNDS = 600 };
    bool has_failed[ROUNDS + 1] = {false};
    uint64_t chance = 7;
    decisions told;
    trib_leader *leader = make(&told, 2, 1000);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        chance = chance * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        const uint32_t round = 1 + (uint32_t)(chance >> 33) % ROUNDS, last = chance >> 63 ? round : round + i % 7;
        for (uint32_t at = round; at <= last && at <= ROUNDS && i < ROUNDS / 3; at++) {
            has_failed[at] = true;
            assert_int_equal(trib_leader_fail(leader, i % 2, 1, at, TRIB_TIMEOUT, "too late"), TRIB_OK);
        }
        const trib_announcement ahead = reduce_of(1, 2 * ROUNDS + i, 0, 10);
        told.ordered_count = 0;
        ready(leader, 0, &ahead);
        ready(leader, 1, &ahead);
        trib_leader_reduced(leader, 10);
    }
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        assert_int_equal(is_called_off(leader, &told, round), has_failed[round]);
    }
    trib_leader_free(leader);
}

/* Old failures are forgotten, because no rank is that far behind. */
static void forgets_what_nobody_has_in_flight(void **state)
{
    (void)state;
    decisions told;
    trib_leader *leader = make(&told, 2, 1000);
    const uint32_t much_later = 1u << 21;
    for (uint32_t i = 1; i <= 40; i++) {
        const uint32_t round = i <= 20 ? 2 * i : much_later + 2 * i;
        assert_int_equal(trib_leader_fail(leader, 1, 1, round, TRIB_TIMEOUT, "too late"), TRIB_OK);
        told.ordered_count = 0;
        const trib_announcement ahead = reduce_of(1, round + 101, 0, 10);
        ready(leader, 0, &ahead);
        ready(leader, 1, &ahead);
        trib_leader_reduced(leader, 10);
    }
    assert_false(is_called_off(leader, &told, 2));
    assert_true(is_called_off(leader, &told, much_later + 42));
    assert_true(is_called_off(leader, &told, much_later + 80));
    trib_leader_free(leader);
}

/* With other machines, a rank that sums comes to a reduction first, and a rank that broadcasts from another
 * machine's root comes to the gather alone. Each would wait for the other. */
static void a_sum_and_a_broadcast_disagree(void **state)
{
    (void)state;
    decisions told;
    trib_leader *leader = make(&told, 2, 1000);
    for (uint32_t first = 0; first < 2; first++) {
        trib_announcement whats[2] = {reduce_of(1, 1 + first, 0, 10), reduce_of(1, 1 + first, 0, 10)};
        whats[1].kind = TRIB_ANNOUNCE_GATHER;
        whats[1].variant = TRIB_REDUCE_COUNT + 5;
        told.off_count = 0;
        ready(leader, first, &whats[first]);
        assert_int_equal(told.off_count, 0);
        ready(leader, 1 - first, &whats[1 - first]);
        assert_int_equal(told.off_count, 2);
        assert_int_equal(told.off_rank[0] + told.off_rank[1], 1);
        assert_non_null(strstr(told.off_text[0], "local ranks disagree"));
        assert_int_equal(trib_leader_waiting(leader), 0);
    }
    assert_int_equal(told.ordered_count, 0);
    trib_leader_free(leader);
}

/* Ranks that count calls, and are not at the same one, learn of it in place of a sum of two different calls. */
static void steps_disagree(void **state)
{
    (void)state;
    decisions told;
    trib_leader *leader = make(&told, 2, 1000);
    trib_announcement whats[2] = {reduce_of(1, 1, 0, 10), reduce_of(1, 1, 0, 10)};
    const trib_frame frame = {.type = TRIB_FRAME_GROUP_READY, .tensor = 1, .round = 1, .size = 10, .step = 48};
    whats[0].step = 32;
    assert_true(trib_group_read(&frame, &whats[1]));
    ready(leader, 0, &whats[0]);
    ready(leader, 1, &whats[1]);
    assert_int_equal(told.off_count, 2);
    assert_non_null(strstr(told.off_text[0], "local ranks disagree"));
    assert_int_equal(told.ordered_count, 0);
    trib_leader_free(leader);
}

static void second_ready_is_rejected(void **state)
{
    (void)state;
    decisions told;
    trib_leader *leader = make(&told, 2, 10);
    const trib_announcement what = reduce_of(1, 1, 0, 10);
    ready(leader, 1, &what);
    assert_int_equal(trib_leader_ready(leader, 1, &what), TRIB_PROTOCOL);
    trib_leader_free(leader);
}

/* Credit counts the leader's own bytes: a rank that announces another number changes nothing. */
static void credit_is_the_leaders(void **state)
{
    (void)state;
    decisions told;
    trib_leader *leader = make(&told, 2, 100);
    const trib_announcement own = reduce_of(1, 1, 0, 100), false_one = reduce_of(1, 1, 0, 1);
    ready(leader, 1, &false_one);
    ready(leader, 0, &own);
    assert_int_equal(told.ordered_count, 1);
    assert_int_equal(told.ordered[0].bytes, 100);
    const trib_announcement next = reduce_of(2, 1, 0, 100);
    ready(leader, 0, &next);
    ready(leader, 1, &next);
    assert_int_equal(told.ordered_count, 1); /* all credit is spent */
    trib_leader_reduced(leader, 100);
    trib_leader_pump(leader);
    assert_int_equal(told.ordered_count, 2);
    trib_leader_free(leader);
}

/* A frame carries the announced collectives; unknown kinds are rejected. */
static void frames_of_the_group(void **state)
{
    (void)state;
    trib_announcement read;
    for (uint32_t kind = TRIB_ANNOUNCE_REDUCE; kind <= TRIB_ANNOUNCE_GATHER; kind++) {
        trib_frame frame = {.type = TRIB_FRAME_GROUP_ORDER, .tensor = 3, .chunk = kind};
        assert_true(trib_group_read(&frame, &read));
        assert_int_equal(read.kind, kind);
        for (uint32_t bit = 1; bit < 32; bit++) {
            frame.chunk = kind | UINT32_C(1) << bit;
            assert_false(trib_group_read(&frame, &read));
        }
    }
    const trib_frame nowhere = {.type = TRIB_FRAME_GROUP_ORDER, .tensor = UINT32_MAX};
    assert_false(trib_group_read(&nowhere, &read));
}

static void wake_nobody(trib_reactor *reactor)
{
    (void)reactor;
}

/* Another core may find that an operation has failed while the reason is still being written. Nothing is reported
 * before the reason is there. */
static void failure_waits_for_its_reason(void **state)
{
    (void)state;
    static const trib_reactor_ops ops = {.wake = wake_nobody};
    static trib_engine engine;
    static trib_core core;
    static trib_tensor tensor;
    static trib_local_group group;
    static trib_device_op device;
    static trib_op op;
    trib_reactor reactor = {.ops = &ops};
    core.reactor = &reactor;
    engine.cores = &core;
    engine.group = &group;
    tensor.is_sharded = true;
    atomic_store(&tensor.placed, true);
    device.op = &op;
    op.engine = &engine;
    op.tensor = &tensor;
    op.device = &device;
    atomic_store(&op.claim, TRIB_TIMEOUT);
    trib_group_op_failed(&op);
    assert_null(atomic_load(&reactor.mail));
    atomic_store(&op.has_text, true);
    trib_group_op_failed(&op);
    trib_group_op_failed(&op);
    assert_ptr_equal(atomic_load(&reactor.mail), &device.failed_post);
    assert_int_equal(atomic_load(&op.references), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waits_for_all),
        cmocka_unit_test(urgent_first),
        cmocka_unit_test(gathers_need_no_credit),
        cmocka_unit_test(failure_reaches_all),
        cmocka_unit_test(failure_is_told_once),
        cmocka_unit_test(failure_takes_from_the_queue),
        cmocka_unit_test(answers_a_late_slice),
        cmocka_unit_test(a_slice_far_behind_is_no_failed_one),
        cmocka_unit_test(knows_which_have_failed),
        cmocka_unit_test(forgets_what_nobody_has_in_flight),
        cmocka_unit_test(a_sum_and_a_broadcast_disagree),
        cmocka_unit_test(steps_disagree),
        cmocka_unit_test(second_ready_is_rejected),
        cmocka_unit_test(credit_is_the_leaders),
        cmocka_unit_test(frames_of_the_group),
        cmocka_unit_test(failure_waits_for_its_reason),
    };
    return cmocka_run_group_tests_name("the order of collectives", tests, NULL, NULL);
}

/* test_tcp_backlog.c - the controller of send buffers: when samples make a network slow or fast, and how large
 * buffers are. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "transports/tcp/tcp_internal.h"

/*
 * Figures that a kernel reported: of a busy path, of an idle one, and of a path on which one acknowledgement came late.
 */
static void late_acknowledgements_are_no_slow_path(void **state)
{
    (void)state;
    assert_true(trib_tcp_rtt_is_reliable(804, 161));
    assert_true(trib_tcp_rtt_is_reliable(667, 464));
    assert_false(trib_tcp_rtt_is_reliable(5486, 10940));
    assert_false(trib_tcp_rtt_is_reliable(7790, 14062));
    assert_false(trib_tcp_rtt_is_reliable(0, 0)); /* nothing is known */
}

#define ASKED_EVERY_NS (8 * INT64_C(1000000))

/* Each reactor has four connections, sampled in turns. delay_us and bytes_per_us are the sample of each connection. */
static tcp_backlog learned_of(uint32_t reactors, double delay_us, double bytes_per_us, int times)
{
    tcp_backlog backlog;
    trib_tcp_backlog_open(&backlog, reactors);
    backlog.carrying = 4;
    for (int i = 0; i < times; i++) {
        trib_tcp_backlog_learn(&backlog, i * ASKED_EVERY_NS, delay_us, bytes_per_us);
    }
    return backlog;
}

static void slow_links_are_told_from_fast_ones(void **state)
{
    (void)state;
    assert_true(learned_of(1, 4000, 31, 50).paces); /* 1 Gbit/s */
    assert_true(learned_of(4, 4000, 31. / 4, 50).paces);
    assert_false(learned_of(1, 4000, 31, 8).paces);    /* that may be by chance */
    assert_false(learned_of(1, 500, 31, 1000).paces);  /* not much to send: nothing is known of the link */
    assert_false(learned_of(4, 2500, 78, 1000).paces); /* 10 Gbit/s */
    assert_false(learned_of(4, 2500, 39, 1000).paces); /* ... of which two servers that four workers share take half */
}

/* Sixty-four connections carry 10 Gbit/s, and few of them have been sampled so far. */
static void many_peers_make_no_slow_link(void **state)
{
    (void)state;
    tcp_backlog backlog;
    trib_tcp_backlog_open(&backlog, 4);
    backlog.carrying = 16;
    for (int i = 0; i < 50; i++) {
        trib_tcp_backlog_learn(&backlog, i * 4 * ASKED_EVERY_NS, 4000, 19.5);
    }
    assert_false(backlog.paces);
}

/* A machine that is busy with other work now and then acknowledges late, and no sample came before those. */
static void late_machines_are_no_slow_links(void **state)
{
    (void)state;
    tcp_backlog backlog;
    trib_tcp_backlog_open(&backlog, 4);
    for (uint32_t i = 0; i < 1000; i++) {
        backlog.carrying = i < 4 ? i + 1 : 4;
        const bool is_late = i % 50 < 8;
        trib_tcp_backlog_learn(&backlog, i * ASKED_EVERY_NS / 16, is_late ? 8000 : 900, is_late ? 9 : 78);
    }
    assert_false(backlog.paces);
}

/* Gives that many samples at the usual distance. Returns whether the network counts as slow afterwards. */
static bool learn_on(tcp_backlog *backlog, int64_t *now_ns, double delay_us, double bytes_per_us, int times)
{
    for (int i = 0; i < times; i++) {
        *now_ns += ASKED_EVERY_NS;
        trib_tcp_backlog_learn(backlog, *now_ns, delay_us, bytes_per_us);
    }
    return backlog->paces;
}

enum { A_TENTH_OF_A_SECOND = 13, A_SECOND = 126, A_WHILE = 20 };

/* A link that was narrow for a while, or that others used, is free again. */
static void fast_links_are_slow_no_longer(void **state)
{
    (void)state;
    tcp_backlog backlog = learned_of(1, 4000, 31, 50);
    int64_t now_ns = 50 * ASKED_EVERY_NS;
    assert_true(backlog.paces);
    assert_true(learn_on(&backlog, &now_ns, 200, 160, A_SECOND - 10)); /* 5 Gbit/s, that may be by chance */
    assert_true(learn_on(&backlog, &now_ns, 4000, 31, A_WHILE));       /* ... and it was */
    assert_true(learn_on(&backlog, &now_ns, 200, 100, 10 * A_SECOND)); /* 3 Gbit/s, of which little is used */
    assert_true(learn_on(&backlog, &now_ns, 1100, 160, A_SECOND * 10));
    assert_false(learn_on(&backlog, &now_ns, 200, 160, A_SECOND + A_WHILE));
    /* A long round trip on a fast link is no sign of a slow one. */
    assert_false(learn_on(&backlog, &now_ns, 4000, 125, 10 * A_SECOND));
    assert_true(learn_on(&backlog, &now_ns, 4000, 31, 10 * A_WHILE));
}

/* A few exchanges between long pauses prove little, however much time passes. */
static void few_fast_ones_are_not_believed(void **state)
{
    (void)state;
    tcp_backlog backlog = learned_of(1, 4000, 31, 50);
    for (int64_t i = 0; i < 64 + A_WHILE; i++) {
        const bool was_slow = backlog.paces;
        trib_tcp_backlog_learn(&backlog, (100 + i) * 1000 * ASKED_EVERY_NS, 200, 160);
        assert_true(was_slow || i >= 64);
    }
    assert_false(backlog.paces);
}

/* A link looks fast while little is sent, and is slow again as soon as there is more. Each such relapse costs more
 * samples. */
static void each_error_makes_it_believed_later(void **state)
{
    (void)state;
    tcp_backlog backlog = learned_of(1, 4000, 31, 50);
    int64_t now_ns = 50 * ASKED_EVERY_NS;
    for (int doubled = 1; doubled <= 64; doubled *= 2) {
        assert_true(learn_on(&backlog, &now_ns, 200, 160, doubled * (A_SECOND - 1)));
        assert_false(learn_on(&backlog, &now_ns, 200, 160, doubled + A_WHILE));
        assert_true(learn_on(&backlog, &now_ns, 4000, 31, A_TENTH_OF_A_SECOND + A_WHILE));
    }
    assert_true(learn_on(&backlog, &now_ns, 200, 160, 64 * (A_SECOND - 1))); /* not longer than that */
    assert_false(learn_on(&backlog, &now_ns, 200, 160, 64 + A_WHILE));
}

/* The kernel holds the sum of all reactors' buffers, so these are smaller where data waits long. */
static void reactors_that_share_a_link_leave_less_there(void **state)
{
    (void)state;
    tcp_backlog alone, beside;
    trib_tcp_backlog_open(&alone, 1);
    trib_tcp_backlog_open(&beside, 4);
    const uint32_t small = alone.small;
    assert_int_equal(beside.small, small);
    for (int i = 0; i < 100; i++) {
        trib_tcp_backlog_learn(&alone, i, 900, 70);
        trib_tcp_backlog_learn(&beside, i, beside.small == small ? 900 : 450, 70);
    }
    assert_int_equal(alone.small, small);
    assert_int_equal(beside.small, small / 2);
    for (int i = 0; i < 100; i++) {
        trib_tcp_backlog_learn(&beside, i, 170, 190);
    }
    assert_int_equal(beside.small, small);
}

/* Small buffers cost where connections have different shares, so those of a single reactor stay as large as they are,
 * however long data waits in them. */
static void buffers_of_a_single_reactor_stay(void **state)
{
    (void)state;
    tcp_backlog backlog;
    trib_tcp_backlog_open(&backlog, 1);
    const uint32_t small = backlog.small;
    for (int64_t i = 0; i < 1000; i++) {
        trib_tcp_backlog_learn(&backlog, i * ASKED_EVERY_NS, i % 2 == 0 ? 8000 : 300, 1000);
        assert_int_equal(backlog.small, small);
    }
}

/* Behind a slow link the buffers of several reactors add up to milliseconds; those of a single one do not. */
static void slow_links_make_buffers_of_several_reactors_small(void **state)
{
    (void)state;
    const tcp_backlog alone = learned_of(1, 4000, 31, 50), beside = learned_of(4, 4000, 31. / 4, 50);
    assert_true(alone.paces && beside.paces);
    assert_int_equal(beside.small, alone.small / 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(late_acknowledgements_are_no_slow_path),
        cmocka_unit_test(slow_links_are_told_from_fast_ones),
        cmocka_unit_test(many_peers_make_no_slow_link),
        cmocka_unit_test(late_machines_are_no_slow_links),
        cmocka_unit_test(fast_links_are_slow_no_longer),
        cmocka_unit_test(few_fast_ones_are_not_believed),
        cmocka_unit_test(each_error_makes_it_believed_later),
        cmocka_unit_test(reactors_that_share_a_link_leave_less_there),
        cmocka_unit_test(buffers_of_a_single_reactor_stay),
        cmocka_unit_test(slow_links_make_buffers_of_several_reactors_small),
    };
    return cmocka_run_group_tests_name("tcp backlog", tests, NULL, NULL);
}

/* test_tcp_silence.c - the time for which a peer has answered nothing, computed from samples of the kernel's counts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "transports/tcp/tcp_internal.h"

#define SECOND INT64_C(1000000000)

static int64_t at(tcp_silence *silence, int64_t second, uint32_t unacked, uint64_t acked, int64_t last_ack_ms)
{
    const tcp_seen seen = {.unacked = unacked, .acked = acked, .last_ack_ms = last_ack_ms};
    return trib_tcp_silence_learn(silence, second * SECOND, &seen);
}

static void nothing_acknowledged_is_silence(void **state)
{
    (void)state;
    tcp_silence silence = {.since_ns = 100 * SECOND}; /* when it was written */
    assert_int_equal(at(&silence, 101, 5, 7000, 90000), SECOND);
    assert_int_equal(at(&silence, 104, 5, 7000, 93000), 4 * SECOND);
    assert_int_equal(at(&silence, 110, 9, 7000, 99000), 10 * SECOND); /* more was written meanwhile */
}

/* Progress however slow is no silence, even where TCP had to send again. */
static void little_by_little_is_none(void **state)
{
    (void)state;
    tcp_silence silence = {.since_ns = 100 * SECOND};
    for (int64_t i = 1; i < 100; i++) {
        assert_int_equal(at(&silence, 100 + 2 * i, 80, 1000 + (uint64_t)i, 1900), i == 1 ? 1900000000 : 0);
    }
}

/* Acknowledgements wait in the queue of a narrow link while the peer's data arrives. Silence begins when no more data
 * arrives. */
static void what_the_peer_sends_is_life(void **state)
{
    (void)state;
    tcp_silence silence = {.since_ns = 100 * SECOND};
    for (int64_t i = 1; i <= 20; i++) {
        const tcp_seen seen = {.unacked = 5, .acked = 7000, .received = 1000 * (uint64_t)(i < 10 ? i : 10)};
        const int64_t silent_ns = trib_tcp_silence_learn(&silence, (100 + i) * SECOND, &seen);
        assert_int_equal(silent_ns, i < 11 ? 0 : (i - 10) * SECOND);
    }
}

/* The first packet is lost again and again, while others behind it arrive. */
static void what_the_peer_has_behind_a_gap_is_life(void **state)
{
    (void)state;
    tcp_silence silence = {.since_ns = 100 * SECOND};
    for (int64_t i = 1; i <= 20; i++) {
        const tcp_seen seen = {.unacked = 5, .acked = 7000, .delivered = 50 + (uint32_t)(i < 10 ? i : 10)};
        const int64_t silent_ns = trib_tcp_silence_learn(&silence, (100 + i) * SECOND, &seen);
        assert_int_equal(silent_ns, i < 11 ? 0 : (i - 10) * SECOND);
    }
}

/* A packet that is lost in the queue of a narrow link is acknowledged two round trips late. There still is a limit. */
static void a_long_round_trip_takes_its_time(void **state)
{
    (void)state;
    assert_int_equal(trib_tcp_silence_limit(2 * SECOND, false, 0), 2 * SECOND);
    assert_int_equal(trib_tcp_silence_limit(2 * SECOND, false, 250000), 2 * SECOND + SECOND / 2);
    assert_int_equal(trib_tcp_silence_limit(2 * SECOND, false, 1000000), 4 * SECOND);
    assert_int_equal(trib_tcp_silence_limit(2 * SECOND, false, UINT32_MAX), 4 * SECOND);
    assert_int_equal(trib_tcp_silence_limit(2 * SECOND, true, 250000), 4 * SECOND + SECOND / 2);
}

static void idle_connection_is_not_silent(void **state)
{
    (void)state;
    tcp_silence silence = {.since_ns = 100 * SECOND};
    assert_true(at(&silence, 101, 0, 7000, 900) < 0);
    assert_true(at(&silence, 200, 0, 7000, 99900) < 0);
}

/* The peer's last answer came after the data had been written. It counts, because no sample says yet how much was
 * acknowledged. */
static void an_answer_before_the_first_look_counts(void **state)
{
    (void)state;
    tcp_silence silence = {.since_ns = 100 * SECOND};
    assert_int_equal(at(&silence, 104, 5, 7000, 1000), SECOND);
    assert_int_equal(at(&silence, 106, 5, 7000, 3000), 3 * SECOND);
}

/* With unacknowledged data an answer has to acknowledge some: a path may swallow all that is large. */
static void answers_that_acknowledge_nothing_are_silence(void **state)
{
    (void)state;
    tcp_silence silence = {.since_ns = 100 * SECOND};
    assert_int_equal(at(&silence, 101, 5, 7000, 5000), SECOND);
    assert_int_equal(at(&silence, 105, 5, 7000, 10), 5 * SECOND);
}

/* A peer without room answers probes. A peer that is gone does not. */
static void a_closed_window_is_no_silence(void **state)
{
    (void)state;
    tcp_silence silence = {.since_ns = 100 * SECOND};
    tcp_seen seen = {.probes = 1, .acked = 7000, .last_ack_ms = 400};
    for (int64_t i = 101; i < 140; i++) {
        assert_int_equal(trib_tcp_silence_learn(&silence, i * SECOND, &seen), 400000000);
    }
    seen = (tcp_seen){.probes = 3, .acked = 7000, .last_ack_ms = 5400};
    assert_int_equal(trib_tcp_silence_learn(&silence, 144 * SECOND, &seen), 5400000000);
}

/* Nothing is under way between two probes, so only repeated samples can show that the peer has gone. */
static void unsent_bytes_are_probed(void **state)
{
    (void)state;
    tcp_silence silence = {.since_ns = 100 * SECOND};
    tcp_seen seen = {.unsent = 5000, .acked = 7000, .last_ack_ms = 30000}; /* probes may be minutes apart */
    for (int64_t i = 101; i < 140; i++) {
        assert_int_equal(trib_tcp_silence_learn(&silence, i * SECOND, &seen), 0);
    }
    seen = (tcp_seen){.unsent = 5000, .probes = 1, .acked = 7000, .last_ack_ms = 69000};
    assert_int_equal(trib_tcp_silence_learn(&silence, 142 * SECOND, &seen), 3 * SECOND);
    assert_int_equal(trib_tcp_silence_learn(&silence, 149 * SECOND, &seen), 10 * SECOND);
    seen = (tcp_seen){.acked = 12000};
    assert_true(trib_tcp_silence_learn(&silence, 150 * SECOND, &seen) < 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_acknowledged_is_silence),
        cmocka_unit_test(little_by_little_is_none),
        cmocka_unit_test(what_the_peer_sends_is_life),
        cmocka_unit_test(what_the_peer_has_behind_a_gap_is_life),
        cmocka_unit_test(a_long_round_trip_takes_its_time),
        cmocka_unit_test(idle_connection_is_not_silent),
        cmocka_unit_test(an_answer_before_the_first_look_counts),
        cmocka_unit_test(answers_that_acknowledge_nothing_are_silence),
        cmocka_unit_test(a_closed_window_is_no_silence),
        cmocka_unit_test(unsent_bytes_are_probed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

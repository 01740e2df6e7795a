/* transport_contract.c - the contract suite: one test for each promise of transport.h. */
#include "tests/contract/transport_contract.h"

#include <ev.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "tests/contract/contract_bed.h"
#include "transports/transport_defaults.h"

/* ---- The tests ---- */

static void fills_in_every_entry(void **state)
{
    const bed *self = *state;
    for (unsigned i = 0; i < 2; i++) {
        const trib_transport *transport = self->sides[i].transport;
        trib_transport_check_ops(transport->ops);
        assert_true(transport->ops->is_idle(transport)); /* there is no connection yet */
    }
}

static void connects_and_closes(void **state)
{
    bed *self = *state;
    peer *mine = trib_bed_start(self, &(habits){0}, &(habits){0});
    assert_false(mine->connected); /* never from inside the call */
    uint32_t one = 1;
    trib_bed_until(self, 1, trib_bed_has_peers, &one);
    while (!mine->connected) {
        trib_bed_turn(self, false);
    }
    assert_int_equal(mine->connect_status, TRIB_OK);
    trib_bed_close_peer(mine, false);
    assert_false(mine->closed);
    trib_bed_wait_closed(self, 1);
    assert_int_equal(mine->closed_status, TRIB_OK);
    assert_int_equal(trib_bed_theirs(self, 0)->closed_status, TRIB_PEER_LOST);
}

static void tells_that_nobody_listens(void **state)
{
    bed *self = *state;
    trib_bed_on_side(self, 1, trib_bed_stop_listening, NULL);
    peer *mine = trib_bed_start(self, &(habits){0}, &(habits){0});
    assert_false(mine->connected);
    uint32_t one = 1;
    trib_bed_until(self, 0, trib_bed_all_closed, &one);
    assert_true(mine->connected);
    assert_int_equal(mine->connect_status, TRIB_PEER_LOST);
    assert_int_equal(mine->closed_status, TRIB_PEER_LOST);
}

static void closes_before_connected(void **state)
{
    bed *self = *state;
    trib_bed_on_side(self, 1, trib_bed_stop_listening, NULL);
    peer *mine = trib_bed_start(self, &(habits){0}, &(habits){0});
    trib_bed_close_peer(mine, true);
    uint32_t one = 1;
    trib_bed_until(self, 0, trib_bed_all_closed, &one);
    assert_false(mine->connected);
}

static void refuses_bad_addresses(void **state)
{
    bed *self = *state;
    trib_transport *transport = self->sides[0].transport;
    const char *const bad[] = {"",       ":",      "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:1x",
                               "[::1:4", "host:1", "[]:1",      "999.0.0.1:1"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        trib_address at = {.text = ""};
        snprintf(at.text, sizeof at.text, "%s", bad[i]);
        trib_conn *conn = NULL;
        trib_listener *listener = NULL;
        trib_address bound;
        trib_error error = {.status = TRIB_OK};
        assert_int_equal(transport->ops->connect(transport, &at, NULL, &conn), TRIB_INVALID);
        assert_int_equal(transport->ops->listen(transport, &at, NULL, &listener, &bound, &error), TRIB_INVALID);
        assert_true(error.text[0] != '\0');
    }
}

static void exchange(bed *self, const habits *connecting, const habits *accepting)
{
    peer *mine = trib_bed_start(self, connecting, accepting);
    trib_bed_until(self, 0, trib_bed_has_received, &(uint32_t){accepting->to_send});
    trib_bed_until(self, 1, trib_bed_has_received, &(uint32_t){connecting->to_send});
    trib_bed_close_peer(mine, true);
    trib_bed_wait_closed(self, 1);
    assert_int_equal(mine->sent_ok, connecting->to_send);
    assert_int_equal(trib_bed_theirs(self, 0)->received, connecting->to_send);
    assert_int_equal(trib_bed_theirs(self, 0)->sent_ok, accepting->to_send);
}

static void keeps_order_and_content(void **state)
{
    exchange(*state, &(habits){.to_send = 1000}, &(habits){.to_send = 1000});
}

static void carries_small_messages(void **state)
{
    bed *self = *state;
    exchange(self, &(habits){.to_send = 20000, .size_fixed = 1}, &(habits){.to_send = 20000, .size_fixed = 100});
    trib_transport_stats stats;
    self->sides[0].transport->ops->stats(self->sides[0].transport, &stats);
    assert_int_equal(stats.messages_sent, 20000);
    assert_int_equal(stats.messages_received, 20000);
    assert_int_equal(stats.bytes_sent, 20000 * (TRIB_HEADER_SIZE + 1));
    assert_true(stats.system_calls < 40000 / 2);
}

static void pauses_on_again(void **state)
{
    bed *self = *state;
    exchange(self, &(habits){.to_send = 300, .again_every = 3}, &(habits){.to_send = 300});
    assert_int_equal(self->sides[0].peers[0]->agains, 100);
}

static void resumes_from_inside(void **state)
{
    bed *self = *state;
    exchange(self, &(habits){.to_send = 300, .again_every = 2, .resume_inside = true},
             &(habits){.to_send = 300, .again_every = 3, .resume_inside = true});
    assert_int_equal(self->sides[0].peers[0]->agains, 150);
}

/* Without `urgent`, `sent` may come late, but it comes. */
static void reports_without_hurry(void **state)
{
    bed *self = *state;
    peer *mine = trib_bed_start(self, &(habits){.to_send = 20, .size_fixed = 100000}, &(habits){0});
    mine->conn->awaits_sent = &(bool){false};
    trib_bed_until(self, 1, trib_bed_has_received, &(uint32_t){20});
    while (mine->sent_ok < 20) {
        trib_bed_turn(self, true);
    }
    trib_bed_close_peer(mine, true);
    trib_bed_wait_closed(self, 1);
}

static void ends_on_a_refused_header(void **state)
{
    bed *self = *state;
    peer *mine = trib_bed_start(self, &(habits){.to_send = 100}, &(habits){.refuse_at = 6, .to_send = 3});
    trib_bed_wait_closed(self, 1);
    assert_int_equal(trib_bed_theirs(self, 0)->closed_status, TRIB_MISMATCH);
    assert_int_equal(trib_bed_theirs(self, 0)->received, 5);
    assert_int_equal(mine->closed_status, TRIB_PEER_LOST);
}

static void gives_all_sends_back_on_close(void **state)
{
    bed *self = *state;
    peer *mine = trib_bed_start(
        self, &(habits){.to_send = WINDOW, .size_fixed = TRIB_PAYLOAD_MAX, .close_after_sending = true},
        &(habits){.again_every = 1, .stays_paused = true}); /* or all might be delivered before the close */
    trib_bed_wait_closed(self, 1);
    assert_int_equal(mine->sent_ok + mine->sent_failed, WINDOW);
    assert_true(mine->sent_failed > 0);
    assert_int_equal(mine->closed_status, TRIB_OK);
}

static void flush_delivers_everything(void **state)
{
    bed *self = *state;
    /* The other side sends too, so that there is unread input when this side closes. */
    peer *mine = trib_bed_start(self, &(habits){.to_send = WINDOW, .close_after_sending = true, .close_flush = true},
                                &(habits){.to_send = 200});
    trib_bed_wait_closed(self, 1);
    assert_int_equal(mine->sent_ok, WINDOW);
    assert_int_equal(mine->closed_status, TRIB_OK);
    assert_int_equal(trib_bed_theirs(self, 0)->received, WINDOW);
}

static void both_flush_at_once(void **state)
{
    bed *self = *state;
    habits both = {.to_send = WINDOW, .size_fixed = TRIB_PAYLOAD_MAX, .close_after_sending = true, .close_flush = true};
    trib_bed_start(self, &both, &both);
    trib_bed_wait_closed(self, 1);
}

static void flush_gives_way_to_drop(void **state)
{
    bed *self = *state;
    peer *mine = trib_bed_start(self, &(habits){.to_send = WINDOW, .size_fixed = TRIB_PAYLOAD_MAX},
                                &(habits){.again_every = 1, .stays_paused = true});
    while (!mine->connected) {
        trib_bed_turn(self, false);
    }
    trib_bed_close_peer(mine, true);
    for (unsigned i = 0; i < 20; i++) {
        trib_bed_turn(self, false);
    }
    assert_false(mine->closed); /* the receiver does not read: it would wait for ever */
    trib_bed_close_peer(mine, false);
    trib_bed_until(self, 0, trib_bed_all_closed, &(uint32_t){1});
    trib_bed_on_side(self, 1, trib_bed_close_all, NULL);
    trib_bed_wait_closed(self, 1);
    assert_true(mine->sent_failed > 0);
}

static void closes_inside_any_upcall(void **state)
{
    bed *self = *state;
    uint32_t count = 0;
    for (int here = IN_ACCEPTED; here < MOMENT_COUNT; here++) {
        for (int flush = 0; flush < 2; flush++) {
            habits closing = {.to_send = 40, .close_in = (moment)here, .close_flush = flush != 0};
            habits other = {.to_send = 40};
            bool by_accepting = here == IN_ACCEPTED || flush == 0;
            by_accepting = by_accepting && here != IN_CONNECTED;
            trib_bed_start(self, by_accepting ? &other : &closing, by_accepting ? &closing : &other);
            trib_bed_wait_closed(self, ++count);
        }
    }
}

static void carries_many_connections(void **state)
{
    bed *self = *state;
    habits how = {.to_send = 5, .size_fixed = 5000};
    const uint32_t most = self->maker->connecting_max > 0 ? self->maker->connecting_max : 200;
    for (uint32_t i = 0; i < 200; i++) {
        trib_bed_start(self, &how, &how);
        for (uint32_t k = 0; (i + 1) % most == 0 && k <= i; k++) {
            while (!self->sides[0].peers[k]->connected) {
                trib_bed_turn(self, !self->maker->threaded);
            }
        }
    }
    for (uint32_t i = 0; i < 200; i++) {
        peer *mine = self->sides[0].peers[i];
        while (mine->received < 5 || mine->sent_ok < 5) {
            if (mine->closed) {
                fail_msg("connection %u ended: %s", i, mine->reason);
            }
            trib_bed_turn(self, !self->maker->threaded);
        }
        trib_bed_close_peer(mine, true);
    }
    trib_bed_wait_closed(self, 200);
    for (uint32_t i = 0; i < 200; i++) {
        assert_int_equal(trib_bed_theirs(self, i)->received, 5);
    }
}

static void note_fired(trib_reactor *reactor, trib_timer *timer)
{
    (void)reactor;
    *(bool *)timer->user = true;
}

static void is_quiet_when_idle(void **state)
{
    bed *self = *state;
    peer *mine = trib_bed_start(self, &(habits){.to_send = 1}, &(habits){.to_send = 1});
    trib_bed_until(self, 0, trib_bed_has_received, &(uint32_t){1});
    trib_bed_until(self, 1, trib_bed_has_received, &(uint32_t){1});
    while (mine->sent_ok < 1) {
        trib_bed_turn(self, false);
    }
    for (unsigned i = 0; i < 20; i++) {
        trib_bed_turn(self, false); /* the other thread's sends that were under way */
        sched_yield();
    }
    uint64_t before = self->sides[0].upcalls;
    unsigned turns_before = ev_iteration(self->loop);
    bool fired = false;
    trib_reactor *reactor = self->sides[0].reactor;
    trib_timer timer = {.fired = note_fired, .user = &fired};
    trib_timer_arm(reactor, &timer, trib_now(reactor) + 30 * INT64_C(1000000));
    while (!fired) {
        trib_bed_turn(self, true);
    }
    assert_int_equal(self->sides[0].upcalls, before);
    assert_true(ev_iteration(self->loop) - turns_before <= 10); /* it slept */
    trib_bed_close_peer(mine, true);
    trib_bed_wait_closed(self, 1);
}

int trib_contract_run(const trib_contract_maker *maker)
{
    struct CMUnitTest tests[] = {
        cmocka_unit_test(connects_and_closes),       cmocka_unit_test(tells_that_nobody_listens),
        cmocka_unit_test(closes_before_connected),   cmocka_unit_test(refuses_bad_addresses),
        cmocka_unit_test(keeps_order_and_content),   cmocka_unit_test(carries_small_messages),
        cmocka_unit_test(pauses_on_again),           cmocka_unit_test(resumes_from_inside),
        cmocka_unit_test(ends_on_a_refused_header),  cmocka_unit_test(gives_all_sends_back_on_close),
        cmocka_unit_test(flush_delivers_everything), cmocka_unit_test(both_flush_at_once),
        cmocka_unit_test(flush_gives_way_to_drop),   cmocka_unit_test(closes_inside_any_upcall),
        cmocka_unit_test(carries_many_connections),  cmocka_unit_test(is_quiet_when_idle),
        cmocka_unit_test(reports_without_hurry),     cmocka_unit_test(fills_in_every_entry),
    };
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        tests[i].setup_func = trib_bed_setup;
        tests[i].teardown_func = trib_bed_teardown;
        tests[i].initial_state = (void *)(uintptr_t)maker;
    }
    return cmocka_run_group_tests_name(maker->name, tests, NULL, NULL);
}

/* test_shm_lease.c - payloads that stay in the sender's memory: how long a lease holds, what the sender learns of it,
 * and how it ends when either side ends or stands still. */
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "tests/contract/lease_bed.h"

/* ---- While nothing ends ---- */

/* A leased payload stays unchanged. The sender gets no report of it, nor of later messages, large or small. */
static void keeps_a_payload(void **state)
{
    (void)state;
    scene *self = lease_open();
    const held *first = &self->ends[1].held[0];
    self->ends[1].leases = 1;
    lease_send_offered(self, 3);
    lease_send_from(self, self->pieces, 100);
    lease_turn_both(self);
    assert_int_equal(self->ends[1].received, 4);
    assert_int_equal(self->ends[0].sent, 0);
    assert_true(lease_has_content(first->payload, 0, PIECE));
    self->pieces[5] ^= 1; /* the payload was not copied */
    assert_int_equal(first->payload[5], self->pieces[5]);
    struct pollfd wake_up = {.fd = ((shm_conn *)self->ends[0].conn)->io.fd, .events = POLLIN};
    assert_true(lease_let_go(&self->ends[1].held[0]));
    assert_int_equal(poll(&wake_up, 1, 0), 0);
    lease_turn(self, 1);
    assert_int_equal(poll(&wake_up, 1, 0), 1); /* the sender may sleep until a report wakes it */
    lease_turn_both(self);
    assert_int_equal(self->ends[0].sent_ok, 4);
    assert_int_equal(self->ends[1].recalled, 0);
    lease_close(self);
}

static void ends_out_of_order(void **state)
{
    (void)state;
    scene *self = lease_open();
    held *all = self->ends[1].held;
    static const unsigned order[] = {2, 1, 4, 0, 3, 5}, told[] = {0, 0, 0, 3, 5, 7};
    self->ends[1].leases = 0x3f;
    lease_send_offered(self, 7);
    lease_turn_both(self);
    for (unsigned i = 0; i < 6; i++) {
        assert_true(lease_let_go(&all[order[i]]));
        lease_turn_both(self);
        assert_int_equal(self->ends[0].sent_ok, told[i]);
    }
    lease_close(self);
}

static void ends_at_once(void **state)
{
    (void)state;
    scene *self = lease_open();
    self->ends[1].leases_all = self->ends[1].ends_inside = true;
    lease_send_offered(self, 40);
    lease_turn_both(self);
    assert_int_equal(self->ends[0].sent_ok, 40);
    assert_int_equal(self->ends[1].recalled, 0);
    lease_close(self);
}

/* Then the sender gets its report, and the lease must not be ended any more. */
static void recalls_in_time(void **state)
{
    (void)state;
    scene *self = lease_open();
    self->ends[1].leases = 3;
    lease_send_offered(self, 3);
    lease_turn_both(self);
    lease_pass(self, 10 * MS);
    assert_int_equal(self->ends[0].sent_ok, 3);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(self->ends[1].held[i].recalled, 1);
        assert_true(self->ends[1].held[i].valid);
    }
    lease_close(self);
}

/* The receiver may need a payload that waits behind messages which use up the sender's credit. So leases are recalled
 * for them. */
static void recalls_for_others(void **state)
{
    (void)state;
    scene *self = lease_open();
    self->ends[1].leases = 1 | 1u << 3;
    lease_send_offered(self, SHM_LEASES_MAX);
    lease_turn_both(self);
    assert_int_equal(self->ends[1].received, SHM_LEASES_MAX);
    assert_int_equal(self->ends[1].recalled, 0);
    lease_send_offered(self, 1);
    lease_turn_both(self);
    assert_int_equal(self->ends[1].received, SHM_LEASES_MAX + 1);
    assert_int_equal(self->ends[1].held[0].recalled, 1);
    assert_true(self->ends[1].held[0].valid);
    assert_int_equal(self->ends[0].sent_ok, 3); /* the payload that is leased now is the fourth */
    lease_send_from(self, self->own, PIECE);
    lease_send_from(self, self->own, PIECE);
    lease_send_from(self, self->own, PIECE); /* copied payloads count, too */
    lease_turn_both(self);
    assert_int_equal(self->ends[1].held[3].recalled, 1);
    assert_int_equal(self->ends[0].sent_ok, SHM_LEASES_MAX + 4);
    lease_close(self);
}

/* After a recall, by time or by later messages, the transport gives no lease for a while. */
static void gives_none_for_a_while(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        scene *self = lease_open();
        end *receiver = &self->ends[1];
        receiver->leases = 1;
        lease_send_offered(self, i == 0 ? 1 : SHM_LEASES_MAX + 1);
        lease_turn_both(self);
        if (i == 0) {
            lease_pass(self, 10 * MS);
        }
        assert_int_equal(receiver->recalled, 1);
        receiver->leases_all = true;
        lease_send_offered(self, 1);
        lease_turn_both(self);
        assert_null(receiver->held[receiver->received - 1].lease);
        while (receiver->held[receiver->received - 1].lease == NULL) {
            lease_send_offered(self, 1); /* there are enough messages for a lease */
            lease_turn_both(self);
            assert_int_equal(receiver->received, self->ends[0].begun);
        }
        assert_int_equal(receiver->recalled, 1);
        lease_close(self);
    }
}

/* A payload that is not in the sender's offered memory gets no lease. */
static void gives_none_of_copies(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 8; i++) {
        const bool offers = (i & 1) == 0, reads = (i & 2) == 0, copies = (i & 4) != 0;
        scene *self = lease_open_as(offers, reads);
        const held *all = self->ends[1].held;
        self->ends[1].leases_all = true;
        self->ends[1].copies = copies;
        assert_null(trib_shm_ops.lease(self->ends[1].conn, true)); /* of nothing */
        lease_send_from(self, self->pieces, 100);
        lease_send_from(self, self->pieces, SHM_INLINE_MAX);
        lease_send_from(self, self->own, PIECE);
        lease_send_from(self, self->pieces, SHM_INLINE_MAX + 1);
        lease_turn_both(self);
        assert_int_equal(self->ends[1].received, 4);
        for (unsigned k = 0; k < 3; k++) {
            assert_null(all[k].lease);
            assert_ptr_equal(all[k].payload, all[k].target);
        }
        assert_int_equal(all[3].lease != NULL, offers && reads && !copies);
        assert_int_equal(all[3].payload != all[3].target, offers && reads && !copies);
        assert_null(trib_shm_ops.lease(self->ends[1].conn, true)); /* the upcall is over */
        lease_close(self);
    }
}

/*
 * A sender that is not in a hurry is not woken for a progress report, but later sends may wait behind the leased one.
 */
static void patient_sender_is_woken_for_those_behind_it(void **state)
{
    (void)state;
    scene *self = lease_open();
    end *sender = &self->ends[0];
    sender->conn->awaits_sent = &(bool){false};
    self->ends[1].leases = 1;
    lease_send_offered(self, 1);
    lease_turn_both(self);
    struct pollfd wake_up = {.fd = ((shm_conn *)sender->conn)->io.fd, .events = POLLIN};
    assert_int_equal(poll(&wake_up, 1, 0), 0);
    self->clock_ns += 10 * MS;
    lease_turn(self, 1);
    assert_int_equal(self->ends[1].recalled, 1);
    assert_int_equal(poll(&wake_up, 1, 0), 1);
    lease_close(self);
}

/* To map it takes some; that passes. */
static void copies_without_descriptors(void **state)
{
    (void)state;
    scene *self = lease_open();
    end *receiver = &self->ends[1];
    struct rlimit before;
    receiver->leases_all = true;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    const struct rlimit none = {.rlim_cur = 3, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    lease_send_offered(self, 2);
    lease_turn_both(self);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(receiver->received, 2);
    assert_ptr_equal(receiver->held[1].payload, receiver->held[1].target);
    assert_int_equal(self->ends[0].sent_ok, 2);
    while (receiver->held[receiver->received - 1].lease == NULL) { /* there are enough messages for a lease */
        lease_send_offered(self, 1);
        lease_turn_both(self);
    }
    lease_close(self);
}

/* ---- Ends ---- */

/* Either side closes, with and without flush. Some leases are ended meanwhile; the others are recalled, once, before
 * `closed`. */
static void ends_with_leases_held(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 8; i++) {
        const unsigned side = i & 1;
        const bool flush = (i & 2) != 0, ended = (i & 4) != 0;
        scene *self = lease_open();
        end *sender = &self->ends[0], *receiver = &self->ends[1];
        receiver->leases = 1 | 4;
        lease_send_offered(self, 5);
        lease_turn_both(self);
        assert_int_equal(receiver->received, 5);
        lease_close_end(self, side, flush);
        if (ended) {
            assert_true(lease_let_go(&receiver->held[0]));
        }
        lease_turn_both(self);
        if (side == 0) { /* the payload is still being read */
            assert_false(sender->closed);
            assert_true(sender->sent <= (ended ? 2 : 0));
            assert_int_equal(receiver->recalled, 0);
        }
        lease_pass(self, MS);
        lease_pass(self, MS);
        assert_true(sender->closed && receiver->closed);
        assert_int_equal(self->ends[side].status, TRIB_OK);
        assert_true(!flush || side == 1 || sender->sent_ok == 5);
        assert_int_equal(receiver->held[0].recalled, !ended);
        assert_int_equal(receiver->held[2].recalled, 1);
        assert_true(receiver->held[2].valid);
        lease_close(self);
    }
}

/* The sender takes the payload back after a while. The receiver, which was reading, notices that before it uses the
 * payload. */
static void does_not_wait_for_ever(void **state)
{
    (void)state;
    scene *self = lease_open();
    end *sender = &self->ends[0], *receiver = &self->ends[1];
    receiver->leases = 3;
    lease_send_offered(self, 3);
    lease_turn_both(self);
    lease_close_end(self, 0, false);
    lease_turn(self, 0);
    self->clock_ns += 100 * MS;
    lease_turn(self, 0);
    assert_false(sender->closed);
    assert_int_equal(sender->sent, 0);
    self->clock_ns += 2000 * MS;
    for (unsigned i = 0; i < ROUNDS; i++) {
        lease_turn(self, 0);
    }
    assert_true(sender->closed);
    assert_int_equal(sender->sent, 3);
    assert_int_equal(sender->sent_ok, 0);
    memset(self->pieces, 0, 2 * PIECE);
    assert_false(lease_let_go(&receiver->held[0]));
    lease_turn_both(self);
    assert_int_equal(receiver->held[1].recalled, 1);
    assert_false(receiver->held[1].valid);
    assert_true(receiver->closed);
    assert_int_equal(receiver->status, TRIB_PEER_LOST);
    lease_close(self);
}

/* The sender's process is gone, so its memory cannot be read any more. */
static void does_not_wait_for_the_dead(void **state)
{
    (void)state;
    scene *self = lease_open();
    end *sender = &self->ends[0];
    self->ends[1].leases = 1;
    lease_send_offered(self, 3);
    lease_turn_both(self);
    assert_int_equal(shutdown(((shm_conn *)self->ends[1].conn)->io.fd, SHUT_RDWR), 0);
    for (unsigned i = 0; i < ROUNDS; i++) {
        lease_turn(self, 0);
    }
    assert_true(sender->closed);
    assert_int_equal(sender->sent, 3);
    lease_close(self);
}

/* The sender's memory stays as long as the receiver has it mapped. */
static void outlives_the_sender(void **state)
{
    (void)state;
    pid_t sender = 0;
    scene *self = lease_open_apart(3, &sender);
    end *receiver = &self->ends[1];
    receiver->leases = 3;
    while (receiver->received < 3) {
        lease_turn(self, 1);
        sched_yield();
    }
    assert_true(receiver->held[0].lease != NULL && receiver->held[1].lease != NULL);
    assert_int_equal(kill(sender, SIGKILL), 0);
    assert_int_equal(waitpid(sender, NULL, 0), sender);
    assert_true(lease_has_content(receiver->held[0].payload, 0, PIECE));
    assert_true(lease_let_go(&receiver->held[0]));
    while (!receiver->closed) {
        lease_turn(self, 1);
    }
    assert_int_equal(receiver->status, TRIB_PEER_LOST);
    assert_int_equal(receiver->held[1].recalled, 1);
    assert_true(receiver->held[1].valid);
    lease_close(self);
}

/* A payload that was taken back before it was presented never is. */
static void is_not_presented_after_the_end(void **state)
{
    (void)state;
    scene *self = lease_open();
    lease_send_offered(self, 3);
    lease_close_end(self, 0, false);
    for (unsigned i = 0; i < ROUNDS; i++) {
        lease_turn(self, 0);
    }
    assert_true(self->ends[0].closed);
    assert_int_equal(self->ends[0].sent, 3);
    memset(self->pieces, 0, 3 * PIECE);
    lease_turn_both(self);
    assert_int_equal(self->ends[1].received, 0);
    assert_int_equal(self->ends[1].status, TRIB_PEER_LOST);
    lease_close(self);
}

/* After which nothing is received, not even the payload that the lease had to make room for. */
static void closes_when_one_is_recalled(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        scene *self = lease_open();
        end *receiver = &self->ends[1];
        receiver->leases = 1;
        receiver->closes_in_recall = true;
        receiver->close_flush = (i & 1) != 0;
        lease_send_offered(self, SHM_LEASES_MAX);
        for (unsigned k = 0; k < 3; k++) {
            lease_send_from(self, (i & 2) != 0 ? self->own : self->pieces, PIECE);
        }
        lease_turn_both(self);
        assert_int_equal(receiver->recalled, 1);
        assert_int_equal(receiver->received, SHM_LEASES_MAX);
        assert_true(self->ends[0].closed && receiver->closed);
        lease_close(self);
    }
}

/* A side that has closed takes no lease. */
static void closing_side_takes_no_lease(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        scene *self = lease_open();
        end *receiver = &self->ends[1];
        receiver->leases_all = receiver->closes_inside = true;
        receiver->close_flush = i == 1;
        lease_send_offered(self, 2);
        lease_turn_both(self);
        assert_int_equal(receiver->received, 1);
        assert_int_equal(receiver->recalled, 0);
        assert_true(self->ends[0].closed && receiver->closed);
        lease_close(self);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_a_payload),
        cmocka_unit_test(ends_out_of_order),
        cmocka_unit_test(ends_at_once),
        cmocka_unit_test(recalls_in_time),
        cmocka_unit_test(recalls_for_others),
        cmocka_unit_test(gives_none_for_a_while),
        cmocka_unit_test(gives_none_of_copies),
        cmocka_unit_test(patient_sender_is_woken_for_those_behind_it),
        cmocka_unit_test(copies_without_descriptors),
        cmocka_unit_test(ends_with_leases_held),
        cmocka_unit_test(does_not_wait_for_ever),
        cmocka_unit_test(does_not_wait_for_the_dead),
        cmocka_unit_test(outlives_the_sender),
        cmocka_unit_test(is_not_presented_after_the_end),
        cmocka_unit_test(closes_when_one_is_recalled),
        cmocka_unit_test(closing_side_takes_no_lease),
    };
    return cmocka_run_group_tests_name("shm lease", tests, NULL, NULL);
}

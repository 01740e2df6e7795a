/* lease_bed.c - see lease_bed.h. */
#include "tests/contract/lease_bed.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/descriptors.h"

#define GUARD_S 100u

/* ---- Upcalls ---- */

static unsigned char content(uint32_t number, uint32_t at)
{
    return (unsigned char)(number % PIECES * 31 + at * 7);
}

bool lease_has_content(const unsigned char *bytes, uint32_t number, uint32_t size)
{
    for (uint32_t i = 0; i < size; i++) {
        if (bytes[i] != content(number, i)) {
            return false;
        }
    }
    return true;
}

static void on_accepted(trib_listener *listener, trib_conn *conn)
{
    scene *self = listener->user;
    self->ends[1].conn = conn;
    conn->user = &self->ends[1];
}

static void on_connected(trib_conn *conn, trib_status status)
{
    (void)conn;
    assert_int_equal(status, TRIB_OK);
}

static trib_status on_header(trib_conn *conn, const unsigned char header[TRIB_HEADER_SIZE], trib_recv_target *target)
{
    end *self = conn->user;
    held *one = &self->held[self->received];
    uint32_t number = 0;
    memcpy(&number, header, sizeof number);
    memcpy(&one->size, header + sizeof number, sizeof one->size);
    assert_int_equal(number, self->received);
    one->target = calloc(1, one->size);
    assert_non_null(one->target);
    *target = (trib_recv_target){.buffer = one->target, .payload_size = one->size, .in_place = !self->copies};
    return TRIB_OK;
}

bool lease_let_go(held *one)
{
    trib_lease *lease = one->lease;
    assert_non_null(lease);
    one->lease = NULL;
    return lease->end(lease);
}

static void on_recalled(trib_lease *lease)
{
    held *one = lease->user;
    end *self = NULL;
    /* The target holds the owner's address, because no payload is copied there. */
    memcpy(&self, one->target, sizeof self);
    assert_ptr_equal(one->lease, lease);
    assert_false(self->closed);
    const bool is_whole = lease_has_content(one->payload, (uint32_t)(one - self->held), one->size);
    if (self->closes_in_recall) {
        trib_shm_ops.conn_close(self->conn, self->close_flush);
    }
    one->valid = lease_let_go(one);
    assert_true(is_whole || !one->valid);
    one->recalled++;
    self->recalled++;
}

static void take_lease(end *self, held *one)
{
    one->lease = trib_shm_ops.lease(self->conn, true);
    if (one->lease != NULL) {
        assert_ptr_not_equal(one->payload, one->target);
        assert_null(trib_shm_ops.lease(self->conn, true)); /* one at a time */
        assert_null(trib_shm_ops.lease(self->conn, false));
        one->lease->recalled = on_recalled;
        one->lease->user = one;
        memcpy(one->target, &self, sizeof self);
    }
}

/* A payload in the sender's memory is read under a lease, which is always given for the length of the upcall. */
static void read_payload(end *self, const held *one, uint32_t number)
{
    trib_lease *lease = trib_shm_ops.lease(self->conn, false);
    assert_int_equal(lease != NULL, one->payload != one->target);
    assert_true(lease_has_content(one->payload, number, one->size));
    assert_true(lease == NULL || lease->end(lease));
    if (lease != NULL) {
        lease_turn(self->scene, 0); /* the sender learns of the end after the upcall has returned */
        assert_true(self->scene->ends[0].sent <= number);
    }
}

static void on_received(trib_conn *conn, const unsigned char header[TRIB_HEADER_SIZE], const void *payload,
                        uint32_t payload_size)
{
    (void)header;
    end *self = conn->user;
    const uint32_t number = self->received++;
    held *one = &self->held[number];
    assert_false(self->closed);
    assert_int_equal(payload_size, one->size);
    one->payload = payload;
    if (self->closes_inside) {
        trib_shm_ops.conn_close(conn, self->close_flush);
    }
    read_payload(self, one, number);
    if (self->leases_all || (number < 64 && (self->leases >> number & 1) != 0)) {
        take_lease(self, one);
    }
    if (one->lease != NULL && self->ends_inside) {
        assert_true(lease_let_go(one));
        lease_turn(self->scene, 0);
        assert_true(self->scene->ends[0].sent <= number);
    }
}

static void on_sent(trib_conn *conn, trib_send *send, trib_status status)
{
    end *self = conn->user;
    assert_ptr_equal(send, &self->sends[self->sent]); /* in order, each once */
    assert_true(status != TRIB_OK || self->sent_ok == self->sent);
    self->sent++;
    self->sent_ok += status == TRIB_OK;
}

static void on_closed(trib_conn *conn, trib_status status, const char *reason)
{
    end *self = conn->user;
    assert_true(!self->closed && reason[0] != '\0');
    assert_int_equal(self->sent, self->begun);
    for (unsigned i = 0; i < self->received; i++) {
        assert_null(self->held[i].lease); /* a lease that had not ended was recalled */
    }
    self->closed = true;
    self->status = status;
}

static const trib_transport_upcalls upcalls = {on_accepted, on_connected, on_header, on_received, on_sent, on_closed};

/* ---- The scene ---- */

void lease_turn(scene *self, unsigned side)
{
    if (self->transports[side] != NULL) {
        reactor_hand_turn(&self->hands[side]);
    }
}

void lease_turn_both(scene *self)
{
    for (unsigned i = 0; i < ROUNDS; i++) {
        lease_turn(self, 0);
        lease_turn(self, 1);
    }
}

void lease_pass(scene *self, int64_t ns)
{
    self->clock_ns += ns;
    lease_turn_both(self);
}

static void open_arena(scene *self)
{
    trib_arena_params params;
    trib_arena_params_init(&params);
    params.is_shared = true;
    assert_int_equal(trib_arena_create_with(&params, &self->arena), TRIB_OK);
    assert_int_equal(trib_shm_ops.context_open(self->arena, &self->offer, NULL), TRIB_OK);
    self->pieces = trib_arena_alloc(self->arena, PIECES * PIECE, 0);
    assert_non_null(self->pieces);
    for (uint32_t i = 0; i < PIECES * PIECE; i++) {
        self->pieces[i] = self->own[i] = content(i / PIECE, i % PIECE);
    }
}

static scene *scene_make(void)
{
    scene *self = calloc(1, sizeof *self);
    assert_non_null(self);
    alarm(GUARD_S);
    self->descriptors_before = descriptors_open();
    self->logger.level = TRIB_LOG_NONE;
    self->clock_ns = 1000 * MS;
    open_arena(self);
    return self;
}

static void open_side(scene *self, unsigned side, void *offer, bool reads)
{
    const trib_transport_config config = {.context = offer, .copies_only = !reads};
    reactor_hand_init(&self->hands[side], side, &self->logger, &self->clock_ns);
    self->ends[side].scene = self;
    assert_int_equal(trib_shm_ops.open(&self->hands[side].base, &config, &upcalls, &self->transports[side]), TRIB_OK);
}

static void listen_for_one(scene *self)
{
    assert_int_equal(trib_shm_ops.listen(self->transports[1], &(trib_address){.text = "127.0.0.1:0"}, self,
                                         &self->listener, &self->address, NULL),
                     TRIB_OK);
}

static void connect_to_it(scene *self)
{
    end *sender = &self->ends[0];
    assert_int_equal(trib_shm_ops.connect(self->transports[0], &self->address, sender, &sender->conn), TRIB_OK);
}

scene *lease_open_as(bool offers, bool reads)
{
    scene *self = scene_make();
    open_side(self, 0, offers ? self->offer : NULL, true);
    open_side(self, 1, self->offer, reads);
    listen_for_one(self);
    connect_to_it(self);
    lease_turn_both(self);
    assert_int_equal(((shm_conn *)self->ends[0].conn)->state, SHM_OPEN);
    assert_non_null(self->ends[1].conn);
    return self;
}

static void send_and_stay(const trib_address *address, unsigned count)
{
    scene *self = scene_make();
    self->address = *address;
    open_side(self, 0, self->offer, true);
    connect_to_it(self);
    lease_send_offered(self, count);
    while (true) {
        lease_turn(self, 0);
        sched_yield();
    }
}

scene *lease_open_apart(unsigned count, pid_t *sender_out)
{
    scene *self = scene_make();
    open_side(self, 1, self->offer, true);
    listen_for_one(self);
    const pid_t sender = fork();
    assert_true(sender >= 0);
    if (sender == 0) {
        send_and_stay(&self->address, count);
    }
    *sender_out = sender;
    return self;
}

scene *lease_open(void)
{
    return lease_open_as(true, true);
}

void lease_close_end(scene *self, unsigned side, bool flush)
{
    trib_shm_ops.conn_close(self->ends[side].conn, flush);
}

void lease_close(scene *self)
{
    for (unsigned side = 0; side < 2; side++) {
        if (self->ends[side].conn != NULL && !self->ends[side].closed) {
            lease_close_end(self, side, false);
        }
    }
    for (unsigned i = 0; i < ROUNDS; i++) {
        lease_pass(self, MS);
    }
    for (unsigned i = 0; i < MESSAGES_MAX; i++) {
        free(self->ends[1].held[i].target);
    }
    trib_shm_ops.listener_close(self->listener);
    for (unsigned side = 0; side < 2; side++) {
        assert_int_equal(self->ends[side].closed, self->ends[side].conn != NULL);
        if (self->transports[side] != NULL) {
            trib_shm_ops.close(self->transports[side]);
        }
        assert_int_equal(self->hands[side].timer_count + self->hands[side].io_count, 0);
    }
    trib_shm_ops.context_close(self->offer);
    trib_arena_free(self->arena, self->pieces);
    trib_arena_destroy(self->arena);
    assert_int_equal(descriptors_open(), self->descriptors_before);
    free(self);
    alarm(0);
}

void lease_send_from(scene *self, const unsigned char *memory, uint32_t size)
{
    end *sender = &self->ends[0];
    assert_true(sender->begun < MESSAGES_MAX);
    const uint32_t number = sender->begun++;
    trib_send *send = &sender->sends[number];
    send->payload = memory + number % PIECES * PIECE;
    send->payload_size = size;
    memcpy(send->header, &number, sizeof number);
    memcpy(send->header + sizeof number, &size, sizeof size);
    trib_shm_ops.send(sender->conn, send);
}

void lease_send_offered(scene *self, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        lease_send_from(self, self->pieces, PIECE);
    }
}

/* contract_bed.c - see contract_bed.h. */
#include "tests/contract/contract_bed.h"

#include <ev.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "tests/contract/contract_watch.h"

static void resume(trib_reactor *reactor, trib_post *post);

static uint64_t draw(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void *payload_alloc(bed *self, size_t size)
{
    return self->maker->alloc != NULL ? self->maker->alloc(self->shared, size) : malloc(size);
}

static void payload_free(bed *self, void *memory)
{
    if (self->maker->release != NULL) {
        self->maker->release(self->shared, memory);
    } else {
        free(memory);
    }
}

/* ---- Peers ---- */

static peer *peer_create(side *owner, const habits *how)
{
    assert_true(owner->peer_count < PEERS_MAX);
    peer *self = calloc(1, sizeof *self);
    assert_non_null(self);
    self->side = owner;
    self->habits = *how;
    self->resume_post.run = resume;
    self->random_state = 0x1234567u + owner->peer_count * 77u + (owner == &owner->bed->sides[1] ? 5u : 0u);
    owner->peers[owner->peer_count++] = self;
    return self;
}

static void close_if(peer *self, moment here)
{
    if (self->habits.close_in == here && !self->close_called) {
        self->close_called = true;
        self->conn->transport->ops->conn_close(self->conn, self->habits.close_flush);
        self->conn->transport->ops->conn_close(self->conn, self->habits.close_flush); /* twice is once */
    }
}

static uint32_t draw_size(peer *self)
{
    if (self->habits.size_fixed != 0) {
        return self->habits.size_fixed;
    }
    /* Every order of magnitude, with both ends. */
    uint64_t top = TRIB_PAYLOAD_MAX >> (draw(&self->random_state) % 21);
    return (uint32_t)(draw(&self->random_state) % (top + 1));
}

static void send_more(peer *self)
{
    for (unsigned i = 0; i < WINDOW && self->sent_begun < self->habits.to_send && !self->close_called; i++) {
        struct slot *slot = &self->slots[self->sent_begun % WINDOW];
        if (slot->taken) {
            return;
        }
        slot->taken = true;
        slot->sequence = self->sent_begun++;
        uint32_t size = draw_size(self);
        memset(slot->send.header, (int)(slot->sequence & 0xff), TRIB_HEADER_SIZE);
        memcpy(slot->send.header, &slot->sequence, 4);
        memcpy(slot->send.header + 4, &size, 4);
        slot->send.payload = size > 0 ? self->side->bed->block + slot->sequence % OFFSETS : NULL;
        slot->send.payload_size = size;
        slot->send.user = self;
        self->conn->transport->ops->send(self->conn, &slot->send);
    }
    if (self->habits.close_after_sending && !self->close_called) {
        self->close_called = true;
        self->conn->transport->ops->conn_close(self->conn, self->habits.close_flush);
    }
}

static void resume(trib_reactor *reactor, trib_post *post)
{
    (void)reactor;
    peer *self = trib_container_of(post, peer, resume_post);
    self->paused = false;
    if (!self->closed) {
        self->conn->transport->ops->recv_resume(self->conn);
    }
}

/* ---- Upcalls ---- */

static peer *enter(trib_conn *conn)
{
    peer *self = conn->user;
    trib_assert(self != NULL && !self->closed);
    bool (*on_thread)(const trib_reactor *) = self->side->bed->maker->on_thread;
    trib_assert(on_thread != NULL ? on_thread(self->side->reactor) : trib_reactor_ev_on_thread(self->side->reactor));
    self->side->upcalls++;
    return self;
}

static void on_accepted(trib_listener *listener, trib_conn *conn)
{
    side *owner = listener->user;
    peer *self = peer_create(owner, &owner->accepted_habits);
    owner->upcalls++;
    self->conn = conn;
    self->connected = true;
    conn->user = self;
    conn->proved = true;
    close_if(self, IN_ACCEPTED);
    send_more(self);
}

static void on_connected(trib_conn *conn, trib_status status)
{
    peer *self = enter(conn);
    trib_assert(!self->connected && !self->close_called);
    self->connected = true;
    self->connect_status = status;
    conn->proved = true;
    close_if(self, IN_CONNECTED);
    if (status == TRIB_OK) {
        send_more(self);
    }
}

static trib_status on_header(trib_conn *conn, const unsigned char header[TRIB_HEADER_SIZE], trib_recv_target *target)
{
    peer *self = enter(conn);
    uint32_t sequence = 0;
    uint32_t size = 0;
    memcpy(&sequence, header, 4);
    memcpy(&size, header + 4, 4);
    trib_assert(!self->close_called && !self->paused && self->connected);
    trib_assert(sequence == self->asked && size <= TRIB_PAYLOAD_MAX);
    trib_assert(header[63] == (sequence & 0xff));
    if (self->habits.refuse_at == sequence + 1) {
        return TRIB_MISMATCH;
    }
    if (self->habits.again_every != 0 && sequence % self->habits.again_every == 0 && !self->again_given) {
        self->again_given = true;
        self->agains++;
        if (self->habits.resume_inside) {
            conn->transport->ops->recv_resume(conn);
        } else {
            self->paused = true;
            if (!self->habits.stays_paused) {
                trib_reactor_defer(self->side->reactor, &self->resume_post);
            }
        }
        return TRIB_AGAIN;
    }
    self->again_given = false;
    close_if(self, IN_HEADER);
    trib_assert(self->asked - self->received < TRIB_AHEAD_MAX);
    const uint32_t at = self->asked++ % TRIB_AHEAD_MAX;
    self->ahead_max = self->asked - self->received > self->ahead_max ? self->asked - self->received : self->ahead_max;
    /* Exactly so much, for the sanitizer to see one byte too many. */
    self->targets[at] = size > 0 ? payload_alloc(self->side->bed, size) : NULL;
    self->target_sizes[at] = size;
    target->buffer = self->targets[at];
    target->payload_size = size;
    target->in_place = true;
    return TRIB_OK;
}

static void on_received(trib_conn *conn, const unsigned char header[TRIB_HEADER_SIZE], const void *payload,
                        uint32_t payload_size)
{
    peer *self = enter(conn);
    uint32_t sequence = 0;
    memcpy(&sequence, header, 4);
    const uint32_t at = sequence % TRIB_AHEAD_MAX;
    trib_assert(!self->close_called && sequence == self->received && self->asked > sequence);
    trib_assert(payload_size == self->target_sizes[at]);
    trib_lease *lease = trib_conn_lease(conn, false);
    bool is_zero_copy = (conn->transport->ops->flags & TRIB_TRANSPORT_ZERO_COPY) != 0 || lease != NULL;
    trib_assert(is_zero_copy || payload == self->targets[at]);
    const trib_contract_maker *maker = self->side->bed->maker;
    trib_assert(maker->is_in_place == NULL || maker->is_in_place(self->side == &self->side->bed->sides[1],
                                                                 payload_size) == (payload != self->targets[at]));
    trib_assert(payload_size == 0 || memcmp(payload, self->side->bed->block + sequence % OFFSETS, payload_size) == 0);
    trib_assert(lease == NULL || lease->end(lease));
    payload_free(self->side->bed, self->targets[at]);
    self->targets[at] = NULL;
    self->received++;
    close_if(self, IN_RECEIVED);
}

static void on_sent(trib_conn *conn, trib_send *send, trib_status status)
{
    peer *self = enter(conn);
    struct slot *slot = (struct slot *)send;
    trib_assert(send->user == self && slot->taken);
    trib_assert(slot->sequence == self->sent_ok + self->sent_failed);
    trib_assert(status != TRIB_OK || self->sent_failed == 0);
    slot->taken = false;
    self->sent_ok += status == TRIB_OK ? 1 : 0;
    self->sent_failed += status == TRIB_OK ? 0 : 1;
    close_if(self, IN_SENT);
    if (status == TRIB_OK) {
        send_more(self);
    }
}

static void on_closed(trib_conn *conn, trib_status status, const char *reason)
{
    peer *self = enter(conn);
    trib_assert(self->sent_ok + self->sent_failed == self->sent_begun);
    trib_assert(reason != NULL && reason[0] != '\0');
    self->closed = true;
    self->closed_status = status;
    snprintf(self->reason, sizeof self->reason, "%s", reason);
    for (uint32_t at = 0; at < TRIB_AHEAD_MAX; at++) {
        payload_free(self->side->bed, self->targets[at]);
        self->targets[at] = NULL;
    }
    self->side->closed_count++;
}

static const trib_transport_upcalls upcalls = {
    .accepted = on_accepted,
    .connected = on_connected,
    .header = on_header,
    .received = on_received,
    .sent = on_sent,
    .closed = on_closed,
};

/* ---- The bed ---- */

typedef struct call {
    trib_post post;
    bool (*function)(side *, void *);
    side *where;
    void *argument;
    bool answer;
    atomic_bool done;
} call;

static void run_call(trib_reactor *reactor, trib_post *post)
{
    (void)reactor;
    call *self = (call *)post;
    self->answer = self->function(self->where, self->argument);
    atomic_store(&self->done, true);
}

void trib_bed_turn(bed *self, bool may_wait)
{
    if (self->maker->turn != NULL) {
        self->maker->turn(self->shared);
    } else {
        ev_run(self->loop, may_wait ? EVRUN_ONCE : EVRUN_NOWAIT);
    }
}

bool trib_bed_on_side(bed *self, unsigned index, bool (*function)(side *, void *), void *argument)
{
    side *where = &self->sides[index];
    if (index == 0 || !self->maker->threaded) {
        return function(where, argument);
    }
    call request = {.post.run = run_call, .function = function, .where = where, .argument = argument};
    trib_reactor_post(where->reactor, &request.post);
    while (!atomic_load(&request.done)) {
        trib_bed_turn(self, false);
        sched_yield();
    }
    return request.answer;
}

void trib_bed_until(bed *self, unsigned index, bool (*function)(side *, void *), void *argument)
{
    while (!trib_bed_on_side(self, index, function, argument)) {
        trib_bed_turn(self, !self->maker->threaded);
    }
}

bool trib_bed_all_closed(side *where, void *argument)
{
    return where->peer_count >= *(const uint32_t *)argument && where->closed_count == where->peer_count;
}

static bool set_habits(side *where, void *argument)
{
    where->accepted_habits = *(const habits *)argument;
    return true;
}

static bool do_listen(side *where, void *argument)
{
    trib_address at = {.text = ""};
    snprintf(at.text, sizeof at.text, "%s", where->bed->maker->listen_at);
    trib_error error = {.status = TRIB_OK};
    trib_status status =
        where->transport->ops->listen(where->transport, &at, where, &where->listener, argument, &error);
    if (status != TRIB_OK) {
        print_error("listen: %s\n", error.text);
    }
    return status == TRIB_OK;
}

/* Returns the address as another host sees it: with that host's name, and everything after it unchanged. */
static void reach_at(bed *self, const char *host)
{
    trib_address told = self->address;
    const char *colon = strrchr(told.text, ':');
    assert_non_null(colon);
    snprintf(self->address.text, sizeof self->address.text, "%s%s", host, colon);
}

static bool do_open(side *where, void *argument)
{
    (void)argument;
    const trib_contract_maker *maker = where->bed->maker;
    unsigned index = where == &where->bed->sides[1] ? 1 : 0;
    return maker->open(where->bed->shared, index, where->reactor, &upcalls, &where->transport) == TRIB_OK;
}

bool trib_bed_stop_listening(side *where, void *argument)
{
    (void)argument;
    if (where->listener != NULL) {
        where->transport->ops->listener_close(where->listener);
        where->listener = NULL;
    }
    return true;
}

int trib_bed_setup(void **state)
{
    bed *self = calloc(1, sizeof *self);
    self->maker = *state;
    self->shared = self->maker->setup != NULL ? self->maker->setup() : NULL;
    self->loop = ev_loop_new(EVFLAG_AUTO | EVFLAG_NOENV);
    self->logger.level = TRIB_LOG_WARN;
    self->block = payload_alloc(self, TRIB_PAYLOAD_MAX + OFFSETS);
    uint64_t random_state = 42;
    for (size_t i = 0; i < TRIB_PAYLOAD_MAX + OFFSETS; i++) {
        self->block[i] = (unsigned char)draw(&random_state);
    }
    trib_bed_watch(self); /* a hang is a failure */
    for (unsigned i = 0; i < 2; i++) {
        side *one = &self->sides[i];
        one->bed = self;
        bool threaded = i == 1 && self->maker->threaded;
        if (self->maker->reactor_create != NULL) {
            one->reactor = self->maker->reactor_create(self->shared, i, &self->logger);
        } else if (trib_reactor_ev_create(i, &self->logger, threaded ? NULL : self->loop, &one->reactor) != TRIB_OK) {
            return -1;
        }
        if (threaded && trib_reactor_ev_start(one->reactor, -1, false) != TRIB_OK) {
            return -1;
        }
        if (!trib_bed_on_side(self, i, do_open, NULL)) {
            return -1;
        }
    }
    *state = self;
    if (!trib_bed_on_side(self, 1, do_listen, &self->address)) {
        return -1;
    }
    if (self->maker->reach_at != NULL) {
        reach_at(self, self->maker->reach_at);
    }
    return 0;
}

static bool is_idle(side *where, void *argument)
{
    (void)argument;
    return where->transport->ops->is_idle(where->transport);
}

static bool do_close_transport(side *where, void *argument)
{
    (void)argument;
    where->transport->ops->close(where->transport);
    return true;
}

/* A test that leaves something open has failed and must report that. Closing the transport now would end the process
 * first. */
int trib_bed_teardown(void **state)
{
    bed *self = *state;
    trib_bed_on_side(self, 1, trib_bed_stop_listening, NULL);
    for (unsigned i = 0; i < 2; i++) {
        trib_bed_on_side(self, i, trib_bed_close_all, NULL);
    }
    trib_bed_wait_closed(self, 0);
    for (unsigned i = 0; i < 2; i++) {
        side *one = &self->sides[i];
        trib_bed_until(self, i, is_idle, NULL);
        trib_bed_on_side(self, i, do_close_transport, NULL);
        if (i == 1 && self->maker->threaded) {
            trib_reactor_ev_stop(one->reactor);
            trib_reactor_ev_join(one->reactor);
        }
        for (uint32_t p = 0; p < one->peer_count; p++) {
            free(one->peers[p]);
        }
    }
    for (unsigned i = 0; i < 2; i++) {
        void (*free_reactor)(trib_reactor *) = self->maker->reactor_free;
        (free_reactor != NULL ? free_reactor : trib_reactor_ev_destroy)(self->sides[i].reactor);
    }
    ev_loop_destroy(self->loop);
    payload_free(self, self->block);
    if (self->maker->teardown != NULL) {
        self->maker->teardown(self->shared);
    }
    trib_bed_watch_end();
    *state = (void *)(uintptr_t)self->maker;
    free(self);
    return 0;
}

peer *trib_bed_start(bed *self, const habits *connecting, const habits *accepting)
{
    habits theirs = *accepting;
    trib_bed_on_side(self, 1, set_habits, &theirs);
    peer *mine = peer_create(&self->sides[0], connecting);
    trib_transport *transport = self->sides[0].transport;
    assert_int_equal(transport->ops->connect(transport, &self->address, mine, &mine->conn), TRIB_OK);
    return mine;
}

void trib_bed_wait_closed(bed *self, uint32_t count)
{
    trib_bed_until(self, 0, trib_bed_all_closed, &count);
    trib_bed_until(self, 1, trib_bed_all_closed, &count);
}

bool trib_bed_has_received(side *where, void *argument)
{
    return where->peer_count > 0 && where->peers[where->peer_count - 1]->received >= *(const uint32_t *)argument;
}

bool trib_bed_has_peers(side *where, void *argument)
{
    return where->peer_count >= *(const uint32_t *)argument;
}

bool trib_bed_send_one(side *where, void *argument)
{
    (void)argument;
    peer *latest = where->peers[where->peer_count - 1];
    latest->habits.to_send = latest->sent_begun + 1;
    send_more(latest);
    return true;
}

void trib_bed_close_peer(peer *mine, bool flush)
{
    mine->close_called = true;
    mine->conn->transport->ops->conn_close(mine->conn, flush);
}

bool trib_bed_close_all(side *where, void *argument)
{
    (void)argument;
    for (uint32_t i = 0; i < where->peer_count; i++) {
        peer *one = where->peers[i];
        if (!one->closed) {
            trib_bed_close_peer(one, false);
        }
    }
    return true;
}

const peer *trib_bed_theirs(bed *self, uint32_t index)
{
    assert_true(index < self->sides[1].peer_count);
    return self->sides[1].peers[index];
}

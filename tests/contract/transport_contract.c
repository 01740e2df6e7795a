/*
 * transport_contract.c - the contract suite: two sides, peers that send, check what they receive, and misbehave on request.
 *
 * Every upcall checks what must hold whatever the test is: order, contents, each message reported once, nothing after
 * `closed`. Side 0 runs on the test's thread; side 1 too, or on its own. What belongs to a side is only touched on its
 * thread: tests reach it through on_side.
 */
#include "tests/contract/transport_contract.h"

#include <ev.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "engine/assert.h"
#include "engine/reactor_ev.h"

#define WINDOW 64u
#define PEERS_MAX 256u
#define OFFSETS 4096u
#define WATCHDOG_S 100u

typedef enum moment { NOWHERE, IN_ACCEPTED, IN_CONNECTED, IN_HEADER, IN_RECEIVED, IN_SENT, MOMENT_COUNT } moment;

typedef struct habits {
    uint32_t to_send;
    uint32_t size_fixed; /* 0: random */
    uint32_t again_every; /* every n-th header is first answered AGAIN */
    bool stays_paused;    /* and never resumed */
    bool resume_inside;   /* or resumed from within that upcall */
    uint32_t refuse_at;   /* this message, counted from 1, is refused */
    moment close_in;
    bool close_flush;
    bool close_after_sending; /* at once, without waiting for `sent` */
} habits;

struct side;
typedef struct peer {
    struct side *side;
    trib_conn *conn;
    habits habits;
    uint64_t random_state;
    struct slot {
        trib_send send; /* first */
        uint32_t sequence;
        bool taken;
    } slots[WINDOW];
    uint32_t sent_begun, sent_ok, sent_failed, received;
    uint32_t agains;
    bool again_given, paused, connected, close_called, closed;
    trib_status connect_status, closed_status;
    char reason[256];
    trib_post resume_post;
    unsigned char *landing;
    uint32_t landing_size;
} peer;

typedef struct side {
    struct bed *bed;
    trib_reactor *reactor;
    trib_transport *transport;
    trib_listener *listener;
    habits accepted_habits;
    peer *peers[PEERS_MAX];
    uint32_t peer_count, closed_count;
    uint64_t upcalls;
} side;

typedef struct bed {
    const trib_contract_maker *maker;
    void *shared;
    struct ev_loop *loop;
    trib_logger logger;
    unsigned char *block; /* payloads are pieces of it */
    side sides[2];
    trib_address address;
} bed;

static void resume(trib_reactor *reactor, trib_post *post);

static uint64_t draw(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
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
    peer *self = (peer *)((char *)post - offsetof(peer, resume_post));
    self->paused = false;
    if (!self->closed) {
        self->conn->transport->ops->recv_resume(self->conn);
    }
}

/* ---- Upcalls ---- */

static peer *enter(trib_conn *conn)
{
    peer *self = conn->user;
    trib_assert(self != NULL && !self->closed && trib_reactor_ev_on_thread(self->side->reactor));
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
    close_if(self, IN_ACCEPTED);
    send_more(self);
}

static void on_connected(trib_conn *conn, trib_status status)
{
    peer *self = enter(conn);
    trib_assert(!self->connected && !self->close_called);
    self->connected = true;
    self->connect_status = status;
    close_if(self, IN_CONNECTED);
    if (status == TRIB_OK) {
        send_more(self);
    }
}

static trib_status on_header(trib_conn *conn, const unsigned char header[TRIB_HEADER_SIZE], trib_landing *landing)
{
    peer *self = enter(conn);
    uint32_t sequence = 0;
    uint32_t size = 0;
    memcpy(&sequence, header, 4);
    memcpy(&size, header + 4, 4);
    trib_assert(!self->close_called && !self->paused && self->connected);
    trib_assert(sequence == self->received && size <= TRIB_PAYLOAD_MAX);
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
    trib_assert(self->landing == NULL);
    self->landing = size > 0 ? malloc(size) : NULL; /* exactly so much, for the sanitizer to see one byte too many */
    self->landing_size = size;
    landing->buffer = self->landing;
    landing->payload_size = size;
    return TRIB_OK;
}

static void on_received(trib_conn *conn, const unsigned char header[TRIB_HEADER_SIZE], const void *payload,
                        uint32_t payload_size)
{
    peer *self = enter(conn);
    uint32_t sequence = 0;
    memcpy(&sequence, header, 4);
    trib_assert(!self->close_called && sequence == self->received && payload_size == self->landing_size);
    bool lends = (conn->transport->ops->flags & TRIB_TRANSPORT_LENDS) != 0;
    trib_assert(lends || payload == self->landing);
    trib_assert(payload_size == 0 || memcmp(payload, self->side->bed->block + sequence % OFFSETS, payload_size) == 0);
    free(self->landing);
    self->landing = NULL;
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
    free(self->landing);
    self->landing = NULL;
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

static bool on_side(bed *self, unsigned index, bool (*function)(side *, void *), void *argument)
{
    side *where = &self->sides[index];
    if (index == 0 || !self->maker->threaded) {
        return function(where, argument);
    }
    call request = {.post.run = run_call, .function = function, .where = where, .argument = argument};
    trib_reactor_post(where->reactor, &request.post);
    while (!atomic_load(&request.done)) {
        ev_run(self->loop, EVRUN_NOWAIT);
        sched_yield();
    }
    return request.answer;
}

static void until(bed *self, unsigned index, bool (*function)(side *, void *), void *argument)
{
    while (!on_side(self, index, function, argument)) {
        ev_run(self->loop, self->maker->threaded ? EVRUN_NOWAIT : EVRUN_ONCE);
    }
}

static bool all_closed(side *where, void *argument)
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

static bool do_open(side *where, void *argument)
{
    (void)argument;
    const trib_contract_maker *maker = where->bed->maker;
    unsigned index = where == &where->bed->sides[1] ? 1 : 0;
    return maker->open(where->bed->shared, index, where->reactor, &upcalls, &where->transport) == TRIB_OK;
}

static bool stop_listening(side *where, void *argument)
{
    (void)argument;
    if (where->listener != NULL) {
        where->transport->ops->listener_close(where->listener);
        where->listener = NULL;
    }
    return true;
}

static int setup(void **state)
{
    bed *self = calloc(1, sizeof *self);
    self->maker = *state;
    self->shared = self->maker->setup != NULL ? self->maker->setup() : NULL;
    self->loop = ev_loop_new(EVFLAG_AUTO | EVFLAG_NOENV);
    self->logger.level = TRIB_LOG_WARN;
    self->block = malloc(TRIB_PAYLOAD_MAX + OFFSETS);
    uint64_t random_state = 42;
    for (size_t i = 0; i < TRIB_PAYLOAD_MAX + OFFSETS; i++) {
        self->block[i] = (unsigned char)draw(&random_state);
    }
    alarm(WATCHDOG_S); /* a hang is a failure */
    for (unsigned i = 0; i < 2; i++) {
        side *one = &self->sides[i];
        one->bed = self;
        bool threaded = i == 1 && self->maker->threaded;
        if (trib_reactor_ev_create(i, &self->logger, threaded ? NULL : self->loop, &one->reactor) != TRIB_OK) {
            return -1;
        }
        if (threaded && trib_reactor_ev_start(one->reactor, -1, false) != TRIB_OK) {
            return -1;
        }
        if (!on_side(self, i, do_open, NULL)) {
            return -1;
        }
    }
    *state = self;
    return on_side(self, 1, do_listen, &self->address) ? 0 : -1;
}

static bool do_close_transport(side *where, void *argument)
{
    (void)argument;
    where->transport->ops->close(where->transport);
    return true;
}

static int teardown(void **state)
{
    bed *self = *state;
    on_side(self, 1, stop_listening, NULL);
    for (unsigned i = 0; i < 2; i++) {
        side *one = &self->sides[i];
        on_side(self, i, do_close_transport, NULL);
        if (i == 1 && self->maker->threaded) {
            trib_reactor_ev_stop(one->reactor);
            trib_reactor_ev_join(one->reactor);
        }
        for (uint32_t p = 0; p < one->peer_count; p++) {
            free(one->peers[p]);
        }
    }
    trib_reactor_ev_destroy(self->sides[0].reactor);
    trib_reactor_ev_destroy(self->sides[1].reactor);
    ev_loop_destroy(self->loop);
    if (self->maker->teardown != NULL) {
        self->maker->teardown(self->shared);
    }
    free(self->block);
    alarm(0);
    *state = (void *)(uintptr_t)self->maker;
    free(self);
    return 0;
}

static peer *start(bed *self, const habits *connecting, const habits *accepting)
{
    habits theirs = *accepting;
    on_side(self, 1, set_habits, &theirs);
    peer *mine = peer_create(&self->sides[0], connecting);
    trib_transport *transport = self->sides[0].transport;
    assert_int_equal(transport->ops->connect(transport, &self->address, mine, &mine->conn), TRIB_OK);
    return mine;
}

static void wait_closed(bed *self, uint32_t count)
{
    until(self, 0, all_closed, &count);
    until(self, 1, all_closed, &count);
}

static bool has_received(side *where, void *argument)
{
    return where->peer_count > 0 && where->peers[where->peer_count - 1]->received >= *(const uint32_t *)argument;
}

static bool has_peers(side *where, void *argument)
{
    return where->peer_count >= *(const uint32_t *)argument;
}

static void close_peer(peer *mine, bool flush)
{
    mine->close_called = true;
    mine->conn->transport->ops->conn_close(mine->conn, flush);
}

static bool close_all(side *where, void *argument)
{
    (void)argument;
    for (uint32_t i = 0; i < where->peer_count; i++) {
        peer *one = where->peers[i];
        if (!one->closed) {
            close_peer(one, false);
        }
    }
    return true;
}

/* What side 1's peer looked like when everything was over; by then its thread does not touch it any more. */
static const peer *theirs_of(bed *self, uint32_t index)
{
    assert_true(index < self->sides[1].peer_count);
    return self->sides[1].peers[index];
}

/* ---- The tests ---- */

static void connects_and_closes(void **state)
{
    bed *self = *state;
    peer *mine = start(self, &(habits){0}, &(habits){0});
    assert_false(mine->connected); /* never from inside the call */
    uint32_t one = 1;
    until(self, 1, has_peers, &one);
    while (!mine->connected) {
        ev_run(self->loop, EVRUN_NOWAIT);
    }
    assert_int_equal(mine->connect_status, TRIB_OK);
    close_peer(mine, false);
    assert_false(mine->closed);
    wait_closed(self, 1);
    assert_int_equal(mine->closed_status, TRIB_OK);
    assert_int_equal(theirs_of(self, 0)->closed_status, TRIB_PEER_LOST);
}

static void tells_that_nobody_listens(void **state)
{
    bed *self = *state;
    on_side(self, 1, stop_listening, NULL);
    peer *mine = start(self, &(habits){0}, &(habits){0});
    assert_false(mine->connected);
    uint32_t one = 1;
    until(self, 0, all_closed, &one);
    assert_true(mine->connected);
    assert_int_equal(mine->connect_status, TRIB_PEER_LOST);
    assert_int_equal(mine->closed_status, TRIB_PEER_LOST);
}

static void closes_before_connected(void **state)
{
    bed *self = *state;
    on_side(self, 1, stop_listening, NULL);
    peer *mine = start(self, &(habits){0}, &(habits){0});
    close_peer(mine, true);
    uint32_t one = 1;
    until(self, 0, all_closed, &one);
    assert_false(mine->connected);
}

static void refuses_bad_addresses(void **state)
{
    bed *self = *state;
    trib_transport *transport = self->sides[0].transport;
    const char *const bad[] = {"", ":", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:1x", "[::1:4",
                               "host:1", "[]:1", "999.0.0.1:1"};
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
    peer *mine = start(self, connecting, accepting);
    until(self, 0, has_received, &(uint32_t){accepting->to_send});
    until(self, 1, has_received, &(uint32_t){connecting->to_send});
    close_peer(mine, true);
    wait_closed(self, 1);
    assert_int_equal(mine->sent_ok, connecting->to_send);
    assert_int_equal(theirs_of(self, 0)->received, connecting->to_send);
    assert_int_equal(theirs_of(self, 0)->sent_ok, accepting->to_send);
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

static void ends_on_a_refused_header(void **state)
{
    bed *self = *state;
    peer *mine = start(self, &(habits){.to_send = 100}, &(habits){.refuse_at = 6, .to_send = 3});
    wait_closed(self, 1);
    assert_int_equal(theirs_of(self, 0)->closed_status, TRIB_MISMATCH);
    assert_int_equal(theirs_of(self, 0)->received, 5);
    assert_int_equal(mine->closed_status, TRIB_PEER_LOST);
}

static void gives_all_sends_back_on_close(void **state)
{
    bed *self = *state;
    peer *mine = start(self, &(habits){.to_send = WINDOW, .size_fixed = TRIB_PAYLOAD_MAX, .close_after_sending = true},
                       &(habits){0});
    wait_closed(self, 1);
    assert_int_equal(mine->sent_ok + mine->sent_failed, WINDOW);
    assert_true(mine->sent_failed > 0);
    assert_int_equal(mine->closed_status, TRIB_OK);
}

static void flush_delivers_everything(void **state)
{
    bed *self = *state;
    /* The other side sends too, so that there is unread input when this side closes. */
    peer *mine = start(self, &(habits){.to_send = WINDOW, .close_after_sending = true, .close_flush = true},
                       &(habits){.to_send = 200});
    wait_closed(self, 1);
    assert_int_equal(mine->sent_ok, WINDOW);
    assert_int_equal(mine->closed_status, TRIB_OK);
    assert_int_equal(theirs_of(self, 0)->received, WINDOW);
}

static void both_flush_at_once(void **state)
{
    bed *self = *state;
    habits both = {.to_send = WINDOW, .size_fixed = TRIB_PAYLOAD_MAX, .close_after_sending = true, .close_flush = true};
    start(self, &both, &both);
    wait_closed(self, 1);
}

static void flush_gives_way_to_drop(void **state)
{
    bed *self = *state;
    peer *mine = start(self, &(habits){.to_send = WINDOW, .size_fixed = TRIB_PAYLOAD_MAX},
                       &(habits){.again_every = 1, .stays_paused = true});
    while (!mine->connected) {
        ev_run(self->loop, EVRUN_NOWAIT);
    }
    close_peer(mine, true);
    for (unsigned i = 0; i < 20; i++) {
        ev_run(self->loop, EVRUN_NOWAIT);
    }
    assert_false(mine->closed); /* the receiver does not read: it would wait for ever */
    close_peer(mine, false);
    until(self, 0, all_closed, &(uint32_t){1});
    on_side(self, 1, close_all, NULL);
    wait_closed(self, 1);
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
            start(self, by_accepting ? &other : &closing, by_accepting ? &closing : &other);
            wait_closed(self, ++count);
        }
    }
}

static void carries_many_connections(void **state)
{
    bed *self = *state;
    habits how = {.to_send = 5, .size_fixed = 5000};
    for (uint32_t i = 0; i < 200; i++) {
        start(self, &how, &how);
    }
    for (uint32_t i = 0; i < 200; i++) {
        peer *mine = self->sides[0].peers[i];
        while (mine->received < 5 || mine->sent_ok < 5) {
            assert_false(mine->closed);
            ev_run(self->loop, self->maker->threaded ? EVRUN_NOWAIT : EVRUN_ONCE);
        }
        close_peer(mine, true);
    }
    wait_closed(self, 200);
    for (uint32_t i = 0; i < 200; i++) {
        assert_int_equal(theirs_of(self, i)->received, 5);
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
    peer *mine = start(self, &(habits){.to_send = 1}, &(habits){.to_send = 1});
    until(self, 0, has_received, &(uint32_t){1});
    until(self, 1, has_received, &(uint32_t){1});
    while (mine->sent_ok < 1) {
        ev_run(self->loop, EVRUN_NOWAIT);
    }
    for (unsigned i = 0; i < 20; i++) {
        ev_run(self->loop, EVRUN_NOWAIT); /* what the other thread had under way */
        sched_yield();
    }
    uint64_t before = self->sides[0].upcalls;
    unsigned turns_before = ev_iteration(self->loop);
    bool fired = false;
    trib_reactor *reactor = self->sides[0].reactor;
    trib_timer timer = {.fired = note_fired, .user = &fired};
    trib_timer_arm(reactor, &timer, trib_now(reactor) + 30 * INT64_C(1000000));
    while (!fired) {
        ev_run(self->loop, EVRUN_ONCE);
    }
    assert_int_equal(self->sides[0].upcalls, before);
    assert_true(ev_iteration(self->loop) - turns_before <= 10); /* it slept */
    close_peer(mine, true);
    wait_closed(self, 1);
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
    };
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        tests[i].setup_func = setup;
        tests[i].teardown_func = teardown;
        tests[i].initial_state = (void *)(uintptr_t)maker;
    }
    return cmocka_run_group_tests_name(maker->name, tests, NULL, NULL);
}

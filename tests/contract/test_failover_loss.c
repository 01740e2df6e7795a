/*
 * test_failover_loss.c - sessions over several rails and peers that are slow, late, silent or strange: what must not end a
 * session, what must, and what a path is turned away for. The peer is often a socket of the test's.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <ev.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "engine/wire/auth.h"
#include "engine/base/log.h"
#include "engine/reactor/reactor_ev.h"
#include "transports/failover/failover_internal.h"
#include "transports/tcp/tcp.h"

#define SECOND_NS INT64_C(1000000000)
#define LIMIT_S 20.0
#define BIG (1u << 20)
#define BIG_COUNT 32u

/* Both sides, each on a loop of its own, so that one can stand still. */
typedef struct world {
    trib_logger logger;
    trib_reactor *reactors[2]; /* the accepting side's, the connecting side's */
    trib_transport *transports[2];
    trib_listener *listener;
    trib_address bound;
    trib_conn *accepted, *connected;
    bool survives_path_loss, is_connected;
    unsigned received, sent, closed;
    char reason[256];
    char target[BIG];
} world;

static world *world_of(const trib_conn *conn)
{
    return conn->transport->user;
}

static void on_accepted(trib_listener *listener, trib_conn *conn)
{
    world *self = listener->user;
    self->accepted = conn;
    conn->survives_path_loss = self->survives_path_loss;
}

static void on_connected(trib_conn *conn, trib_status status)
{
    world_of(conn)->is_connected = status == TRIB_OK;
}

static uint32_t payload_size(const unsigned char header[TRIB_HEADER_SIZE])
{
    uint32_t size = 0;
    memcpy(&size, header + 4, sizeof size);
    return size;
}

static trib_status on_header(trib_conn *conn, const unsigned char header[TRIB_HEADER_SIZE], trib_recv_target *target)
{
    target->payload_size = payload_size(header);
    target->buffer = target->payload_size > 0 ? world_of(conn)->target : NULL;
    return TRIB_OK;
}

static void on_received(trib_conn *conn, const unsigned char header[TRIB_HEADER_SIZE], const void *payload,
                        uint32_t size)
{
    (void)header;
    (void)payload;
    (void)size;
    world_of(conn)->received++;
}

static void on_sent(trib_conn *conn, trib_send *send, trib_status status)
{
    (void)send;
    world_of(conn)->sent += status == TRIB_OK;
}

static void on_closed(trib_conn *conn, trib_status status, const char *reason)
{
    world *self = world_of(conn);
    (void)status;
    self->closed++;
    snprintf(self->reason, sizeof self->reason, "%s", reason);
    self->accepted = conn == self->accepted ? NULL : self->accepted;
    self->connected = conn == self->connected ? NULL : self->connected;
}

static const trib_transport_upcalls upcalls = {.accepted = on_accepted,
                                               .connected = on_connected,
                                               .header = on_header,
                                               .received = on_received,
                                               .sent = on_sent,
                                               .closed = on_closed};

/* ---- The world ---- */

static void turn(world *self, unsigned which)
{
    ev_run(trib_reactor_ev_loop(self->reactors[which]), EVRUN_NOWAIT);
}

static void turn_both(world *self)
{
    turn(self, 0);
    turn(self, 1);
    usleep(500);
}

/* Turns until the condition holds; false if it never does. */
#define UNTIL(self, condition)                                                                                         \
    do {                                                                                                               \
        const ev_tstamp begun = ev_time();                                                                             \
        while (!(condition) && ev_time() - begun < LIMIT_S) {                                                          \
            turn_both(self);                                                                                           \
        }                                                                                                              \
        if (!(condition)) {                                                                                            \
            fail_msg("never: %s (closed: %s)", #condition, (self)->reason);                                            \
        }                                                                                                              \
    } while (0)

static void some_turns(world *self, double seconds)
{
    for (const ev_tstamp begun = ev_time(); ev_time() - begun < seconds;) {
        turn_both(self);
    }
}

/* Sealed: or else the test's own sockets can take over without a proof. */
static world *world_create(int64_t silence_ns, const char *at, bool is_sealed)
{
    static const unsigned char key[TRIB_KEY_SIZE] = {7};
    world *self = calloc(1, sizeof *self);
    assert_non_null(self);
    self->survives_path_loss = true;
    self->logger.level = TRIB_LOG_ERROR;
    const trib_transport_config config = {.silence_timeout_ns = silence_ns,
                                          .payload_size = payload_size,
                                          .seal = is_sealed ? trib_auth_seal : NULL,
                                          .seal_key = key};
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(trib_reactor_ev_create(i, &self->logger, NULL, &self->reactors[i]), TRIB_OK);
        assert_int_equal(trib_failover_open(&trib_failover_tcp_ops, &trib_tcp_ops, self->reactors[i], &config, &upcalls,
                                            &self->transports[i]),
                         TRIB_OK);
        self->transports[i]->user = self;
    }
    trib_address address;
    snprintf(address.text, sizeof address.text, "%s", at);
    trib_error error = {.status = TRIB_OK};
    assert_int_equal(trib_failover_listen(self->transports[0], &address, self, &self->listener, &self->bound, &error),
                     TRIB_OK);
    return self;
}

static void world_destroy(world *self)
{
    trib_failover_listener_close(self->listener);
    for (unsigned i = 0; i < 2; i++) {
        trib_conn *conn = i == 0 ? self->accepted : self->connected;
        if (conn != NULL) {
            trib_failover_conn_close(conn, false);
        }
    }
    UNTIL(self, self->accepted == NULL && self->connected == NULL && trib_failover_is_idle(self->transports[0]) &&
                    trib_failover_is_idle(self->transports[1]));
    for (unsigned i = 0; i < 2; i++) {
        trib_failover_close(self->transports[i]);
        trib_reactor_ev_destroy(self->reactors[i]);
    }
    free(self);
}

static void world_connect(world *self, const char *to)
{
    trib_address address;
    snprintf(address.text, sizeof address.text, "%s", to);
    assert_int_equal(trib_failover_connect(self->transports[1], &address, NULL, &self->connected), TRIB_OK);
}

/* ---- Peers that are sockets ---- */

/* A socket that has that address and a free port; written to text, "" before the first: "a:1,b:2". */
static int socket_at(const char *ip, char *text, size_t size)
{
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = inet_addr(ip)};
    socklen_t length = sizeof at;
    const size_t used = strlen(text);
    assert_int_equal(bind(fd, (const struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &length), 0);
    snprintf(text + used, size - used, "%s%s:%u", used > 0 ? "," : "", ip, ntohs(at.sin_port));
    return fd;
}

/* Comes by that rail of the world's. */
static int come(const world *self, unsigned rail)
{
    const char *text = self->bound.text;
    for (; rail > 0; rail--) {
        text = strchr(text, ',') + 1;
    }
    char ip[32];
    snprintf(ip, sizeof ip, "%.*s", (int)strcspn(text, ":"), text);
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = inet_addr(ip),
                             .sin_port = htons((uint16_t)strtoul(strchr(text, ':') + 1, NULL, 10))};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&at, sizeof at), 0);
    return fd;
}

static void say_of(int fd, const unsigned char *id, failover_kind kind, uint64_t count, uint64_t attempt)
{
    failover_frame frame = {.magic = htole32(TRIB_FAILOVER_MAGIC),
                            .kind = (uint8_t)kind,
                            .version = TRIB_FAILOVER_VERSION,
                            .count = htole64(count),
                            .attempt = htole64(attempt)};
    memcpy(frame.id, id, sizeof frame.id);
    assert_int_equal(send(fd, &frame, sizeof frame, MSG_NOSIGNAL), sizeof frame);
}

static void say(int fd, failover_kind kind, uint64_t count, uint64_t attempt)
{
    static const unsigned char id[TRIB_FAILOVER_ID] = {7};
    say_of(fd, id, kind, count, attempt);
}

static bool is_readable(int fd)
{
    return poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 0) == 1;
}

static int accept_one(world *self, int listening)
{
    UNTIL(self, is_readable(listening));
    const int fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

/* The next frame that is none of the beats; its kind, 0 at the end. A message of the world's has none. */
static unsigned hear(world *self, int fd)
{
    failover_frame frame;
    const ev_tstamp asked = ev_time();
    do {
        UNTIL(self, is_readable(fd));
        assert_true(ev_time() - asked < LIMIT_S);
        if (recv(fd, &frame, sizeof frame, MSG_WAITALL) != (ssize_t)sizeof frame) {
            return 0;
        }
    } while (frame.magic == htole32(TRIB_FAILOVER_MAGIC) && frame.kind == FAILOVER_ACK);
    return frame.magic == htole32(TRIB_FAILOVER_MAGIC) ? frame.kind : 255;
}

static void probe(world *self, int fd)
{
    say(fd, FAILOVER_PROBE, 0, 0);
    assert_int_equal(hear(self, fd), FAILOVER_READY);
}

/* ---- Tests ---- */

static void a_rail_that_connects_and_says_nothing_is_not_returned_to(void **state)
{
    (void)state;
    world *self = world_create(2 * SECOND_NS, "127.0.0.2:0,", true);
    char first[TRIB_ADDRESS_MAX] = "", to[2 * TRIB_ADDRESS_MAX];
    const int silent = socket_at("127.0.0.1", first, sizeof first); /* refuses until it listens */
    snprintf(to, sizeof to, "%s,%s", first, self->bound.text);
    world_connect(self, to);
    UNTIL(self, self->is_connected);
    trib_send sends[2] = {{.user = NULL}};
    trib_failover_send(self->connected, &sends[0]);
    UNTIL(self, self->sent == 1);
    assert_int_equal(listen(silent, 16), 0);
    const int fd = accept_one(self, silent);
    while (hear(self, fd) != 0) {}
    some_turns(self, 0.5);
    assert_int_equal(self->closed, 0);
    trib_failover_send(self->connected, &sends[1]);
    UNTIL(self, self->sent == 2 && self->received == 2);
    close(fd);
    close(silent);
    world_destroy(self);
}

static void a_rail_that_answers_and_then_fails_leaves_the_one_that_works(void **state)
{
    (void)state;
    world *self = world_create(2 * SECOND_NS, "127.0.0.2:0,", true);
    char first[TRIB_ADDRESS_MAX] = "", to[2 * TRIB_ADDRESS_MAX];
    const int rail = socket_at("127.0.0.1", first, sizeof first);
    snprintf(to, sizeof to, "%s,%s", first, self->bound.text);
    world_connect(self, to);
    UNTIL(self, self->is_connected);
    assert_int_equal(listen(rail, 16), 0);
    const int fd = accept_one(self, rail);
    assert_int_equal(hear(self, fd), FAILOVER_PROBE);
    say(fd, FAILOVER_READY, 0, 0);
    assert_int_equal(hear(self, fd), FAILOVER_RESUME);
    const failover_session *session = (const failover_session *)self->connected;
    say_of(fd, session->id, FAILOVER_WELCOME, 0, session->attempt); /* without the proof */
    assert_int_equal(hear(self, fd), 0);
    trib_send one = {.user = NULL};
    trib_failover_send(self->connected, &one);
    UNTIL(self, self->sent == 1 && self->received == 1);
    close(fd);
    close(rail);
    world_destroy(self);
}

static void late_path_displaces_no_other(void **state)
{
    (void)state;
    world *self = world_create(20 * SECOND_NS, "127.0.0.1:0,127.0.0.2:0", false);
    int fd = come(self, 0);
    say(fd, FAILOVER_HELLO, 0, 1);
    assert_int_equal(hear(self, fd), FAILOVER_WELCOME);
    close(fd);
    const int late = come(self, 1);
    fd = come(self, 0);
    probe(self, fd);
    say(fd, FAILOVER_RESUME, 0, 3);
    assert_int_equal(hear(self, fd), FAILOVER_WELCOME);
    probe(self, late);
    say(late, FAILOVER_RESUME, 0, 2);
    assert_int_equal(hear(self, late), 0);
    trib_send sends[2] = {{.user = NULL}};
    trib_failover_send(self->accepted, &sends[0]);
    assert_int_equal(hear(self, fd), 255);
    say(fd, FAILOVER_ACK, 1, 0);
    UNTIL(self, self->sent == 1);
    const int wrong = come(self, 1);
    probe(self, wrong);
    say(wrong, FAILOVER_RESUME, 0, 4); /* it has said that it had one */
    assert_int_equal(hear(self, wrong), 0);
    trib_failover_send(self->accepted, &sends[1]);
    assert_int_equal(hear(self, fd), 255);
    say(fd, FAILOVER_ACK, 2, 0);
    UNTIL(self, self->sent == 2);
    assert_int_equal(self->closed, 0);
    close(late);
    close(wrong);
    close(fd);
    world_destroy(self);
}

static void a_peer_that_stands_still_is_waited_for(void **state)
{
    (void)state;
    world *self = world_create(4 * SECOND_NS, "127.0.0.1:0,127.0.0.2:0", true);
    world_connect(self, self->bound.text);
    UNTIL(self, self->is_connected);
    static const char payload[BIG];
    trib_send sends[BIG_COUNT] = {{.user = NULL}};
    for (unsigned i = 0; i < BIG_COUNT; i++) {
        const uint32_t size = BIG;
        memcpy(sends[i].header + 4, &size, sizeof size);
        sends[i].payload = payload;
        sends[i].payload_size = size;
        trib_failover_send(self->connected, &sends[i]);
    }
    for (const ev_tstamp begun = ev_time(); ev_time() - begun < 2.6;) {
        turn(self, 1);
        usleep(500);
    }
    UNTIL(self, self->received == BIG_COUNT && self->sent == BIG_COUNT);
    assert_int_equal(self->closed, 0);
    world_destroy(self);
}

static void a_process_that_is_gone_is_not_waited_for(void **state)
{
    (void)state;
    world *self = world_create(60 * SECOND_NS, "127.0.0.3:0,", true);
    char to[TRIB_ADDRESS_MAX] = "";
    const int rails[] = {socket_at("127.0.0.1", to, sizeof to), socket_at("127.0.0.2", to, sizeof to)};
    assert_int_equal(listen(rails[0], 16) | listen(rails[1], 16), 0);
    world_connect(self, to);
    const int fd = accept_one(self, rails[0]);
    assert_int_equal(hear(self, fd), FAILOVER_HELLO);
    say(fd, FAILOVER_WELCOME, 0, 0);
    UNTIL(self, self->is_connected);
    close(rails[0]);
    close(rails[1]);
    close(fd);
    UNTIL(self, self->closed == 1);
    assert_non_null(strstr(self->reason, "no other rail works"));
    world_destroy(self);
}

static void unknown_session_is_rejected(void **state)
{
    (void)state;
    world *self = world_create(20 * SECOND_NS, "127.0.0.1:0,127.0.0.2:0", true);
    const failover_kind kinds[] = {FAILOVER_RESUME, FAILOVER_PROBE};
    for (unsigned i = 0; i < 2; i++) {
        const int fd = come(self, i);
        say(fd, kinds[i], 0, 1);
        assert_int_equal(hear(self, fd), FAILOVER_GONE);
        assert_int_equal(hear(self, fd), 0);
        close(fd);
    }
    assert_null(self->accepted);
    world_destroy(self);
}

static void second_greeting_is_rejected(void **state)
{
    (void)state;
    world *self = world_create(20 * SECOND_NS, "127.0.0.1:0,127.0.0.2:0", true);
    const int fd = come(self, 0), prober = come(self, 1);
    say(fd, FAILOVER_HELLO, 0, 1);
    assert_int_equal(hear(self, fd), FAILOVER_WELCOME);
    probe(self, prober);
    say(prober, FAILOVER_PROBE, 0, 0);
    assert_int_equal(hear(self, prober), 0);
    assert_int_equal(self->closed, 0);
    say(fd, FAILOVER_HELLO, 0, 2);
    while (hear(self, fd) != 0) {}
    UNTIL(self, self->closed == 1);
    close(fd);
    close(prober);
    world_destroy(self);
}

static void wrong_key_takes_over_no_session(void **state)
{
    (void)state;
    world *self = world_create(20 * SECOND_NS, "127.0.0.1:0,127.0.0.2:0", true);
    world_connect(self, self->bound.text);
    UNTIL(self, self->is_connected);
    trib_send sends[2] = {{.user = NULL}};
    trib_failover_send(self->connected, &sends[0]);
    UNTIL(self, self->sent == 1 && self->received == 1);
    const unsigned char *id = ((const failover_session *)self->connected)->id; /* it goes over the network in clear */
    for (unsigned i = 0; i < 3; i++) {
        const int fd = come(self, i % 2);
        if (i == 0) {
            say_of(fd, id, FAILOVER_PROBE, 0, 0);
            assert_int_equal(hear(self, fd), FAILOVER_READY);
        }
        say_of(fd, id, i == 2 ? FAILOVER_HELLO : FAILOVER_RESUME, 0, 99);
        assert_int_equal(hear(self, fd), 0);
        close(fd);
    }
    trib_failover_send(self->connected, &sends[1]);
    UNTIL(self, self->sent == 2 && self->received == 2);
    assert_int_equal(self->closed, 0);
    world_destroy(self);
}

static void a_half_open_connection_goes_with_its_path(void **state)
{
    (void)state;
    world *self = world_create(60 * SECOND_NS, "127.0.0.1:0,127.0.0.2:0", true);
    self->survives_path_loss = false;
    for (unsigned i = 1; i <= 3; i++) {
        const int fd = come(self, 0);
        say(fd, FAILOVER_HELLO, 0, 1);
        assert_int_equal(hear(self, fd), FAILOVER_WELCOME);
        close(fd);
        UNTIL(self, self->closed == i);
        assert_null(strstr(self->reason, "the peer did not connect by another rail"));
    }
    world_destroy(self);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rail_that_connects_and_says_nothing_is_not_returned_to),
        cmocka_unit_test(a_rail_that_answers_and_then_fails_leaves_the_one_that_works),
        cmocka_unit_test(late_path_displaces_no_other),
        cmocka_unit_test(a_peer_that_stands_still_is_waited_for),
        cmocka_unit_test(a_process_that_is_gone_is_not_waited_for),
        cmocka_unit_test(unknown_session_is_rejected),
        cmocka_unit_test(second_greeting_is_rejected),
        cmocka_unit_test(wrong_key_takes_over_no_session),
        cmocka_unit_test(a_half_open_connection_goes_with_its_path),
    };
    return cmocka_run_group_tests_name("rails that are lost", tests, NULL, NULL);
}

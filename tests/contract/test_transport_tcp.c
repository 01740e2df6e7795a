/* test_transport_tcp.c - the contract suite on TCP, and a peer that is no transport: it ends where it likes. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* RTLD_NEXT */
#endif
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <ev.h>
#include <netinet/tcp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "engine/reactor/reactor_ev.h"
#include "tests/contract/transport_contract.h"
#include "transports/registry.h"
#include "transports/tcp/tcp.h"
#include "transports/tcp/tcp_internal.h"

static trib_status open_tcp(void *shared, unsigned side, trib_reactor *reactor, const trib_transport_upcalls *upcalls,
                            trib_transport **transport_out)
{
    (void)shared;
    (void)side;
    const trib_transport_ops *ops = trib_transport_by_name("tcp");
    return ops->open(reactor, &(trib_transport_config){.silence_timeout_ns = 20 * INT64_C(1000000000)}, upcalls,
                     transport_out);
}

#define READS_PER_TURN 16u /* tcp_stream.c's */

typedef struct ending {
    unsigned char target[1000];
    unsigned received, sent, failed;
    bool closed;
    trib_status status;
    trib_conn *conn;
    char reason[256];
} ending;

static void on_accepted(trib_listener *listener, trib_conn *conn)
{
    conn->user = listener->user;
    ((ending *)conn->user)->conn = conn;
}

static void on_connected(trib_conn *conn, trib_status status)
{
    (void)conn;
    (void)status;
}

static trib_status on_header(trib_conn *conn, const unsigned char header[TRIB_HEADER_SIZE], trib_recv_target *target)
{
    (void)header;
    ending *self = conn->user;
    *target = (trib_recv_target){.buffer = self->target, .payload_size = sizeof self->target};
    return TRIB_OK;
}

static void on_received(trib_conn *conn, const unsigned char header[TRIB_HEADER_SIZE], const void *payload,
                        uint32_t payload_size)
{
    (void)header;
    (void)payload;
    (void)payload_size;
    ((ending *)conn->user)->received++;
}

static void on_sent(trib_conn *conn, trib_send *send, trib_status status)
{
    (void)send;
    ending *self = conn->user;
    self->sent += status == TRIB_OK;
    self->failed += status != TRIB_OK;
}

static void on_closed(trib_conn *conn, trib_status status, const char *reason)
{
    ending *self = conn->user;
    self->closed = true;
    self->status = status;
    snprintf(self->reason, sizeof self->reason, "%s", reason);
}

static const trib_transport_upcalls ending_upcalls = {on_accepted, on_connected, on_header,
                                                      on_received, on_sent,      on_closed};

/* Where a plain socket's connection arrives. */
typedef struct receiver {
    trib_logger logger;
    const trib_transport_ops *ops;
    trib_reactor *reactor;
    trib_transport *transport;
    trib_listener *listener;
} receiver;

/* Answers the socket, connected. */
static int receiver_open(receiver *at, ending *self)
{
    trib_address bound;
    *at = (receiver){.logger = {.level = TRIB_LOG_WARN}, .ops = trib_transport_by_name("tcp")};
    assert_int_equal(trib_reactor_ev_create(0, &at->logger, NULL, &at->reactor), TRIB_OK);
    assert_int_equal(at->ops->open(at->reactor, &(trib_transport_config){0}, &ending_upcalls, &at->transport), TRIB_OK);
    const trib_address any = {.text = "127.0.0.1:0"};
    assert_int_equal(at->ops->listen(at->transport, &any, self, &at->listener, &bound, NULL), TRIB_OK);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    to.sin_port = htons((uint16_t)atoi(strrchr(bound.text, ':') + 1));
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

static void receiver_close(const receiver *at)
{
    at->ops->listener_close(at->listener);
    at->ops->close(at->transport);
    trib_reactor_ev_destroy(at->reactor);
}

/* A plain socket sends so many bytes, in pieces of a prime length, and ends; returns how the receiver saw it. */
static ending end_after(size_t size, bool reset)
{
    ending self = {.closed = false};
    receiver at;
    const int fd = receiver_open(&at, &self);
    const char bytes[37] = {0};
    for (size_t sent = 0; sent < size;) {
        size_t piece = size - sent < sizeof bytes ? size - sent : sizeof bytes;
        assert_int_equal(send(fd, bytes, piece, MSG_NOSIGNAL), piece);
        sent += piece;
        ev_run(trib_reactor_ev_loop(at.reactor), EVRUN_NOWAIT);
    }
    const struct linger hard = {.l_onoff = 1, .l_linger = 0};
    if (reset) {
        assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard), 0);
    }
    close(fd);
    alarm(60);
    while (!self.closed) {
        ev_run(trib_reactor_ev_loop(at.reactor), EVRUN_ONCE);
    }
    alarm(0);
    receiver_close(&at);
    return self;
}

static void says_where_the_peer_ended(void **state)
{
    (void)state;
    const size_t whole = TRIB_HEADER_SIZE + 1000;
    const size_t sizes[] = {0, 1, TRIB_HEADER_SIZE, whole - 1, whole, whole + 1, 3 * whole};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        ending seen = end_after(sizes[i], false);
        assert_int_equal(seen.status, TRIB_PEER_LOST);
        assert_int_equal(seen.received, sizes[i] / whole);
        assert_string_equal(seen.reason, sizes[i] % whole == 0 ? "connection closed by the peer"
                                                               : "connection ended inside a message");
    }
    ending seen = end_after(100, true);
    assert_int_equal(seen.status, TRIB_PEER_LOST);
    assert_string_equal(seen.reason, "connection lost: Connection reset by peer");
}

/* The program's own calls come before the C library's. They can make the kernel run out of memory for sends, and return
 * received bytes a few at a time. */
static atomic_bool kernel_is_short;
static atomic_size_t kernel_gives; /* 0: all that there is */

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    ssize_t (*real)(int, const struct msghdr *, int) = NULL;
    *(void **)(void *)&real = dlsym(RTLD_NEXT, "sendmsg");
    if (atomic_load(&kernel_is_short)) {
        errno = ENOBUFS;
        return -1;
    }
    return real(fd, message, flags);
}

ssize_t readv(int fd, const struct iovec *iovec, int count)
{
    ssize_t (*real)(int, const struct iovec *, int) = NULL;
    *(void **)(void *)&real = dlsym(RTLD_NEXT, "readv");
    const size_t most = atomic_load(&kernel_gives);
    if (most == 0) {
        return real(fd, iovec, count);
    }
    struct iovec first = iovec[0];
    first.iov_len = first.iov_len < most ? first.iov_len : most;
    return real(fd, &first, 1);
}

/* The peer's messages are read, as many as a turn reads, and these were all: nothing more will wake the loop. */
static void ends_when_nothing_can_be_sent(void **state)
{
    (void)state;
    const size_t whole = TRIB_HEADER_SIZE + sizeof((ending *)0)->target;
    static const char bytes[2 * (TRIB_HEADER_SIZE + sizeof((ending *)0)->target)];
    ending self = {.closed = false};
    receiver at;
    const int fd = receiver_open(&at, &self);
    alarm(60);
    while (self.conn == NULL) {
        ev_run(trib_reactor_ev_loop(at.reactor), EVRUN_ONCE);
    }
    assert_int_equal(sizeof bytes, 2 * whole);
    assert_int_equal(send(fd, bytes, sizeof bytes, MSG_NOSIGNAL), sizeof bytes);
    for (int there = 0; there < (int)sizeof bytes;) {
        assert_int_equal(ioctl(((tcp_conn *)self.conn)->io.fd, FIONREAD, &there), 0);
    }
    atomic_store(&kernel_is_short, true);
    atomic_store(&kernel_gives, sizeof bytes / READS_PER_TURN);
    trib_send message = {.payload = NULL};
    at.ops->send(self.conn, &message);
    trib_tcp_stream_write((tcp_conn *)self.conn); /* before the loop reports that the socket is readable */
    assert_false(self.closed);
    assert_int_equal(self.received, 2);
    while (!self.closed) {
        ev_run(trib_reactor_ev_loop(at.reactor), EVRUN_ONCE);
    }
    alarm(0);
    atomic_store(&kernel_is_short, false);
    atomic_store(&kernel_gives, 0);
    assert_int_equal(self.failed, 1);
    assert_int_equal(self.status, TRIB_PEER_LOST);
    assert_string_equal(self.reason, "connection lost while sending: No buffer space available");
    close(fd);
    receiver_close(&at);
}

static int send_buffer_of(const trib_conn *conn)
{
    int bytes = 0;
    socklen_t size = sizeof bytes;
    assert_int_equal(getsockopt(((const tcp_conn *)conn)->io.fd, SOL_SOCKET, SO_SNDBUF, &bytes, &size), 0);
    return bytes;
}

static void send_and_wait(trib_reactor *reactor, trib_conn *conn, ending *mine)
{
    static const unsigned char payload[sizeof mine->target];
    trib_send message = {.payload = payload, .payload_size = sizeof payload};
    const unsigned before = mine->sent;
    conn->transport->ops->send(conn, &message);
    while (mine->sent == before) {
        ev_run(trib_reactor_ev_loop(reactor), EVRUN_ONCE);
    }
}

/* A transport that is connected to itself. */
typedef struct pair {
    trib_logger logger;
    trib_reactor *reactor;
    trib_transport *transport;
    trib_listener *listener;
    trib_conn *conn;
    ending mine, theirs;
} pair;

static pair *pair_open(const char *listens_on)
{
    pair *self = calloc(1, sizeof *self);
    assert_non_null(self);
    self->logger.level = TRIB_LOG_WARN;
    trib_address address, bound;
    snprintf(address.text, sizeof address.text, "%s", listens_on);
    const trib_transport_ops *ops = &trib_tcp_ops;
    assert_int_equal(trib_reactor_ev_create(0, &self->logger, NULL, &self->reactor), TRIB_OK);
    assert_int_equal(ops->open(self->reactor, &(trib_transport_config){0}, &ending_upcalls, &self->transport), TRIB_OK);
    assert_int_equal(ops->listen(self->transport, &address, &self->theirs, &self->listener, &bound, NULL), TRIB_OK);
    assert_int_equal(ops->connect(self->transport, &bound, &self->mine, &self->conn), TRIB_OK);
    alarm(60);
    return self;
}

static void pair_close(pair *self, unsigned messages)
{
    const trib_transport_ops *ops = &trib_tcp_ops;
    ops->conn_close(self->conn, true);
    while (!self->mine.closed || !self->theirs.closed) {
        ev_run(trib_reactor_ev_loop(self->reactor), EVRUN_ONCE);
    }
    alarm(0);
    assert_int_equal(self->theirs.received, messages);
    assert_int_equal(((const tcp_transport *)self->transport)->backlog.carrying, 0);
    ops->listener_close(self->listener);
    ops->close(self->transport);
    trib_reactor_ev_destroy(self->reactor);
    free(self);
}

/* A connection has a small send buffer while its caller has more to send, and a large one otherwise. Connections to
 * near hosts do not use BBR. */
static void little_lies_in_the_kernel(void **state)
{
    (void)state;
    bool more = false;
    pair *self = pair_open("127.0.0.1:0");
    const tcp_backlog *backlog = &((const tcp_transport *)self->transport)->backlog;
    assert_true(backlog->small < backlog->large);
    self->conn->awaits_sent = &more;
    send_and_wait(self->reactor, self->conn, &self->mine);
    assert_int_equal(send_buffer_of(self->conn), backlog->large);
    more = true;
    send_and_wait(self->reactor, self->conn, &self->mine);
    assert_int_equal(send_buffer_of(self->conn), backlog->small);
    more = false;
    send_and_wait(self->reactor, self->conn, &self->mine);
    assert_int_equal(send_buffer_of(self->conn), backlog->large);
    char control[16] = "";
    socklen_t size = sizeof control - 1;
    assert_int_equal(getsockopt(((const tcp_conn *)self->conn)->io.fd, IPPROTO_TCP, TCP_CONGESTION, control, &size), 0);
    assert_string_not_equal(control, "bbr");
    assert_int_equal(backlog->carrying, 0); /* messages so small may be control frames */
    trib_tcp_backlog_add((tcp_conn *)self->conn, 20000);
    assert_int_equal(backlog->carrying, 0);
    trib_tcp_backlog_add((tcp_conn *)self->conn, 20000);
    trib_tcp_backlog_add((tcp_conn *)self->conn, 20000);
    assert_int_equal(backlog->carrying, 1);
    pair_close(self, 3);
}

/* A receiver acknowledges a single packet up to 40 ms late, and the next packet would wait for that. */
static void two_packets_always_fit(void **state)
{
    (void)state;
    const bool more = true;
    pair *self = pair_open("127.0.0.1:0");
    tcp_backlog *backlog = &((tcp_transport *)self->transport)->backlog;
    int packet = 0;
    socklen_t size = sizeof packet;
    self->conn->awaits_sent = &more;
    for (uint32_t small = backlog->small; small >= 32768; small /= 2) {
        backlog->small = small; /* as on a slow network */
        send_and_wait(self->reactor, self->conn, &self->mine);
        assert_int_equal(getsockopt(((const tcp_conn *)self->conn)->io.fd, IPPROTO_TCP, TCP_MAXSEG, &packet, &size), 0);
        assert_true(packet > 32768 && packet * 2 <= send_buffer_of(self->conn));
    }
    const unsigned sent = self->mine.sent;
    pair_close(self, sent);
}

/* Below a highest rate of 0 the kernel computes no pauses. */
static bool is_paced(const trib_conn *conn)
{
    unsigned long rate = 0;
    socklen_t size = sizeof rate;
    assert_int_equal(getsockopt(((const tcp_conn *)conn)->io.fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, &size), 0);
    return rate != ~0ul && rate != 0;
}

/* As long as the way out is known to be slow, and only between hosts: two addresses stand for them here. */
static void packets_are_spaced_out_where_links_are_slow(void **state)
{
    (void)state;
    pair *near = pair_open("127.0.0.1:0"), *far = pair_open("127.0.0.2:0");
    send_and_wait(near->reactor, near->conn, &near->mine);
    send_and_wait(far->reactor, far->conn, &far->mine);
    assert_false(is_paced(far->conn));
    ((tcp_transport *)near->transport)->backlog.paces = ((tcp_transport *)far->transport)->backlog.paces = true;
    send_and_wait(near->reactor, near->conn, &near->mine);
    send_and_wait(far->reactor, far->conn, &far->mine);
    assert_false(is_paced(near->conn));
    assert_true(is_paced(far->conn));
    ((tcp_transport *)far->transport)->backlog.paces = false;
    send_and_wait(far->reactor, far->conn, &far->mine);
    assert_false(is_paced(far->conn));
    ((tcp_transport *)far->transport)->backlog.paces = true;
    send_and_wait(far->reactor, far->conn, &far->mine);
    assert_true(is_paced(far->conn));
    pair_close(near, 2);
    pair_close(far, 4);
}

static bool answers_acknowledge(const trib_conn *conn)
{
    int quick = 0;
    socklen_t size = sizeof quick;
    assert_int_equal(getsockopt(((const tcp_conn *)conn)->io.fd, IPPROTO_TCP, TCP_QUICKACK, &quick, &size), 0);
    return quick == 0;
}

static void ask_and_answer(pair *self)
{
    const unsigned before = self->theirs.received;
    send_and_wait(self->reactor, self->conn, &self->mine);
    while (self->theirs.received == before) {
        ev_run(trib_reactor_ev_loop(self->reactor), EVRUN_ONCE);
    }
}

/* A kernel whose answers have carried acknowledgements leaves the last one to an answer, which does not come before a
 * pause. 40 ms later the peer takes that for a slow path and spaces its packets out. */
static void nothing_read_waits_to_be_acknowledged_where_packets_are_spaced(void **state)
{
    (void)state;
    pair *self = pair_open("127.0.0.2:0");
    for (int i = 0; i < 4; i++) {
        ask_and_answer(self);
        send_and_wait(self->reactor, self->theirs.conn, &self->theirs);
    }
    ask_and_answer(self);
    assert_true(answers_acknowledge(self->theirs.conn));
    ((tcp_transport *)self->transport)->backlog.paces = true;
    ask_and_answer(self);
    assert_false(answers_acknowledge(self->theirs.conn));
    pair_close(self, 6);
}

int main(void)
{
    trib_contract_maker maker = {.name = "tcp over IPv4", .listen_at = "127.0.0.1:0", .open = open_tcp};
    int failed = trib_contract_run(&maker);
    maker.name = "tcp over IPv6";
    maker.listen_at = "[::1]:0";
    failed += trib_contract_run(&maker);
    maker.name = "tcp between threads";
    maker.threaded = true;
    failed += trib_contract_run(&maker);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(says_where_the_peer_ended),
        cmocka_unit_test(ends_when_nothing_can_be_sent),
        cmocka_unit_test(little_lies_in_the_kernel),
        cmocka_unit_test(two_packets_always_fit),
        cmocka_unit_test(packets_are_spaced_out_where_links_are_slow),
        cmocka_unit_test(nothing_read_waits_to_be_acknowledged_where_packets_are_spaced),
    };
    return failed + cmocka_run_group_tests_name("tcp", tests, NULL, NULL);
}

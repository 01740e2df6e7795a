/*
 * tcp_conn.c - the life of a TCP connection: connect, open, flush, end, linger.
 *
 * Invariants
 * - set_state is the only writer of the state. A connection is freed in finish_conn or after it has lingered.
 * - finish_post is the last post of a connection: every post that was deferred before runs before it and finds
 *   TCP_ENDING, and in that state nothing is deferred.
 * - After a flush the socket is shut for writing and read until the peer ends too. Closing it with unread data in it
 *   would send a reset, and a reset can destroy data that the peer has not read yet. The caller does not wait for
 *   that. Peers that have not proved the token linger in a bounded number.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utlist.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/base/descriptor.h"
#include "engine/base/fork.h"
#include "engine/base/half_open.h"
#include "transports/tcp/tcp_internal.h"

#define LINGER_NS INT64_C(1000000000)

static void io_ready(trib_reactor *reactor, trib_io *io, unsigned events);
static void finish_conn(trib_reactor *reactor, trib_post *post);

/* The only writer of conn->state after creation. */
static void set_state(tcp_conn *conn, tcp_state state)
{
    static const unsigned predecessors[] = {
        [TCP_CONNECTING] = 0, /* at creation only */
        [TCP_OPEN] = 1u << TCP_CONNECTING,
        [TCP_FLUSHING] = 1u << TCP_OPEN,
        [TCP_ENDING] = 1u << TCP_CONNECTING | 1u << TCP_OPEN | 1u << TCP_FLUSHING,
        [TCP_LINGERING] = 1u << TCP_ENDING,
    };
    trib_assert((predecessors[state] & 1u << conn->state) != 0);
    conn->state = state;
}

static void run_flush(trib_reactor *reactor, trib_post *post)
{
    (void)reactor;
    tcp_conn *conn = trib_container_of(post, tcp_conn, flush_post);
    if (!conn->want_write) {
        trib_tcp_stream_write(conn);
    }
}

static void run_read(trib_reactor *reactor, trib_post *post)
{
    (void)reactor;
    tcp_conn *conn = trib_container_of(post, tcp_conn, read_post);
    trib_tcp_stream_consume(conn);
    if (conn->write_errno != 0) {
        trib_tcp_stream_drain_and_end(conn);
    }
    trib_tcp_conn_watch(conn);
}

static void linger_timer_fired(trib_reactor *reactor, trib_timer *timer)
{
    (void)reactor;
    trib_tcp_linger_end(timer->user);
}

/* The results are ignored: without these options a connection is slower, not wrong. */
static void configure_socket(tcp_transport *transport, int fd)
{
    int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    int unsent = (int)transport->config.send_buffer_bytes;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent);
    trib_counter_add(&transport->stats.system_calls, 2);
}

tcp_conn *trib_tcp_conn_create(tcp_transport *transport, int fd, const trib_address *remote, tcp_state state)
{
    tcp_conn *conn = malloc(sizeof *conn);
    if (conn == NULL) {
        close(fd);
        return NULL;
    }
    trib_fork_own(fd);
    memset(conn, 0, offsetof(tcp_conn, buffer)); /* the buffer is written before it is read */
    conn->base.transport = &transport->base;
    conn->base.remote = *remote;
    conn->transport = transport;
    conn->io = (trib_io){.ready = io_ready, .user = conn, .fd = fd};
    conn->state = state;
    conn->flush_post.run = run_flush;
    conn->read_post.run = run_read;
    conn->finish_post.run = finish_conn;
    conn->linger_timer.fired = linger_timer_fired;
    conn->linger_timer.user = conn;
    trib_tcp_silence_init(conn);
    configure_socket(transport, fd);
    trib_tcp_silence_open(conn);
    if (state == TCP_OPEN) {
        trib_tcp_backlog_begin(conn);
    }
    transport->open_count++;
    return conn;
}

void trib_tcp_conn_watch(tcp_conn *conn)
{
    unsigned events = 0;
    switch (conn->state) {
    case TCP_CONNECTING:
        events = TRIB_IO_WRITE;
        break;
    case TCP_OPEN:
        events = (conn->paused ? 0u : TRIB_IO_READ) | (conn->want_write ? TRIB_IO_WRITE : 0u);
        break;
    case TCP_FLUSHING:
        events = (conn->peer_ended ? 0u : TRIB_IO_READ) | (conn->want_write ? TRIB_IO_WRITE : 0u);
        break;
    case TCP_ENDING:
        break;
    case TCP_LINGERING:
        events = TRIB_IO_READ;
        break;
    }
    trib_io_watch(conn->base.transport->reactor, &conn->io, events);
}

/* ---- Connecting ---- */

static bool is_connected_to_itself(const tcp_conn *conn)
{
    /* Connecting to a free local port can, very rarely, pick that same port as the source: the socket is then
     * connected to itself. */
    struct sockaddr_storage here;
    socklen_t size = sizeof here;
    memset(&here, 0, sizeof here);
    if (getsockname(conn->io.fd, (struct sockaddr *)&here, &size) != 0) {
        return false;
    }
    trib_address text;
    trib_tcp_address_format(&here, &text);
    return strcmp(text.text, conn->base.remote.text) == 0;
}

static void connect_ready(tcp_conn *conn)
{
    int error = 0;
    socklen_t size = sizeof error;
    trib_counter_add(&conn->transport->stats.system_calls, 2);
    if (getsockopt(conn->io.fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) {
        error = errno;
    }
    if (error == 0 && is_connected_to_itself(conn)) {
        error = ECONNREFUSED;
    }
    if (error != 0) {
        conn->base.refused = error == ECONNREFUSED;
        trib_tcp_conn_end_errno(conn, "", error);
        conn->base.transport->upcalls->connected(&conn->base, conn->end_status);
        return;
    }
    set_state(conn, TCP_OPEN);
    trib_tcp_silence_open(conn);
    trib_tcp_backlog_begin(conn);
    conn->base.transport->upcalls->connected(&conn->base, TRIB_OK);
    if (conn->state == TCP_OPEN && conn->sends.head != NULL) {
        trib_reactor_defer(conn->base.transport->reactor, &conn->flush_post);
    }
    trib_tcp_conn_watch(conn);
}

trib_status trib_tcp_connect(trib_transport *transport, const trib_address *to, void *user, trib_conn **conn_out)
{
    tcp_transport *self = (tcp_transport *)transport;
    struct sockaddr_storage address;
    socklen_t size = 0;
    trib_status status = trib_tcp_address_parse(to, &address, &size);
    if (status != TRIB_OK) {
        return status;
    }
    trib_counter_add(&self->stats.system_calls, 2);
    int fd = trib_descriptor_keep(socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (fd < 0) {
        char why[TRIB_REASON_MAX];
        const int error = errno;
        trib_log(transport->reactor->logger, TRIB_LOG_ERROR, "cannot connect to %s: %s", to->text,
                 trib_log_reason(error, why));
        errno = error;
        return TRIB_SYSTEM;
    }
    trib_tcp_backlog_prepare(self, fd);
    trib_address remote;
    trib_tcp_address_format(&address, &remote);
    tcp_conn *conn = trib_tcp_conn_create(self, fd, &remote, TCP_CONNECTING);
    if (conn == NULL) {
        return TRIB_NO_MEMORY;
    }
    conn->base.user = user;
    *conn_out = &conn->base;
    if (connect(fd, (const struct sockaddr *)&address, size) != 0 && errno != EINPROGRESS && errno != EINTR) {
        /* An unreachable network, for example. The upcalls report it, as they do for later failures. */
        int error = errno;
        trib_tcp_conn_end_errno(conn, "", error);
        conn->connect_failed = true;
        return TRIB_OK;
    }
    trib_tcp_conn_watch(conn);
    return TRIB_OK;
}

/* ---- Open ---- */

static void io_ready(trib_reactor *reactor, trib_io *io, unsigned events)
{
    (void)reactor;
    tcp_conn *conn = io->user;
    switch (conn->state) {
    case TCP_CONNECTING:
        connect_ready(conn);
        return;
    case TCP_OPEN:
        if ((events & TRIB_IO_READ) != 0) {
            trib_tcp_stream_read(conn);
        }
        break;
    case TCP_FLUSHING:
        if ((events & TRIB_IO_READ) != 0) {
            conn->peer_ended = trib_tcp_stream_discard(conn);
        }
        break;
    case TCP_ENDING:
        return;
    case TCP_LINGERING:
        if (trib_tcp_stream_discard(conn)) {
            trib_tcp_linger_end(conn);
        }
        return;
    }
    if ((events & TRIB_IO_WRITE) != 0 && conn->want_write) {
        conn->want_write = false;
        trib_tcp_stream_write(conn);
    }
    trib_tcp_conn_watch(conn);
}

void trib_tcp_send(trib_conn *base, trib_send *send)
{
    tcp_conn *conn = (tcp_conn *)base;
    trib_assert(send->payload_size <= TRIB_PAYLOAD_MAX);
    trib_assert(send->payload != NULL || send->payload_size == 0);
    trib_send_queue_add(&conn->sends, send);
    if ((conn->state == TCP_OPEN || conn->state == TCP_FLUSHING) && !conn->want_write) {
        trib_reactor_defer(base->transport->reactor, &conn->flush_post);
    }
}

void trib_tcp_recv_resume(trib_conn *base)
{
    tcp_conn *conn = (tcp_conn *)base;
    if (conn->asking) {
        conn->resume_asked = true;
    } else if (conn->paused && conn->state == TCP_OPEN) {
        conn->paused = false;
        trib_reactor_defer(base->transport->reactor, &conn->read_post);
    }
}

/* ---- Ending ---- */

void trib_tcp_conn_end(tcp_conn *conn, trib_status status, const char *format, ...)
{
    if (conn->state == TCP_ENDING || conn->state == TCP_LINGERING) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(conn->reason, sizeof conn->reason, format, arguments);
    va_end(arguments);
    set_state(conn, TCP_ENDING);
    conn->end_status = status;
    trib_tcp_conn_watch(conn);
    trib_reactor_defer(conn->base.transport->reactor, &conn->finish_post);
}

void trib_tcp_conn_end_errno(tcp_conn *conn, const char *what, int error)
{
    char why[64];
    trib_tcp_conn_end(conn, TRIB_PEER_LOST, "%s%s%s", what, what[0] != '\0' ? ": " : "",
                      strerror_r(error, why, sizeof why));
}

void trib_tcp_conn_close(trib_conn *base, bool flush)
{
    tcp_conn *conn = (tcp_conn *)base;
    conn->connect_failed = false;
    if (conn->state == TCP_OPEN && flush && conn->write_errno == 0) {
        set_state(conn, TCP_FLUSHING);
        conn->begin = conn->end = 0;
        trib_reactor_defer(base->transport->reactor, &conn->flush_post);
        trib_tcp_conn_watch(conn);
    } else if (conn->state != TCP_FLUSHING || !flush) {
        trib_tcp_conn_end(conn, TRIB_OK, "closed by this side");
    }
}

/* Ends the oldest lingering connection of an unproved peer if there are too many: each holds a descriptor. */
static void linger_make_room(tcp_transport *transport)
{
    tcp_conn *oldest = NULL;
    uint32_t count = 0;
    for (tcp_conn *conn = transport->lingering; conn != NULL; conn = conn->linger_next) { /* newest first */
        if (!conn->base.proved) {
            oldest = conn;
            count++;
        }
    }
    if (oldest != NULL && count > trib_half_open_max() / transport->backlog.reactors + transport->config.peers) {
        trib_tcp_linger_end(oldest);
    }
}

static void linger_begin(tcp_conn *conn)
{
    tcp_transport *transport = conn->transport;
    set_state(conn, TCP_LINGERING);
    DL_PREPEND2(transport->lingering, conn, linger_prev, linger_next);
    trib_reactor *reactor = transport->base.reactor;
    trib_timer_arm(reactor, &conn->linger_timer, trib_now(reactor) + LINGER_NS);
    trib_tcp_conn_watch(conn);
    linger_make_room(transport);
}

void trib_tcp_linger_end(tcp_conn *conn)
{
    trib_assert(conn->state == TCP_LINGERING);
    trib_reactor *reactor = conn->transport->base.reactor;
    /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): in a list of utlist.h the first one knows the last one */
    DL_DELETE2(conn->transport->lingering, conn, linger_prev, linger_next);
    trib_timer_stop(reactor, &conn->linger_timer);
    trib_io_watch(reactor, &conn->io, 0);
    trib_fork_close_socket(conn->io.fd);
    free(conn);
}

static void finish_conn(trib_reactor *reactor, trib_post *post)
{
    tcp_conn *conn = trib_container_of(post, tcp_conn, finish_post);
    const trib_transport_upcalls *upcalls = conn->base.transport->upcalls;
    trib_assert(conn->state == TCP_ENDING);
    if (conn->connect_failed) {
        upcalls->connected(&conn->base, conn->end_status);
    }
    trib_send_queue_return(&conn->sends, &conn->base, conn->end_status);
    upcalls->closed(&conn->base, conn->end_status, conn->reason);
    trib_assert(conn->sends.head == NULL);
    conn->transport->open_count--;
    trib_tcp_backlog_end(conn);
    trib_timer_stop(reactor, &conn->silence_timer);
    trib_counter_add(&conn->transport->stats.system_calls, 1);
    if (conn->flushed && !conn->peer_ended) {
        linger_begin(conn);
        return;
    }
    trib_fork_close_socket(conn->io.fd);
    free(conn);
}

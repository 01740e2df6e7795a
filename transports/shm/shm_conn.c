/*
 * shm_conn.c - the life of a shared-memory connection: greet, open, flush, end.
 *
 * Invariants
 * - set_state is the only writer of the state.
 * - A connection that the caller knows ends through trib_shm_conn_end and finish_conn, its last post: nothing is
 *   deferred in SHM_ENDING. A connection that the caller does not know yet is only marked, and shm.c frees it.
 * - The kernel closes the socket when the peer's process ends, so a dead peer is seen at once. (If a child that it
 *   forked without exec still holds the socket, the heartbeats notice.) What a peer flushed into the ring is still
 *   read after its end.
 * - A side that is about to sleep says so and looks at the ring once more; a side that has written looks whether the
 *   other one sleeps. Both put a full fence between, so one of them always sees the other.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include <utlist.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/base/descriptor.h"
#include "engine/base/fork.h"
#include "transports/shm/shm_resend.h"

#define GREETING_NS (5 * INT64_C(1000000000))
#define WAKE_UPS_MAX 1024u /* more than the socket holds of a peer that follows the protocol */
#define READING_POLL_NS INT64_C(1000000)

/* ---- Wake-ups ---- */

void trib_shm_conn_wake(shm_conn *conn, uint32_t why)
{
    shm_side *peer = conn->out.peer;
    trib_shm_fence();
    if ((atomic_load_explicit(&peer->sleeps, memory_order_relaxed) & why) == 0) {
        return;
    }
    if (atomic_exchange_explicit(&peer->sleeps, 0, memory_order_acq_rel) != 0) {
        trib_counter_add(&conn->transport->stats.system_calls, 1);
        /* A full socket holds wake-ups already. The reader notices the end of the connection. */
        (void)send(conn->io.fd, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
}

static void report_progress(shm_conn *conn)
{
    if (conn->progress_owed) {
        conn->progress_owed = false;
        trib_shm_conn_wake(conn, SHM_WAKE_ON_PROGRESS);
    }
}

/* The only writer of conn->state. A connection is created greeting. */
static void set_state(shm_conn *conn, shm_state state)
{
    static const unsigned predecessors[] = {
        [SHM_GREETING] = 0, /* at creation only */
        [SHM_OPEN] = 1u << SHM_GREETING,
        [SHM_FLUSHING] = 1u << SHM_OPEN,
        [SHM_ENDING] = 1u << SHM_GREETING | 1u << SHM_OPEN | 1u << SHM_FLUSHING,
    };
    trib_assert((predecessors[state] & 1u << conn->state) != 0);
    conn->state = state;
}

static bool is_live(const shm_conn *conn)
{
    return conn->state == SHM_OPEN || conn->state == SHM_FLUSHING;
}

static bool is_reading(const shm_conn *conn)
{
    return conn->state == SHM_FLUSHING || !conn->paused;
}

bool trib_shm_conn_prepare_sleep(shm_conn *conn)
{
    if (!is_live(conn)) {
        return false;
    }
    report_progress(conn);
    bool waits = trib_shm_stream_waits(conn);
    bool hurries = conn->base.awaits_sent == NULL || *conn->base.awaits_sent;
    if (waits && conn->send_next == NULL && conn->state == SHM_OPEN && !hurries) {
        waits = false;
        trib_shm_poll_later(conn->transport);
    }
    uint32_t wanted = (is_reading(conn) ? SHM_WAKE_ON_INPUT : 0) | (waits ? SHM_WAKE_ON_PROGRESS : 0);
    atomic_store_explicit(&conn->in.mine->sleeps, wanted, memory_order_relaxed);
    trib_shm_fence();
    if (is_reading(conn) && (conn->hung_up || trib_shm_in_has_more(&conn->in) || trib_shm_backlog_waits(conn))) {
        return true;
    }
    const shm_side *peer = conn->out.peer;
    const bool read = conn->peer_reads && (atomic_load_explicit(&peer->done, memory_order_relaxed) != conn->done_seen ||
                                           trib_shm_resend_is_asked(conn));
    const bool writes = conn->send_next != NULL || conn->resend_state != SHM_RESEND_NONE;
    return waits && (read || (writes && atomic_load_explicit(&peer->tail, memory_order_relaxed) != conn->out.tail));
}

void trib_shm_conn_note_wake_up(shm_conn *conn)
{
    if (is_live(conn)) {
        atomic_store_explicit(&conn->in.mine->sleeps, 0, memory_order_relaxed);
    }
}

bool trib_shm_conn_poll(shm_conn *conn)
{
    if (!is_live(conn)) {
        return false;
    }
    report_progress(conn);
    bool found = false;
    if (trib_shm_stream_waits(conn)) {
        found = trib_shm_stream_report(conn);
    }
    return (is_live(conn) && is_reading(conn) && trib_shm_stream_read(conn)) || found;
}

/* ---- Making ---- */

static void run_report(trib_reactor *reactor, trib_post *post)
{
    (void)reactor;
    shm_conn *conn = trib_container_of(post, shm_conn, report_post);
    if (is_live(conn)) {
        (void)trib_shm_stream_report(conn);
    }
}

static void run_resume(trib_reactor *reactor, trib_post *post)
{
    (void)reactor;
    trib_shm_stream_resume(trib_container_of(post, shm_conn, resume_post));
}

static void end_late_greeting(trib_reactor *reactor, trib_timer *timer)
{
    (void)reactor;
    trib_shm_conn_end(timer->user, TRIB_PEER_LOST, "no answer within %.0f s", (double)GREETING_NS / 1e9);
}

static void resume_after_backoff(trib_reactor *reactor, trib_timer *timer)
{
    shm_conn *conn = timer->user;
    if (conn->state == SHM_ENDING) {
        trib_reactor_defer(reactor, &conn->finish_post);
        return;
    }
    trib_io_watch(reactor, &conn->io, TRIB_IO_READ);
}

void trib_shm_conn_take_later(shm_conn *conn, int error)
{
    trib_reactor *reactor = conn->transport->base.reactor;
    if (error != 0) {
        trib_acceptor_note_shortage(&conn->listener->socket.acceptor, error);
    }
    trib_io_watch(reactor, &conn->io, 0);
    trib_timer_arm(reactor, &conn->again, trib_now(reactor) + TRIB_ACCEPTOR_BACKOFF_NS);
}

static void note_hang_up(shm_conn *conn)
{
    conn->hung_up = true;
    trib_io_watch(conn->base.transport->reactor, &conn->io, 0);
    if (!trib_shm_in_end(&conn->in)) {
        trib_shm_conn_end(conn, TRIB_PROTOCOL, "the peer wrote an impossible position into the shared ring");
        return;
    }
    bool orderly = atomic_load_explicit(&conn->in.peer->ended, memory_order_acquire) != 0;
    if (conn->state == SHM_OPEN && conn->paused && !orderly) {
        trib_shm_conn_end(conn, TRIB_PEER_LOST, "connection closed by the peer");
    }
    /* Otherwise the poller reads what is left in the ring. */
}

static void io_ready(trib_reactor *reactor, trib_io *io, unsigned events)
{
    (void)reactor;
    (void)events;
    shm_conn *conn = io->user;
    if (conn->state == SHM_GREETING) {
        trib_shm_greet_take(conn);
    } else if (is_live(conn)) {
        char wake_ups[64];
        trib_counter_add(&conn->transport->stats.system_calls, 1);
        ssize_t got = recv(io->fd, wake_ups, sizeof wake_ups, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
            note_hang_up(conn);
        }
    }
}

static void finish_conn(trib_reactor *reactor, trib_post *post);

shm_conn *trib_shm_conn_create(shm_transport *transport, int fd, const trib_address *remote, bool outgoing)
{
    shm_conn *conn = calloc(1, sizeof *conn);
    if (conn == NULL) {
        if (fd >= 0) {
            close(fd);
        }
        return NULL;
    }
    conn->base.transport = &transport->base;
    conn->base.remote = *remote;
    conn->transport = transport;
    conn->io = (trib_io){.ready = io_ready, .user = conn, .fd = fd};
    conn->report_post.run = run_report;
    conn->resume_post.run = run_resume;
    conn->finish_post.run = finish_conn;
    conn->deadline.fired = end_late_greeting;
    conn->deadline.user = conn;
    conn->again.fired = resume_after_backoff;
    conn->again.user = conn;
    conn->lease_timer.fired = trib_shm_leases_expire;
    conn->lease_timer.user = conn;
    conn->outgoing = outgoing;
    conn->memory_fd = -1;
    conn->peer.system_calls = &transport->stats.system_calls;
    DL_PREPEND(transport->conns, conn);
    trib_reactor *reactor = transport->base.reactor;
    if (fd >= 0) {
        trib_fork_own(fd);
        trib_io_watch(reactor, &conn->io, TRIB_IO_READ);
        trib_timer_arm(reactor, &conn->deadline, trib_now(reactor) + GREETING_NS);
    }
    return conn;
}

void trib_shm_conn_forget(shm_conn *conn)
{
    trib_assert(!conn->known);
    trib_reactor *reactor = conn->transport->base.reactor;
    trib_io_watch(reactor, &conn->io, 0);
    trib_timer_stop(reactor, &conn->deadline);
    trib_timer_stop(reactor, &conn->again);
    trib_timer_stop(reactor, &conn->lease_timer);
    trib_assert(conn->leased == 0);
    DL_DELETE(conn->transport->conns, conn);
    if (conn->segment != NULL) {
        munmap(conn->segment, SHM_SEGMENT_BYTES);
    }
    trib_shm_peer_forget(&conn->peer);
    trib_shm_backlog_free(conn);
    if (conn->memory_fd >= 0) {
        trib_fork_close(conn->memory_fd);
    }
    if (conn->io.fd >= 0) {
        trib_fork_close_socket(conn->io.fd);
    }
    trib_counter_add(&conn->transport->stats.system_calls, 1);
    free(conn);
}

/* Connects a socket to the listener of that name. -1 with errno if there is none, or if it is another user's. */
static int reach_listener(shm_transport *self, const struct sockaddr_un *name, socklen_t size, pid_t *pid_out)
{
    trib_counter_add(&self->stats.system_calls, 3);
    int fd = trib_descriptor_keep(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (fd >= 0 && (connect(fd, (const struct sockaddr *)name, size) != 0 || !trib_shm_peer_allowed(fd, pid_out))) {
        int error = errno;
        close(fd);
        errno = error;
        fd = -1;
    }
    return fd;
}

trib_status trib_shm_connect_now(trib_transport *transport, const trib_address *to, void *user, trib_conn **conn_out,
                                 int *error_out)
{
    shm_transport *self = (shm_transport *)transport;
    struct sockaddr_un name;
    socklen_t size = 0;
    trib_status status = trib_shm_name(to, &name, &size);
    if (status != TRIB_OK) {
        return status;
    }
    pid_t pid = 0;
    int fd = reach_listener(self, &name, size, &pid);
    if (fd < 0) {
        *error_out = errno;
        return TRIB_PEER_LOST;
    }
    shm_conn *conn = trib_shm_conn_create(self, fd, to, true);
    if (conn == NULL) {
        return TRIB_NO_MEMORY;
    }
    conn->peer.pid = pid;
    if (!trib_shm_greet_begin(conn)) {
        *error_out = errno;
        trib_shm_conn_forget(conn);
        return TRIB_PEER_LOST;
    }
    conn->base.user = user;
    conn->known = true;
    self->open_count++;
    *conn_out = &conn->base;
    return TRIB_OK;
}

trib_status trib_shm_connect(trib_transport *transport, const trib_address *to, void *user, trib_conn **conn_out)
{
    int error = 0;
    trib_status status = trib_shm_connect_now(transport, to, user, conn_out, &error);
    if (status != TRIB_PEER_LOST) {
        return status;
    }
    if (trib_acceptor_is_shortage(error)) {
        errno = error;
        return TRIB_SYSTEM;
    }
    shm_transport *self = (shm_transport *)transport;
    shm_conn *conn = trib_shm_conn_create(self, -1, to, true);
    if (conn == NULL) {
        return TRIB_NO_MEMORY;
    }
    conn->base.user = user;
    conn->known = true;
    conn->connect_failed = true;
    conn->base.refused = error == ECONNREFUSED; /* the process that had the name is dead */
    self->open_count++;
    char why[TRIB_REASON_MAX];
    trib_shm_conn_end(conn, TRIB_PEER_LOST, "cannot connect over shared memory to %s: %s", to->text,
                      error == ECONNREFUSED ? "no process of this user listens there on this machine"
                      : error == EPERM      ? "it belongs to another user there"
                                            : trib_log_reason(error, why));
    *conn_out = &conn->base;
    return TRIB_OK;
}

void trib_shm_conn_opened(shm_conn *conn)
{
    trib_assert(conn->state == SHM_GREETING && conn->segment != NULL);
    const trib_transport_upcalls *upcalls = conn->base.transport->upcalls;
    trib_timer_stop(conn->transport->base.reactor, &conn->deadline);
    set_state(conn, SHM_OPEN);
    if (conn->outgoing) {
        upcalls->connected(&conn->base, TRIB_OK);
    } else {
        trib_listener *listener = &conn->listener->socket.base;
        conn->listener = NULL;
        conn->known = true;
        conn->transport->open_count++;
        upcalls->accepted(listener, &conn->base);
    }
    if (conn->state == SHM_OPEN && conn->sends.head != NULL) {
        trib_shm_stream_write(conn);
        trib_reactor_defer(conn->transport->base.reactor, &conn->report_post);
    }
}

/* ---- Downcalls ---- */

void trib_shm_send(trib_conn *base, trib_send *send)
{
    shm_conn *conn = (shm_conn *)base;
    trib_send_queue_add(&conn->sends, send);
    if (conn->send_next == NULL) {
        conn->send_next = send;
    }
    if (conn->state == SHM_OPEN) {
        trib_shm_stream_write(conn);
    }
    if (conn->state == SHM_OPEN && conn->sends.head != conn->send_next) {
        trib_reactor_defer(base->transport->reactor, &conn->report_post);
    }
}

void trib_shm_recv_resume(trib_conn *base)
{
    shm_conn *conn = (shm_conn *)base;
    if (conn->asking) {
        conn->resume_asked = true;
    }
    if (conn->paused && conn->state == SHM_OPEN) {
        trib_reactor_defer(base->transport->reactor, &conn->resume_post);
    }
}

void trib_shm_conn_close(trib_conn *base, bool flush)
{
    shm_conn *conn = (shm_conn *)base;
    conn->connect_failed = false;
    if (conn->state == SHM_OPEN && flush && !conn->hung_up) {
        set_state(conn, SHM_FLUSHING);
        atomic_store_explicit(&conn->in.mine->paused, 0, memory_order_relaxed);
        trib_reactor_defer(base->transport->reactor, &conn->report_post);
    } else if (conn->state != SHM_FLUSHING || !flush) {
        trib_shm_conn_end(conn, TRIB_OK, "closed by this side");
    }
}

/* ---- Ending ---- */

void trib_shm_conn_end(shm_conn *conn, trib_status status, const char *format, ...)
{
    if (conn->state == SHM_ENDING) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(conn->reason, sizeof conn->reason, format, arguments);
    va_end(arguments);
    trib_reactor *reactor = conn->base.transport->reactor;
    conn->connect_failed = conn->connect_failed || (conn->state == SHM_GREETING && conn->outgoing && status != TRIB_OK);
    set_state(conn, SHM_ENDING);
    conn->end_status = status;
    trib_io_watch(reactor, &conn->io, 0);
    trib_timer_stop(reactor, &conn->deadline);
    trib_timer_stop(reactor, &conn->again);
    if (conn->segment != NULL) {
        atomic_store_explicit(&conn->out.mine->revoked, 1, memory_order_seq_cst);
        trib_shm_fence();
    }
    conn->end_by_ns =
        trib_now(reactor) + SHM_READING_NS; /* counts from when the peer can see `revoked`: is_valid in shm_lease.c */
    if (conn->known) {
        trib_reactor_defer(reactor, &conn->finish_post);
    }
}

/* True if the peer still reads a payload in place, so that its buffer must not go back to the caller. */
static bool is_read_by_peer(const shm_conn *conn)
{
    trib_shm_fence();
    if (conn->segment == NULL || conn->sends.head == NULL ||
        atomic_load_explicit(&conn->in.peer->reading, memory_order_acquire) == 0) {
        return false;
    }
    char wake_up;
    ssize_t got = 1;
    for (unsigned i = 0; got > 0 && i < WAKE_UPS_MAX;
         i++) { /* the end of the stream comes behind the wake-ups that were sent before */
        got = recv(conn->io.fd, &wake_up, sizeof wake_up, MSG_DONTWAIT);
        trib_counter_add(&conn->transport->stats.system_calls, 1);
    }
    return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
}

static void finish_conn(trib_reactor *reactor, trib_post *post)
{
    shm_conn *conn = trib_container_of(post, shm_conn, finish_post);
    const trib_transport_upcalls *upcalls = conn->base.transport->upcalls;
    trib_assert(conn->state == SHM_ENDING && conn->known);
    if (conn->leased != 0) {
        trib_shm_leases_recall(conn);
        trib_shm_conn_wake(conn, SHM_WAKE_ON_INPUT | SHM_WAKE_ON_PROGRESS);
    }
    if (is_read_by_peer(conn) && trib_now(reactor) < conn->end_by_ns) {
        trib_timer_arm(reactor, &conn->again, trib_now(reactor) + READING_POLL_NS);
        return;
    }
    if (conn->connect_failed) {
        upcalls->connected(&conn->base, conn->end_status);
    }
    trib_send_queue_return(&conn->sends, &conn->base, conn->end_status);
    upcalls->closed(&conn->base, conn->end_status, conn->reason);
    trib_assert(conn->sends.head == NULL);
    conn->transport->open_count--;
    conn->known = false;
    trib_shm_conn_forget(conn);
}

/*
 * shm.c - an instance of the shared-memory transport: its listeners and its poller.
 *
 * Invariants
 * - A connection is freed by its finish post or, if the caller does not know it, at the end of a poll. So a walk
 *   through the list may make upcalls.
 */
#include "transports/shm/shm.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/base/descriptor.h"
#include "engine/base/half_open.h"
#include "transports/shm/shm_internal.h"
#include "transports/transport_defaults.h"

#define POLL_NS (2 * INT64_C(1000000))
#define SAY_NS (60 * INT64_C(1000000000))
#define PORT_TRIES 64u
#define PORT_FIRST 32768u
#define PORT_COUNT 28000u

/* ---- The poller ---- */

static shm_transport *transport_of(trib_poller *poller)
{
    return trib_container_of(poller, shm_transport, poller);
}

static void reap_conns(shm_transport *self, bool all)
{
    shm_conn *next = NULL;
    for (shm_conn *conn = self->conns; conn != NULL; conn = next) {
        next = conn->next;
        if (!conn->known && (all || conn->state == SHM_ENDING)) {
            trib_shm_conn_forget(conn);
        }
    }
}

static bool poll_all(trib_reactor *reactor, trib_poller *poller)
{
    (void)reactor;
    shm_transport *self = transport_of(poller);
    bool found = false, ended = false;
    for (shm_conn *conn = self->conns; conn != NULL; conn = conn->next) {
        found = (!trib_shm_conn_is_quiet(conn) && trib_shm_conn_poll(conn)) || found;
        ended = ended || (conn->state == SHM_ENDING && !conn->known);
    }
    if (ended) {
        reap_conns(self, false);
    }
    return found;
}

static bool rest_all(trib_reactor *reactor, trib_poller *poller)
{
    (void)reactor;
    bool busy = false;
    for (shm_conn *conn = transport_of(poller)->conns; conn != NULL; conn = conn->next) {
        busy = trib_shm_conn_prepare_sleep(conn) || busy;
    }
    return !busy;
}

static void woken_all(trib_reactor *reactor, trib_poller *poller)
{
    (void)reactor;
    for (shm_conn *conn = transport_of(poller)->conns; conn != NULL; conn = conn->next) {
        trib_shm_conn_note_wake_up(conn);
    }
}

/* Ends the connection if the peer has read nothing of what waits for it for too long. slept_ns: time for which this
 * process stood still since the last check; it does not count. */
static void watch_conn(shm_conn *conn, int64_t now_ns, int64_t slept_ns)
{
    int64_t limit_ns = conn->transport->config.silence_timeout_ns;
    if (conn->state != SHM_OPEN && conn->state != SHM_FLUSHING) {
        return;
    }
    const shm_side *peer = conn->out.peer;
    uint64_t tail = atomic_load_explicit(&peer->tail, memory_order_relaxed);
    uint64_t done = atomic_load_explicit(&peer->done, memory_order_relaxed);
    bool waits = tail != conn->out.head || (conn->peer_reads && done != conn->remote_written);
    bool moved = tail != conn->watched_tail || done != conn->watched_done;
    conn->watched_tail = tail;
    conn->watched_done = done;
    if (conn->stuck_since_ns != 0) {
        const int64_t since_ns = conn->stuck_since_ns + slept_ns;
        conn->stuck_since_ns = since_ns < now_ns ? since_ns : now_ns;
    }
    if (!waits || moved || atomic_load_explicit(&peer->paused, memory_order_relaxed) != 0) {
        conn->stuck_since_ns = 0;
    } else if (conn->stuck_since_ns == 0) {
        conn->stuck_since_ns = now_ns;
    } else if (now_ns - conn->stuck_since_ns > limit_ns) {
        trib_shm_conn_end(conn, TRIB_PEER_LOST,
                          "the peer has read nothing for %.1f s (stopped, or kept busy by a callback, which its log "
                          "names)",
                          (double)(now_ns - conn->stuck_since_ns) / 1e9);
    }
}

static void watch_all(trib_reactor *reactor, trib_timer *timer)
{
    shm_transport *self = timer->user;
    const int64_t now_ns = trib_now(reactor), limit_ns = self->config.silence_timeout_ns;
    /* A process that stood still saw nothing of what its peers read, and they may have stood still with it. */
    const bool stalled_locally = trib_timer_stalled_locally(reactor, timer, limit_ns / 8);
    const int64_t slept_ns = stalled_locally ? now_ns - timer->due_ns : 0;
    for (shm_conn *conn = self->conns; conn != NULL; conn = conn->next) {
        watch_conn(conn, now_ns, slept_ns);
    }
    trib_timer_arm(reactor, timer, now_ns + limit_ns / 4);
}

/* The poller runs in every turn of the loop, so a timer that fires is enough. */
static void poll_now(trib_reactor *reactor, trib_timer *timer)
{
    (void)reactor;
    (void)timer;
}

void trib_shm_poll_later(shm_transport *self)
{
    if (!self->poll_timer.armed) {
        trib_reactor *reactor = self->base.reactor;
        trib_timer_arm(reactor, &self->poll_timer, trib_now(reactor) + POLL_NS);
    }
}

/* ---- The instance ---- */

static trib_status shm_open_instance(trib_reactor *reactor, const trib_transport_config *config,
                                     const trib_transport_upcalls *upcalls, trib_transport **transport_out)
{
    shm_transport *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return TRIB_NO_MEMORY;
    }
    self->base.ops = &trib_shm_ops;
    self->base.reactor = reactor;
    self->base.upcalls = upcalls;
    self->config = *config;
    self->offer = config->context;
    reactor->ops->random(reactor, &self->probe, sizeof self->probe);
    self->poller = (trib_poller){.poll = poll_all, .before_block = rest_all, .after_block = woken_all};
    trib_reactor_poller_add(reactor, &self->poller);
    self->poll_timer.fired = poll_now;
    self->watch.fired = watch_all;
    self->watch.user = self;
    if (config->silence_timeout_ns > 0) {
        trib_timer_arm(reactor, &self->watch, trib_now(reactor) + config->silence_timeout_ns / 4);
    }
    *transport_out = &self->base;
    return TRIB_OK;
}

static void shm_close(trib_transport *transport)
{
    shm_transport *self = (shm_transport *)transport;
    trib_assert(self->open_count == 0);
    reap_conns(self, true);
    trib_assert(self->conns == NULL);
    trib_timer_stop(transport->reactor, &self->watch);
    trib_timer_stop(transport->reactor, &self->poll_timer);
    trib_reactor_poller_remove(transport->reactor, &self->poller);
    free(self);
}

static trib_status shm_context_open(trib_arena *arena, void **context_out, trib_error *error)
{
    shm_offer *offer = NULL;
    trib_status status = trib_shm_offer_create(arena, &offer);
    if (status != TRIB_OK) {
        return trib_error_set(error, status, "cannot share the engine's memory with processes of this machine: %s",
                              trib_status_text(status));
    }
    *context_out = offer;
    return TRIB_OK;
}

static void shm_context_close(void *context)
{
    trib_shm_offer_destroy(context);
}

static void shm_stats(const trib_transport *transport, trib_transport_stats *stats_out)
{
    trib_transport_counters_read(&((const shm_transport *)transport)->stats, stats_out);
}

/* ---- Listeners ---- */

static void shm_listener_close(trib_listener *base)
{
    shm_listener *listener = (shm_listener *)base;
    shm_transport *self = (shm_transport *)base->transport;
    for (shm_conn *conn = self->conns; conn != NULL; conn = conn->next) {
        if (conn->listener == listener) {
            conn->listener = NULL;
            trib_shm_conn_end(conn, TRIB_CLOSED, "the listener was closed");
        }
    }
    trib_socket_listener_close(base);
}

/* Bounds the connections that are still greeting. */
static void close_oldest_half_open(shm_transport *self)
{
    shm_conn *oldest = NULL;
    uint32_t count = 0;
    for (shm_conn *conn = self->conns; conn != NULL; conn = conn->next) { /* newest first */
        if (conn->listener != NULL && conn->state == SHM_GREETING) {
            oldest = conn;
            count++;
        }
    }
    if (oldest != NULL && count >= trib_half_open_max() + self->config.peers) {
        trib_shm_conn_end(oldest, TRIB_TIMEOUT,
                          "closed for newer ones: too many connections have not completed the greeting");
        trib_shm_conn_forget(oldest);
    }
}

/* Any process of this machine can connect as often as it likes, so the log has one line a minute. */
static void note_other_user(shm_listener *listener)
{
    trib_reactor *reactor = listener->socket.base.transport->reactor;
    const int64_t now_ns = trib_now(reactor);
    if (now_ns >= listener->quiet_until_ns) {
        listener->quiet_until_ns = now_ns + SAY_NS;
        trib_log(reactor->logger, TRIB_LOG_WARN, "rejected a process of another user at %s (shared memory)",
                 listener->address.text);
    }
}

/* Makes no upcalls: these follow the greeting. */
static bool accept_socket(trib_acceptor *acceptor, int fd, const struct sockaddr_storage *from)
{
    (void)from;
    shm_listener *listener = (shm_listener *)trib_socket_listener_of(acceptor);
    shm_transport *self = (shm_transport *)listener->socket.base.transport;
    trib_counter_add(&self->stats.system_calls, 1);
    pid_t pid = 0;
    if (!trib_shm_peer_allowed(fd, &pid)) {
        note_other_user(listener);
        close(fd);
        return true;
    }
    close_oldest_half_open(self);
    trib_address remote;
    snprintf(remote.text, sizeof remote.text, "process %d of this machine", (int)pid);
    shm_conn *conn = trib_shm_conn_create(self, fd, &remote, false);
    if (conn == NULL) {
        return false;
    }
    conn->peer.pid = pid;
    conn->listener = listener;
    return true;
}

/* Replaces port 0 by a random number. Names of abstract sockets have port numbers of their own, which only this
 * transport uses. */
static void pick_port(trib_reactor *reactor, const trib_address *at, trib_address *picked)
{
    uint32_t number = 0;
    reactor->ops->random(reactor, &number, sizeof number);
    const char *colon = strrchr(at->text, ':');
    int host = (int)(colon - at->text);
    snprintf(picked->text, sizeof picked->text, "%.*s:%u", host, at->text, PORT_FIRST + number % PORT_COUNT);
}

static int listen_socket(shm_transport *self, const trib_address *at, trib_address *bound_out, trib_error *error)
{
    struct sockaddr_un name;
    socklen_t size = 0;
    if (trib_shm_name(at, &name, &size) != TRIB_OK) {
        trib_error_set(error, TRIB_INVALID, "\"%.*s\" is not a numeric address with a port (127.0.0.1:4242)",
                       TRIB_ADDRESS_MAX, at->text);
        return -1;
    }
    bool pick = strcmp(strrchr(at->text, ':'), ":0") == 0;
    int fd = trib_descriptor_keep(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    bool bound = false;
    *bound_out = *at;
    for (unsigned i = 0; fd >= 0 && !bound && i < (pick ? PORT_TRIES : 1); i++) {
        if (pick) {
            pick_port(self->base.reactor, at, bound_out);
        }
        bound =
            trib_shm_name(bound_out, &name, &size) == TRIB_OK && bind(fd, (const struct sockaddr *)&name, size) == 0;
    }
    trib_counter_add(&self->stats.system_calls, 3);
    if (!bound || listen(fd, SOMAXCONN) != 0) {
        char why[TRIB_REASON_MAX];
        trib_error_set(error, TRIB_SYSTEM, "cannot listen on %s over shared memory: %s", at->text,
                       trib_log_reason(errno, why));
        if (fd >= 0) {
            close(fd);
        }
        return -1;
    }
    return fd;
}

static trib_status shm_listen(trib_transport *transport, const trib_address *at, void *user,
                              trib_listener **listener_out, trib_address *bound_out, trib_error *error)
{
    shm_transport *self = (shm_transport *)transport;
    shm_listener *listener = calloc(1, sizeof *listener);
    if (listener == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for a listener at %s", at->text);
    }
    trib_error local = {.status = TRIB_OK};
    int fd = listen_socket(self, at, &listener->address, &local);
    if (fd < 0) {
        free(listener);
        return trib_error_set(error, local.status, "%s", local.text);
    }
    trib_socket_listener_open(&listener->socket, transport, user, fd, &self->stats.system_calls, &self->open_count,
                              accept_socket);
    *bound_out = listener->address;
    *listener_out = &listener->socket.base;
    return TRIB_OK;
}

const trib_transport_ops trib_shm_ops = {
    .name = "shm",
    .flags = TRIB_TRANSPORT_MAPS,
    .open = shm_open_instance,
    .close = shm_close,
    .listen = shm_listen,
    .listener_close = shm_listener_close,
    .connect = trib_shm_connect,
    .send = trib_shm_send,
    .recv_resume = trib_shm_recv_resume,
    .lease = trib_shm_lease,
    .conn_close = trib_shm_conn_close,
    .stats = shm_stats,
    .context_open = shm_context_open,
    .context_close = shm_context_close,
    .notifies_devices = trib_transport_notifies_no_devices,
    .offloads = trib_transport_never_offloads,
    .is_idle = trib_transport_is_always_idle,
};

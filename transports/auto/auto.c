/*
 * auto.c - see auto.h. RDMA's part is in auto_rdma.c.
 *
 * No name or setting decides: a process can be reached over shared memory if the kernel connects this process to a
 * socket that has the peer's address as its name and belongs to the same user. That is so exactly if both are in one
 * network namespace of one machine.
 */
#include "transports/auto/auto.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "transports/auto/auto_rdma.h"
#include "transports/shm/shm_internal.h"
#include "transports/tcp/tcp.h"
#include "transports/transport_defaults.h"

#define PORT_TRIES 16u

typedef struct auto_transport {
    trib_transport base; /* first */
    trib_transport *tcp, *shm;
    auto_rdma *rdma;         /* NULL: RDMA is not used */
    trib_address logged_for; /* address in the last log line: attempts are repeated until somebody listens */
    bool shm_logged;
} auto_transport;

typedef struct auto_listener {
    trib_listener base; /* first */
    trib_listener *tcp, *shm, *rdma;
} auto_listener;

/* The shared part of each transport (context_open); NULL if that is nothing. */
typedef struct auto_context {
    void *shm, *rdma;
} auto_context;

static trib_status auto_context_open(struct trib_arena *arena, void **context_out, trib_error *error)
{
    auto_context *context = calloc(1, sizeof *context);
    if (context == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for the transports of an engine");
    }
    trib_error unseen;
    (void)trib_shm_ops.context_open(arena, &context->shm, &unseen); /* without it payloads are copied */
    trib_auto_rdma_context_open(arena, &context->rdma);
    *context_out = context;
    return TRIB_OK;
}

static void auto_context_close(void *context)
{
    auto_context *self = context;
    if (self != NULL) {
        trib_auto_rdma_context_close(self->rdma);
        trib_shm_ops.context_close(self->shm);
        free(self);
    }
}

static bool auto_notifies_devices(const void *context)
{
    return context != NULL && ((const auto_context *)context)->rdma != NULL;
}

static trib_status auto_open(trib_reactor *reactor, const trib_transport_config *config,
                             const trib_transport_upcalls *upcalls, trib_transport **transport_out)
{
    auto_transport *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return TRIB_NO_MEMORY;
    }
    self->base = (trib_transport){.ops = &trib_auto_ops, .reactor = reactor, .upcalls = upcalls};
    const auto_context *context = config->context;
    trib_transport_config of_shm = *config, of_rdma = *config;
    of_shm.context = context != NULL ? context->shm : NULL;
    of_rdma.context = context != NULL ? context->rdma : NULL;
    trib_status status = trib_tcp_ops.open(reactor, config, upcalls, &self->tcp);
    if (status == TRIB_OK) {
        status = trib_shm_ops.open(reactor, &of_shm, upcalls, &self->shm);
        if (status != TRIB_OK) {
            trib_tcp_ops.close(self->tcp);
        }
    }
    if (status != TRIB_OK) {
        free(self);
        return status;
    }
    self->rdma = trib_auto_rdma_open(reactor, &of_rdma, upcalls);
    *transport_out = &self->base;
    return TRIB_OK;
}

static void auto_close(trib_transport *transport)
{
    auto_transport *self = (auto_transport *)transport;
    trib_auto_rdma_close(self->rdma);
    trib_shm_ops.close(self->shm);
    trib_tcp_ops.close(self->tcp);
    free(self);
}

void trib_auto_stats_add(const trib_transport *one, trib_transport_stats *stats_io)
{
    trib_transport_stats more;
    one->ops->stats(one, &more);
    stats_io->system_calls += more.system_calls;
    stats_io->messages_sent += more.messages_sent;
    stats_io->messages_received += more.messages_received;
    stats_io->bytes_sent += more.bytes_sent;
    stats_io->bytes_received += more.bytes_received;
    stats_io->bytes_copied += more.bytes_copied;
}

static void auto_stats(const trib_transport *transport, trib_transport_stats *stats_out)
{
    const auto_transport *self = (const auto_transport *)transport;
    *stats_out = (trib_transport_stats){0};
    trib_auto_stats_add(self->tcp, stats_out);
    trib_auto_stats_add(self->shm, stats_out);
    trib_auto_rdma_stats(self->rdma, stats_out);
}

/* ---- Listening ---- */

static bool has_port(const trib_address *at)
{
    const char *colon = memchr(at->text, '\0', sizeof at->text) != NULL ? strrchr(at->text, ':') : NULL;
    return colon != NULL && strcmp(colon, ":0") != 0;
}

/* Listens for processes of this machine. NULL, with the reason in *why, if they have to use TCP. */
static trib_listener *listen_here(auto_transport *self, const trib_address *at, void *user, trib_error *why)
{
    trib_listener *listener = NULL;
    trib_address same;
    return trib_shm_ops.listen(self->shm, at, user, &listener, &same, why) == TRIB_OK ? listener : NULL;
}

/* The kernel picks TCP's port. If another process has the socket name that goes with it (a job over shared memory
 * alone, for example), local peers would reach that process instead. Then another port is picked. */
static trib_status listen_anywhere(auto_transport *self, const trib_address *at, void *user, auto_listener *listener,
                                   trib_address *bound_out, trib_error *why, trib_error *error)
{
    for (unsigned i = 1;; i++) {
        trib_status status = trib_tcp_ops.listen(self->tcp, at, user, &listener->tcp, bound_out, error);
        if (status != TRIB_OK) {
            return status;
        }
        listener->shm = listen_here(self, bound_out, user, why);
        if (listener->shm != NULL || i == PORT_TRIES) {
            return TRIB_OK;
        }
        trib_tcp_ops.listener_close(listener->tcp);
    }
}

/* With a given port a peer may connect at any moment, so shared memory listens before TCP does. */
static trib_status listen_at(auto_transport *self, const trib_address *at, void *user, auto_listener *listener,
                             trib_address *bound_out, trib_error *why, trib_error *error)
{
    listener->shm = listen_here(self, at, user, why);
    trib_status status = trib_tcp_ops.listen(self->tcp, at, user, &listener->tcp, bound_out, error);
    if (status != TRIB_OK && listener->shm != NULL) {
        trib_shm_ops.listener_close(listener->shm);
    }
    return status;
}

static trib_status auto_listen(trib_transport *transport, const trib_address *at, void *user,
                               trib_listener **listener_out, trib_address *bound_out, trib_error *error)
{
    auto_transport *self = (auto_transport *)transport;
    auto_listener *listener = calloc(1, sizeof *listener);
    if (listener == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for a listener at %s", at->text);
    }
    listener->base = (trib_listener){.transport = transport, .user = user};
    trib_error why = {.status = TRIB_OK};
    trib_status status = has_port(at) ? listen_at(self, at, user, listener, bound_out, &why, error)
                                      : listen_anywhere(self, at, user, listener, bound_out, &why, error);
    if (status != TRIB_OK) {
        free(listener);
        return status;
    }
    if (listener->shm == NULL) {
        trib_log(transport->reactor->logger, TRIB_LOG_WARN,
                 "processes of this machine will reach this one over TCP: shared memory is not available (%s)",
                 why.text);
    }
    listener->rdma = trib_auto_rdma_listen(self->rdma, bound_out, user);
    *listener_out = &listener->base;
    return TRIB_OK;
}

static void auto_listener_close(trib_listener *base)
{
    auto_listener *listener = (auto_listener *)base;
    trib_tcp_ops.listener_close(listener->tcp);
    if (listener->shm != NULL) {
        trib_shm_ops.listener_close(listener->shm);
    }
    trib_auto_rdma_listener_close(listener->rdma);
    free(listener);
}

/* ---- Connecting ---- */

static void log_path_choice(auto_transport *self, const trib_address *to, bool shm, int error)
{
    if (self->shm_logged == shm && strcmp(self->logged_for.text, to->text) == 0) {
        return;
    }
    self->shm_logged = shm;
    self->logged_for = *to;
    trib_logger *logger = self->base.reactor->logger;
    char why[TRIB_REASON_MAX];
    if (shm) {
        trib_log(logger, TRIB_LOG_INFO, "to %s over shared memory: the process is on this machine", to->text);
    } else {
        trib_log(logger, TRIB_LOG_INFO, "to %s over TCP: %s", to->text,
                 error == ECONNREFUSED ? "no process of this machine and network namespace offers shared memory there"
                 : error == EPERM      ? "shared memory there belongs to another user"
                                       : trib_log_reason(error, why));
    }
}

/* Copies the address without the offer of RDMA; true if it had one. */
static bool take_offer(const trib_address *to, trib_address *plain_out)
{
    *plain_out = *to;
    plain_out->text[sizeof plain_out->text - 1] = '\0';
    char *plus = strchr(plain_out->text, TRIB_AUTO_OFFER[0]);
    const bool offered = plus != NULL && strcmp(plus, TRIB_AUTO_OFFER) == 0;
    if (offered) {
        *plus = '\0';
    }
    return offered;
}

static trib_status auto_connect(trib_transport *transport, const trib_address *to, void *user, trib_conn **conn_out)
{
    auto_transport *self = (auto_transport *)transport;
    trib_address plain;
    const bool offered = take_offer(to, &plain);
    int error = 0;
    trib_status status = trib_shm_connect_now(self->shm, &plain, user, conn_out, &error);
    if (status != TRIB_PEER_LOST) {
        if (status == TRIB_OK) {
            log_path_choice(self, &plain, true, 0);
        }
        return status;
    }
    if (offered && self->rdma != NULL) {
        return trib_auto_rdma_connect(self->rdma, &plain, user, conn_out);
    }
    log_path_choice(self, &plain, false, error);
    return trib_tcp_ops.connect(self->tcp, &plain, user, conn_out);
}

/* A connection has the table of its own transport; these functions serve a caller that uses this one's. */

static void auto_send(trib_conn *conn, trib_send *send)
{
    conn->transport->ops->send(conn, send);
}

static void auto_recv_resume(trib_conn *conn)
{
    conn->transport->ops->recv_resume(conn);
}

static trib_lease *auto_lease(trib_conn *conn, bool past_upcall)
{
    return conn->transport->ops->lease(conn, past_upcall);
}

static bool auto_offloads(const trib_conn *conn, const void *memory, size_t size, uint32_t least)
{
    return conn->transport->ops->offloads(conn, memory, size, least);
}

static void auto_conn_close(trib_conn *conn, bool flush)
{
    conn->transport->ops->conn_close(conn, flush);
}

const trib_transport_ops trib_auto_ops = {
    .name = "auto",
    .flags = TRIB_TRANSPORT_BREAKS | TRIB_TRANSPORT_SUBFLOWS | TRIB_TRANSPORT_MAPS,
    .open = auto_open,
    .close = auto_close,
    .listen = auto_listen,
    .listener_close = auto_listener_close,
    .connect = auto_connect,
    .send = auto_send,
    .recv_resume = auto_recv_resume,
    .conn_close = auto_conn_close,
    .is_idle = trib_transport_is_always_idle,
    .lease = auto_lease,
    .offloads = auto_offloads,
    .stats = auto_stats,
    .context_open = auto_context_open,
    .context_close = auto_context_close,
    .notifies_devices = auto_notifies_devices,
};

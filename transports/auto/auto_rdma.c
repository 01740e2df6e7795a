/*
 * auto_rdma.c - see auto_rdma.h.
 *
 * Invariants
 * - `inner` carries the connection: RDMA's, or, if that was `closed` without ever being `connected`, TCP's. The caller
 *   sees the auto_conn in front of it, which is freed after the last upcall.
 * - TCP connections that are made here need an instance with these upcalls. It is opened for the first of them.
 */
#include "transports/auto/auto.h"
#include "transports/auto/auto_rdma.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/log.h"
#include "transports/rdma/rdma.h"
#include "transports/tcp/tcp.h"
#include "transports/transport_defaults.h"

#if TRIB_HAVE_RDMA

#include <dirent.h>

#include "transports/rdma/rdma_domain.h"

#define ATTEMPT_NS (3 * INT64_C(1000000000))

typedef struct rdma_context {
    verbs_domain *domain; /* NULL: RDMA cannot be used, and `why` says why */
    trib_error why;
} rdma_context;

struct auto_rdma {
    trib_transport base; /* instance of the connections in front */
    trib_transport_config config;
    trib_transport *rdma;
    _Atomic(trib_transport *) tcp; /* NULL: not needed yet */
    trib_address logged_for;
    bool promised; /* the user was told that a device alone moves payloads, so no connection may go over TCP instead */
};

typedef struct auto_conn {
    trib_conn base; /* first */
    auto_rdma *self;
    trib_conn *inner;
    trib_address to;
    trib_timer attempt;
    bool trying;       /* over RDMA, not connected yet */
    bool late;         /* RDMA takes too long */
    bool close_called; /* by the caller */
} auto_conn;

/* ---- What the instances of an engine share ---- */

static bool kernel_has_devices(void)
{
    DIR *folder = opendir("/sys/class/infiniband");
    unsigned count = 0;
    while (folder != NULL && readdir(folder) != NULL) {
        count++;
    }
    if (folder != NULL) {
        closedir(folder);
    }
    return count > 2; /* "." and ".." are always there */
}

void trib_auto_rdma_context_open(struct trib_arena *arena, void **context_out)
{
    rdma_context *context = kernel_has_devices() ? calloc(1, sizeof *context) : NULL;
    if (context == NULL) {
        return;
    }
    if (trib_rdma_domain_open(arena, &context->domain, &context->why) == TRIB_OK &&
        !trib_rdma_domain_is_active(context->domain)) {
        trib_rdma_domain_close(context->domain);
        context->domain = NULL;
        trib_error_set(&context->why, TRIB_UNSUPPORTED, "no port of an RDMA device is active (see tributary info)");
    }
    *context_out = context;
}

void trib_auto_rdma_context_close(void *context)
{
    rdma_context *self = context;
    if (self != NULL) {
        trib_rdma_domain_close(self->domain);
        free(self);
    }
}

/* ---- Upcalls ---- */

static auto_conn *front_of(trib_conn *inner)
{
    return inner->user;
}

static const trib_transport_upcalls *upcalls_of(const auto_conn *conn)
{
    return conn->base.transport->upcalls;
}

static auto_conn *front_create(auto_rdma *self);

static void inner_accepted(trib_listener *listener, trib_conn *inner)
{
    auto_rdma *self = inner->transport->user;
    auto_conn *conn = front_create(self);
    inner->user = conn;
    if (conn == NULL) {
        inner->transport->ops->conn_close(inner, false);
        return;
    }
    conn->inner = inner;
    conn->base.remote = inner->remote;
    conn->base.path = inner->path;
    upcalls_of(conn)->accepted(listener, &conn->base);
}

static void inner_connected(trib_conn *inner, trib_status status)
{
    auto_conn *conn = front_of(inner);
    auto_rdma *self = conn->self;
    conn->base.refused = inner->refused;
    if (conn->trying && status != TRIB_OK) {
        return; /* its `closed` has the reason, and TCP is tried next */
    }
    if (conn->trying) {
        conn->trying = false;
        trib_timer_stop(self->base.reactor, &conn->attempt);
        if (strcmp(self->logged_for.text, conn->to.text) != 0) {
            self->logged_for = conn->to;
            trib_log(self->base.reactor->logger, TRIB_LOG_INFO, "to %s over RDMA", conn->to.text);
        }
    }
    conn->base.remote = inner->remote;
    conn->base.path = inner->path;
    upcalls_of(conn)->connected(&conn->base, status);
}

static trib_status inner_header(trib_conn *inner, const unsigned char header[TRIB_HEADER_SIZE],
                                trib_recv_target *target)
{
    auto_conn *conn = front_of(inner);
    trib_status status = upcalls_of(conn)->header(&conn->base, header, target);
    target->in_place = false;
    return status;
}

static void inner_received(trib_conn *inner, const unsigned char header[TRIB_HEADER_SIZE], const void *payload,
                           uint32_t payload_size)
{
    auto_conn *conn = front_of(inner);
    upcalls_of(conn)->received(&conn->base, header, payload, payload_size);
}

static void inner_sent(trib_conn *inner, trib_send *send, trib_status status)
{
    auto_conn *conn = front_of(inner);
    upcalls_of(conn)->sent(&conn->base, send, status);
}

static trib_status connect_over_tcp(auto_conn *conn);

static void inner_closed(trib_conn *inner, trib_status status, const char *reason)
{
    auto_conn *conn = front_of(inner);
    if (conn == NULL) {
        return;
    }
    const trib_transport_upcalls *upcalls = upcalls_of(conn);
    conn->inner = NULL;
    if (conn->trying) {
        trib_logger *logger = conn->self->base.reactor->logger;
        trib_timer_stop(conn->self->base.reactor, &conn->attempt);
        conn->trying = false;
        if (conn->close_called) {
            upcalls->closed(&conn->base, TRIB_OK, "closed by this side");
            free(conn);
            return;
        }
        if (conn->self->promised) { /* TCP would need a processor for the payloads */
            reason = conn->late ? "no answer in time" : reason;
            upcalls->connected(&conn->base, TRIB_PEER_LOST);
            upcalls->closed(&conn->base, TRIB_PEER_LOST, reason);
            free(conn);
            return;
        }
        trib_log(logger, TRIB_LOG_WARN, "to %s over TCP: the RDMA that it offers does not work: %s", conn->to.text,
                 conn->late ? "no answer in time" : reason);
        status = connect_over_tcp(conn);
        if (status == TRIB_OK) {
            return;
        }
        reason = "cannot connect";
        upcalls->connected(&conn->base, status);
    }
    upcalls->closed(&conn->base, status, reason);
    free(conn);
}

static const trib_transport_upcalls inner_upcalls = {
    .accepted = inner_accepted,
    .connected = inner_connected,
    .header = inner_header,
    .received = inner_received,
    .sent = inner_sent,
    .closed = inner_closed,
};

/* ---- Connections in front ---- */

static void attempt_over(trib_reactor *reactor, trib_timer *timer)
{
    (void)reactor;
    auto_conn *conn = timer->user;
    conn->late = true;
    conn->inner->transport->ops->conn_close(conn->inner, false);
}

static auto_conn *front_create(auto_rdma *self)
{
    auto_conn *conn = calloc(1, sizeof *conn);
    if (conn != NULL) {
        conn->base.transport = &self->base;
        conn->self = self;
        conn->attempt.fired = attempt_over;
        conn->attempt.user = conn;
    }
    return conn;
}

static trib_status connect_over_tcp(auto_conn *conn)
{
    auto_rdma *self = conn->self;
    trib_transport *tcp = atomic_load(&self->tcp);
    trib_status status = TRIB_OK;
    conn->base.refused = false; /* it was RDMA's port that refused */
    if (tcp == NULL) {
        status = trib_tcp_ops.open(self->base.reactor, &self->config, &inner_upcalls, &tcp);
        if (status != TRIB_OK) {
            return status;
        }
        tcp->user = self;
        atomic_store(&self->tcp, tcp);
    }
    return trib_tcp_ops.connect(tcp, &conn->to, conn, &conn->inner);
}

trib_status trib_auto_rdma_connect(auto_rdma *self, const trib_address *to, void *user, trib_conn **conn_out)
{
    auto_conn *conn = front_create(self);
    if (conn == NULL) {
        return TRIB_NO_MEMORY;
    }
    trib_status status = trib_rdma_ops.connect(self->rdma, to, conn, &conn->inner);
    if (status != TRIB_OK) {
        free(conn);
        return status;
    }
    conn->base.user = user;
    conn->base.remote = conn->inner->remote;
    conn->to = *to;
    conn->trying = true;
    trib_timer_arm(self->base.reactor, &conn->attempt, trib_now(self->base.reactor) + ATTEMPT_NS);
    *conn_out = &conn->base;
    return TRIB_OK;
}

static void front_send(trib_conn *base, trib_send *send)
{
    trib_conn *inner = ((auto_conn *)base)->inner;
    inner->awaits_sent = base->awaits_sent;
    trib_conn_pass_on(base, inner);
    inner->transport->ops->send(inner, send);
}

static void front_recv_resume(trib_conn *base)
{
    trib_conn *inner = ((auto_conn *)base)->inner;
    inner->transport->ops->recv_resume(inner);
}

static void front_conn_close(trib_conn *base, bool flush)
{
    auto_conn *conn = (auto_conn *)base;
    conn->close_called = true;
    if (conn->inner != NULL) { /* otherwise it is ending, inside an upcall */
        trib_conn_pass_on(base, conn->inner);
        conn->inner->transport->ops->conn_close(conn->inner, flush);
    }
}

/* Once connected, a connection does not change what carries it. */
static bool front_offloads(const trib_conn *base, const void *memory, size_t size, uint32_t least)
{
    const auto_conn *conn = (const auto_conn *)base;
    const trib_conn *inner = conn->inner;
    const bool moves = inner != NULL && !conn->trying && inner->transport->ops->offloads(inner, memory, size, least);
    conn->self->promised = conn->self->promised || moves;
    return moves;
}

/* The table of the connections in front; their instance is auto's. */
static const trib_transport_ops front_ops = {
    .name = "auto",
    .flags = TRIB_TRANSPORT_BREAKS,
    .send = front_send,
    .recv_resume = front_recv_resume,
    .lease = trib_transport_never_leases,
    .conn_close = front_conn_close,
    .offloads = front_offloads,
};

/* ---- The instance ---- */

auto_rdma *trib_auto_rdma_open(trib_reactor *reactor, const trib_transport_config *config,
                               const trib_transport_upcalls *upcalls)
{
    const rdma_context *context = config->context;
    if (context == NULL) {
        return NULL;
    }
    if (context->domain == NULL) {
        if (reactor->index == 0) {
            trib_log(reactor->logger, TRIB_LOG_WARN, "RDMA is not used: %s", context->why.text);
        }
        return NULL;
    }
    auto_rdma *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return NULL;
    }
    self->base = (trib_transport){.ops = &front_ops, .reactor = reactor, .upcalls = upcalls};
    self->config = *config;
    self->config.context = context->domain;
    if (trib_rdma_ops.open(reactor, &self->config, &inner_upcalls, &self->rdma) != TRIB_OK) {
        free(self); /* the log has the reason */
        return NULL;
    }
    self->rdma->user = self;
    self->config.context = NULL;
    return self;
}

void trib_auto_rdma_close(auto_rdma *self)
{
    if (self == NULL) {
        return;
    }
    trib_transport *tcp = atomic_load(&self->tcp);
    trib_rdma_ops.close(self->rdma);
    if (tcp != NULL) {
        trib_tcp_ops.close(tcp);
    }
    free(self);
}

void trib_auto_rdma_stats(const auto_rdma *self, trib_transport_stats *stats_io)
{
    if (self == NULL) {
        return;
    }
    const trib_transport *tcp = atomic_load(&self->tcp);
    trib_auto_stats_add(self->rdma, stats_io);
    if (tcp != NULL) {
        trib_auto_stats_add(tcp, stats_io);
    }
}

trib_listener *trib_auto_rdma_listen(auto_rdma *self, trib_address *bound_io, void *user)
{
    trib_listener *listener = NULL;
    trib_address same;
    trib_error why = {.status = TRIB_OK};
    if (self == NULL) {
        return NULL;
    }
    if (trib_rdma_ops.listen(self->rdma, bound_io, user, &listener, &same, &why) != TRIB_OK) {
        trib_log(self->base.reactor->logger, TRIB_LOG_INFO, "this process does not offer RDMA: %s", why.text);
        return NULL;
    }
    const size_t length = strlen(bound_io->text);
    trib_assert(length + sizeof TRIB_AUTO_OFFER <= sizeof bound_io->text);
    snprintf(bound_io->text + length, sizeof bound_io->text - length, "%s", TRIB_AUTO_OFFER);
    return listener;
}

void trib_auto_rdma_listener_close(trib_listener *listener)
{
    if (listener != NULL) {
        trib_rdma_ops.listener_close(listener);
    }
}

#else

void trib_auto_rdma_context_open(struct trib_arena *arena, void **context_out)
{
    (void)arena;
    (void)context_out;
}

void trib_auto_rdma_context_close(void *context)
{
    (void)context;
}

auto_rdma *trib_auto_rdma_open(trib_reactor *reactor, const trib_transport_config *config,
                               const trib_transport_upcalls *upcalls)
{
    (void)reactor;
    (void)config;
    (void)upcalls;
    return NULL;
}

void trib_auto_rdma_close(auto_rdma *self)
{
    (void)self;
}

void trib_auto_rdma_stats(const auto_rdma *self, trib_transport_stats *stats_io)
{
    (void)self;
    (void)stats_io;
}

trib_listener *trib_auto_rdma_listen(auto_rdma *self, trib_address *bound_io, void *user)
{
    (void)self;
    (void)bound_io;
    (void)user;
    return NULL;
}

void trib_auto_rdma_listener_close(trib_listener *listener)
{
    (void)listener;
}

trib_status trib_auto_rdma_connect(auto_rdma *self, const trib_address *to, void *user, trib_conn **conn_out)
{
    (void)self;
    (void)to;
    (void)user;
    (void)conn_out;
    return TRIB_UNSUPPORTED;
}

#endif

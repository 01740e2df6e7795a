/*
 * failover.c - see failover.h: the instance, its two instances of the inner transport, listeners, and the paths of
 * sessions.
 *
 * Invariants
 * - A path is in the instance's list until its `closed`, which frees it.
 * - The inner instance for paths is opened for the first address with a comma; without one it costs nothing.
 */
#include "build_config.h"
#include "transports/failover/failover.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "engine/base/assert.h"
#include "engine/base/log.h"
#include "engine/base/half_open.h"
#include "transports/auto/auto.h"
#include "transports/failover/failover_internal.h"
#include "transports/rdma/rdma.h"
#include "transports/tcp/tcp.h"
#include "transports/transport_defaults.h"

#define SILENCE_DEFAULT_NS (10 * INT64_C(1000000000))
#define HELLO_NS (10 * INT64_C(1000000000))
#define FAREWELL_NS (100 * INT64_C(1000000))

/* ---- Paths ---- */

static void path_timer_fired(trib_reactor *reactor, trib_timer *timer)
{
    (void)reactor;
    failover_path *path = timer->user;
    trib_failover_path_close(path, false, "no answer in time");
}

static failover_path *path_create(failover_transport *self)
{
    failover_path *path = calloc(1, sizeof *path);
    if (path == NULL) {
        return NULL;
    }
    path->transport = self;
    path->timer.fired = path_timer_fired;
    path->timer.user = path;
    DL_PREPEND(self->paths, path);
    return path;
}

static void path_free(failover_path *path)
{
    trib_timer_stop(path->transport->base.reactor, &path->timer);
    DL_DELETE(path->transport->paths, path);
    free(path);
}

void trib_failover_path_close(failover_path *path, bool flush, const char *why)
{
    if (path->why[0] == '\0') {
        snprintf(path->why, sizeof path->why, "%s", why);
    }
    path->inner->proved = path->session != NULL && path->session->base.proved;
    path->inner->transport->ops->conn_close(path->inner, flush);
}

void trib_failover_path_finish(failover_path *path)
{
    trib_reactor *reactor = path->transport->base.reactor;
    if (!path->retired && trib_failover_send_frame(path, FAILOVER_BYE, path->session->received)) {
        trib_failover_path_close(path, true, "over");
        trib_timer_arm(reactor, &path->timer, trib_now(reactor) + FAREWELL_NS);
    } else {
        trib_failover_path_close(path, false, "over");
    }
}

void trib_failover_path_reject(failover_path *path, const char *why)
{
    trib_reactor *reactor = path->transport->base.reactor;
    if (trib_failover_send_frame(path, FAILOVER_GONE, 0)) {
        trib_failover_path_close(path, true, why);
        trib_timer_arm(reactor, &path->timer, trib_now(reactor) + FAREWELL_NS);
    }
}

static trib_status open_inner(failover_transport *self, trib_transport **inner_out);

failover_path *trib_failover_path_connect(failover_session *session, uint32_t rail, bool is_makeshift,
                                          trib_status *status_out)
{
    trib_transport *inner = NULL;
    *status_out = open_inner(session->transport, &inner);
    failover_path *path = *status_out == TRIB_OK ? path_create(session->transport) : NULL;
    if (path == NULL) {
        *status_out = *status_out == TRIB_OK ? TRIB_NO_MEMORY : *status_out;
        return NULL;
    }
    path->session = session;
    path->rail = rail;
    path->is_makeshift = is_makeshift;
    trib_address to = session->rails[rail];
    if (is_makeshift) {
        to.text[strcspn(to.text, "+")] = '\0';
    }
    *status_out = inner->ops->connect(inner, &to, path, &path->inner);
    if (*status_out != TRIB_OK) {
        path_free(path);
        return NULL;
    }
    session->paths++;
    return path;
}

/* ---- Upcalls of the transport below ---- */

/* Bounds the paths that have not said HELLO or RESUME. */
static void close_oldest_half_open(const failover_transport *self)
{
    failover_path *oldest = NULL;
    uint32_t count = 0;
    for (failover_path *path = self->paths; path != NULL; path = path->next) { /* newest first */
        if (path->listener != NULL && path->session == NULL && path->why[0] == '\0') {
            oldest = path;
            count++;
        }
    }
    if (oldest != NULL && count >= trib_half_open_max() + self->config.peers) {
        trib_failover_path_close(oldest, false, "closed for newer ones: too many connections said no HELLO");
    }
}

static void path_accepted(trib_listener *inner_listener, trib_conn *inner)
{
    failover_listener *listener = inner_listener->user;
    failover_transport *self = (failover_transport *)listener->base.transport;
    close_oldest_half_open(self);
    failover_path *path = path_create(self);
    inner->user = path;
    if (path == NULL) {
        inner->transport->ops->conn_close(inner, false);
        return;
    }
    path->inner = inner;
    path->listener = listener;
    trib_timer_arm(self->base.reactor, &path->timer, trib_now(self->base.reactor) + HELLO_NS);
}

static void path_connected(trib_conn *inner, trib_status status)
{
    failover_path *path = inner->user;
    if (status == TRIB_OK) {
        trib_failover_session_connected(path);
    }
}

static trib_status path_header(trib_conn *inner, const unsigned char header[TRIB_HEADER_SIZE], trib_recv_target *target)
{
    failover_path *path = inner->user;
    return path != NULL ? trib_failover_flow_header(path, header, target) : TRIB_CLOSED;
}

static void path_received(trib_conn *inner, const unsigned char header[TRIB_HEADER_SIZE], const void *payload,
                          uint32_t payload_size)
{
    trib_failover_flow_received(inner->user, header, payload, payload_size);
}

static void path_sent(trib_conn *inner, trib_send *send, trib_status status)
{
    (void)status; /* only the peer's acknowledgement counts */
    trib_failover_flow_sent(inner->user, send);
}

static void path_closed(trib_conn *inner, trib_status status, const char *reason)
{
    failover_path *path = inner->user;
    if (path == NULL) {
        return;
    }
    if (path->session != NULL) {
        trib_failover_session_path_closed(path, status, path->why[0] != '\0' ? path->why : reason);
    }
    path_free(path);
}

static const trib_transport_upcalls path_upcalls = {
    .accepted = path_accepted,
    .connected = path_connected,
    .header = path_header,
    .received = path_received,
    .sent = path_sent,
    .closed = path_closed,
};

/* ---- Listeners ---- */

static trib_status listen_on_rail(trib_transport *inner, const trib_address *at, failover_listener *listener,
                                  trib_address *bound_io, trib_error *error)
{
    const size_t length = strlen(bound_io->text);
    trib_address one;
    trib_status status = inner->ops->listen(inner, at, listener, &listener->inner[listener->count], &one, error);
    if (status != TRIB_OK) {
        return status;
    }
    /* The comma stays behind a single address: it says that connections are sessions. */
    const size_t size = strlen(one.text) + 1;
    if (length + size >= sizeof bound_io->text) {
        inner->ops->listener_close(listener->inner[listener->count]);
        return trib_error_set(error, TRIB_INVALID, "the list of listen addresses is too long");
    }
    snprintf(bound_io->text + length, sizeof bound_io->text - length, "%s,", one.text);
    listener->count++;
    return TRIB_OK;
}

/* Listens on each address that works; at least one must. */
static trib_status listen_on_all(failover_transport *self, const trib_address *at, failover_listener *listener,
                                 trib_address *bound_out, trib_error *error)
{
    trib_transport *inner = NULL;
    trib_error why = {.status = TRIB_OK};
    trib_status status = open_inner(self, &inner);
    bound_out->text[0] = '\0';
    if (status != TRIB_OK) {
        return trib_error_set(error, status, "cannot listen on %s", at->text);
    }
    for (const char *rest = at->text; *rest != '\0' && listener->count < TRIB_FAILOVER_MAX;) {
        const size_t length = strcspn(rest, ",");
        trib_address one;
        snprintf(one.text, sizeof one.text, "%.*s", (int)length, rest);
        status = listen_on_rail(inner, &one, listener, bound_out, &why);
        rest += length + (rest[length] == ',');
        if (status != TRIB_OK && (listener->count > 0 || *rest != '\0')) {
            trib_log(self->base.reactor->logger, TRIB_LOG_WARN, "reactor %u %s: %s", self->base.reactor->index,
                     listener->count > 0 ? "does without one listen address" : "takes the next listen address",
                     why.text);
        }
    }
    if (listener->count == 0) {
        return trib_error_set(error, why.status != TRIB_OK ? why.status : TRIB_INVALID, "%s",
                              why.status != TRIB_OK ? why.text : "the list of listen addresses is empty");
    }
    return TRIB_OK;
}

trib_status trib_failover_listen(trib_transport *transport, const trib_address *at, void *user,
                                 trib_listener **listener_out, trib_address *bound_out, trib_error *error)
{
    failover_transport *self = (failover_transport *)transport;
    if (memchr(at->text, '\0', sizeof at->text) == NULL || strchr(at->text, ',') == NULL) {
        return self->ops->listen(self->plain, at, user, listener_out, bound_out, error);
    }
    failover_listener *listener = calloc(1, sizeof *listener);
    if (listener == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for a listener at %s", at->text);
    }
    listener->base = (trib_listener){.transport = transport, .user = user};
    trib_status status = listen_on_all(self, at, listener, bound_out, error);
    if (status != TRIB_OK) {
        free(listener);
        return status;
    }
    *listener_out = &listener->base;
    return TRIB_OK;
}

void trib_failover_listener_close(trib_listener *base)
{
    failover_listener *listener = (failover_listener *)base;
    if (base->transport->ops->listener_close != trib_failover_listener_close) {
        base->transport->ops->listener_close(base); /* a listener of the inner transport */
        return;
    }
    failover_transport *self = (failover_transport *)base->transport;
    for (uint32_t i = 0; i < listener->count; i++) {
        listener->inner[i]->transport->ops->listener_close(listener->inner[i]);
    }
    for (failover_path *path = self->paths; path != NULL; path = path->next) {
        if (path->listener == listener) {
            path->listener = NULL;
            if (path->session == NULL) {
                trib_failover_path_close(path, false, "the listener was closed");
            }
        }
    }
    free(listener);
}

/* ---- Life ---- */

static trib_status open_inner(failover_transport *self, trib_transport **inner_out)
{
    *inner_out = atomic_load(&self->inner);
    if (*inner_out != NULL) {
        return TRIB_OK;
    }
    trib_transport_config config = self->config;
    config.silence_timeout_ns =
        self->silence_ns / 4; /* data that is not acknowledged for so long goes by another path */
    config.has_failover = true;
    trib_status status = self->ops->open(self->base.reactor, &config, &path_upcalls, inner_out);
    if (status == TRIB_OK) {
        (*inner_out)->user = self;
        atomic_store(&self->inner, *inner_out);
    }
    return status;
}

trib_status trib_failover_open(const trib_transport_ops *ops, const trib_transport_ops *inner, trib_reactor *reactor,
                               const trib_transport_config *config, const trib_transport_upcalls *upcalls,
                               trib_transport **transport_out)
{
    failover_transport *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return TRIB_NO_MEMORY;
    }
    self->base = (trib_transport){.ops = ops, .reactor = reactor, .upcalls = upcalls};
    self->config = *config;
    self->ops = inner;
    self->silence_ns = config->silence_timeout_ns > 0 ? config->silence_timeout_ns : SILENCE_DEFAULT_NS;
    trib_status status = inner->open(reactor, config, upcalls, &self->plain);
    if (status != TRIB_OK) {
        free(self);
        return status;
    }
    *transport_out = &self->base;
    return TRIB_OK;
}

void trib_failover_close(trib_transport *transport)
{
    failover_transport *self = (failover_transport *)transport;
    trib_transport *inner = atomic_load(&self->inner);
    trib_assert(self->sessions == NULL && self->paths == NULL);
    self->ops->close(self->plain);
    if (inner != NULL) {
        self->ops->close(inner);
    }
    while (self->spare != NULL) {
        failover_entry *entry = self->spare;
        self->spare = entry->next;
        free(entry);
    }
    free(self->scratch);
    free(self);
}

bool trib_failover_is_idle(const trib_transport *transport)
{
    return ((const failover_transport *)transport)->paths == NULL;
}

void trib_failover_stats(const trib_transport *transport, trib_transport_stats *stats_out)
{
    const failover_transport *self = (const failover_transport *)transport;
    const trib_transport *inner = atomic_load(&self->inner);
    trib_transport_stats sessions, below;
    self->ops->stats(self->plain, stats_out);
    if (inner == NULL) {
        return;
    }
    trib_transport_counters_read(&self->stats, &sessions);
    self->ops->stats(inner, &below);
    stats_out->messages_sent += sessions.messages_sent;
    stats_out->messages_received += sessions.messages_received;
    stats_out->bytes_sent += sessions.bytes_sent;
    stats_out->bytes_received += sessions.bytes_received;
    stats_out->system_calls += below.system_calls;
    stats_out->bytes_copied += below.bytes_copied;
}

/* ---- Tables ---- */

/* The part of a table that does not depend on the inner transport. */
#define FAILOVER_TABLE                                                                                                 \
    .close = trib_failover_close, .listen = trib_failover_listen, .listener_close = trib_failover_listener_close,      \
    .connect = trib_failover_connect, .send = trib_failover_send, .recv_resume = trib_failover_recv_resume,            \
    .conn_close = trib_failover_conn_close, .is_idle = trib_failover_is_idle, .stats = trib_failover_stats

static trib_status open_over_auto(trib_reactor *reactor, const trib_transport_config *config,
                                  const trib_transport_upcalls *upcalls, trib_transport **transport_out)
{
    return trib_failover_open(&trib_failover_auto_ops, &trib_auto_ops, reactor, config, upcalls, transport_out);
}

static trib_status context_open_auto(struct trib_arena *arena, void **context_out, trib_error *error)
{
    return trib_auto_ops.context_open(arena, context_out, error);
}

static void context_close_auto(void *context)
{
    trib_auto_ops.context_close(context);
}

static bool notifies_devices_auto(const void *context)
{
    return trib_auto_ops.notifies_devices(context);
}

const trib_transport_ops trib_failover_auto_ops = {
    .name = "auto",
    .flags = TRIB_TRANSPORT_FAILOVER | TRIB_TRANSPORT_SUBFLOWS | TRIB_TRANSPORT_MAPS,
    .open = open_over_auto,
    FAILOVER_TABLE,
    .lease = trib_transport_never_leases,
    .moves_alone = trib_transport_never_moves_alone,
    .context_open = context_open_auto,
    .context_close = context_close_auto,
    .notifies_devices = notifies_devices_auto,
};

static trib_status open_over_tcp(trib_reactor *reactor, const trib_transport_config *config,
                                 const trib_transport_upcalls *upcalls, trib_transport **transport_out)
{
    return trib_failover_open(&trib_failover_tcp_ops, &trib_tcp_ops, reactor, config, upcalls, transport_out);
}

const trib_transport_ops trib_failover_tcp_ops = {
    .name = "tcp",
    .flags = TRIB_TRANSPORT_FAILOVER | TRIB_TRANSPORT_SUBFLOWS,
    .open = open_over_tcp,
    FAILOVER_TABLE,
    .lease = trib_transport_never_leases,
    .moves_alone = trib_transport_never_moves_alone,
    .context_open = trib_transport_no_context_open,
    .context_close = trib_transport_no_context_close,
    .notifies_devices = trib_transport_notifies_no_devices,
};

#if TRIB_HAVE_RDMA

static trib_status open_over_rdma(trib_reactor *reactor, const trib_transport_config *config,
                                  const trib_transport_upcalls *upcalls, trib_transport **transport_out)
{
    return trib_failover_open(&trib_failover_rdma_ops, &trib_rdma_ops, reactor, config, upcalls, transport_out);
}

static trib_status context_open_rdma(struct trib_arena *arena, void **context_out, trib_error *error)
{
    return trib_rdma_ops.context_open(arena, context_out, error);
}

static void context_close_rdma(void *context)
{
    trib_rdma_ops.context_close(context);
}

static bool notifies_devices_rdma(const void *context)
{
    return trib_rdma_ops.notifies_devices(context);
}

/* All rails are RDMA's, and memory that one of its devices knows all devices know. */
static bool moves_alone(const trib_conn *base, const void *memory, size_t size, uint32_t least)
{
    const failover_session *session = (const failover_session *)base;
    const trib_conn *inner = session->path != NULL ? session->path->inner : NULL;
    return inner != NULL && trib_rdma_ops.moves_alone(inner, memory, size, least);
}

const trib_transport_ops trib_failover_rdma_ops = {
    .name = "rdma",
    .flags = TRIB_TRANSPORT_FAILOVER,
    .open = open_over_rdma,
    .moves_alone = moves_alone,
    .lease = trib_transport_never_leases,
    FAILOVER_TABLE,
    .context_open = context_open_rdma,
    .context_close = context_close_rdma,
    .notifies_devices = notifies_devices_rdma,
};

#endif

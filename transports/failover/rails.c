/*
 * rails.c - see rails.h: the instance, its two of the transport below, listeners, and the paths of sessions.
 *
 * Invariants
 * - A path is freed in its `closed`, and is in the instance's list until then.
 * - The instance for paths is opened for the first address with a comma; who has none pays for nothing.
 */
#include "build_config.h"
#include "transports/failover/rails.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/log.h"
#include "engine/base/strangers.h"
#include "transports/auto/auto.h"
#include "transports/failover/rails_internal.h"
#include "transports/rdma/rdma.h"
#include "transports/tcp/tcp.h"

#define SILENCE_DEFAULT_NS (10 * INT64_C(1000000000))
#define HELLO_NS (10 * INT64_C(1000000000))
#define FAREWELL_NS (100 * INT64_C(1000000))

/* ---- Paths ---- */

static void path_timer_fired(trib_reactor *reactor, trib_timer *timer)
{
    (void)reactor;
    rails_path *path = timer->user;
    trib_rails_path_close(path, false, "there was no answer in time");
}

static rails_path *path_create(rails_transport *self)
{
    rails_path *path = calloc(1, sizeof *path);
    if (path == NULL) {
        return NULL;
    }
    path->transport = self;
    path->timer.fired = path_timer_fired;
    path->timer.user = path;
    path->next = self->paths;
    path->at = &self->paths;
    if (path->next != NULL) {
        path->next->at = &path->next;
    }
    self->paths = path;
    return path;
}

static void path_free(rails_path *path)
{
    trib_timer_stop(path->transport->base.reactor, &path->timer);
    *path->at = path->next;
    if (path->next != NULL) {
        path->next->at = path->at;
    }
    free(path);
}

void trib_rails_path_close(rails_path *path, bool flush, const char *why)
{
    if (path->why[0] == '\0') {
        snprintf(path->why, sizeof path->why, "%s", why);
    }
    path->inner->transport->ops->conn_close(path->inner, flush);
}

void trib_rails_path_bye(rails_path *path)
{
    trib_reactor *reactor = path->transport->base.reactor;
    if (!path->retired && trib_rails_say(path, RAILS_BYE, path->session->received)) {
        trib_rails_path_close(path, true, "over");
        trib_timer_arm(reactor, &path->timer, trib_now(reactor) + FAREWELL_NS);
    } else {
        trib_rails_path_close(path, false, "over");
    }
}

void trib_rails_path_turn_away(rails_path *path, const char *why)
{
    trib_reactor *reactor = path->transport->base.reactor;
    if (trib_rails_say(path, RAILS_GONE, 0)) {
        trib_rails_path_close(path, true, why);
        trib_timer_arm(reactor, &path->timer, trib_now(reactor) + FAREWELL_NS);
    }
}

static trib_status open_inner(rails_transport *self, trib_transport **inner_out);

rails_path *trib_rails_path_connect(rails_session *session, uint32_t rail, bool is_makeshift, trib_status *status_out)
{
    trib_transport *inner = NULL;
    *status_out = open_inner(session->transport, &inner);
    rails_path *path = *status_out == TRIB_OK ? path_create(session->transport) : NULL;
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

/* Of those that have come and not said HELLO or RESUME, where they are too many. */
static void end_oldest_stranger(const rails_transport *self)
{
    rails_path *oldest = NULL;
    uint32_t count = 0;
    for (rails_path *path = self->paths; path != NULL; path = path->next) { /* newest first */
        if (path->listener != NULL && path->session == NULL && path->why[0] == '\0') {
            oldest = path;
            count++;
        }
    }
    if (oldest != NULL && count >= trib_strangers_max() + self->config.peers) {
        trib_rails_path_close(oldest, false, "too many others have come and say nothing");
    }
}

static void path_accepted(trib_listener *inner_listener, trib_conn *inner)
{
    rails_listener *listener = inner_listener->user;
    rails_transport *self = (rails_transport *)listener->base.transport;
    end_oldest_stranger(self);
    rails_path *path = path_create(self);
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
    rails_path *path = inner->user;
    if (status == TRIB_OK) {
        trib_rails_session_connected(path);
    }
}

static trib_status path_header(trib_conn *inner, const unsigned char header[TRIB_HEADER_SIZE], trib_landing *landing)
{
    rails_path *path = inner->user;
    return path != NULL ? trib_rails_flow_header(path, header, landing) : TRIB_CLOSED;
}

static void path_received(trib_conn *inner, const unsigned char header[TRIB_HEADER_SIZE], const void *payload,
                          uint32_t payload_size)
{
    trib_rails_flow_received(inner->user, header, payload, payload_size);
}

static void path_sent(trib_conn *inner, trib_send *send, trib_status status)
{
    (void)status; /* what counts is what the peer says of it */
    trib_rails_flow_sent(inner->user, send);
}

static void path_closed(trib_conn *inner, trib_status status, const char *reason)
{
    rails_path *path = inner->user;
    if (path == NULL) {
        return;
    }
    if (path->session != NULL) {
        trib_rails_session_path_closed(path, status, path->why[0] != '\0' ? path->why : reason);
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

static trib_status add_rail(trib_transport *inner, const trib_address *at, rails_listener *listener,
                            trib_address *bound_io, trib_error *error)
{
    const size_t length = strlen(bound_io->text);
    trib_address one;
    trib_status status = inner->ops->listen(inner, at, listener, &listener->inner[listener->count], &one, error);
    if (status != TRIB_OK) {
        return status;
    }
    /* The comma stays at the end of a single one: it says that there are sessions. */
    const size_t size = strlen(one.text) + 1;
    if (length + size >= sizeof bound_io->text) {
        inner->ops->listener_close(listener->inner[listener->count]);
        return trib_error_set(error, TRIB_INVALID, "the addresses are too long together");
    }
    snprintf(bound_io->text + length, sizeof bound_io->text - length, "%s,", one.text);
    listener->count++;
    return TRIB_OK;
}

/* On each of them that works; at least one must. */
static trib_status listen_on_all(rails_transport *self, const trib_address *at, rails_listener *listener,
                                 trib_address *bound_out, trib_error *error)
{
    trib_transport *inner = NULL;
    trib_error why = {.status = TRIB_OK};
    trib_status status = open_inner(self, &inner);
    bound_out->text[0] = '\0';
    if (status != TRIB_OK) {
        return trib_error_set(error, status, "cannot listen on %s", at->text);
    }
    for (const char *rest = at->text; *rest != '\0' && listener->count < TRIB_RAILS_MAX;) {
        const size_t length = strcspn(rest, ",");
        trib_address one;
        snprintf(one.text, sizeof one.text, "%.*s", (int)length, rest);
        status = add_rail(inner, &one, listener, bound_out, &why);
        rest += length + (rest[length] == ',');
        if (status != TRIB_OK && (listener->count > 0 || *rest != '\0')) {
            trib_log(self->base.reactor->logger, TRIB_LOG_WARN, "reactor %u %s: %s", self->base.reactor->index,
                     listener->count > 0 ? "does without a listen address" : "takes the next listen address", why.text);
        }
    }
    if (listener->count == 0) {
        return trib_error_set(error, why.status != TRIB_OK ? why.status : TRIB_INVALID, "%s",
                              why.status != TRIB_OK ? why.text : "there is no address");
    }
    return TRIB_OK;
}

trib_status trib_rails_listen(trib_transport *transport, const trib_address *at, void *user,
                              trib_listener **listener_out, trib_address *bound_out, trib_error *error)
{
    rails_transport *self = (rails_transport *)transport;
    if (memchr(at->text, '\0', sizeof at->text) == NULL || strchr(at->text, ',') == NULL) {
        return self->ops->listen(self->plain, at, user, listener_out, bound_out, error);
    }
    rails_listener *listener = calloc(1, sizeof *listener);
    if (listener == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "no memory for a listener");
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

void trib_rails_listener_close(trib_listener *base)
{
    rails_listener *listener = (rails_listener *)base;
    if (base->transport->ops->listener_close != trib_rails_listener_close) {
        base->transport->ops->listener_close(base); /* a plain one */
        return;
    }
    rails_transport *self = (rails_transport *)base->transport;
    for (uint32_t i = 0; i < listener->count; i++) {
        listener->inner[i]->transport->ops->listener_close(listener->inner[i]);
    }
    for (rails_path *path = self->paths; path != NULL; path = path->next) {
        if (path->listener == listener) {
            path->listener = NULL;
            if (path->session == NULL) {
                trib_rails_path_close(path, false, "nobody listens any more");
            }
        }
    }
    free(listener);
}

/* ---- Life ---- */

static trib_status open_inner(rails_transport *self, trib_transport **inner_out)
{
    *inner_out = atomic_load(&self->inner);
    if (*inner_out != NULL) {
        return TRIB_OK;
    }
    trib_transport_config config = self->config;
    config.silence_timeout_ns = self->silence_ns / 4; /* what is not acknowledged for so long goes another way */
    config.has_rails = true;
    trib_status status = self->ops->open(self->base.reactor, &config, &path_upcalls, inner_out);
    if (status == TRIB_OK) {
        (*inner_out)->user = self;
        atomic_store(&self->inner, *inner_out);
    }
    return status;
}

trib_status trib_rails_open(const trib_transport_ops *ops, const trib_transport_ops *inner, trib_reactor *reactor,
                            const trib_transport_config *config, const trib_transport_upcalls *upcalls,
                            trib_transport **transport_out)
{
    rails_transport *self = calloc(1, sizeof *self);
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

void trib_rails_close(trib_transport *transport)
{
    rails_transport *self = (rails_transport *)transport;
    trib_transport *inner = atomic_load(&self->inner);
    trib_assert(self->sessions == NULL && self->paths == NULL);
    self->ops->close(self->plain);
    if (inner != NULL) {
        self->ops->close(inner);
    }
    while (self->spare != NULL) {
        rails_entry *entry = self->spare;
        self->spare = entry->next;
        free(entry);
    }
    free(self->scratch);
    free(self);
}

bool trib_rails_is_idle(const trib_transport *transport)
{
    return ((const rails_transport *)transport)->paths == NULL;
}

void trib_rails_stats(const trib_transport *transport, trib_transport_stats *stats_out)
{
    const rails_transport *self = (const rails_transport *)transport;
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

/* What does not depend on what is below. */
#define RAILS_TABLE                                                                                                    \
    .close = trib_rails_close, .listen = trib_rails_listen, .listener_close = trib_rails_listener_close,               \
    .connect = trib_rails_connect, .send = trib_rails_send, .recv_resume = trib_rails_recv_resume,                     \
    .conn_close = trib_rails_conn_close, .is_idle = trib_rails_is_idle, .stats = trib_rails_stats

static trib_status open_over_auto(trib_reactor *reactor, const trib_transport_config *config,
                                  const trib_transport_upcalls *upcalls, trib_transport **transport_out)
{
    return trib_rails_open(&trib_rails_auto_ops, &trib_auto_ops, reactor, config, upcalls, transport_out);
}

static trib_status share_auto(struct trib_arena *arena, void **shared_out, trib_error *error)
{
    return trib_auto_ops.share(arena, shared_out, error);
}

static void unshare_auto(void *shared)
{
    trib_auto_ops.unshare(shared);
}

static bool tells_devices_of_auto(const void *shared)
{
    return trib_auto_ops.tells_devices(shared);
}

const trib_transport_ops trib_rails_auto_ops = {
    .name = "auto",
    .flags = TRIB_TRANSPORT_RAILS | TRIB_TRANSPORT_STRANDS | TRIB_TRANSPORT_MAPS,
    .open = open_over_auto,
    RAILS_TABLE,
    .share = share_auto,
    .unshare = unshare_auto,
    .tells_devices = tells_devices_of_auto,
};

static trib_status open_over_tcp(trib_reactor *reactor, const trib_transport_config *config,
                                 const trib_transport_upcalls *upcalls, trib_transport **transport_out)
{
    return trib_rails_open(&trib_rails_tcp_ops, &trib_tcp_ops, reactor, config, upcalls, transport_out);
}

const trib_transport_ops trib_rails_tcp_ops = {
    .name = "tcp",
    .flags = TRIB_TRANSPORT_RAILS | TRIB_TRANSPORT_STRANDS,
    .open = open_over_tcp,
    RAILS_TABLE,
};

#if TRIB_HAVE_RDMA

static trib_status open_over_rdma(trib_reactor *reactor, const trib_transport_config *config,
                                  const trib_transport_upcalls *upcalls, trib_transport **transport_out)
{
    return trib_rails_open(&trib_rails_rdma_ops, &trib_rdma_ops, reactor, config, upcalls, transport_out);
}

static trib_status share_rdma(struct trib_arena *arena, void **shared_out, trib_error *error)
{
    return trib_rdma_ops.share(arena, shared_out, error);
}

static void unshare_rdma(void *shared)
{
    trib_rdma_ops.unshare(shared);
}

static bool tells_devices_of_rdma(const void *shared)
{
    return shared != NULL;
}

/* All rails are RDMA's, and what one of its devices knows all do. */
static bool moves_alone(const trib_conn *base, const void *memory, size_t size, uint32_t least)
{
    const rails_session *session = (const rails_session *)base;
    const trib_conn *inner = session->path != NULL ? session->path->inner : NULL;
    return inner != NULL && trib_rdma_ops.moves_alone(inner, memory, size, least);
}

const trib_transport_ops trib_rails_rdma_ops = {
    .name = "rdma",
    .flags = TRIB_TRANSPORT_RAILS,
    .open = open_over_rdma,
    .moves_alone = moves_alone,
    RAILS_TABLE,
    .share = share_rdma,
    .unshare = unshare_rdma,
    .tells_devices = tells_devices_of_rdma,
};

#endif

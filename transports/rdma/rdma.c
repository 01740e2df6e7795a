/*
 * rdma.c - an instance of the RDMA transport, its listeners, and the events of the connection manager.
 *
 * Invariants
 * - An event is acknowledged before it is acted upon, so its object can be destroyed at any time.
 * - The caller hears of an accepted connection when the peer has it too. Until then the connection belongs to its
 *   listener.
 */
#include "build_config.h"
#include "transports/rdma/rdma.h"

#if TRIB_HAVE_RDMA

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/fork.h"
#include "transports/rdma/rdma_internal.h"
#include "transports/transport_defaults.h"
#include "transports/tcp/tcp_internal.h"

#define EVENTS_PER_TURN 64u
#define BACKLOG 1024
#define ROUTE_MS 3000
#define SILENCE_DEFAULT_NS INT64_C(10000000000)
#define ACK_UNIT_NS 4096 /* a device waits 2^n of these units before it sends again */
#define ACK_TIMEOUT_MIN 8u
#define ACK_TIMEOUT_MAX 24u
#define NOBODY_LISTENS 8 /* the connection manager's reason "invalid service" */
#define REFUSED_BY_PEER 28

struct verbs_listener {
    trib_listener base; /* first */
    verbs_target target;
    struct rdma_cm_id *id;
    verbs_remains *remains; /* remains of the id */
};

/* ---- Connecting, step by step ---- */

static void connect_failed(verbs_conn *conn, const char *why)
{
    trib_rdma_conn_end(conn, TRIB_PEER_LOST, "%s", why);
    conn->base.transport->upcalls->connected(&conn->base, conn->end_status);
}

static void connect_failed_errno(verbs_conn *conn, int number)
{
    errno = number;
    trib_rdma_conn_end(conn, TRIB_PEER_LOST, number == ENODEV ? "no RDMA device of this machine leads there" : "%m");
    conn->base.transport->upcalls->connected(&conn->base, conn->end_status);
}

static void connect_failed_error(verbs_conn *conn, const trib_error *error)
{
    trib_rdma_conn_end(conn, error->status, "%s", error->text);
    conn->base.transport->upcalls->connected(&conn->base, conn->end_status);
}

static void address_resolved(verbs_conn *conn)
{
    trib_counter_add(&conn->transport->stats.system_calls, 1);
    if (rdma_resolve_route(conn->id, ROUTE_MS) != 0) {
        connect_failed_errno(conn, errno); /* for example 127.0.0.1, which leads to no device */
    }
}

static void route_resolved(verbs_conn *conn)
{
    trib_error error = {.status = TRIB_OK};
    if (trib_rdma_conn_equip(conn, &error) != TRIB_OK) {
        connect_failed_error(conn, &error);
        return;
    }
    verbs_greeting greeting;
    struct rdma_conn_param parameters;
    trib_rdma_connect_params_fill(&parameters, &greeting);
    trib_rdma_conn_set_state(conn, VERBS_CONNECTING);
    trib_counter_add(&conn->transport->stats.system_calls, 1);
    if (rdma_connect(conn->id, &parameters) != 0) {
        connect_failed_errno(conn, errno);
    }
}

static void connect_rejected(verbs_conn *conn, const struct rdma_cm_event *event, const verbs_greeting *greeting)
{
    trib_error error = {.status = TRIB_PEER_LOST};
    const bool is_logged = event->status == REFUSED_BY_PEER && greeting->magic != 0; /* otherwise its kernel refused */
    if (event->status == NOBODY_LISTENS) {
        conn->base.refused = true;
        connect_failed(conn, "nobody listens there");
    } else if (is_logged && !trib_rdma_conn_greet(conn, greeting, sizeof *greeting, &error)) {
        connect_failed_error(conn, &error);
    } else {
        trib_error_set(&error, TRIB_PEER_LOST, "refused by the peer (reason %d)", event->status);
        connect_failed_error(conn, &error);
    }
}

static void connection_established(verbs_conn *conn, const verbs_greeting *greeting)
{
    trib_error error = {.status = TRIB_OK};
    if (conn->state == VERBS_CONNECTING) {
        if (!trib_rdma_conn_greet(conn, greeting, sizeof *greeting, &error)) {
            connect_failed_error(conn, &error);
        } else {
            trib_rdma_conn_opened(conn);
        }
    } else if (conn->state == VERBS_ACCEPTING && !conn->broken) {
        trib_rdma_conn_opened(conn);
    }
}

/* ---- Accepting ---- */

static void reject_request(struct rdma_cm_id *id)
{
    verbs_greeting greeting;
    trib_rdma_greeting_fill(&greeting);
    (void)rdma_reject(id, &greeting, sizeof greeting);
}

void trib_rdma_discard(verbs_transport *transport, struct rdma_cm_id *id)
{
    verbs_remains *remains = calloc(1, sizeof *remains);
    if (remains != NULL) {
        remains->id = id;
        trib_rdma_release(transport->domain->releaser, remains);
    } else {
        rdma_destroy_id(id);
    }
}

static void connect_requested(verbs_listener *listener, struct rdma_cm_id *id, const verbs_greeting *greeting)
{
    verbs_transport *self = (verbs_transport *)listener->base.transport;
    trib_counter_add(&self->stats.system_calls, 2);
    trib_rdma_conn_make_room(self);
    verbs_conn *conn = trib_rdma_conn_create(self, id, VERBS_ACCEPTING);
    if (conn == NULL) {
        return;
    }
    conn->listener = listener;
    trib_tcp_address_format(&id->route.addr.dst_storage, &conn->base.remote);
    trib_error error = {.status = TRIB_OK};
    struct rdma_conn_param parameters;
    verbs_greeting ours;
    trib_rdma_connect_params_fill(&parameters, &ours);
    bool fine =
        trib_rdma_conn_greet(conn, greeting, sizeof *greeting, &error) && trib_rdma_conn_equip(conn, &error) == TRIB_OK;
    if (fine && rdma_accept(id, &parameters) != 0) {
        trib_error_set(&error, TRIB_SYSTEM, "%m");
        fine = false;
    }
    if (!fine) {
        trib_log(self->base.reactor->logger, TRIB_LOG_WARN, "refused a connection from %s: %s", conn->base.remote.text,
                 error.text);
        reject_request(id);
        trib_rdma_conn_free(conn);
    }
}

/* ---- Events ---- */

static void connection_event(verbs_conn *conn, const struct rdma_cm_event *event, const verbs_greeting *greeting)
{
    bool connecting = conn->state == VERBS_RESOLVING || conn->state == VERBS_CONNECTING;
    if (conn->state == VERBS_ENDING) {
        return;
    }
    switch (event->event) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
        address_resolved(conn);
        return;
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
        route_resolved(conn);
        return;
    case RDMA_CM_EVENT_ESTABLISHED:
        connection_established(conn, greeting);
        return;
    case RDMA_CM_EVENT_REJECTED:
        if (connecting) {
            connect_rejected(conn, event, greeting);
            return;
        }
        break;
    case RDMA_CM_EVENT_ADDR_ERROR:
    case RDMA_CM_EVENT_ROUTE_ERROR:
    case RDMA_CM_EVENT_UNREACHABLE:
    case RDMA_CM_EVENT_CONNECT_ERROR:
        if (connecting) {
            connect_failed_errno(conn, -event->status);
            return;
        }
        break;
    case RDMA_CM_EVENT_DISCONNECTED:
        break;
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
        if (conn->state == VERBS_PARTING) {
            trib_rdma_conn_free(conn);
            return;
        }
        trib_rdma_conn_lose(conn, "the RDMA device was removed");
        return;
    default:
        return; /* the address moved, or the timewait is over: nothing to do */
    }
    conn->disconnected = true;
    if (conn->state == VERBS_PARTING) {
        trib_rdma_conn_free(conn);
    } else {
        trib_rdma_conn_turn(conn);
    }
}

static void events_ready(trib_reactor *reactor, trib_io *io, unsigned events)
{
    (void)reactor;
    (void)events;
    verbs_transport *self = io->user;
    for (unsigned i = 0; i < EVENTS_PER_TURN; i++) {
        struct rdma_cm_event *event = NULL;
        trib_counter_add(&self->stats.system_calls, 2);
        if (rdma_get_cm_event(self->events, &event) != 0) {
            return;
        }
        struct rdma_cm_event copy = *event;
        verbs_greeting greeting = {.magic = 0};
        const void *data = event->param.conn.private_data;
        bool has_data = event->event == RDMA_CM_EVENT_CONNECT_REQUEST || event->event == RDMA_CM_EVENT_ESTABLISHED ||
                        event->event == RDMA_CM_EVENT_REJECTED;
        if (has_data && data != NULL && event->param.conn.private_data_len >= sizeof greeting) {
            memcpy(&greeting, data, sizeof greeting);
        }
        /* A released id has no target, and may be gone once the event is acknowledged. */
        bool is_request = event->event == RDMA_CM_EVENT_CONNECT_REQUEST;
        const verbs_target *target = is_request ? event->listen_id->context : event->id->context;
        rdma_ack_cm_event(event);
        if (is_request && target == NULL) {
            reject_request(copy.id);
            trib_rdma_discard(self, copy.id);
        } else if (is_request) {
            connect_requested(target->listener, copy.id, &greeting);
        } else if (target != NULL && target->conn != NULL) {
            connection_event(target->conn, &copy, &greeting);
        }
    }
}

/* ---- Listeners ---- */

static void rdma_transport_listener_close(trib_listener *base)
{
    verbs_listener *listener = (verbs_listener *)base;
    verbs_transport *self = (verbs_transport *)base->transport;
    verbs_conn *next;
    for (verbs_conn *conn = self->conns; conn != NULL; conn = next) {
        next = conn->next;
        if (conn->state == VERBS_ACCEPTING && conn->listener == listener) {
            trib_rdma_conn_free(conn);
        }
    }
    trib_rdma_release(self->domain->releaser, listener->remains);
    self->open_count--;
    free(listener);
}

static trib_status bind_to(verbs_transport *self, verbs_listener *listener, const trib_address *at,
                           trib_address *bound_out, trib_error *error)
{
    struct sockaddr_storage address;
    socklen_t size = 0;
    if (trib_tcp_address_parse(at, &address, &size) != TRIB_OK) {
        return trib_error_set(error, TRIB_INVALID, "\"%.*s\" is not a numeric address with a port (10.0.0.7:4242)",
                              TRIB_ADDRESS_MAX, at->text);
    }
    trib_counter_add(&self->stats.system_calls, 4);
    listener->target.listener = listener;
    if (rdma_create_id(self->events, &listener->id, &listener->target, RDMA_PS_TCP) != 0) {
        return trib_error_set(error, TRIB_SYSTEM, "cannot listen on %s: %m", at->text);
    }
    int on = 1;
    (void)rdma_set_option(listener->id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof on);
    if (rdma_bind_addr(listener->id, (struct sockaddr *)&address) != 0 || rdma_listen(listener->id, BACKLOG) != 0) {
        int number = errno;
        rdma_destroy_id(listener->id);
        if (number == ENODEV || number == EADDRNOTAVAIL) {
            return trib_error_set(error, TRIB_SYSTEM,
                                  "cannot listen on %s: no RDMA device has that address (tributary info lists them)",
                                  at->text);
        }
        errno = number;
        return trib_error_set(error, TRIB_SYSTEM, "cannot listen on %s: %m", at->text);
    }
    struct sockaddr_storage bound;
    memcpy(&bound, rdma_get_local_addr(listener->id), size);
    ((struct sockaddr_in *)&bound)->sin_port = rdma_get_src_port(listener->id); /* sin6_port has the same offset */
    trib_tcp_address_format(&bound, bound_out);
    return TRIB_OK;
}

static trib_status rdma_transport_listen(trib_transport *transport, const trib_address *at, void *user,
                                         trib_listener **listener_out, trib_address *bound_out, trib_error *error)
{
    verbs_transport *self = (verbs_transport *)transport;
    verbs_listener *listener = calloc(1, sizeof *listener);
    verbs_remains *remains = calloc(1, sizeof *remains);
    trib_status status = listener != NULL && remains != NULL
                             ? bind_to(self, listener, at, bound_out, error)
                             : trib_error_set(error, TRIB_NO_MEMORY, "no memory for a listener");
    if (status != TRIB_OK) {
        free(listener);
        free(remains);
        return status;
    }
    remains->id = listener->id;
    listener->remains = remains;
    listener->base.transport = transport;
    listener->base.user = user;
    self->open_count++;
    *listener_out = &listener->base;
    return TRIB_OK;
}

/* ---- Life ---- */

static trib_status rdma_context_open(trib_arena *arena, void **context_out, trib_error *error)
{
    verbs_domain *domain = NULL;
    trib_status status = trib_rdma_domain_open(arena, &domain, error);
    if (status == TRIB_OK) {
        *context_out = domain;
    }
    return status;
}

static void rdma_context_close(void *context)
{
    trib_rdma_domain_close(context);
}

/* The exponent for ibv: a device waits for 4.096 us * 2^n after each of TRIB_RDMA_TRIES attempts. */
static uint8_t find_ack_timeout(int64_t silence_ns)
{
    int64_t each = (silence_ns > 0 ? silence_ns : SILENCE_DEFAULT_NS) / TRIB_RDMA_TRIES;
    uint8_t exponent = ACK_TIMEOUT_MIN;
    while (exponent < ACK_TIMEOUT_MAX && ((int64_t)ACK_UNIT_NS << (exponent + 1)) <= each) {
        exponent++;
    }
    return exponent;
}

static trib_status open_events(verbs_transport *self)
{
    trib_logger *logger = self->base.reactor->logger;
    self->events = rdma_create_event_channel();
    self->remains = calloc(1, sizeof *self->remains);
    if (self->remains == NULL) {
        return TRIB_NO_MEMORY;
    }
    self->remains->channel = self->events;
    int flags = self->events != NULL ? fcntl(self->events->fd, F_GETFL) : -1;
    if (flags < 0 || fcntl(self->events->fd, F_SETFL, flags | O_NONBLOCK) != 0) {
        trib_log(logger, TRIB_LOG_ERROR, "no channel to the connection manager: %m");
        return TRIB_SYSTEM;
    }
    if (self->domain->fork_failure != 0) {
        errno = self->domain->fork_failure;
        trib_log(logger, TRIB_LOG_WARN, "a fork() of this process would break RDMA in it: %m");
    }
    trib_fork_own(self->events->fd);
    self->io = (trib_io){.ready = events_ready, .user = self, .fd = self->events->fd};
    trib_io_watch(self->base.reactor, &self->io, TRIB_IO_READ);
    return TRIB_OK;
}

static void rdma_transport_free(verbs_transport *self)
{
    trib_rdma_poller_stop(self);
    for (uint32_t i = 0; i < TRIB_RDMA_DEVICES_MAX; i++) {
        trib_rdma_nic_close(&self->nics[i]);
    }
    if (self->events != NULL) {
        trib_io_watch(self->base.reactor, &self->io, 0);
        uint32_t left = trib_rdma_releaser_drain(self->domain->releaser);
        if (left > 0) {
            trib_log(self->base.reactor->logger, TRIB_LOG_WARN,
                     "the kernel holds %u RDMA connections that were ended; they stay until this process ends", left);
        }
        if (left > 0 && self->remains != NULL) { /* closing it would wait for the rest of its ids */
            trib_rdma_release(self->domain->releaser, self->remains);
            self->remains = NULL;
        } else {
            trib_fork_disown(self->events->fd);
            rdma_destroy_event_channel(self->events);
        }
    }
    free(self->remains);
    if (self->owns_domain) {
        trib_rdma_domain_close(self->domain);
    }
    free(self);
}

static trib_status rdma_transport_open(trib_reactor *reactor, const trib_transport_config *config,
                                       const trib_transport_upcalls *upcalls, trib_transport **transport_out)
{
    verbs_transport *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return TRIB_NO_MEMORY;
    }
    self->base = (trib_transport){.ops = &trib_rdma_ops, .reactor = reactor, .upcalls = upcalls};
    self->breaks_at_once = config->break_timeout_ns > 0;
    self->peers = config->peers;
    self->ack_timeout = find_ack_timeout(trib_transport_break_timeout(config));
    self->domain = config->context;
    trib_status status = TRIB_OK;
    if (self->domain == NULL) {
        trib_error error = {.status = TRIB_OK};
        self->owns_domain = true;
        status = trib_rdma_domain_open(NULL, &self->domain, &error);
        if (status != TRIB_OK) {
            trib_log(reactor->logger, TRIB_LOG_ERROR, "%s", error.text);
        }
    }
    trib_rdma_chain_init(&self->chain);
    if (status == TRIB_OK) {
        trib_rdma_poller_start(self);
        status = open_events(self);
    }
    if (status != TRIB_OK) {
        rdma_transport_free(self);
        return status;
    }
    *transport_out = &self->base;
    return TRIB_OK;
}

static void rdma_transport_close(trib_transport *transport)
{
    verbs_transport *self = (verbs_transport *)transport;
    trib_assert(self->open_count == 0);
    while (self->conns != NULL) {
        trib_rdma_conn_free(self->conns);
    }
    rdma_transport_free(self);
}

static void rdma_transport_stats(const trib_transport *transport, trib_transport_stats *stats_out)
{
    trib_transport_counters_read(&((const verbs_transport *)transport)->stats, stats_out);
}

static bool rdma_notifies_devices(const void *context)
{
    return context != NULL;
}

static bool rdma_transport_offloads(const trib_conn *conn, const void *memory, size_t size, uint32_t least)
{
    return least > TRIB_RDMA_SMALL &&
           trib_rdma_domain_knows(((const verbs_transport *)conn->transport)->domain, memory, size);
}

const trib_transport_ops trib_rdma_ops = {
    .name = "rdma",
    .flags = TRIB_TRANSPORT_BREAKS,
    .open = rdma_transport_open,
    .close = rdma_transport_close,
    .listen = rdma_transport_listen,
    .listener_close = rdma_transport_listener_close,
    .connect = trib_rdma_connect,
    .send = trib_rdma_send,
    .recv_resume = trib_rdma_recv_resume,
    .conn_close = trib_rdma_conn_close,
    .stats = rdma_transport_stats,
    .lease = trib_transport_never_leases,
    .is_idle = trib_transport_is_always_idle,
    .offloads = rdma_transport_offloads,
    .context_open = rdma_context_open,
    .context_close = rdma_context_close,
    .notifies_devices = rdma_notifies_devices,
};

#endif

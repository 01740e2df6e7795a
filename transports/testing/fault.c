/*
 * fault.c - the wrapper that breaks another transport.
 *
 * Invariants
 * - The order of messages is kept: once one waits, all behind it wait too.
 * - A connection makes downcalls of the inner transport only from downcalls and timers, and upcalls only from the
 *   inner one's. So the contract's rules about who calls whom hold because they hold inside.
 * - A wrapped connection lives as long as the inner one: it is freed in the inner one's `closed`.
 */
#include "transports/testing/fault.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "transports/send_queue.h"
#include "transports/transport_defaults.h"

typedef struct fault_transport {
    trib_transport base;    /* first */
    trib_transport_ops ops; /* table of this instance, with the inner transport's flags */
    trib_transport *inner;
    trib_fault_config config;
    uint64_t random_state;
    trib_fault_counts counts;
} fault_transport;

typedef struct fault_listener {
    trib_listener base; /* first */
    trib_listener *inner;
} fault_listener;

typedef enum fault_action { FAULT_NONE, FAULT_RESET, FAULT_TRUNCATE } fault_action;

typedef struct fault_send {
    trib_send inner; /* first */
    trib_send *outer;
    int64_t due_ns;
    fault_action action;
    void *copy; /* copy of the payload, if it was changed */
} fault_send;

typedef struct fault_conn {
    trib_conn base; /* first */
    fault_transport *transport;
    trib_conn *inner;
    trib_send_queue waiting; /* of fault_send, by their inner sends, which the inner transport does not have yet */
    trib_send_queue refused; /* sends that came after the connection was broken */
    trib_timer due_timer, again_timer;
    uint32_t agains_left;
    bool asked;         /* the storm of TRIB_AGAIN was drawn for this header */
    bool closing;       /* the caller has called conn_close */
    bool flush_wanted;  /* conn_close(flush) waits until `waiting` is empty */
    const char *broken; /* the fault that was injected; NULL: none */
} fault_conn;

/* ---- Chance ---- */

static uint64_t draw_random(fault_transport *self)
{
    /* A Weyl sequence and a finalizer: every seed, 0 too, gives a sequence of full length. */
    uint64_t x = self->random_state += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 32)) * UINT64_C(0xd6e8feb86659fd93);
    x = (x ^ (x >> 32)) * UINT64_C(0xd6e8feb86659fd93);
    return x ^ (x >> 32);
}

static bool draw_chance(fault_transport *self, double probability)
{
    return (double)(draw_random(self) >> 11) * 0x1p-53 < probability;
}

static bool is_valid(const trib_fault_config *config)
{
    const double probabilities[] = {config->reset,       config->truncate,     config->delay, config->stall,
                                    config->header_flip, config->payload_flip, config->again};
    for (size_t i = 0; i < sizeof probabilities / sizeof probabilities[0]; i++) {
        if (!(probabilities[i] >= 0.0 && probabilities[i] <= 1.0)) {
            return false;
        }
    }
    return config->delay_ns_max >= 0 && config->stall_ns >= 0;
}

/* ---- Sending ---- */

static void break_conn(fault_conn *conn, const char *what, bool flush)
{
    conn->broken = what;
    trib_timer_stop(conn->base.transport->reactor, &conn->due_timer);
    conn->inner->transport->ops->conn_close(conn->inner, flush);
}

/* Gives the send to the inner transport, or injects the fault that was drawn for it. */
static void forward_send(fault_conn *conn, fault_send *send)
{
    fault_transport *self = conn->transport;
    const trib_transport_ops *inner = conn->inner->transport->ops;
    trib_conn_pass_on(&conn->base, conn->inner);
    switch (send->action) {
    case FAULT_NONE:
        inner->send(conn->inner, &send->inner);
        break;
    case FAULT_RESET:
        self->counts.resets++;
        inner->send(conn->inner, &send->inner);
        break_conn(conn, "injected reset", false);
        break;
    case FAULT_TRUNCATE:
        self->counts.truncations++;
        send->inner.payload_size /= 2;
        inner->send(conn->inner, &send->inner);
        break_conn(conn, "injected truncation", true);
        break;
    }
}

static void forward_due(trib_reactor *reactor, trib_timer *timer)
{
    fault_conn *conn = timer->user;
    while (conn->waiting.head != NULL && conn->broken == NULL) {
        fault_send *send = (fault_send *)conn->waiting.head;
        if (send->due_ns > trib_now(reactor)) {
            trib_timer_arm(reactor, timer, send->due_ns);
            return;
        }
        (void)trib_send_queue_take(&conn->waiting);
        forward_send(conn, send);
    }
    if (conn->flush_wanted && conn->broken == NULL) {
        conn->inner->transport->ops->conn_close(conn->inner, true);
    }
}

static void flip_bit(fault_transport *self, void *bytes, size_t size)
{
    uint64_t bit = draw_random(self) % (size * 8);
    ((unsigned char *)bytes)[bit / 8] ^= (unsigned char)(1u << (bit % 8));
}

static int64_t draw_wait(fault_transport *self)
{
    int64_t wait_ns = 0;
    if (draw_chance(self, self->config.delay) && self->config.delay_ns_max > 0) {
        self->counts.delays++;
        wait_ns += 1 + (int64_t)(draw_random(self) % (uint64_t)self->config.delay_ns_max);
    }
    if (draw_chance(self, self->config.stall)) {
        self->counts.stalls++;
        wait_ns += self->config.stall_ns;
    }
    return wait_ns;
}

static void draw_damage(fault_transport *self, fault_send *send)
{
    if (draw_chance(self, self->config.header_flip)) {
        self->counts.header_flips++;
        flip_bit(self, send->inner.header, TRIB_HEADER_SIZE);
    }
    size_t size = send->inner.payload_size;
    if (draw_chance(self, self->config.payload_flip) && size > 0) {
        send->copy = malloc(size);
        if (send->copy != NULL) {
            self->counts.payload_flips++;
            memcpy(send->copy, send->inner.payload, size);
            flip_bit(self, send->copy, size);
            send->inner.payload = send->copy;
        }
    }
    bool reset = draw_chance(self, self->config.reset);
    bool truncate = draw_chance(self, self->config.truncate);
    send->action = reset || (truncate && size == 0) ? FAULT_RESET : truncate ? FAULT_TRUNCATE : FAULT_NONE;
}

static void fault_do_send(trib_conn *base, trib_send *outer)
{
    fault_conn *conn = (fault_conn *)base;
    fault_transport *self = conn->transport;
    fault_send *send = conn->broken == NULL ? calloc(1, sizeof *send) : NULL;
    if (send == NULL) {
        trib_send_queue_add(&conn->refused, outer);
        if (conn->broken == NULL) {
            break_conn(conn, "out of memory", false);
        }
        return;
    }
    send->outer = outer;
    memcpy(send->inner.header, outer->header, TRIB_HEADER_SIZE);
    send->inner.payload = outer->payload;
    send->inner.payload_size = outer->payload_size;
    draw_damage(self, send);
    int64_t wait_ns = draw_wait(self);
    if (wait_ns == 0 && conn->waiting.head == NULL) {
        forward_send(conn, send);
        return;
    }
    send->due_ns = trib_now(base->transport->reactor) + wait_ns;
    if (conn->waiting.head == NULL) {
        trib_timer_arm(base->transport->reactor, &conn->due_timer, send->due_ns);
    }
    trib_send_queue_add(&conn->waiting, &send->inner);
}

static void report_send(fault_conn *conn, fault_send *send, trib_status status)
{
    trib_send *outer = send->outer;
    bool damaged = send->action != FAULT_NONE || (conn->broken != NULL && !conn->closing && status == TRIB_CLOSED);
    free(send->copy);
    free(send);
    conn->base.transport->upcalls->sent(&conn->base, outer, damaged ? TRIB_PEER_LOST : status);
}

/* ---- Upcalls of the inner transport ---- */

static void resume_inner(trib_reactor *reactor, trib_timer *timer)
{
    (void)reactor;
    fault_conn *conn = timer->user;
    conn->inner->transport->ops->recv_resume(conn->inner);
}

static fault_conn *conn_create(fault_transport *self, trib_conn *inner)
{
    fault_conn *conn = calloc(1, sizeof *conn);
    if (conn == NULL) {
        return NULL;
    }
    conn->base.transport = &self->base;
    conn->transport = self;
    conn->due_timer.fired = forward_due;
    conn->due_timer.user = conn;
    conn->again_timer.fired = resume_inner;
    conn->again_timer.user = conn;
    conn->inner = inner;
    return conn;
}

static void inner_accepted(trib_listener *inner_listener, trib_conn *inner)
{
    fault_listener *listener = inner_listener->user;
    fault_conn *conn = conn_create((fault_transport *)listener->base.transport, inner);
    inner->user = conn;
    if (conn == NULL) {
        inner->transport->ops->conn_close(inner, false);
        return;
    }
    conn->base.remote = inner->remote;
    conn->base.path = inner->path;
    listener->base.transport->upcalls->accepted(&listener->base, &conn->base);
}

static void inner_connected(trib_conn *inner, trib_status status)
{
    fault_conn *conn = inner->user;
    conn->base.refused = inner->refused;
    conn->base.path = inner->path;
    conn->base.transport->upcalls->connected(&conn->base, status);
}

static trib_status inner_header(trib_conn *inner, const unsigned char header[TRIB_HEADER_SIZE],
                                trib_recv_target *target)
{
    fault_conn *conn = inner->user;
    if (conn == NULL) {
        return TRIB_CLOSED;
    }
    if (conn->closing) {
        return TRIB_AGAIN; /* the inner connection is still open for sends that wait */
    }
    fault_transport *self = conn->transport;
    if (!conn->asked) {
        conn->asked = true;
        bool storm = draw_chance(self, self->config.again) && self->config.again_max > 0;
        conn->agains_left = storm ? 1 + (uint32_t)(draw_random(self) % self->config.again_max) : 0;
    }
    if (conn->agains_left > 0) {
        conn->agains_left--;
        self->counts.agains++;
        trib_reactor *reactor = self->base.reactor;
        trib_timer_arm(reactor, &conn->again_timer, trib_now(reactor));
        return TRIB_AGAIN;
    }
    trib_status status = self->base.upcalls->header(&conn->base, header, target);
    conn->asked = status == TRIB_AGAIN;
    target->in_place = false;
    return status;
}

static void inner_received(trib_conn *inner, const unsigned char header[TRIB_HEADER_SIZE], const void *payload,
                           uint32_t payload_size)
{
    fault_conn *conn = inner->user;
    if (!conn->closing) {
        conn->base.transport->upcalls->received(&conn->base, header, payload, payload_size);
    }
}

static void inner_sent(trib_conn *inner, trib_send *send, trib_status status)
{
    report_send(inner->user, (fault_send *)send, status);
}

static void inner_closed(trib_conn *inner, trib_status status, const char *reason)
{
    fault_conn *conn = inner->user;
    if (conn == NULL) {
        return;
    }
    trib_reactor *reactor = conn->base.transport->reactor;
    trib_timer_stop(reactor, &conn->due_timer);
    trib_timer_stop(reactor, &conn->again_timer);
    if (conn->broken == NULL) {
        conn->broken = "connection is ending"; /* later sends are rejected */
    } else if (!conn->closing) {
        status = TRIB_PEER_LOST;
        reason = conn->broken;
    }
    const trib_status unsent = trib_send_unsent_status(status);
    for (trib_send *send; (send = trib_send_queue_take(&conn->waiting)) != NULL;) {
        report_send(conn, (fault_send *)send, unsent);
    }
    trib_send_queue_return(&conn->refused, &conn->base, status);
    conn->base.transport->upcalls->closed(&conn->base, status, reason);
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

/* ---- The table ---- */

static void fault_close(trib_transport *transport)
{
    fault_transport *self = (fault_transport *)transport;
    self->inner->ops->close(self->inner);
    free(self);
}

static trib_status fault_listen(trib_transport *transport, const trib_address *at, void *user,
                                trib_listener **listener_out, trib_address *bound_out, trib_error *error)
{
    trib_transport *inner = ((fault_transport *)transport)->inner;
    fault_listener *listener = calloc(1, sizeof *listener);
    if (listener == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for a listener");
    }
    listener->base.transport = transport;
    listener->base.user = user;
    trib_status status = inner->ops->listen(inner, at, listener, &listener->inner, bound_out, error);
    if (status != TRIB_OK) {
        free(listener);
        return status;
    }
    *listener_out = &listener->base;
    return TRIB_OK;
}

static void fault_listener_close(trib_listener *base)
{
    fault_listener *listener = (fault_listener *)base;
    listener->inner->transport->ops->listener_close(listener->inner);
    free(listener);
}

static trib_status fault_connect(trib_transport *transport, const trib_address *to, void *user, trib_conn **conn_out)
{
    fault_transport *self = (fault_transport *)transport;
    fault_conn *conn = conn_create(self, NULL);
    if (conn == NULL) {
        return TRIB_NO_MEMORY;
    }
    conn->base.user = user;
    trib_status status = self->inner->ops->connect(self->inner, to, conn, &conn->inner);
    if (status != TRIB_OK) {
        free(conn);
        return status;
    }
    conn->base.remote = conn->inner->remote;
    *conn_out = &conn->base;
    return TRIB_OK;
}

static void fault_recv_resume(trib_conn *base)
{
    fault_conn *conn = (fault_conn *)base;
    conn->inner->transport->ops->recv_resume(conn->inner);
}

static void fault_conn_close(trib_conn *base, bool flush)
{
    fault_conn *conn = (fault_conn *)base;
    if (conn->broken != NULL && flush) {
        conn->closing = true;
        return; /* the connection is ending already */
    }
    conn->closing = true;
    conn->flush_wanted = flush && conn->waiting.head != NULL;
    trib_conn_pass_on(base, conn->inner);
    if (!conn->flush_wanted) {
        conn->inner->transport->ops->conn_close(conn->inner, flush);
    }
}

static bool fault_is_idle(const trib_transport *transport)
{
    const trib_transport *inner = ((const fault_transport *)transport)->inner;
    return inner->ops->is_idle(inner);
}

static void fault_stats(const trib_transport *transport, trib_transport_stats *stats_out)
{
    const trib_transport *inner = ((const fault_transport *)transport)->inner;
    inner->ops->stats(inner, stats_out);
}

static const trib_transport_ops fault_ops = {
    .name = "fault",
    .flags = 0,
    .open = trib_transport_open_unsupported,
    .close = fault_close,
    .listen = fault_listen,
    .listener_close = fault_listener_close,
    .connect = fault_connect,
    .send = fault_do_send,
    .recv_resume = fault_recv_resume,
    .conn_close = fault_conn_close,
    .stats = fault_stats,
    .lease = trib_transport_never_leases,
    .offloads = trib_transport_never_offloads,
    .is_idle = fault_is_idle,
    .context_open = trib_transport_no_context_open,
    .context_close = trib_transport_no_context_close,
    .notifies_devices = trib_transport_notifies_no_devices,
};

trib_status trib_fault_open(const trib_fault_config *config, trib_fault_opener opener, void *context,
                            trib_reactor *reactor, const trib_transport_upcalls *upcalls,
                            trib_transport **transport_out)
{
    if (!is_valid(config)) {
        return TRIB_INVALID;
    }
    fault_transport *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return TRIB_NO_MEMORY;
    }
    trib_status status = opener(context, reactor, &inner_upcalls, &self->inner);
    if (status != TRIB_OK) {
        free(self);
        return status;
    }
    self->ops = fault_ops;
    self->ops.flags = self->inner->ops->flags;
    self->base.ops = &self->ops;
    self->base.reactor = reactor;
    self->base.upcalls = upcalls;
    self->config = *config;
    self->random_state = config->seed;
    *transport_out = &self->base;
    return TRIB_OK;
}

void trib_fault_get_counts(const trib_transport *transport, trib_fault_counts *counts_out)
{
    *counts_out = ((const fault_transport *)transport)->counts;
}

/*
 * rdma_poll.c - when completions are polled for, and when the device shall announce them.
 *
 * A connection is warm from its first completion until the loop sleeps. A warm queue is polled in every turn of the
 * loop, which costs no system call, and announces nothing. Before the loop sleeps, warm queues are armed, polled once
 * more, and become cold; the next completion then makes the channel readable, which warms the connection again. So a
 * busy reactor gets no announcements at all, and one that sleeps gets one for each sleep.
 *
 * Invariants
 * - A cold connection is armed, or something else will give it a turn (it is not open yet, or it is ending).
 * - A queue is armed before it is polled for the last time, so no completion goes unseen.
 * - A poll may free its connection and others. The walk through the list goes on at `poll_next`, which a leaving
 *   connection moves.
 */
#include "build_config.h"
#include "transports/rdma/rdma.h"

#if TRIB_HAVE_RDMA

#include <utlist.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/base/log.h"
#include "transports/rdma/rdma_internal.h"

#define EVENTS_PER_TURN 64u

static void warm_conn(verbs_conn *conn)
{
    verbs_transport *transport = conn->transport;
    if (conn->warm_prev == NULL) {
        DL_PREPEND2(transport->warm, conn, warm_prev, warm_next);
    }
}

static void cool_conn(verbs_conn *conn)
{
    if (conn->warm_prev == NULL) {
        return;
    }
    if (conn->transport->poll_next == conn) {
        conn->transport->poll_next = conn->warm_next;
    }
    DL_DELETE2(conn->transport->warm, conn, warm_prev, warm_next);
    conn->warm_prev = NULL;
}

static bool arm_queue(verbs_conn *conn)
{
    if (ibv_req_notify_cq(conn->cq, 0) != 0) {
        return false;
    }
    conn->armed = true;
    conn->nic->armed_count++;
    return true;
}

static void note_disarmed(verbs_conn *conn)
{
    trib_assert(conn->nic->armed_count > 0);
    conn->armed = false;
    conn->nic->armed_count--;
}

/* ---- Queues ---- */

bool trib_rdma_queue_create(verbs_conn *conn, int entries)
{
    conn->cq = ibv_create_cq(conn->nic->device->verbs, entries, conn, conn->nic->channel, 0);
    return conn->cq != NULL && arm_queue(conn);
}

void trib_rdma_queue_destroy(verbs_conn *conn)
{
    if (conn->cq == NULL) {
        return;
    }
    cool_conn(conn);
    if (conn->armed) {
        note_disarmed(conn);
    }
    if (conn->events > 0) {
        ibv_ack_cq_events(conn->cq, conn->events); /* takes a lock, so once for all */
    }
    struct ibv_cq *cq = conn->cq;
    const int error = ibv_destroy_cq(cq);
    if (error != 0) {
        cq->cq_context = NULL; /* the queue stays in this process, and the connection does not */
    }
    if (!trib_rdma_is_gone(error)) {
        char why[TRIB_REASON_MAX];
        trib_log(conn->base.transport->reactor->logger, TRIB_LOG_WARN,
                 "cannot destroy the completion queue of a connection to %s: %s", conn->base.remote.text,
                 trib_log_reason(error, why));
    }
    conn->cq = NULL;
}

/* Only warms the connection: the poller polls it in the same turn of the loop. */
void trib_rdma_channel_ready(trib_reactor *reactor, trib_io *io, unsigned events)
{
    (void)reactor;
    (void)events;
    verbs_nic *nic = io->user;
    for (unsigned i = 0; i < EVENTS_PER_TURN; i++) {
        struct ibv_cq *cq = NULL;
        void *context = NULL;
        trib_counter_add(&nic->transport->stats.system_calls, 1);
        if (ibv_get_cq_event(nic->channel, &cq, &context) != 0) {
            return;
        }
        verbs_conn *conn = context;
        if (conn == NULL) {
            ibv_ack_cq_events(cq, 1);
            continue;
        }
        conn->events++;
        if (conn->armed) {
            note_disarmed(conn);
        }
        warm_conn(conn);
        if (nic->armed_count == 0) {
            return; /* no other queue can have announced anything */
        }
    }
}

/* ---- The poller ---- */

static bool may_poll(const verbs_conn *conn)
{
    return conn->state >= VERBS_ACCEPTING && conn->state != VERBS_ENDING && conn->state != VERBS_GONE;
}

/* The next warm connection. Connections may leave the list between two calls, the last one returned too. */
static verbs_conn *next_warm(verbs_transport *self)
{
    verbs_conn *conn = self->poll_next;
    if (conn != NULL) {
        self->poll_next = conn->warm_next;
    }
    return conn;
}

static verbs_conn *first_warm(verbs_transport *self)
{
    self->poll_next = self->warm;
    return next_warm(self);
}

static verbs_transport *transport_of(trib_poller *poller)
{
    return trib_container_of(poller, verbs_transport, poller);
}

static bool poll_warm(trib_reactor *reactor, trib_poller *poller)
{
    (void)reactor;
    verbs_transport *self = transport_of(poller);
    bool found = false;
    for (verbs_conn *conn = first_warm(self); conn != NULL; conn = next_warm(self)) {
        found = (may_poll(conn) && trib_rdma_conn_poll(conn)) || found;
    }
    return found;
}

static bool rest_warm(trib_reactor *reactor, trib_poller *poller)
{
    (void)reactor;
    verbs_transport *self = transport_of(poller);
    bool may_sleep = true;
    for (verbs_conn *conn = first_warm(self); conn != NULL; conn = next_warm(self)) {
        if (!may_poll(conn)) {
            continue;
        }
        if (!conn->armed && !arm_queue(conn)) {
            trib_rdma_conn_end(conn, TRIB_PEER_LOST, "cannot arm the device's completion queue: %m");
            may_sleep = false;
        } else if (trib_rdma_conn_poll(conn)) {
            may_sleep = false;
        } else {
            cool_conn(conn);
        }
    }
    return may_sleep;
}

static void ignore_wake_up(trib_reactor *reactor, trib_poller *poller)
{
    (void)reactor;
    (void)poller; /* an armed queue stays armed until it has announced something */
}

void trib_rdma_poller_start(verbs_transport *transport)
{
    transport->poller = (trib_poller){.poll = poll_warm, .before_block = rest_warm, .after_block = ignore_wake_up};
    trib_reactor_poller_add(transport->base.reactor, &transport->poller);
}

void trib_rdma_poller_stop(verbs_transport *transport)
{
    trib_assert(transport->warm == NULL);
    if (transport->poller.poll != NULL) {
        trib_reactor_poller_remove(transport->base.reactor, &transport->poller);
    }
}

#endif

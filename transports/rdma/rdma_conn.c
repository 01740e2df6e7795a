/*
 * rdma_conn.c - the life of a connection: resolve, connect, open, flush, end, linger.
 *
 * Invariants
 * - trib_rdma_conn_set_state is the only writer of the state.
 * - A connection works in turns, which the loop begins: it reads completions, delivers what arrived, and sends what
 *   waits. Calls and events only ask for a turn. A connection is freed in finish_conn, or by whoever finds it
 *   ACCEPTING, LINGERING or PARTING, but never inside a turn of its own in another state.
 * - Before a buffer goes back to the caller the queue pair is destroyed, or the device has completed everything with
 *   that buffer. So no device writes to memory after `closed`.
 * - The id of a connection that this side ends stays until the peer has answered, or for LINGER_NS. The kernel repeats
 *   the disconnect message for an id only; without it, a peer that sends nothing would never hear of the end if that
 *   one message were lost.
 * - A flush ends with FIN. The queue pair stays until the peer has ended too, or for LINGER_NS: the peer may be
 *   waiting for grants, and needs the connection for them.
 */
#include "build_config.h"
#include "transports/rdma/rdma.h"

#if TRIB_HAVE_RDMA

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/base/half_open.h"
#include "transports/rdma/rdma_internal.h"
#include "transports/tcp/tcp_internal.h"

#define LINGER_NS INT64_C(1000000000)
#define CONNECT_NS INT64_C(10000000000)
#define RESOLVE_MS 3000
#define POLLS_PER_TURN 16u
#define POLL_COUNT 16

static void finish_conn(trib_reactor *reactor, trib_post *post);

void trib_rdma_conn_set_state(verbs_conn *conn, verbs_state state)
{
    static const unsigned predecessors[] = {
        [VERBS_RESOLVING] = 0, /* at creation only, as ACCEPTING */
        [VERBS_CONNECTING] = 1u << VERBS_RESOLVING,
        [VERBS_ACCEPTING] = 0,
        [VERBS_OPEN] = 1u << VERBS_CONNECTING | 1u << VERBS_ACCEPTING,
        [VERBS_FLUSHING] = 1u << VERBS_OPEN,
        [VERBS_ENDING] = 1u << VERBS_RESOLVING | 1u << VERBS_CONNECTING | 1u << VERBS_OPEN | 1u << VERBS_FLUSHING,
        [VERBS_LINGERING] = 1u << VERBS_ENDING,
        [VERBS_PARTING] = 1u << VERBS_ENDING,
        [VERBS_GONE] = 1u << VERBS_ACCEPTING | 1u << VERBS_ENDING | 1u << VERBS_LINGERING | 1u << VERBS_PARTING,
    };
    trib_assert((predecessors[state] & 1u << conn->state) != 0);
    conn->state = state;
}

static void run_turn(trib_reactor *reactor, trib_post *post)
{
    (void)reactor;
    trib_rdma_conn_turn(trib_container_of(post, verbs_conn, turn_post));
}

/* ---- Making and unmaking ---- */

static void timer_fired(trib_reactor *reactor, trib_timer *timer)
{
    (void)reactor;
    verbs_conn *conn = timer->user;
    if (conn->state == VERBS_LINGERING || conn->state == VERBS_PARTING || conn->state == VERBS_ACCEPTING) {
        trib_rdma_conn_free(conn);
        return;
    }
    char reason[64];
    snprintf(reason, sizeof reason, "no answer within %d s", (int)(CONNECT_NS / INT64_C(1000000000)));
    trib_rdma_conn_lose(conn, reason);
}

verbs_conn *trib_rdma_conn_create(verbs_transport *transport, struct rdma_cm_id *id, verbs_state state)
{
    verbs_conn *conn = calloc(1, sizeof *conn);
    verbs_remains *remains = calloc(1, sizeof *remains);
    if (conn == NULL || remains == NULL) {
        free(conn);
        free(remains);
        trib_rdma_discard(transport, id);
        return NULL;
    }
    remains->id = id;
    conn->remains = remains;
    conn->base.transport = &transport->base;
    conn->base.path = TRIB_PATH_DEVICE;
    conn->transport = transport;
    conn->id = id;
    conn->target.conn = conn;
    id->context = &conn->target;
    conn->state = state;
    conn->turn_post.run = run_turn;
    conn->finish_post.run = finish_conn;
    conn->timer.fired = timer_fired;
    conn->timer.user = conn;
    DL_PREPEND(transport->conns, conn);
    trib_timer_arm(transport->base.reactor, &conn->timer, trib_now(transport->base.reactor) + CONNECT_NS);
    return conn;
}

/* After this call no device touches the connection's memory. */
static void drop_queues(verbs_conn *conn)
{
    if (conn->id->qp != NULL) {
        trib_counter_add(&conn->transport->stats.system_calls, 2);
        (void)rdma_disconnect(conn->id); /* tells the peer at once; fails if the peer ended the connection */
        rdma_destroy_qp(conn->id);
        trib_rdma_queue_destroy(conn);
    }
    for (; conn->in_head != conn->in_tail; conn->in_head++) {
        trib_rdma_drop_in(conn, &conn->ins[conn->in_head % TRIB_RDMA_INS]);
    }
    for (uint32_t i = conn->out_head; i != conn->out_tail; i++) {
        verbs_out *out = &conn->outs[i % TRIB_RDMA_OUTS];
        trib_rdma_bounce_give(conn->nic, out->bounce);
        out->bounce = NULL;
    }
}

void trib_rdma_conn_free(verbs_conn *conn)
{
    trib_assert(conn->sends.head == NULL && conn->out_head == conn->out_tail);
    trib_timer_stop(conn->base.transport->reactor, &conn->timer);
    drop_queues(conn);
    trib_rdma_queue_destroy(conn); /* there was no queue pair */
    if (conn->nic != NULL) {
        trib_rdma_block_give(conn->nic->device, &conn->block);
    }
    trib_rdma_release(conn->transport->domain->releaser, conn->remains);
    DL_DELETE(conn->transport->conns, conn);
    if (conn->turn_post.queued) {
        /* A turn is deferred already: its post must not outlive the object. */
        trib_rdma_conn_set_state(conn, VERBS_GONE);
        conn->id = NULL;
        return;
    }
    free(conn);
}

/* ---- Equipment ---- */

static bool create_queues(verbs_conn *conn, uint32_t inline_bytes)
{
    struct ibv_qp_init_attr attributes = {
        .qp_type = IBV_QPT_RC,
        .send_cq = conn->cq,
        .recv_cq = conn->cq,
        .qp_context = conn,
        .cap = {.max_send_wr = TRIB_RDMA_SENDS + TRIB_RDMA_OUTS,
                .max_recv_wr = TRIB_RDMA_RECVS,
                .max_send_sge = 1,
                .max_recv_sge = 1,
                .max_inline_data = inline_bytes},
    };
    if (rdma_create_qp(conn->id, conn->nic->device->pd, &attributes) != 0) {
        return false;
    }
    conn->inline_max = attributes.cap.max_inline_data;
    return true;
}

trib_status trib_rdma_conn_equip(verbs_conn *conn, trib_error *error)
{
    trib_status status = trib_rdma_nic_of(conn->transport, conn->id->verbs, &conn->nic, error);
    if (status != TRIB_OK) {
        return status;
    }
    verbs_device *device = conn->nic->device;
    const char *name = ibv_get_device_name(device->verbs->device);
    status = trib_rdma_block_take(device, (TRIB_RDMA_RECVS + TRIB_RDMA_SENDS) * (size_t)TRIB_RDMA_BUFFER, &conn->block,
                                  error);
    if (status != TRIB_OK) {
        return status;
    }
    /* The time to wait for an acknowledgement. If the kernel refuses, the engine's heartbeats end a connection that
     * hangs. */
    (void)rdma_set_option(conn->id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &conn->transport->ack_timeout,
                          sizeof conn->transport->ack_timeout);
    trib_counter_add(&conn->transport->stats.system_calls, 5);
    if (!trib_rdma_queue_create(conn, TRIB_RDMA_SENDS + TRIB_RDMA_OUTS + TRIB_RDMA_RECVS)) {
        return trib_error_set(error, TRIB_SYSTEM, "%s gives no completion queue: %m", name);
    }
    if (!create_queues(conn, TRIB_RDMA_INLINE) && !create_queues(conn, 0)) {
        return trib_error_set(error, TRIB_SYSTEM, "%s gives no queue pair: %m", name);
    }
    if (!trib_rdma_recv_start(conn)) {
        return trib_error_set(error, TRIB_SYSTEM, "%s takes no buffers: %m", name);
    }
    return TRIB_OK;
}

/* ---- Connecting ---- */

trib_status trib_rdma_connect(trib_transport *transport, const trib_address *to, void *user, trib_conn **conn_out)
{
    verbs_transport *self = (verbs_transport *)transport;
    struct sockaddr_storage address;
    socklen_t size = 0;
    trib_status status = trib_tcp_address_parse(to, &address, &size);
    if (status != TRIB_OK) {
        return status;
    }
    struct rdma_cm_id *id = NULL;
    trib_counter_add(&self->stats.system_calls, 2);
    if (rdma_create_id(self->events, &id, NULL, RDMA_PS_TCP) != 0) {
        trib_log(transport->reactor->logger, TRIB_LOG_ERROR, "cannot connect to %s: %m", to->text);
        return TRIB_SYSTEM;
    }
    verbs_conn *conn = trib_rdma_conn_create(self, id, VERBS_RESOLVING);
    if (conn == NULL) {
        return TRIB_NO_MEMORY;
    }
    conn->known = true;
    self->open_count++;
    trib_tcp_address_format(&address, &conn->base.remote);
    conn->base.user = user;
    *conn_out = &conn->base;
    if (rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, RESOLVE_MS) != 0) {
        trib_rdma_conn_end(conn, TRIB_PEER_LOST, "%m");
        conn->connect_failed = true;
    }
    return TRIB_OK;
}

void trib_rdma_conn_opened(verbs_conn *conn)
{
    trib_timer_stop(conn->base.transport->reactor, &conn->timer);
    bool accepted = conn->state == VERBS_ACCEPTING;
    trib_rdma_conn_set_state(conn, VERBS_OPEN);
    conn->opened = true;
    trib_reactor_defer(conn->base.transport->reactor, &conn->turn_post);
    if (accepted) {
        conn->known = true;
        conn->transport->open_count++;
        conn->base.transport->upcalls->accepted((trib_listener *)(void *)conn->listener, &conn->base);
    } else {
        conn->base.transport->upcalls->connected(&conn->base, TRIB_OK);
    }
}

/* True if an unproved peer holds the connection, which the caller does not know: not yet, or no longer. */
static bool is_held_by_stranger(const verbs_conn *conn)
{
    return !conn->base.proved && !conn->broken &&
           (conn->state == VERBS_ACCEPTING || conn->state == VERBS_LINGERING || conn->state == VERBS_PARTING);
}

void trib_rdma_conn_make_room(verbs_transport *transport)
{
    verbs_conn *oldest = NULL;
    uint32_t count = 0;
    for (verbs_conn *conn = transport->conns; conn != NULL; conn = conn->next) { /* newest first */
        if (is_held_by_stranger(conn)) {
            oldest = conn;
            count++;
        }
    }
    if (oldest == NULL || count < trib_half_open_max() + transport->peers) {
        return;
    }
    if (oldest->state == VERBS_PARTING) {
        trib_rdma_conn_free(oldest);
    } else {
        trib_rdma_conn_end(oldest, TRIB_TIMEOUT,
                           "closed for newer ones: too many connections are not established"); /* its turn frees it */
    }
}

/* ---- Turns ---- */

static void take_completion(verbs_conn *conn, const struct ibv_wc *wc)
{
    if (wc->status != IBV_WC_SUCCESS) {
        /* The first failure has the reason; it flushes the rest. */
        if (!conn->broken) {
            snprintf(conn->loss_reason, sizeof conn->loss_reason, "connection lost: %s", ibv_wc_status_str(wc->status));
        }
        conn->broken = true;
        return;
    }
    switch (wc->opcode) {
    case IBV_WC_RECV:
        trib_rdma_take_buffer(conn, (uint32_t)wc->wr_id, wc->byte_len);
        break;
    case IBV_WC_RECV_RDMA_WITH_IMM:
        trib_rdma_take_write(conn, (uint32_t)wc->wr_id, wc->byte_len, ntohl(wc->imm_data));
        break;
    default:
        trib_rdma_take_sent(conn, wc->wr_id);
        break;
    }
}

/* True if there were completions. */
static bool take_completions(verbs_conn *conn, bool *more_out)
{
    struct ibv_wc completions[POLL_COUNT];
    bool found = false;
    *more_out = false;
    for (unsigned polls = 0; polls < POLLS_PER_TURN; polls++) {
        int count = ibv_poll_cq(conn->cq, POLL_COUNT, completions);
        if (count < 0) {
            trib_rdma_conn_end(conn, TRIB_PEER_LOST, "the device does not report completions");
            return found;
        }
        found = found || count > 0;
        for (int i = 0; i < count && conn->state != VERBS_ENDING; i++) {
            if (conn->state == VERBS_ACCEPTING && conn->broken) {
                return found; /* the connection has ended, and its turn frees it without an upcall */
            }
            if (conn->state == VERBS_ACCEPTING && completions[i].status == IBV_WC_SUCCESS) {
                trib_rdma_conn_opened(conn); /* the peer's first message can overtake its last connection event */
            }
            take_completion(conn, &completions[i]);
        }
        if (count < POLL_COUNT) {
            return found;
        }
    }
    *more_out = true;
    return found;
}

static void end_if_lost(verbs_conn *conn)
{
    if (!conn->disconnected && !conn->broken) {
        return;
    }
    /* The peer has sent FIN: what it sent before is still to be delivered. */
    if (conn->state == VERBS_OPEN && conn->paused && conn->fin_came) {
        return;
    }
    if (conn->state == VERBS_FLUSHING && conn->fin_sent) {
        conn->flushed = true; /* the peer ended because this side had */
    } else if (conn->broken && !conn->disconnected) {
        trib_rdma_conn_end(conn, TRIB_PEER_LOST, "%s", conn->loss_reason);
    } else {
        trib_rdma_conn_end(conn, TRIB_PEER_LOST, "%s",
                           conn->in_head != conn->in_tail && !conn->peer_ended ? "connection ended inside a message"
                                                                               : "connection closed by the peer");
    }
}

/* Acts on completions, and sends what waits. */
static void act_on_completions(verbs_conn *conn, bool more)
{
    trib_rdma_report_sent(conn); /* before the end of the peer, which may be among the same completions */
    trib_rdma_deliver(conn);
    const bool peer_is_deaf = conn->state == VERBS_OPEN && conn->peer_ended;
    if (conn->state != VERBS_ENDING && !conn->broken && !conn->disconnected && !peer_is_deaf) {
        trib_rdma_repost(conn);
        trib_rdma_send_more(conn);
    }
    trib_rdma_commit(conn);
    trib_rdma_report_sent(conn);
    trib_rdma_send_fin(conn);
    if (more) {
        trib_reactor_defer(conn->base.transport->reactor, &conn->turn_post);
    } else if (conn->state == VERBS_OPEN || conn->state == VERBS_FLUSHING) {
        end_if_lost(conn);
    }
    if (conn->state == VERBS_FLUSHING && conn->flushed) {
        trib_rdma_conn_end(conn, TRIB_OK, "closed by this side");
    } else if ((conn->state == VERBS_LINGERING && (conn->peer_ended || conn->broken || conn->disconnected)) ||
               (conn->state == VERBS_ACCEPTING && (conn->broken || conn->disconnected))) {
        trib_rdma_conn_free(conn);
    }
}

void trib_rdma_conn_turn(verbs_conn *conn)
{
    if (conn->state == VERBS_GONE) {
        free(conn); /* see trib_rdma_conn_free */
        return;
    }
    if (conn->state < VERBS_ACCEPTING || conn->state == VERBS_ENDING || conn->state == VERBS_PARTING) {
        return;
    }
    bool more = false;
    (void)take_completions(conn, &more);
    act_on_completions(conn, more);
}

bool trib_rdma_conn_poll(verbs_conn *conn)
{
    bool more = false;
    const bool found = take_completions(conn, &more);
    if (found) {
        act_on_completions(conn, more);
    }
    return found;
}

/* ---- Ending ---- */

void trib_rdma_conn_lose(verbs_conn *conn, const char *reason)
{
    const bool connecting = conn->state == VERBS_RESOLVING || conn->state == VERBS_CONNECTING;
    trib_rdma_conn_end(conn, TRIB_PEER_LOST, "%s", reason);
    if (connecting) {
        conn->base.transport->upcalls->connected(&conn->base, conn->end_status);
    }
}

void trib_rdma_conn_end(verbs_conn *conn, trib_status status, const char *format, ...)
{
    if (conn->state == VERBS_ENDING) {
        return;
    }
    trib_assert(conn->state != VERBS_PARTING); /* the connection has ended, and the caller knows */
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(conn->reason, sizeof conn->reason, format, arguments);
    va_end(arguments);
    if (conn->state == VERBS_LINGERING || conn->state == VERBS_ACCEPTING) {
        conn->broken = true; /* the caller does not know it; its turn frees it */
        trib_reactor_defer(conn->base.transport->reactor, &conn->turn_post);
        return;
    }
    trib_rdma_conn_set_state(conn, VERBS_ENDING);
    conn->end_status = status;
    trib_rdma_bounce_forget(conn);
    trib_timer_stop(conn->base.transport->reactor, &conn->timer);
    trib_reactor_defer(conn->base.transport->reactor, &conn->finish_post);
}

void trib_rdma_conn_close(trib_conn *base, bool flush)
{
    verbs_conn *conn = (verbs_conn *)base;
    conn->connect_failed = false;
    if (conn->state == VERBS_OPEN && flush && !conn->broken && !conn->disconnected) {
        trib_rdma_conn_set_state(conn, VERBS_FLUSHING);
        trib_reactor_defer(base->transport->reactor, &conn->turn_post);
    } else if (conn->state != VERBS_FLUSHING || !flush) {
        trib_rdma_conn_end(conn, TRIB_OK, "closed by this side");
    }
}

static void report_unsent(verbs_conn *conn)
{
    const trib_transport_upcalls *upcalls = conn->base.transport->upcalls;
    const trib_status unsent = trib_send_unsent_status(conn->end_status);
    while (conn->out_head != conn->out_tail) {
        upcalls->sent(&conn->base, conn->outs[conn->out_head++ % TRIB_RDMA_OUTS].send, unsent);
    }
    trib_send_queue_return(&conn->sends, &conn->base, conn->end_status);
}

static void finish_conn(trib_reactor *reactor, trib_post *post)
{
    verbs_conn *conn = trib_container_of(post, verbs_conn, finish_post);
    const trib_transport_upcalls *upcalls = conn->base.transport->upcalls;
    trib_assert(conn->state == VERBS_ENDING && conn->known);
    bool lingers = conn->flushed && !conn->peer_ended && !conn->broken && !conn->disconnected;
    bool parts = !lingers && conn->opened && !conn->disconnected;
    if (!lingers) {
        drop_queues(conn);
    }
    if (conn->connect_failed) {
        upcalls->connected(&conn->base, conn->end_status);
    }
    report_unsent(conn);
    upcalls->closed(&conn->base, conn->end_status, conn->reason);
    trib_assert(conn->sends.head == NULL);
    conn->transport->open_count--;
    if (lingers) {
        trib_rdma_conn_set_state(conn, VERBS_LINGERING);
        trib_timer_arm(reactor, &conn->timer, trib_now(reactor) + LINGER_NS);
        trib_rdma_conn_turn(conn); /* for completions that came meanwhile */
    } else if (parts) {
        trib_rdma_block_give(conn->nic->device, &conn->block);
        trib_rdma_conn_set_state(conn, VERBS_PARTING);
        trib_timer_arm(reactor, &conn->timer, trib_now(reactor) + LINGER_NS);
    } else {
        trib_rdma_conn_free(conn);
    }
}

#endif

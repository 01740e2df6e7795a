/*
 * rdma_recv.c - messages in: asks the receiver in order, grants places, delivers, and posts buffers again.
 *
 * Invariants
 * - The receiver is asked about a message when the one before it has been delivered; about a large one already when
 *   those before it are large and have their places.
 * - The device may write to a granted target until the payload has arrived or the queue pair is destroyed. A
 *   connection that flushes waits for the first; any other end does the second before it reports anything.
 * - What a peer says is checked before it is used: kinds, numbers, sizes, and credits that it does not have.
 */
#include "build_config.h"
#include "transports/rdma/rdma.h"

#if TRIB_HAVE_RDMA

#include <endian.h>
#include <errno.h>
#include <string.h>

#include "engine/base/assert.h"
#include "transports/rdma/rdma_internal.h"

_Static_assert(TRIB_RDMA_INS > TRIB_RDMA_CREDITS + 1, "all credits and FIN fit");

static unsigned char *buffer_at(const verbs_conn *conn, uint32_t index)
{
    return conn->block.data + (size_t)index * TRIB_RDMA_BUFFER;
}

static verbs_in *in_at(verbs_conn *conn, uint32_t number)
{
    return &conn->ins[number % TRIB_RDMA_INS];
}

/* ---- Receive buffers ---- */

static void buffer_free(verbs_conn *conn, uint32_t index, bool is_credit)
{
    trib_assert(conn->free_count < TRIB_RDMA_RECVS);
    conn->free_buffers[conn->free_count++] = index;
    conn->free_credits += is_credit;
}

void trib_rdma_repost(verbs_conn *conn)
{
    struct ibv_recv_wr requests[TRIB_RDMA_RECVS];
    struct ibv_sge pieces[TRIB_RDMA_RECVS];
    uint32_t count = conn->free_count;
    if (count < TRIB_RDMA_REPOST_AT) {
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t index = conn->free_buffers[i];
        pieces[i] = (struct ibv_sge){
            .addr = (uintptr_t)buffer_at(conn, index), .length = TRIB_RDMA_BUFFER, .lkey = conn->block.local_key};
        requests[i] = (struct ibv_recv_wr){
            .wr_id = index, .sg_list = &pieces[i], .num_sge = 1, .next = i + 1 < count ? &requests[i + 1] : NULL};
    }
    conn->free_count = 0;
    conn->credits_due += conn->free_credits;
    conn->free_credits = 0;
    struct ibv_recv_wr *bad = NULL;
    errno = ibv_post_recv(conn->id->qp, requests, &bad);
    if (errno != 0) {
        trib_rdma_conn_end(conn, TRIB_PEER_LOST, "cannot post receive buffers to the device: %m");
    }
}

bool trib_rdma_recv_start(verbs_conn *conn)
{
    for (uint32_t i = 0; i < TRIB_RDMA_RECVS; i++) {
        buffer_free(conn, i, false); /* the greeting announces the credits */
    }
    trib_rdma_repost(conn);
    return conn->state != VERBS_ENDING;
}

/* ---- What the device reports ---- */

/* A REQUEST is valid only for a payload that fits into no MESSAGE. An unauthenticated peer may only send small
 * messages, and other sizes are refused; so it is never granted a place, and never learns the key of any memory. */
static void take_message(verbs_conn *conn, verbs_kind kind, const verbs_prefix *prefix, uint32_t index, uint32_t size)
{
    uint32_t payload = le32toh(prefix->size);
    bool fits = kind == KIND_FIN ? size == sizeof *prefix
                : kind == KIND_MESSAGE
                    ? payload <= TRIB_RDMA_SMALL && size == TRIB_RDMA_PAYLOAD_AT + payload
                    : size == TRIB_RDMA_PAYLOAD_AT && payload > TRIB_RDMA_SMALL && payload <= TRIB_PAYLOAD_MAX;
    uint32_t room = TRIB_RDMA_CREDITS + (kind == KIND_FIN);
    if (!fits || conn->fin_came || conn->in_tail - conn->in_head >= room ||
        (kind == KIND_REQUEST && conn->requested == TRIB_RDMA_REQUESTS) || le32toh(prefix->sequence) != conn->in_tail) {
        trib_rdma_conn_end(conn, TRIB_PROTOCOL, "message %u from the peer is malformed", conn->in_tail);
        return;
    }
    conn->fin_came = kind == KIND_FIN;
    conn->requested += kind == KIND_REQUEST;
    *in_at(conn, conn->in_tail++) = (verbs_in){.phase = IN_NEW, .kind = kind, .size = payload, .buffer = index};
    trib_counter_add(&conn->transport->stats.bytes_received,
                     kind == KIND_FIN ? 0 : TRIB_HEADER_SIZE + (kind == KIND_MESSAGE ? payload : 0));
}

void trib_rdma_take_buffer(verbs_conn *conn, uint32_t index, uint32_t size)
{
    const verbs_prefix *prefix = (const verbs_prefix *)(const void *)buffer_at(conn, index);
    conn->peer_credits += size < sizeof *prefix ? 0 : le16toh(prefix->credits);
    if (size < sizeof *prefix || conn->peer_credits > conn->credits_max) {
        trib_rdma_conn_end(conn, TRIB_PROTOCOL, "the peer sent %u bytes, too few for a message", size);
        return;
    }
    switch (prefix->kind) {
    case KIND_MESSAGE:
    case KIND_REQUEST:
    case KIND_FIN:
        take_message(conn, (verbs_kind)prefix->kind, prefix, index, size);
        return; /* the buffer is kept */
    case KIND_GRANT:
        trib_rdma_take_grant(conn, prefix);
        break;
    case KIND_CREDIT:
        break;
    default:
        trib_rdma_conn_end(conn, TRIB_PROTOCOL, "the peer sent a message of unknown kind %u", prefix->kind);
        return;
    }
    buffer_free(conn, index, false);
}

void trib_rdma_take_write(verbs_conn *conn, uint32_t index, uint32_t size, uint32_t sequence)
{
    verbs_in *in = in_at(conn, sequence);
    if (sequence - conn->in_head >= conn->in_tail - conn->in_head || in->phase != IN_GRANTED || in->size != size) {
        trib_rdma_conn_end(conn, TRIB_PROTOCOL, "the peer wrote %u bytes of message %u, which was not granted", size,
                           sequence);
        return;
    }
    in->phase = IN_ARRIVED;
    conn->granted--;
    trib_counter_add(&conn->transport->stats.bytes_received, size);
    buffer_free(conn, index, false);
}

/* ---- Granting ---- */

/* False if there is no send buffer now; the turn in which one is free tries again. */
static bool post_grant(verbs_conn *conn, uint32_t sequence, uint64_t address, uint32_t key, uint8_t flags)
{
    verbs_prefix *prefix = trib_rdma_buffer_take(conn, KIND_GRANT);
    if (prefix == NULL) {
        return false;
    }
    prefix->flags = flags;
    prefix->sequence = htole32(sequence);
    prefix->address = htole64(address);
    prefix->key = htole32(key);
    trib_rdma_buffer_post(conn, sizeof *prefix);
    trib_assert(conn->requested > 0);
    conn->requested--;
    return true;
}

/* False if it has to wait. */
static bool grant_write(verbs_conn *conn, verbs_in *in, uint32_t number)
{
    uint32_t local_key = 0;
    uint32_t remote_key = 0;
    const unsigned char *at = in->target.buffer;
    if (in->bounce != NULL || !trib_rdma_device_find(conn->nic->device, at, in->size, &local_key, &remote_key)) {
        trib_error error = {.status = TRIB_OK};
        if (in->bounce == NULL &&
            trib_rdma_bounce_take(conn, BOUNCE_IN, at, in->size, &in->bounce, &error) != TRIB_OK) {
            trib_rdma_conn_end(conn, error.status, "%s", error.text);
            return false;
        }
        if (in->bounce == NULL) {
            return false;
        }
        at = in->bounce->block.data;
        remote_key = in->bounce->block.remote_key;
    }
    if (!post_grant(conn, number, (uintptr_t)at, remote_key, 0)) {
        return false;
    }
    in->phase = IN_GRANTED;
    conn->granted++;
    return true;
}

/* ---- Delivering ---- */

void trib_rdma_drop_in(verbs_conn *conn, verbs_in *in)
{
    trib_rdma_bounce_give(conn->nic, in->bounce);
    in->bounce = NULL;
    trib_assert(!in->is_ahead || conn->transport->ahead > 0);
    conn->transport->ahead -= in->is_ahead;
    in->is_ahead = false;
}

/* Gives back the buffer of the oldest message. */
static void consume_message(verbs_conn *conn, verbs_in *in)
{
    trib_rdma_drop_in(conn, in);
    conn->place_next += conn->place_next == conn->in_head;
    conn->in_head++;
    buffer_free(conn, in->buffer, in->kind != KIND_FIN);
}

static void deliver_message(verbs_conn *conn, verbs_in *in)
{
    const unsigned char *header = buffer_at(conn, in->buffer) + TRIB_RDMA_HEADER_AT;
    trib_counter_add(&conn->transport->stats.messages_received, 1);
    conn->base.transport->upcalls->received(&conn->base, header, in->target.buffer, in->size);
    consume_message(conn, in);
}

static void refuse_message(verbs_conn *conn, verbs_in *in)
{
    if (in->refusal == TRIB_PROTOCOL && in->target.payload_size != in->size) {
        trib_rdma_conn_end(conn, TRIB_PROTOCOL, "message %u carries %u bytes, its header says %u", conn->in_head,
                           in->size, in->target.payload_size);
    } else {
        trib_rdma_conn_end(conn, in->refusal, "message refused: %s", trib_status_text(in->refusal));
    }
}

/* Asks the receiver where the payload goes. False if there is no answer now, or the connection is ending. */
static bool ask_receiver(verbs_conn *conn, verbs_in *in)
{
    const unsigned char *header = buffer_at(conn, in->buffer) + TRIB_RDMA_HEADER_AT;
    in->target = (trib_recv_target){.buffer = NULL};
    conn->asking = true;
    conn->resume_asked = false;
    trib_status status = conn->base.transport->upcalls->header(&conn->base, header, &in->target);
    conn->asking = false;
    if (conn->state != VERBS_OPEN) {
        return false;
    }
    if (status == TRIB_AGAIN) {
        conn->paused = true;
        if (conn->resume_asked) {
            trib_rdma_recv_resume(&conn->base);
        }
        return false;
    }
    if (status == TRIB_OK && in->target.payload_size != in->size) {
        status = TRIB_PROTOCOL;
    }
    if (status != TRIB_OK) {
        in->refusal = status;
        in->phase = IN_REFUSED;
        return true;
    }
    trib_assert(in->target.buffer != NULL || in->size == 0);
    return true;
}

/* Grants places to payloads in order: to the first that waits, and to those behind it while targets are left and at
 * most TRIB_AHEAD_MAX have been asked about. (A peer may have requested more, because it sends what was granted when
 * it can.) A message without a write of its own is not asked about before its turn: its receiver may have to know
 * what came before. */
static void grant_ahead(verbs_conn *conn)
{
    for (; conn->place_next != conn->in_tail && conn->place_next - conn->in_head < TRIB_AHEAD_MAX &&
           conn->state == VERBS_OPEN;
         conn->place_next++) {
        const uint32_t number = conn->place_next;
        verbs_in *in = in_at(conn, number);
        const bool is_ahead = number != conn->in_head && !in->is_ahead;
        if (in->kind != KIND_REQUEST || in->phase == IN_REFUSED ||
            (is_ahead && conn->transport->ahead == TRIB_RDMA_AHEAD)) {
            return;
        }
        if (in->phase == IN_NEW) {
            if (conn->paused || !ask_receiver(conn, in) || in->phase == IN_REFUSED) {
                return;
            }
            in->phase = IN_PLACE;
            in->is_ahead = is_ahead;
            conn->transport->ahead += is_ahead;
        }
        if (!grant_write(conn, in, number)) {
            return;
        }
    }
}

/* Deals with the next message. False if there is nothing more to do now. */
static bool step_message(verbs_conn *conn, verbs_in *in)
{
    if (in->phase == IN_NEW && in->kind == KIND_FIN) {
        conn->peer_ended = true;
        if (trib_rdma_is_writing(conn)) {
            return false; /* the peer may have received everything; wait until the device says so */
        }
        trib_rdma_conn_end(conn, TRIB_PEER_LOST, "connection closed by the peer");
        return false;
    }
    if (in->phase == IN_NEW && in->kind == KIND_MESSAGE) {
        if (conn->paused || !ask_receiver(conn, in)) {
            return false;
        }
        if (in->phase == IN_NEW && in->size > 0) {
            memcpy(in->target.buffer, buffer_at(conn, in->buffer) + TRIB_RDMA_PAYLOAD_AT, in->size);
            trib_counter_add(&conn->transport->stats.bytes_copied, in->size);
        }
        if (in->phase == IN_NEW) {
            deliver_message(conn, in);
            return true;
        }
    }
    if (in->phase == IN_REFUSED) {
        refuse_message(conn, in);
        return false;
    }
    if (in->phase != IN_ARRIVED) {
        grant_ahead(conn);
        return conn->state == VERBS_OPEN && in->phase == IN_REFUSED;
    }
    if (in->bounce != NULL) {
        memcpy(in->target.buffer, in->bounce->block.data, in->size);
        trib_counter_add(&conn->transport->stats.bytes_copied, in->size);
    }
    deliver_message(conn, in);
    return true;
}

/* As step_message, for a connection that drops what comes in. */
static bool drop_message(verbs_conn *conn, verbs_in *in)
{
    switch (in->phase) {
    case IN_NEW:
    case IN_PLACE:
    case IN_REFUSED:
        if (in->kind == KIND_REQUEST && !post_grant(conn, conn->in_head, 0, 0, TRIB_RDMA_UNWANTED)) {
            return false;
        }
        conn->peer_ended = conn->peer_ended || in->kind == KIND_FIN;
        consume_message(conn, in);
        return true;
    case IN_GRANTED:
        return false;
    case IN_ARRIVED:
        consume_message(conn, in);
        return true;
    }
    trib_unreachable();
}

void trib_rdma_deliver(verbs_conn *conn)
{
    bool more = true;
    while (more && conn->in_head != conn->in_tail) {
        verbs_in *in = in_at(conn, conn->in_head);
        verbs_state before = conn->state;
        switch (before) {
        case VERBS_OPEN:
            more = step_message(conn, in);
            break;
        case VERBS_FLUSHING:
        case VERBS_LINGERING:
            more = drop_message(conn, in);
            break;
        default:
            return;
        }
        more = more || conn->state != before; /* an upcall has begun to close it */
    }
}

void trib_rdma_recv_resume(trib_conn *base)
{
    verbs_conn *conn = (verbs_conn *)base;
    if (conn->asking) {
        conn->resume_asked = true;
    } else if (conn->paused && conn->state == VERBS_OPEN) {
        conn->paused = false;
        trib_reactor_defer(base->transport->reactor, &conn->turn_post);
    }
}

#endif

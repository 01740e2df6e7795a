/*
 * rdma_send.c - messages out: small ones at once, large payloads when the receiver has granted a place.
 *
 * Invariants
 * - Messages begin in order, and their numbers count them. A small one is done when the device has it, a large one
 *   when its payload was written. `sent` is reported in order, so a small one may wait for a large one before it.
 * - A send buffer is free again when the device has reported a later one, or a later write: the queue completes in
 *   order. The device reports one in TRIB_RDMA_SIGNAL_EVERY sends, and the last write of each chain, with those before
 *   it.
 * - Work requests go to the device in chains: all of a turn in one call, at its end.
 */
#include "build_config.h"
#include "transports/rdma/rdma.h"

#if TRIB_HAVE_RDMA

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <string.h>

#include "engine/base/assert.h"
#include "transports/rdma/rdma_internal.h"

_Static_assert((TRIB_RDMA_OUTS & (TRIB_RDMA_OUTS - 1)) == 0 && (TRIB_RDMA_INS & (TRIB_RDMA_INS - 1)) == 0,
               "numbers run on when they wrap");
_Static_assert(TRIB_RDMA_SIGNAL_EVERY * 2 <= TRIB_RDMA_SENDS, "a full ring has a report on its way");

#define ID_WRITE (UINT64_C(1) << 63) /* in a request's id: a write of message (id >> 32), with the sends before it */
#define ID_FIN (UINT64_C(1) << 62)

/* ---- Chains ---- */

void trib_rdma_chain_init(verbs_chain *chain)
{
    for (unsigned i = 0; i < TRIB_RDMA_CHAIN; i++) {
        chain->requests[i] = (struct ibv_send_wr){.sg_list = &chain->pieces[i], .num_sge = 1};
    }
    chain->count = 0;
    chain->last_write = NULL;
}

void trib_rdma_commit(verbs_conn *conn)
{
    verbs_chain *chain = &conn->transport->chain;
    if (chain->count == 0) {
        return;
    }
    chain->requests[chain->count - 1].next = NULL;
    chain->count = 0;
    chain->last_write = NULL;
    if (conn->state == VERBS_ENDING) {
        return;
    }
    struct ibv_send_wr *bad = NULL;
    errno = ibv_post_send(conn->id->qp, chain->requests, &bad);
    if (errno != 0) {
        trib_rdma_conn_end(conn, TRIB_PEER_LOST, "cannot post work requests to the device: %m");
    }
}

static struct ibv_send_wr *chain_add(verbs_conn *conn, void *data, size_t size, uint32_t key)
{
    verbs_chain *chain = &conn->transport->chain;
    if (chain->count == TRIB_RDMA_CHAIN) {
        trib_rdma_commit(conn);
    }
    unsigned index = chain->count++;
    chain->pieces[index] = (struct ibv_sge){.addr = (uintptr_t)data, .length = (uint32_t)size, .lkey = key};
    if (index > 0) {
        chain->requests[index - 1].next = &chain->requests[index];
    }
    return &chain->requests[index];
}

static unsigned char *next_buffer(const verbs_conn *conn)
{
    size_t index = TRIB_RDMA_RECVS + conn->sends_posted % TRIB_RDMA_SENDS;
    return conn->block.data + index * TRIB_RDMA_BUFFER;
}

verbs_prefix *trib_rdma_buffer_take(verbs_conn *conn, verbs_kind kind)
{
    if (conn->sends_posted - conn->sends_done == TRIB_RDMA_SENDS) {
        return NULL;
    }
    unsigned char *at = next_buffer(conn);
    verbs_prefix *prefix = (verbs_prefix *)(void *)at;
    *prefix = (verbs_prefix){.kind = (uint8_t)kind, .credits = htole16((uint16_t)conn->credits_due)};
    conn->credits_due = 0;
    return prefix;
}

void trib_rdma_buffer_post(verbs_conn *conn, size_t size)
{
    unsigned char *at = next_buffer(conn);
    bool is_fin = ((const verbs_prefix *)(const void *)at)->kind == KIND_FIN;
    struct ibv_send_wr *request = chain_add(conn, at, size, conn->block.local_key);
    conn->sends_posted++;
    request->opcode = IBV_WR_SEND;
    request->wr_id = conn->sends_posted | (is_fin ? ID_FIN : 0);
    request->send_flags = size <= conn->inline_max ? IBV_SEND_INLINE : 0;
    if (is_fin || conn->sends_posted % TRIB_RDMA_SIGNAL_EVERY == 0) {
        request->send_flags |= IBV_SEND_SIGNALED;
    }
}

/* ---- Writing ---- */

static verbs_out *out_at(verbs_conn *conn, uint32_t number)
{
    return &conn->outs[number % TRIB_RDMA_OUTS];
}

static void settle_message(verbs_conn *conn, verbs_out *out)
{
    trib_rdma_bounce_give(conn->nic, out->bounce);
    out->bounce = NULL;
    out->phase = OUT_DONE;
}

/* False if it waits for bounce memory. */
static bool write_one(verbs_conn *conn, uint32_t number)
{
    verbs_out *out = out_at(conn, number);
    const trib_send *send = out->send;
    uint32_t local_key = 0;
    uint32_t remote_key = 0;
    void *data = (void *)(uintptr_t)send->payload;
    if (!trib_rdma_device_find(conn->nic->device, data, send->payload_size, &local_key, &remote_key)) {
        trib_error error = {.status = TRIB_OK};
        if (trib_rdma_bounce_take(conn, BOUNCE_OUT, data, send->payload_size, &out->bounce, &error) != TRIB_OK) {
            trib_rdma_conn_end(conn, error.status, "%s", error.text);
            return false;
        }
        if (out->bounce == NULL) {
            return false;
        }
        memcpy(out->bounce->block.data, data, send->payload_size);
        trib_counter_add(&conn->transport->stats.bytes_copied, send->payload_size);
        data = out->bounce->block.data;
        local_key = out->bounce->block.local_key;
    }
    struct ibv_send_wr *request = chain_add(conn, data, send->payload_size, local_key);
    request->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    request->send_flags = IBV_SEND_SIGNALED;
    verbs_chain *chain = &conn->transport->chain;
    if (chain->last_write != NULL) {
        chain->last_write->send_flags = 0; /* the new last write is reported for both */
    }
    chain->last_write = request;
    request->imm_data = htonl(number);
    request->wr.rdma.remote_addr = out->address;
    request->wr.rdma.rkey = out->key;
    /* The number's high bits are not needed: fewer than TRIB_RDMA_OUTS are under way. */
    request->wr_id = ID_WRITE | (uint64_t)(number % TRIB_RDMA_OUTS) << 32 | conn->sends_posted;
    out->phase = OUT_WRITING;
    return true;
}

static void write_granted(verbs_conn *conn)
{
    while (conn->write_next != conn->grant_next) {
        if (out_at(conn, conn->write_next)->phase == OUT_GRANTED && !write_one(conn, conn->write_next)) {
            return;
        }
        conn->write_next++;
    }
}

void trib_rdma_take_grant(verbs_conn *conn, const verbs_prefix *prefix)
{
    while (conn->grant_next != conn->out_tail && out_at(conn, conn->grant_next)->phase != OUT_REQUESTED) {
        conn->grant_next++;
    }
    if (conn->grant_next == conn->out_tail || le32toh(prefix->sequence) != conn->grant_next) {
        trib_rdma_conn_end(conn, TRIB_PROTOCOL, "the peer granted message %u, which does not wait for a grant",
                           le32toh(prefix->sequence));
        return;
    }
    verbs_out *out = out_at(conn, conn->grant_next++);
    conn->peer_requests++;
    if ((prefix->flags & TRIB_RDMA_UNWANTED) != 0) {
        settle_message(conn, out);
        return;
    }
    out->phase = OUT_GRANTED;
    out->address = le64toh(prefix->address);
    out->key = le32toh(prefix->key);
}

/* ---- Beginning ---- */

static bool begin_one(verbs_conn *conn, trib_send *send)
{
    bool is_large = send->payload_size > TRIB_RDMA_SMALL;
    if (conn->peer_credits == 0 || conn->out_tail - conn->out_head == TRIB_RDMA_OUTS ||
        (is_large && conn->peer_requests == 0)) {
        return false;
    }
    verbs_prefix *prefix = trib_rdma_buffer_take(conn, is_large ? KIND_REQUEST : KIND_MESSAGE);
    if (prefix == NULL) {
        return false;
    }
    prefix->sequence = htole32(conn->out_tail);
    prefix->size = htole32(send->payload_size);
    unsigned char *at = (unsigned char *)prefix;
    memcpy(at + TRIB_RDMA_HEADER_AT, send->header, TRIB_HEADER_SIZE);
    size_t size = TRIB_RDMA_PAYLOAD_AT;
    if (!is_large && send->payload_size > 0) {
        memcpy(at + TRIB_RDMA_PAYLOAD_AT, send->payload, send->payload_size);
        trib_counter_add(&conn->transport->stats.bytes_copied, send->payload_size);
        size += send->payload_size;
    }
    *out_at(conn, conn->out_tail++) = (verbs_out){.send = send, .phase = is_large ? OUT_REQUESTED : OUT_DONE};
    conn->peer_credits--;
    conn->peer_requests -= is_large;
    trib_rdma_buffer_post(conn, size);
    return true;
}

void trib_rdma_send_more(verbs_conn *conn)
{
    write_granted(conn);
    while (conn->sends.head != NULL && conn->state != VERBS_ENDING) {
        if (!begin_one(conn, conn->sends.head)) {
            break;
        }
        (void)trib_send_queue_take(&conn->sends);
    }
    /* Every message tells the peer of free buffers; if none goes out, a CREDIT does when half of them are free. */
    if (conn->credits_due >= TRIB_RDMA_CREDITS / 2 && conn->state != VERBS_ENDING &&
        trib_rdma_buffer_take(conn, KIND_CREDIT) != NULL) {
        trib_rdma_buffer_post(conn, sizeof(verbs_prefix));
    }
}

void trib_rdma_send_fin(verbs_conn *conn)
{
    bool all_sent = conn->sends.head == NULL && conn->out_head == conn->out_tail;
    if (conn->state != VERBS_FLUSHING || !all_sent || conn->granted > 0 || conn->fin_sent) {
        return;
    }
    verbs_prefix *prefix = trib_rdma_buffer_take(conn, KIND_FIN);
    if (prefix != NULL) {
        prefix->sequence = htole32(conn->out_tail);
        conn->fin_sent = true;
        trib_rdma_buffer_post(conn, sizeof *prefix);
        trib_rdma_commit(conn);
    }
}

/* ---- Reports ---- */

/* Marks that message and all writes before it as written. */
static void mark_written(verbs_conn *conn, uint32_t number)
{
    const uint32_t end = conn->settle_next + 1 + ((number - conn->settle_next) & (TRIB_RDMA_OUTS - 1));
    for (; conn->settle_next != end; conn->settle_next++) {
        verbs_out *out = out_at(conn, conn->settle_next);
        if (out->phase == OUT_WRITING) {
            settle_message(conn, out);
        }
    }
}

void trib_rdma_take_sent(verbs_conn *conn, uint64_t request_id)
{
    conn->sends_done = (uint32_t)request_id;
    if ((request_id & ID_WRITE) != 0) {
        mark_written(conn, (uint32_t)((request_id & ~ID_WRITE) >> 32));
    } else if ((request_id & ID_FIN) != 0) {
        conn->flushed = true;
    }
}

bool trib_rdma_is_writing(const verbs_conn *conn)
{
    for (uint32_t i = conn->out_head; i != conn->out_tail; i++) {
        if (conn->outs[i % TRIB_RDMA_OUTS].phase == OUT_WRITING) {
            return true;
        }
    }
    return false;
}

void trib_rdma_report_sent(verbs_conn *conn)
{
    while (conn->out_head != conn->out_tail && out_at(conn, conn->out_head)->phase == OUT_DONE &&
           (conn->state == VERBS_OPEN || conn->state == VERBS_FLUSHING)) {
        trib_send *send = out_at(conn, conn->out_head++)->send;
        trib_counter_add(&conn->transport->stats.messages_sent, 1);
        trib_counter_add(&conn->transport->stats.bytes_sent, TRIB_HEADER_SIZE + send->payload_size);
        conn->base.transport->upcalls->sent(&conn->base, send, TRIB_OK);
    }
    if ((int32_t)(conn->grant_next - conn->out_head) < 0) {
        conn->grant_next = conn->out_head;
    }
    if ((int32_t)(conn->write_next - conn->out_head) < 0) {
        conn->write_next = conn->out_head;
    }
    if ((int32_t)(conn->settle_next - conn->out_head) < 0) {
        conn->settle_next = conn->out_head;
    }
}

void trib_rdma_send(trib_conn *base, trib_send *send)
{
    verbs_conn *conn = (verbs_conn *)base;
    trib_assert(send->payload_size <= TRIB_PAYLOAD_MAX);
    trib_assert(send->payload != NULL || send->payload_size == 0);
    trib_send_queue_add(&conn->sends, send);
    if (conn->state == VERBS_OPEN || conn->state == VERBS_FLUSHING) {
        trib_reactor_defer(base->transport->reactor, &conn->turn_post);
    }
}

#endif

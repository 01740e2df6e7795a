/*
 * shm_stream.c - messages to records and back.
 *
 * A small payload is copied into the ring and is sent as soon as it is there. A large one stays in the sender's
 * memory. If the sender offers that memory (shm_memory.h), the payload is presented there, without a copy; otherwise
 * the receiver reads it with process_vm_readv, one copy by the kernel. The message counts as sent when the receiver
 * says that it has read it. Where the kernel forbids both, the payload goes through the ring in fragments.
 *
 * Invariants
 * - A sender that takes payloads back before they were read sets `revoked` first, and a receiver reads `revoked` after
 *   it has copied a payload. So a payload that it presents was valid.
 * - A receiver sets `reading` before it reads `revoked` and presents a payload in place. The sender checks `reading`
 *   after it has set `revoked` and before the buffers can be written to. It does not wait for ever: a receiver that
 *   stood still meanwhile learns at the end of its lease that the payload was not valid (shm_lease.c).
 * - Headers are copied before they are checked. Payloads are copied too, except for a receiver with a lease.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <string.h>

#include "engine/base/assert.h"
#include "transports/shm/shm_resend.h"

#define MESSAGES_PER_TURN 64u
#define BYTES_PER_TURN (256u * 1024u) /* bytes; sums and answers go out before more is read */

/* Copies bytes of a payload into the ring or out of it. */
static void copy_counted(shm_conn *conn, void *to, const void *from, uint32_t size)
{
    if (size > 0) {
        memcpy(to, from, size);
        trib_counter_add(&conn->transport->stats.bytes_copied, size);
    }
}

/* ---- Writing ---- */

static bool is_large(const trib_send *send)
{
    return send->payload_size > SHM_INLINE_MAX;
}

static unsigned char *reserve_record(shm_conn *conn, shm_record record, uint32_t behind)
{
    bool broken = false;
    unsigned char *place = trib_shm_out_reserve(&conn->out, record, behind, &broken);
    if (broken) {
        trib_shm_conn_end(conn, TRIB_PROTOCOL, "the peer wrote an impossible position into the shared ring");
    }
    return place;
}

static bool write_inline(shm_conn *conn, const trib_send *send)
{
    shm_record record = {.kind = SHM_INLINE, .size = send->payload_size};
    unsigned char *place = reserve_record(conn, record, TRIB_HEADER_SIZE + send->payload_size);
    if (place == NULL) {
        return false;
    }
    copy_counted(conn, place + TRIB_HEADER_SIZE, send->payload, send->payload_size);
    memcpy(place, send->header, TRIB_HEADER_SIZE); /* last, because the peer polls this line */
    trib_shm_out_commit(&conn->out);
    return true;
}

static bool write_header(shm_conn *conn, const trib_send *send, shm_kind kind)
{
    shm_record record = {.kind = kind, .size = send->payload_size, .address = (uintptr_t)send->payload};
    unsigned char *place = reserve_record(conn, record, TRIB_HEADER_SIZE);
    if (place == NULL) {
        return false;
    }
    memcpy(place, send->header, TRIB_HEADER_SIZE);
    trib_shm_out_commit(&conn->out);
    conn->remote_written += kind != SHM_STREAM;
    return true;
}

static bool write_remote(shm_conn *conn, const trib_send *send)
{
    shm_transport *transport = conn->transport;
    const bool offered =
        trib_shm_is_offered(transport->offer, send->payload, send->payload_size, &transport->offer_hint);
    return write_header(conn, send, offered ? SHM_OFFERED : SHM_REMOTE);
}

/* True if all of the payload is in the ring. */
static bool write_fragments(shm_conn *conn, const trib_send *send)
{
    while (conn->streamed < send->payload_size) {
        uint32_t left = send->payload_size - conn->streamed;
        uint32_t size = left < SHM_FRAGMENT_MAX ? left : SHM_FRAGMENT_MAX;
        unsigned char *place = reserve_record(conn, (shm_record){.kind = SHM_FRAGMENT, .size = size}, size);
        if (place == NULL) {
            return false;
        }
        copy_counted(conn, place, (const unsigned char *)send->payload + conn->streamed, size);
        trib_shm_out_commit(&conn->out);
        trib_shm_conn_wake(conn, SHM_WAKE_ON_INPUT);
        conn->streamed += size;
    }
    conn->streamed = 0;
    return true;
}

static bool write_stream(shm_conn *conn, const trib_send *send)
{
    conn->stream_begun = conn->stream_begun || write_header(conn, send, SHM_STREAM);
    if (!conn->stream_begun || !write_fragments(conn, send)) {
        return false;
    }
    conn->stream_begun = false;
    return true;
}

/* Payloads that the peer could not read (shm_resend.h). True if all are in the ring. */
static bool write_again(shm_conn *conn)
{
    if (conn->resend_state == SHM_RESEND_ASKED) {
        if (reserve_record(conn, (shm_record){.kind = SHM_RESENT}, 0) == NULL) {
            return false;
        }
        trib_shm_out_commit(&conn->out);
        trib_shm_conn_wake(conn, SHM_WAKE_ON_INPUT);
        conn->resend_state = SHM_RESEND_WRITES;
    }
    for (; conn->resend != conn->send_next; conn->resend = conn->resend->next) {
        if (is_large(conn->resend)) {
            if (!write_fragments(conn, conn->resend)) {
                return false;
            }
            conn->done_seen++;
        }
    }
    trib_assert(conn->done_seen == conn->remote_written);
    conn->resend_state = SHM_RESEND_NONE;
    return true;
}

static bool write_send(shm_conn *conn, const trib_send *send)
{
    return !is_large(send)    ? write_inline(conn, send)
           : conn->peer_reads ? write_remote(conn, send)
                              : write_stream(conn, send);
}

static bool is_writing(const shm_conn *conn)
{
    const bool writes =
        conn->send_next != NULL || conn->resend_state != SHM_RESEND_NONE || trib_shm_resend_is_asked(conn);
    return writes && (conn->state == SHM_OPEN || conn->state == SHM_FLUSHING);
}

void trib_shm_stream_write(shm_conn *conn)
{
    bool wrote = false;
    while (is_writing(conn)) {
        const trib_send *send = conn->send_next;
        if (trib_shm_resend_is_asked(conn)) {
            trib_shm_resend_begin(conn);
        } else if (conn->resend_state != SHM_RESEND_NONE) {
            if (!write_again(conn)) {
                break;
            }
        } else if (!write_send(conn, send)) {
            break;
        } else {
            conn->send_next = send->next;
            wrote = true;
        }
    }
    if (wrote) {
        /* Piggybacks the pending progress report on this wake-up: one fence and one check of the peer's sleep flag
         * serve both. */
        trib_shm_conn_wake(conn, SHM_WAKE_ON_INPUT | (conn->progress_owed ? SHM_WAKE_ON_PROGRESS : 0));
        conn->progress_owed = false;
    }
}

bool trib_shm_stream_report(shm_conn *conn)
{
    bool found = false;
    uint64_t done = atomic_load_explicit(&conn->out.peer->done, memory_order_acquire);
    if (conn->peer_reads && (done < conn->done_seen || done > conn->remote_written)) {
        trib_shm_conn_end(conn, TRIB_PROTOCOL, "the peer reports payloads as read that were not sent");
        return true;
    }
    conn->done_seen = conn->peer_reads ? done : conn->done_seen;
    if (is_writing(conn)) {
        uint64_t head = conn->out.head;
        trib_shm_stream_write(conn);
        found = conn->out.head != head;
    }
    /* `sent` may queue more or close the connection. */
    while (conn->sends.head != conn->send_next && (conn->state == SHM_OPEN || conn->state == SHM_FLUSHING)) {
        trib_send *send = conn->sends.head;
        bool remote = is_large(send) && conn->remote_reported < conn->remote_written;
        if (remote && conn->remote_reported == conn->done_seen) {
            break;
        }
        conn->remote_reported += remote;
        (void)trib_send_queue_take(&conn->sends);
        trib_counter_add(&conn->transport->stats.messages_sent, 1);
        trib_counter_add(&conn->transport->stats.bytes_sent, TRIB_HEADER_SIZE + (uint64_t)send->payload_size);
        conn->base.transport->upcalls->sent(&conn->base, send, TRIB_OK);
        found = true;
    }
    if (conn->state == SHM_FLUSHING && conn->sends.head == NULL) {
        atomic_store_explicit(&conn->out.mine->ended, 1, memory_order_release);
        trib_shm_conn_end(conn, TRIB_OK, "closed by this side");
    }
    return found;
}

/* ---- Reading ---- */

static void message_complete(shm_conn *conn, const void *payload)
{
    trib_counter_add(&conn->transport->stats.messages_received, 1);
    trib_counter_add(&conn->transport->stats.bytes_received, TRIB_HEADER_SIZE + (uint64_t)conn->record.size);
    conn->base.transport->upcalls->received(&conn->base, conn->header, payload, conn->record.size);
}

static void take_record(shm_conn *conn)
{
    if (conn->from_backlog) {
        trib_shm_backlog_take(conn);
        return;
    }
    trib_shm_in_take(&conn->in);
    conn->progress_owed = true;
}

static void take_inline(shm_conn *conn)
{
    copy_counted(conn, conn->target.buffer, conn->behind + TRIB_HEADER_SIZE, conn->record.size);
    take_record(conn);
    message_complete(conn, conn->target.buffer);
}

static bool is_forbidden(int error)
{
    return error == EPERM || error == EACCES || error == ENOSYS;
}

/* True if the payload is in the target. *forbidden_out: the kernel forbids that, so the payload has to come through the
 * ring. */
static bool read_remote(shm_conn *conn, bool *forbidden_out)
{
    *forbidden_out = false;
    uint32_t payload_got = 0;
    while (payload_got < conn->record.size) {
        const ssize_t got =
            trib_shm_peer_read(&conn->peer, conn->record.address + payload_got,
                               (unsigned char *)conn->target.buffer + payload_got, conn->record.size - payload_got);
        if (got <= 0) {
            int error = errno;
            *forbidden_out = got < 0 && is_forbidden(error);
            if (*forbidden_out) {
                return false;
            }
            bool gone = got < 0 && error == ESRCH;
            char why[TRIB_REASON_MAX];
            trib_shm_conn_end(conn, TRIB_PEER_LOST, gone ? "the peer is gone" : "cannot read a payload of the peer: %s",
                              got < 0 ? trib_log_reason(error, why) : "the kernel read a part only");
            return false;
        }
        payload_got += (uint32_t)got;
    }
    trib_shm_fence();
    if (atomic_load_explicit(&conn->in.peer->revoked, memory_order_relaxed) != 0) {
        trib_shm_conn_end(conn, TRIB_PEER_LOST, "connection closed by the peer inside a message");
        return false;
    }
    return true;
}

static void present_payload(shm_conn *conn, const void *payload)
{
    const bool is_there = trib_shm_payload_begin(conn, true);
    if (conn->state == SHM_OPEN && is_there) {
        message_complete(conn, payload);
    } else if (conn->state == SHM_OPEN) {
        trib_shm_conn_end(conn, TRIB_PEER_LOST, "connection closed by the peer inside a message");
    }
    trib_shm_payload_end(conn);
}

/* The payload comes in fragments. */
static void await_fragments(shm_conn *conn)
{
    conn->streaming = true;
    conn->payload_got = 0;
}

/* Reads the payload with the kernel's help. */
static void copy_remote(shm_conn *conn)
{
    bool forbidden = false;
    (void)trib_shm_payload_begin(conn, false);
    const bool is_there = conn->state == SHM_OPEN && read_remote(conn, &forbidden);
    if (forbidden) {
        conn->taken--;
        await_fragments(conn);
        trib_shm_resend_ask(conn);
        return;
    }
    trib_shm_payload_end(conn);
    if (is_there) {
        message_complete(conn, conn->target.buffer);
    }
}

static void take_remote(shm_conn *conn)
{
    take_record(conn);
    if (conn->from_backlog) {
        await_fragments(conn);
        return;
    }
    const void *payload = conn->reads_peer && conn->target.in_place && conn->record.kind == SHM_OFFERED
                              ? trib_shm_peer_find(&conn->peer, conn->record.address, conn->record.size)
                              : NULL;
    if (payload != NULL) {
        present_payload(conn, payload);
    } else if (!conn->reads_peer) {
        trib_shm_conn_end(conn, TRIB_PROTOCOL, "the peer refers to payloads in memory that this process cannot read");
    } else {
        copy_remote(conn);
    }
}

/* The receiver has answered: moves the payload of conn->record to the place that it named. */
static void take_payload(shm_conn *conn)
{
    switch (conn->record.kind) {
    case SHM_INLINE:
        take_inline(conn);
        break;
    case SHM_REMOTE:
    case SHM_OFFERED:
        take_remote(conn);
        break;
    default:
        trib_assert(conn->record.kind == SHM_STREAM);
        take_record(conn);
        await_fragments(conn);
        break;
    }
}

/* Asks the receiver where the payload goes, and moves it there unless it has no room. */
static void ask_receiver(shm_conn *conn)
{
    conn->target = (trib_recv_target){.buffer = NULL};
    conn->asking = true;
    conn->resume_asked = false;
    trib_status status = conn->base.transport->upcalls->header(&conn->base, conn->header, &conn->target);
    conn->asking = false;
    if (conn->state != SHM_OPEN) {
        return;
    }
    if (status == TRIB_AGAIN) {
        conn->paused = true;
        atomic_store_explicit(&conn->in.mine->paused, 1, memory_order_relaxed);
        if (conn->resume_asked) {
            trib_shm_recv_resume(&conn->base);
        }
    } else if (status != TRIB_OK) {
        trib_shm_conn_end(conn, status, "message refused: %s", trib_status_text(status));
    } else if (conn->target.payload_size != conn->record.size) {
        trib_shm_conn_end(conn, TRIB_PROTOCOL, "a header announces %u bytes of payload, and %u came",
                          conn->target.payload_size, conn->record.size);
    } else {
        trib_assert(conn->target.buffer != NULL || conn->record.size == 0);
        take_payload(conn);
    }
}

static void take_fragment(shm_conn *conn, const shm_record *fragment, const unsigned char *bytes)
{
    if (fragment->kind != SHM_FRAGMENT || fragment->size > conn->record.size - conn->payload_got) {
        trib_shm_conn_end(conn, TRIB_PROTOCOL, "the fragments of a payload do not add up to its size");
        return;
    }
    copy_counted(conn, (unsigned char *)conn->target.buffer + conn->payload_got, bytes, fragment->size);
    conn->payload_got += fragment->size;
    take_record(conn);
    if (conn->payload_got == conn->record.size) {
        conn->streaming = false;
        message_complete(conn, conn->target.buffer);
    }
}

static void take_next_record(shm_conn *conn, const shm_record *record, const unsigned char *behind)
{
    if (conn->state == SHM_FLUSHING) {
        take_record(conn); /* the message is dropped, but the peer may be flushing and wait for it to be read */
        if ((record->kind == SHM_REMOTE || record->kind == SHM_OFFERED) && !conn->gathers) {
            (void)trib_shm_payload_begin(conn, false);
            trib_shm_payload_end(conn);
        }
    } else if (conn->streaming) {
        take_fragment(conn, record, behind);
    } else if (record->kind == SHM_FRAGMENT || record->kind == SHM_RESENT) {
        trib_shm_conn_end(conn, TRIB_PROTOCOL, "the peer sent a fragment without a message");
    } else {
        conn->record = *record;
        conn->behind = behind;
        memcpy(conn->header, behind, TRIB_HEADER_SIZE);
        ask_receiver(conn);
    }
}

static void end_if_drained(shm_conn *conn)
{
    if (conn->hung_up) {
        trib_shm_conn_end(conn, TRIB_PEER_LOST, "%s",
                          conn->streaming ? "connection ended inside a message" : "connection closed by the peer");
    }
}

bool trib_shm_stream_read(shm_conn *conn)
{
    bool found = false;
    uint32_t bytes = 0;
    for (unsigned i = 0; i < MESSAGES_PER_TURN && bytes < BYTES_PER_TURN; i++) {
        if ((conn->state != SHM_OPEN || conn->paused) && conn->state != SHM_FLUSHING) {
            break;
        }
        shm_record record;
        const unsigned char *behind = NULL;
        conn->from_backlog = conn->state == SHM_OPEN && trib_shm_backlog_waits(conn);
        const shm_found answer = conn->from_backlog && trib_shm_backlog_next(conn, &record, &behind)
                                     ? SHM_RECORD
                                     : trib_shm_in_next(&conn->in, &record, &behind);
        if (answer == SHM_NOTHING) {
            end_if_drained(conn);
            break;
        }
        found = true;
        if (answer == SHM_BROKEN) {
            trib_shm_conn_end(conn, TRIB_PROTOCOL, "the peer wrote an invalid record into the shared ring");
            break;
        }
        bytes += record.size;
        if (conn->gathers && conn->state == SHM_OPEN) {
            trib_shm_resend_gather(conn, &record, behind);
        } else {
            take_next_record(conn, &record, behind);
        }
    }
    return found;
}

void trib_shm_stream_resume(shm_conn *conn)
{
    if (conn->state == SHM_OPEN && conn->paused) {
        conn->paused = false;
        atomic_store_explicit(&conn->in.mine->paused, 0, memory_order_relaxed);
        ask_receiver(conn);
    }
}

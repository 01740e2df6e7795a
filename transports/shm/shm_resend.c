/* shm_resend.c - see shm_resend.h. */
#include "transports/shm/shm_resend.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"

/* The payloads in the ring when the receiver asked, and those that the sender wrote before it saw that: a sender looks
 * before each record, and cannot write more than the ring holds before it sees how far the receiver is. */
#define BACKLOG_BYTES (2u * SHM_RING_BYTES)

/* ---- The receiver ---- */

static void log_once(const shm_conn *conn)
{
    shm_transport *self = conn->transport;
    if (!self->resend_logged) {
        self->resend_logged = true;
        trib_log(
            self->base.reactor->logger, TRIB_LOG_WARN,
            "the memory of process %d of this machine can be read no more (it has forbidden that, or one of the two "
            "has changed its user): its large payloads are copied through a ring from now on",
            (int)conn->peer.pid);
    }
}

void trib_shm_resend_ask(shm_conn *conn)
{
    trib_shm_leases_recall(conn);
    if (conn->state != SHM_OPEN) {
        return;
    }
    trib_assert(conn->done == conn->taken && conn->backlog.bytes == NULL);
    conn->backlog = (shm_backlog){.bytes = malloc(BACKLOG_BYTES)};
    if (conn->backlog.bytes == NULL) {
        trib_shm_conn_end(conn, TRIB_NO_MEMORY, "out of memory for the way around the peer's memory");
        return;
    }
    log_once(conn);
    conn->reads_peer = false;
    conn->gathers = true;
    atomic_store_explicit(&conn->in.mine->unreadable, 1, memory_order_release);
    trib_shm_conn_wake(conn, SHM_WAKE_ON_INPUT | SHM_WAKE_ON_PROGRESS);
}

void trib_shm_resend_gather(shm_conn *conn, const shm_record *record, const unsigned char *behind)
{
    shm_backlog *backlog = &conn->backlog;
    if (record->kind == SHM_RESENT) {
        conn->gathers = false;
        trib_shm_in_take(&conn->in);
        return;
    }
    const uint32_t size = TRIB_HEADER_SIZE + (record->kind == SHM_INLINE ? record->size : 0);
    const bool fits = BACKLOG_BYTES - backlog->used >= sizeof *record + size;
    if (!fits || (record->kind != SHM_INLINE && record->kind != SHM_REMOTE && record->kind != SHM_OFFERED)) {
        trib_shm_conn_end(conn, TRIB_PROTOCOL, "the peer goes on as if its memory could be read");
        return;
    }
    memcpy(backlog->bytes + backlog->used, record, sizeof *record);
    memcpy(backlog->bytes + backlog->used + sizeof *record, behind, size);
    backlog->used += (uint32_t)sizeof *record + size;
    trib_shm_in_take(&conn->in);
    conn->progress_owed = true;
}

bool trib_shm_backlog_next(shm_conn *conn, shm_record *record_out, const unsigned char **behind_out)
{
    shm_backlog *backlog = &conn->backlog;
    if (backlog->at == backlog->used) {
        return false;
    }
    memcpy(record_out, backlog->bytes + backlog->at, sizeof *record_out);
    *behind_out = backlog->bytes + backlog->at + sizeof *record_out;
    backlog->next = backlog->at + (uint32_t)sizeof *record_out + TRIB_HEADER_SIZE +
                    (record_out->kind == SHM_INLINE ? record_out->size : 0);
    trib_assert(backlog->next <= backlog->used);
    return true;
}

void trib_shm_backlog_take(shm_conn *conn)
{
    trib_assert(conn->backlog.next > conn->backlog.at);
    conn->backlog.at = conn->backlog.next;
}

void trib_shm_backlog_free(shm_conn *conn)
{
    free(conn->backlog.bytes);
    conn->backlog = (shm_backlog){.bytes = NULL};
}

/* ---- The sender ---- */

void trib_shm_resend_begin(shm_conn *conn)
{
    const uint64_t done = atomic_load_explicit(&conn->out.peer->done, memory_order_acquire);
    if (done < conn->done_seen || done > conn->remote_written) {
        trib_shm_conn_end(conn, TRIB_PROTOCOL, "the peer reports payloads as read that were not sent");
        return;
    }
    conn->peer_reads = false;
    conn->done_seen = done;
    conn->resend_state = SHM_RESEND_ASKED;
    conn->streamed = 0;
    conn->resend = conn->sends.head;
    uint64_t read = done - conn->remote_reported;
    while (conn->resend != conn->send_next && (conn->resend->payload_size <= SHM_INLINE_MAX || read > 0)) {
        read -= conn->resend->payload_size > SHM_INLINE_MAX;
        conn->resend = conn->resend->next;
    }
    trib_assert(read == 0);
}

/*
 * tcp_stream.c - messages to bytes and bytes to messages, with few system calls.
 *
 * Writing: the messages that were queued in one turn go out together, headers and payloads gathered from where they
 * lie. A short write means that the kernel's buffer is full; the loop reports when it has room.
 *
 * Reading: the rest of a payload goes straight to its target; a buffer behind it catches the messages that follow.
 * Whole small messages therefore cost one copy and a fraction of a system call. Of a large message only the beginning
 * is copied, and that is short because little is read behind a large payload.
 *
 * Invariant: outside an upcall the buffer holds less than a header unless the connection is paused. So nothing that
 * has arrived waits for more to arrive.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <string.h>
#include <sys/uio.h>

#include "engine/base/assert.h"
#include "transports/tcp/tcp_internal.h"

#define IOVECS_MAX 64u
#define WRITES_PER_TURN 16u
#define READS_PER_TURN 16u
#define READ_BYTES_PER_TURN (1u << 20)
#define LARGE_PAYLOAD (32u * 1024u)
#define TAIL_OF_LARGE 1024u
#define BUFFER_OF_ONE_PACKET (64u * 1024u)

/* ---- Writing ---- */

/* Gathers at most one small send buffer: the kernel checks the buffer's size once a packet, and would take more. */
static size_t gather_iovecs(tcp_conn *conn, struct iovec *iovecs, size_t *count_out)
{
    const size_t most =
        conn->backlog_size > 0 && conn->backlog_size <= BUFFER_OF_ONE_PACKET ? conn->backlog_size : SIZE_MAX;
    size_t total = 0;
    size_t count = 0;
    size_t skip = conn->head_sent;
    for (trib_send *send = conn->sends.head; send != NULL && count + 2 <= IOVECS_MAX && total < most;
         send = send->next) {
        if (skip < TRIB_HEADER_SIZE) {
            iovecs[count].iov_base = send->header + skip;
            iovecs[count].iov_len = TRIB_HEADER_SIZE - skip;
            total += iovecs[count++].iov_len;
            skip = 0;
        } else {
            skip -= TRIB_HEADER_SIZE;
        }
        if (send->payload_size > skip) {
            /* struct iovec serves reading too and has no const. */
            iovecs[count].iov_base = (void *)((uintptr_t)send->payload + skip);
            const size_t room = total < most ? most - total : 1; /* a header may have used up the room */
            iovecs[count].iov_len = send->payload_size - skip < room ? send->payload_size - skip : room;
            total += iovecs[count++].iov_len;
        }
        skip = 0;
    }
    *count_out = count;
    return total;
}

/* Counts bytes that the kernel has accepted, and reports the messages that are complete. */
static void advance_sent(tcp_conn *conn, size_t written)
{
    trib_counter_add(&conn->transport->stats.bytes_sent, written);
    trib_tcp_backlog_add(conn, written);
    trib_tcp_silence_written(conn);
    conn->head_sent += written;
    while (conn->sends.head != NULL) {
        trib_send *send = conn->sends.head;
        size_t size = TRIB_HEADER_SIZE + (size_t)send->payload_size;
        if (conn->head_sent < size) {
            break;
        }
        conn->head_sent -= size;
        (void)trib_send_queue_take(&conn->sends);
        trib_counter_add(&conn->transport->stats.messages_sent, 1);
        conn->base.transport->upcalls->sent(&conn->base, send, TRIB_OK);
    }
}

void trib_tcp_stream_drain_and_end(tcp_conn *conn)
{
    if (conn->state == TCP_OPEN && !conn->paused) {
        trib_tcp_stream_read(conn);
    }
    if (conn->state == TCP_OPEN && !conn->paused) {
        /* The turn's share has been read. Only a read that fails or returns 0 shows that the socket is empty, so it
         * is tried again. */
        trib_reactor_defer(conn->base.transport->reactor, &conn->read_post);
    } else {
        trib_tcp_conn_end_errno(conn, "connection lost while sending", conn->write_errno);
    }
}

static void flush_done(tcp_conn *conn)
{
    trib_counter_add(&conn->transport->stats.system_calls, 1);
    shutdown(conn->io.fd, SHUT_WR);
    conn->flushed = true;
    trib_tcp_conn_end(conn, TRIB_OK, "closed by this side");
}

void trib_tcp_stream_write(tcp_conn *conn)
{
    struct iovec iovecs[IOVECS_MAX];
    unsigned writes = 0;
    trib_tcp_backlog_fit(conn);
    while ((conn->state == TCP_OPEN || conn->state == TCP_FLUSHING) && conn->sends.head != NULL &&
           conn->write_errno == 0) {
        if (writes++ == WRITES_PER_TURN) {
            trib_reactor_defer(conn->base.transport->reactor, &conn->flush_post);
            return;
        }
        struct msghdr message = {.msg_iov = iovecs};
        size_t count = 0;
        size_t total = gather_iovecs(conn, iovecs, &count);
        message.msg_iovlen = count;
        trib_counter_add(&conn->transport->stats.system_calls, 1);
        ssize_t written = sendmsg(conn->io.fd, &message, MSG_NOSIGNAL);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written < 0 && errno != EAGAIN) {
            conn->write_errno = errno;
            trib_tcp_stream_drain_and_end(conn);
            return;
        }
        bool full = written < (ssize_t)total;
        if (written > 0) {
            advance_sent(conn, (size_t)written);
        }
        if (full) {
            conn->want_write = true;
            trib_tcp_conn_watch(conn);
            return;
        }
    }
    if (conn->state == TCP_FLUSHING && conn->sends.head == NULL) {
        flush_done(conn);
    }
}

/* ---- Reading ---- */

static void read_ended(tcp_conn *conn, ssize_t got, int error)
{
    if (got < 0) {
        trib_tcp_conn_end_errno(conn, "connection lost", conn->write_errno != 0 ? conn->write_errno : error);
        return;
    }
    conn->peer_ended = true;
    bool inside = conn->phase != TCP_PHASE_HEADER || conn->end > conn->begin;
    trib_tcp_conn_end(conn, TRIB_PEER_LOST, "%s",
                      inside ? "connection ended inside a message" : "connection closed by the peer");
}

/* Asks the receiver where the payload goes. False if there is nothing more to do now. */
static bool ask_receiver(tcp_conn *conn)
{
    conn->target = (trib_recv_target){.buffer = NULL};
    conn->asking = true;
    conn->resume_asked = false;
    trib_status status = conn->base.transport->upcalls->header(&conn->base, conn->header, &conn->target);
    conn->asking = false;
    if (conn->state != TCP_OPEN) {
        return false;
    }
    if (status == TRIB_AGAIN) {
        conn->paused = true;
        if (conn->resume_asked) {
            trib_tcp_recv_resume(&conn->base);
        }
        return false;
    }
    if (status != TRIB_OK) {
        trib_tcp_conn_end(conn, status, "message refused: %s", trib_status_text(status));
        return false;
    }
    trib_assert(conn->target.payload_size <= TRIB_PAYLOAD_MAX);
    trib_assert(conn->target.buffer != NULL || conn->target.payload_size == 0);
    conn->payload_got = 0;
    conn->last_payload_size = conn->target.payload_size;
    conn->phase = TCP_PHASE_PAYLOAD;
    return true;
}

/* False if the payload is not complete yet. */
static bool take_payload(tcp_conn *conn)
{
    size_t there = conn->end - conn->begin;
    size_t missing = conn->target.payload_size - conn->payload_got;
    size_t take = there < missing ? there : missing;
    if (take > 0) {
        memcpy((unsigned char *)conn->target.buffer + conn->payload_got, conn->buffer + conn->begin, take);
        conn->begin += take;
        conn->payload_got += (uint32_t)take;
        trib_counter_add(&conn->transport->stats.bytes_copied, take);
    }
    if (conn->payload_got < conn->target.payload_size) {
        return false;
    }
    conn->phase = TCP_PHASE_HEADER;
    trib_counter_add(&conn->transport->stats.messages_received, 1);
    conn->base.transport->upcalls->received(&conn->base, conn->header, conn->target.buffer, conn->target.payload_size);
    return conn->state == TCP_OPEN;
}

void trib_tcp_stream_consume(tcp_conn *conn)
{
    bool more = conn->state == TCP_OPEN && !conn->paused;
    while (more) {
        switch (conn->phase) {
        case TCP_PHASE_HEADER:
            more = conn->end - conn->begin >= TRIB_HEADER_SIZE;
            if (more) {
                memcpy(conn->header, conn->buffer + conn->begin, TRIB_HEADER_SIZE);
                conn->begin += TRIB_HEADER_SIZE;
                conn->phase = TCP_PHASE_ASK;
            }
            break;
        case TCP_PHASE_ASK:
            more = ask_receiver(conn);
            break;
        case TCP_PHASE_PAYLOAD:
            more = take_payload(conn);
            break;
        }
    }
    if (conn->begin == conn->end) {
        conn->begin = conn->end = 0;
    } else if (conn->begin > 0 && !conn->paused) {
        memmove(conn->buffer, conn->buffer + conn->begin, conn->end - conn->begin);
        conn->end -= conn->begin;
        conn->begin = 0;
    }
}

/* One read: the rest of the payload first, then the buffer. *wanted_out is the number of bytes asked for. */
static ssize_t read_some(tcp_conn *conn, size_t *wanted_out)
{
    struct iovec iovecs[2];
    int count = 0;
    size_t room = TRIB_TCP_BUFFER_SIZE - conn->end;
    if (conn->last_payload_size > LARGE_PAYLOAD && room > TAIL_OF_LARGE) {
        room = TAIL_OF_LARGE;
    }
    size_t missing = 0;
    if (conn->phase == TCP_PHASE_PAYLOAD) {
        missing = conn->target.payload_size - conn->payload_got;
        trib_assert(missing > 0 && conn->begin == conn->end);
        iovecs[count].iov_base = (unsigned char *)conn->target.buffer + conn->payload_got;
        iovecs[count++].iov_len = missing;
    }
    trib_assert(room > 0);
    iovecs[count].iov_base = conn->buffer + conn->end;
    iovecs[count++].iov_len = room;
    *wanted_out = missing + room;
    trib_counter_add(&conn->transport->stats.system_calls, 1);
    ssize_t got = readv(conn->io.fd, iovecs, count);
    if (got > 0) {
        size_t payload_got = (size_t)got < missing ? (size_t)got : missing;
        conn->payload_got += (uint32_t)payload_got;
        conn->end += (size_t)got - payload_got;
        trib_counter_add(&conn->transport->stats.bytes_received, (size_t)got);
    }
    return got;
}

void trib_tcp_stream_read(tcp_conn *conn)
{
    size_t bytes = 0;
    for (unsigned reads = 0; reads < READS_PER_TURN && bytes < READ_BYTES_PER_TURN; reads++) {
        if (conn->phase == TCP_PHASE_ASK) {
            return; /* recv_resume was called: read_post calls `header` before more is read */
        }
        size_t wanted = 0;
        ssize_t got = read_some(conn, &wanted);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0 && errno == EAGAIN) {
            if (conn->write_errno != 0) {
                trib_tcp_conn_end_errno(conn, "connection lost while sending", conn->write_errno);
            }
            return;
        }
        if (got <= 0) {
            read_ended(conn, got, errno);
            return;
        }
        bytes += (size_t)got;
        trib_tcp_stream_consume(conn);
        if (conn->paused && conn->write_errno != 0) {
            trib_tcp_conn_end_errno(conn, "connection lost while sending", conn->write_errno);
        }
        const bool is_short = (size_t)got < wanted; /* the socket is empty, and the loop reports when it is not */
        if (is_short && conn->phase == TCP_PHASE_HEADER && conn->begin == conn->end) {
            trib_tcp_backlog_read_all(conn);
        }
        if (conn->state != TCP_OPEN || conn->paused || (is_short && conn->write_errno == 0)) {
            return;
        }
    }
}

bool trib_tcp_stream_discard(tcp_conn *conn)
{
    for (unsigned reads = 0; reads < READS_PER_TURN; reads++) {
        trib_counter_add(&conn->transport->stats.system_calls, 1);
        ssize_t got = recv(conn->io.fd, conn->buffer, sizeof conn->buffer, 0);
        if (got == 0) {
            return true;
        }
        if (got < 0) {
            return errno != EAGAIN && errno != EINTR;
        }
    }
    return false;
}

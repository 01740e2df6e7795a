/*
 * shm_resend.h - sends payloads again when one side loses the right to read the other's memory while both are
 * connected.
 *
 * A process may forbid to be read (prctl(PR_SET_DUMPABLE, 0)), or give up privileges: the kernel then rejects the next
 * read. By then payloads lie in the sender's memory for which only a header is in the ring, and behind these headers
 * there are messages whose buffers the sender has given back.
 *
 * So the receiver says in the segment that it cannot read any more, and moves what is in the ring into a backlog of its
 * own, until the sender's SHM_RESENT. Behind that record the sender writes the payloads that were not read, in
 * fragments and in order, and from then on every large payload. The receiver goes through the backlog and takes the
 * payloads that are missing there from the ring. Each direction does this once at most.
 */
#ifndef TRIB_TRANSPORTS_SHM_SHM_RESEND_H
#define TRIB_TRANSPORTS_SHM_SHM_RESEND_H

#include "transports/shm/shm_internal.h"

/* ---- The receiver ---- */

/* The payload of the record that was taken last could not be read, and shall come through the ring. May end the
 * connection. */
void trib_shm_resend_ask(shm_conn *conn);
/* A record that came while the backlog is filled. May end the connection. */
void trib_shm_resend_gather(shm_conn *conn, const shm_record *record, const unsigned char *behind);
/* The first record of the backlog; false: there is none. It stays until trib_shm_backlog_take. */
bool trib_shm_backlog_next(shm_conn *conn, shm_record *record_out, const unsigned char **behind_out);
void trib_shm_backlog_take(shm_conn *conn);
void trib_shm_backlog_free(shm_conn *conn);

/* ---- The sender ---- */

/* True if the receiver asks for the first time. */
static inline bool trib_shm_resend_is_asked(const shm_conn *conn)
{
    return conn->peer_reads && atomic_load_explicit(&conn->out.peer->unreadable, memory_order_acquire) != 0;
}

/* Finds the payloads that were not read. May end the connection. */
void trib_shm_resend_begin(shm_conn *conn);

#endif

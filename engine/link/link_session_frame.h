/* link_session_frame.h - the work of a session (link_session.h) for each frame. For the files of the link. */
#ifndef TRIB_ENGINE_LINK_LINK_SESSION_FRAME_H
#define TRIB_ENGINE_LINK_LINK_SESSION_FRAME_H

#include "engine/link/link.h"

#define TRIB_SESSION_ACK_BYTES (1u << 20) /* an ACK goes after this many bytes that no other frame has acknowledged */

/* True for a frame that the session counts. */
static inline bool trib_session_counts(const trib_link *link, trib_frame_type type)
{
    return link->session.is_kept && type > TRIB_FRAME_WELCOME && type != TRIB_FRAME_ACK;
}

/* Takes the frame into the session, to be kept. */
static inline void trib_session_keep(trib_link *link, trib_send_record *out)
{
    trib_link_session *session = &link->session;
    trib_assert((session->first == NULL) == (session->last == NULL) && out->is_counted && !out->is_out);
    trib_assert(session->last == NULL || session->last->number + 1 == session->sent); /* numbers have no gaps */
    out->number = session->sent++;
    out->next = NULL;
    if (session->last != NULL) {
        session->last->next = out;
    } else {
        session->first = out;
    }
    session->last = out;
}

/* Notes that a frame tells the peer how many were received, and returns that number. */
static inline uint64_t trib_session_put_count(trib_link *link)
{
    trib_assert(link->session.told <= link->session.received);
    link->session.told = link->session.received;
    link->session.unacknowledged_bytes = 0;
    return link->session.received;
}

/* Counts a received frame, before the upper layer gets it. A frame that is damaged each time comes first on each new
 * connection, right after the handshake, so any other sound frame shows that it is not. */
static inline void trib_session_received(trib_link *link, const trib_frame *frame)
{
    trib_link_session *session = &link->session;
    link->redial.damaged = frame->type > TRIB_FRAME_WELCOME ? 0 : link->redial.damaged;
    if (!trib_session_counts(link, frame->type)) {
        return;
    }
    session->received++;
    session->unacknowledged_bytes += TRIB_HEADER_SIZE + frame->payload_size;
    if (session->unacknowledged_bytes >= TRIB_SESSION_ACK_BYTES || frame->type == TRIB_FRAME_BYE) {
        trib_session_acknowledge(link);
    } else if (!session->ack.armed) {
        trib_session_await_ack(link);
    }
}

#endif

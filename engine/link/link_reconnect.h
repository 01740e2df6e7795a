/*
 * link_reconnect.h - a link whose connection breaks gets another one.
 *
 * - The connector of a link connects again, to the addresses of its peer in turns, after waits that grow. It proves the
 *   token as on the first connection and names the session (link_session.h). Both sides tell how much they have
 *   received, and send the rest again.
 * - The acceptor waits for that. Meanwhile it calls (link_call.h).
 * - A link is lost at once if every address of the peer refuses, because the process has gone then, or if a process
 *   answers that does not know the session. It is lost when the peer timeout has passed since the break. While this
 *   process hears the coordinator, which would tell of a loss, it has three times as long: the way to the peer may be
 *   narrow. A control link has not.
 * - A link that has not been READY yet is tried again in the same way, until the deadline of its handshake. A control
 *   link is not, once each address was tried: its member tries anew.
 *
 * A connection that answers is first held by a link of its own, the successor, which ends when the link has taken the
 * connection over. The earlier connection has had its `closed` before.
 */
#ifndef TRIB_ENGINE_LINK_LINK_RECONNECT_H
#define TRIB_ENGINE_LINK_LINK_RECONNECT_H

#include "engine/link/link.h"

/* Prepares the timer of a new link. */
void trib_redial_open(trib_link *link);
/* Makes the link one that a peer's handshake can name, until it closes. Returns false if memory runs out. */
TRIB_CHECKED bool trib_redial_note_session(trib_link *link);
/* No peer can name the link any more. */
void trib_redial_forget(trib_link *link);
/* Stops the search for another connection of the link, because the link ends. */
void trib_redial_close(trib_link *link);

/* Begins the first connection of a link. TRIB_SYSTEM with errno, or TRIB_NO_MEMORY: it cannot be tried. */
TRIB_CHECKED trib_status trib_redial_begin(trib_link *link, const trib_address *to);
/* The peer has these addresses now. */
void trib_redial_set_addresses(trib_link *link, const trib_address *to);
/* Returns the attempt number that a connector's handshake claims. A call claims the number of the connection that
 * broke. */
uint32_t trib_redial_attempt(trib_link *link);
/* The number of the peer's addresses. */
uint32_t trib_redial_addresses(const trib_link *link);
/* Looks for the peer again after that time: by a new connection, or by a call. */
void trib_redial_arm(trib_link *link, int64_t after_ns);
/* Returns the pause before the next attempt. */
int64_t trib_redial_wait(const trib_link *link);
/* The link's new connection is there, and the handshake begins. */
void trib_redial_connected(trib_link *link);
/* The connection of the link has ended, and nobody ended the link. Returns true if the link goes on without it. */
TRIB_CHECKED bool trib_redial_connection_lost(trib_link *link, const trib_conn *conn, trib_status status,
                                              const char *reason);
/* True if the link gets another connection when this one ends with that status. */
TRIB_CHECKED bool trib_redial_may_go_on(const trib_link *link, trib_status status);
/* Another connection of an established link has passed its handshake; the peer has received that many frames. */
TRIB_CHECKED trib_status trib_redial_succeeded(trib_link *link, uint64_t received, trib_error *error);

/* The acceptor's answer to a candidate that has proved the token and names a session. */
typedef enum trib_resume_answer {
    TRIB_RESUME_NEW,    /* the session begins: the candidate is the link */
    TRIB_RESUME_TAKEN,  /* the candidate is a successor */
    TRIB_RESUME_CALLED, /* the candidate has called, and its link connects again */
    TRIB_RESUME_GONE,   /* there is no such session any more */
    TRIB_RESUME_STALE,  /* the candidate is outdated */
} trib_resume_answer;
trib_resume_answer trib_redial_take(trib_link *candidate);
/* The transport has reported a frame of a connection that may take the place of a link's. */
void trib_redial_sent(const trib_link *candidate);

#endif

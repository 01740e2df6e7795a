/* link_handshake.h - the life of a link before it is READY: both sides prove the token, within a deadline. */
#ifndef TRIB_ENGINE_LINK_LINK_HANDSHAKE_H
#define TRIB_ENGINE_LINK_LINK_HANDSHAKE_H

#include "engine/link/link.h"

/* Starts the link's deadline, TRIB_HANDSHAKE_TIMEOUT_NS from now: the link closes then. */
void trib_link_handshake_arm(trib_link *link);
/* Starts it so long from now, and calls overdue then. Time in which this process stood still does not count. */
void trib_link_limit(trib_link *link, int64_t limit_ns, void (*overdue)(trib_link *link));
/* The same, TRIB_HANDSHAKE_TIMEOUT_NS from now. */
void trib_link_handshake_limit(trib_link *link, void (*overdue)(trib_link *link));
/* Tells the connector that the handshake is over, and how many frames this side has received. */
void trib_link_handshake_welcome(trib_link *link);
/* Sends HELLO once the connector's transport is connected. */
void trib_link_handshake_begin(trib_link *link);
/* Upcalls as in link.h, for frames that come before the link is READY. */
trib_status trib_link_handshake_header(trib_link *link, const trib_frame *frame, trib_recv_target *target,
                                       trib_error *error);
trib_status trib_link_handshake_received(trib_link *link, const trib_frame *frame, const void *payload,
                                         trib_error *error);
/* Turns a stranger away and tells it why: it has another version, or another token. Without an answer it would only
 * try again. The BYE has no payload, so that other versions can read it. */
void trib_link_handshake_reject(trib_link *link, trib_status status, const char *reason);
/* True if the peer accepts frames from this side, because it has this side's proof or gets it before them. */
bool trib_link_handshake_may_send(const trib_link *link);
/* Returns how many connections a reactor may get at once: two from every reactor of every member, or one for each
 * network if there are several. */
uint32_t trib_link_handshake_at_once(const struct trib_engine *engine);
/* Makes room for an accepted connection: the oldest half-open link ends if there are too many. */
void trib_link_handshake_make_room(trib_link_host *host);
/* Notes that the accepted link has proved nothing yet. */
void trib_link_handshake_note_half_open(trib_link *link);
/* The link is not half-open any more, or never was. */
void trib_link_handshake_forget_half_open(trib_link *link);
/* The peer has proved the token, or the link is rejected without a line about a stranger. */
void trib_link_handshake_note_proved(trib_link *link);
/* Ends all half-open links of the reactor. Returns false if there were none. */
bool trib_link_handshake_send_away(trib_link_host *host);
/* Ends half-open links that nobody has turned away yet, because the host is closed and none of its links leaves. */
void trib_link_handshake_stop(trib_link_host *host);
/* Logs and counts an accepted connection that ended before it proved the token. link->state is the state in which it
 * ended. */
void trib_link_handshake_refused(trib_link *link, trib_conn *conn);

/* Checks the epoch of a PROOF, and keeps it. Only a process that has the roster may make other connections than to the
 * coordinator; this process compares the epoch when it has the roster itself. */
TRIB_CHECKED trib_status trib_link_handshake_check_epoch(trib_link *link, const trib_frame *frame, trib_error *error);

#endif

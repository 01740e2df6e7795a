/* link_handshake.h - the part of a link's life before it is READY: both sides prove the token, each with a deadline. */
#ifndef TRIB_ENGINE_LINK_LINK_HANDSHAKE_H
#define TRIB_ENGINE_LINK_LINK_HANDSHAKE_H

#include "engine/link/link.h"

/* Starts the link's deadline, TRIB_HANDSHAKE_TIMEOUT_NS from now. */
void trib_link_handshake_arm(trib_link *link);
/* The connector's transport is connected: sends HELLO. */
void trib_link_handshake_begin(trib_link *link);
/* As the upcalls of a link (link.h), for frames that come before it is READY. */
trib_status trib_link_handshake_header(trib_link *link, const trib_frame *frame, trib_recv_target *target,
                                       trib_error *error);
trib_status trib_link_handshake_received(trib_link *link, const trib_frame *frame, const void *payload,
                                         trib_error *error);
/* Does the peer take frames from this side? It has this side's proof, or that is on its way and comes first. */
bool trib_link_handshake_lets_speak(const trib_link *link);
/* How many connections may come to a reactor at once: from every reactor of every member two, or one by each network.
 * */
uint32_t trib_link_handshake_at_once(const struct trib_engine *engine);
/* Another connection has been accepted: where too many have not proved the token, the oldest of them ends. */
void trib_link_handshake_make_room(trib_link_host *host);
/* Ends all half-open links of the reactor. False: there were none. */
bool trib_link_handshake_send_away(trib_link_host *host);
/* An accepted connection ended before it proved the token: one log line, and a count. link->state is the one that it
 * ended in. */
void trib_link_handshake_refused(trib_link *link, trib_conn *conn);

#endif

/* link_handshake.h - the part of a link's life before it is READY. */
#ifndef TRIB_ENGINE_LINK_LINK_HANDSHAKE_H
#define TRIB_ENGINE_LINK_LINK_HANDSHAKE_H

#include "engine/link/link.h"

void trib_link_handshake_arm(trib_link *link);   /* starts its deadline */
void trib_link_handshake_begin(trib_link *link); /* connector: the transport is connected */
trib_status trib_link_handshake_header(trib_link *link, const trib_frame *frame, trib_recv_target *target,
                                       trib_error *error);
trib_status trib_link_handshake_received(trib_link *link, const trib_frame *frame, const void *payload,
                                         trib_error *error);
/* Whether the peer takes what is sent: it has this one's proof, or that is on its way and comes first. */
bool trib_link_handshake_lets_speak(const trib_link *link);
/* How many connections may come to a core at once: all members, each with two from every reactor that it has,
 * or one by each network. */
uint32_t trib_link_handshake_at_once(const struct trib_engine *engine);
/* Another connection has been accepted: where too many have not proved the token, the oldest of them ends. */
void trib_link_handshake_make_room(trib_link_host *host);
/* Ends all that have come and not proved the token. False: there were none. */
bool trib_link_handshake_send_away(trib_link_host *host);
/* An accepted connection ended before it proved the token, in the state that it still has: one log line, and a count. */
void trib_link_handshake_refused(trib_link *link, trib_conn *conn);

#endif

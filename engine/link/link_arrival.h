/*
 * link_arrival.h - frames of a link whose headers have been taken and whose payloads are on their way: where each
 * lands, and what must be told if it never arrives. For link.c; trib_link_is_receiving is in link.h.
 */
#ifndef TRIB_ENGINE_LINK_LINK_ARRIVAL_H
#define TRIB_ENGINE_LINK_LINK_ARRIVAL_H

#include "engine/link/link.h"

/* Asks the upper layer (or the handshake) where the payload shall land. TRIB_OK: the frame is one of the arrivals from
 * here on. */
TRIB_CHECKED trib_status trib_link_arrival_begin(trib_link *link, const trib_frame *frame, trib_recv_target *target,
                                                 trib_error *error);
/* Takes the oldest arrival, of which there must be one. It stays where it is until the next header comes. */
const trib_arrival *trib_link_arrival_take(trib_link *link);
/* The arrival's payload is there: gives it to the upper layer, or to the handshake. */
TRIB_CHECKED trib_status trib_link_arrival_give(trib_link *link, const trib_arrival *arrival, const void *payload,
                                                trib_error *error);
/* No payload of these will arrive any more: each claim is abandoned. */
void trib_link_arrivals_abandon(trib_link *link);

#endif

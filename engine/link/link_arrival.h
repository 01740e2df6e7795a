/*
 * link_arrival.h - the frames of a link whose headers were accepted and whose payloads are on their way.
 *
 * Each arrival records where its payload lands, and whom to tell if the payload never comes. For link.c only;
 * trib_link_is_receiving is declared in link.h.
 */
#ifndef TRIB_ENGINE_LINK_LINK_ARRIVAL_H
#define TRIB_ENGINE_LINK_LINK_ARRIVAL_H

#include "engine/link/link.h"

/* Asks the upper layer (or the handshake) where the payload shall land. TRIB_OK: the frame is the newest arrival
 * now. */
TRIB_CHECKED trib_status trib_link_arrival_begin(trib_link *link, const trib_frame *frame, trib_recv_target *target,
                                                 trib_error *error);
/* Removes the oldest arrival, which must exist. Its memory is valid until the next header comes. */
const trib_arrival *trib_link_arrival_take(trib_link *link);
/* Gives the arrival's complete payload to the upper layer, or to the handshake. */
TRIB_CHECKED trib_status trib_link_arrival_give(trib_link *link, const trib_arrival *arrival, const void *payload,
                                                trib_error *error);
/* Abandons the claim of an arrival that was taken, because its payload is worthless. */
void trib_link_arrival_abandon(trib_link *link, const trib_arrival *arrival);
/* Abandons the claims of all arrivals, because their payloads will never come. */
void trib_link_arrivals_abandon(trib_link *link);

#endif

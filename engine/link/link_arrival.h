/*
 * link_arrival.h - frames of a link whose headers have been taken and whose payloads are on their way: whom they are for, where
 * they land, and whom to tell that they never will. For link.c; trib_link_is_receiving is in link.h.
 */
#ifndef TRIB_ENGINE_LINK_LINK_ARRIVAL_H
#define TRIB_ENGINE_LINK_LINK_ARRIVAL_H

#include "engine/link/link.h"

/* Asks who it is for where the payload shall land; TRIB_OK: it is one of the arrivals from here on. */
TRIB_CHECKED trib_status trib_link_arrival_begin(trib_link *link, const trib_frame *frame, trib_recv_target *target,
                                                 trib_error *error);
/* The oldest. It stays where it is until the next header comes. */
const trib_arrival *trib_link_arrival_take(trib_link *link);
/* Its payload is there. */
TRIB_CHECKED trib_status trib_link_arrival_give(trib_link *link, const trib_arrival *arrival, const void *payload,
                                                trib_error *error);
/* None of them will be. */
void trib_link_arrivals_abandon(trib_link *link);

#endif

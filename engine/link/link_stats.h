/*
 * link_stats.h - what a reactor's links carry, counted by peer for the rebalancing of shares. Where shares stay as they are
 * nothing is counted.
 *
 * A reactor counts, of each peer, the bytes that its links have handed to the transport and got back, and for how long some
 * were there. Where the transport counts for how long some were under way (its network is slow), that counts instead: a
 * peer that gets little credit seldom has any, also where all links are full.
 */
#ifndef TRIB_ENGINE_LINK_LINK_STATS_H
#define TRIB_ENGINE_LINK_LINK_STATS_H

#include "engine/link/link.h"

/* Written on the reactor's thread, read on core 0. */
typedef struct trib_link_stats {
    trib_counter bytes, busy_ns;
    _Atomic uint32_t links;      /* that it is about; they only grow in number */
    _Atomic uint32_t busy_links; /* of those: something is with the transport */
} trib_link_stats;

/* Around every change of link->in_flight: bytes are about to be handed over, or have come back. */
void trib_link_stats_handed(trib_link *link);
void trib_link_stats_returned(trib_link *link, uint32_t bytes);

#endif

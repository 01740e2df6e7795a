/*
 * link_stats.h - counts, by peer, the bytes that a reactor's links carry and how busy they are, for the rebalancing of
 * shares. Where shares stay as they are nothing is counted.
 *
 * A reactor counts, for each peer, the bytes that its links have handed to the transport and got back, and for how long
 * some were with the transport. A transport of a slow network counts itself for how long bytes were in flight, which is
 * taken instead: a peer that gets little credit seldom has bytes with the transport, even where its link is full.
 */
#ifndef TRIB_ENGINE_LINK_LINK_STATS_H
#define TRIB_ENGINE_LINK_LINK_STATS_H

#include "engine/link/link.h"

/* Written on the reactor's thread, read on core 0. */
typedef struct trib_link_stats {
    trib_counter bytes, busy_ns;
    _Atomic uint32_t links;      /* links that have been counted; never falls */
    _Atomic uint32_t busy_links; /* those of them that have bytes with the transport */
} trib_link_stats;

/* Around every change of link->in_flight: bytes are about to be handed over, or have come back. */
void trib_link_stats_handed(trib_link *link);
void trib_link_stats_returned(trib_link *link, uint32_t bytes);

#endif

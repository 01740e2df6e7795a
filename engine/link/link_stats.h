/*
 * link_stats.h - counts the bytes that a reactor's links carry to each peer, and how long the links are busy. The
 * rebalancing of shares uses the counts, and nothing is counted where shares are fixed.
 *
 * For each peer a reactor counts the bytes that the transport has sent, and for how long the transport held any. The
 * transport of a slow network counts itself for how long bytes were in flight, and its count is used instead. The
 * reason is that a link with little credit seldom has bytes with the transport, even if its network is full.
 */
#ifndef TRIB_ENGINE_LINK_LINK_STATS_H
#define TRIB_ENGINE_LINK_LINK_STATS_H

#include "engine/link/link.h"

/* The reactor's thread writes it, and core 0 reads it. */
typedef struct trib_link_stats {
    trib_counter bytes, busy_ns;
    _Atomic uint32_t links;      /* number of links that have been counted; never decreases */
    _Atomic uint32_t busy_links; /* links among them that have bytes with the transport */
} trib_link_stats;

/* Both are called just before link->in_flight changes: before bytes are handed over, and when they have returned. */
void trib_link_stats_handed(trib_link *link);
void trib_link_stats_returned(trib_link *link, uint32_t bytes);

#endif

/*
 * link_priority.h - a second connection of a link, for small urgent requests while much is on its way over the first.
 *
 * Chunks that a transport has taken cannot be overtaken any more: they wait to be written, or lie in the kernel's
 * buffers. A small request of higher priority takes the link's second connection, the priority link, where nothing is
 * ahead of it but packets in the network itself. The priority link is made when it is wanted for the first time (until
 * it is there the first one serves), to the same reactor of the same member, and proves the token as any other; only
 * over transports that queue.
 *
 * A priority link is a trib_link of its own that its main link owns. It has no outbox: it takes the request that is
 * first in the main link's, one at a time, so that a later and more urgent one goes next (scheduler.h). Frames that
 * arrive on it are given to the main link's upper layer. The two live and end as one: closing either closes both, a
 * loss of either is a loss of the link, and the upper layer's `closed` comes when both have gone. A peer that leaves in
 * good order ends both by itself, and frames that are still on their way over the one when the other ends are received.
 *
 * Between the two there is no order. So only a request that needs none has TRIB_ROUTE_ANY: a sum may come before
 * others, and a round's contributions before others' if those of the round before have been acknowledged by its sum
 * (where they went to the same owner: see tensor_move.c). Partial sums and refusals (relay.h) need their order, and
 * stay on the main link.
 */
#ifndef TRIB_ENGINE_LINK_LINK_PRIORITY_H
#define TRIB_ENGINE_LINK_LINK_PRIORITY_H

#include "engine/link/link.h"

/* Bytes: fits, with its header, the ten segments that a connection may send at once after a pause. A larger message
 * takes its time by itself, and would be in the way of more urgent ones. */
#define TRIB_LINK_PRIORITY_BYTES_MAX (12u << 10)

/* Is a request of that size worth a priority link? A barrier, of no bytes, is not: beside a priority link the buffers
 * of the main one are kept small, which costs it speed. */
static inline bool trib_link_priority_fits(uint64_t bytes)
{
    return bytes > 0 && bytes <= TRIB_LINK_PRIORITY_BYTES_MAX;
}

/* The upcalls of a connection that has a main one; of a subflow too (link_subflow.h). */
extern const trib_link_upcalls trib_link_second_upcalls;

/* Can frames that go over the link be overtaken over another connection? */
static inline bool trib_link_priority_is_possible(const trib_link *link)
{
    return link->conn != NULL && !link->forks && (link->conn->transport->ops->flags & TRIB_TRANSPORT_QUEUES) != 0;
}

/* Makes the link's priority link, which it does not have; one that cannot be made is not tried again. */
void trib_link_priority_connect(trib_link *link);

/* The main link of an accepted second connection that has proved itself; NULL: there is none, or it has no place for
 * another. Asked before the peer is told that the connection is ready: one that the peer has begun to use cannot end
 * alone any more. */
trib_link *trib_link_find_main(const trib_link *link);
/* Gives a second connection to its main link, which must be there. */
void trib_link_attach_to_main(trib_link *link);
/* A second connection has gone, and what waited for it has been given back; it is freed next. True: its main link's
 * connections have all gone, and the end of that comes after it. */
TRIB_CHECKED bool trib_link_detach_from_main(trib_link *link);

#endif

/*
 * link_priority.h - a second connection of a link, for small urgent requests.
 *
 * A chunk that a transport has taken cannot be overtaken: it waits to be written, or lies in the kernel's buffers. So a
 * small request of higher priority takes the priority link, a second connection of the link. Nothing is ahead of it
 * there except packets in the network. The priority link is made when it is first needed, to the same reactor of the
 * same member, and proves the token like any link. Until it is ready the main connection is used. Only transports that
 * queue have priority links.
 *
 * A priority link is a trib_link owned by its main link. It has no outbox. It takes the first request of the main
 * link's outbox, one at a time, so that a later and more urgent request goes next (scheduler.h). Frames that arrive on
 * it are given to the main link's upper layer.
 *
 * The two connections live and end together. Closing one closes both, and a loss of one is a loss of the link. The
 * upper layer's `closed` comes when both have gone. A peer that leaves in good order ends each by itself, so frames
 * still on their way over one are received after the other has ended.
 *
 * The two connections have no common order, so only a request that needs no order has TRIB_ROUTE_ANY. A sum may come
 * before other sums. The contributions of a round may come before others if the sum of the round before has
 * acknowledged that round's contributions. Both rounds must have the same owner then (tensor_move.c). Partial sums and
 * refusals (relay.h) need their order, and stay on the main link.
 */
#ifndef TRIB_ENGINE_LINK_LINK_PRIORITY_H
#define TRIB_ENGINE_LINK_LINK_PRIORITY_H

#include "engine/link/link.h"

/* In bytes. A request of this size fits, with its header, into the ten segments that a connection may send at once
 * after a pause. A larger one takes longer, and would delay more urgent requests. */
#define TRIB_LINK_PRIORITY_BYTES_MAX (12u << 10)

/* True if a request of that size is worth a priority link. A barrier, which has no bytes, is not: the main link's
 * buffers stay small beside a priority link, which makes the main link slower. */
static inline bool trib_link_priority_fits(uint64_t bytes)
{
    return bytes > 0 && bytes <= TRIB_LINK_PRIORITY_BYTES_MAX;
}

/* Upcalls of every second connection, a subflow (link_subflow.h) included. */
extern const trib_link_upcalls trib_link_second_upcalls;

/* True if another connection can overtake frames on this link. */
static inline bool trib_link_priority_is_possible(const trib_link *link)
{
    return link->conn != NULL && !link->forks && (link->conn->transport->ops->flags & TRIB_TRANSPORT_QUEUES) != 0;
}

/* Makes the link's priority link, which must not exist yet. A priority link that cannot be made is not tried again. */
void trib_link_priority_connect(trib_link *link);

/* Finds the main link of an accepted second connection that has proved the token. NULL: there is none, or it has no
 * free place. Call this before the peer is told that the connection is ready, because a connection that the peer has
 * begun to use cannot end alone. */
trib_link *trib_link_find_main(const trib_link *link);
/* Gives a second connection to its main link, which must exist. */
void trib_link_attach_to_main(trib_link *link);
/* Removes a second connection that has gone from its main link, after its requests were dropped; the caller frees it.
 * Returns true if all connections of the main link have gone, so that the caller must end the main link, too. */
TRIB_CHECKED bool trib_link_detach_from_main(trib_link *link);

#endif

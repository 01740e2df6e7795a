/*
 * link_priority.h - a second connection of a link, for little that is urgent while much is on its way over the first.
 *
 * What a transport has taken cannot be overtaken any more: chunks that wait to be written, bytes in the kernel's buffers.
 * Something of higher priority than those, and small, takes the link's second connection, where nothing is ahead of it
 * but what lies in the network itself. It is made when it is wanted for the first time (until it is there the first one
 * serves), to the same reactor of the same member, and proves the token as any other; only over transports that queue.
 *
 * It is a trib_link of its own that its main one owns. It has no outbox: it takes what is first in the main one's, a message
 * at a time, so that what comes later and is more urgent goes next. What arrives on it is the main one's upper layer's.
 * The two live and end as one: whoever closes either closes both, a loss of either is a loss of the link,
 * and the upper layer's `closed` comes when both have gone. A peer that leaves in good order ends both by itself, and what
 * is still on its way over the one when the other ends is received.
 *
 * Between the two there is no order. So only who can do without it asks for TRIB_ROUTE_ANY: a sum may come before others,
 * and a round's contributions before others' if those of the round before have been acknowledged by its sum (where they went to
 * the same owner: see tensor_move.c). What parts of
 * sums and of refusals (relay.h) need to be in order stays on the main one.
 */
#ifndef TRIB_ENGINE_LINK_LINK_PRIORITY_H
#define TRIB_ENGINE_LINK_LINK_PRIORITY_H

#include "engine/link/link.h"

/* Fits, with its header, the ten segments that a connection may send at once after a pause. What is larger takes its time by
 * itself, and would be in the way of what is more urgent. */
#define TRIB_LINK_PRIORITY_BYTES_MAX (12u << 10)

/* A barrier is not worth it: its bytes are few, but a second connection costs the first ones, whose buffers become small. */
static inline bool trib_link_priority_fits(uint64_t bytes)
{
    return bytes > 0 && bytes <= TRIB_LINK_PRIORITY_BYTES_MAX;
}

/* The upcalls of a connection that has a main one; of a subflow too (link_subflow.h). */
extern const trib_link_upcalls trib_link_second_upcalls;

/* Can what is sent over it be overtaken over another connection? */
static inline bool trib_link_priority_is_possible(const trib_link *link)
{
    return link->conn != NULL && !link->forks && (link->conn->transport->ops->flags & TRIB_TRANSPORT_QUEUES) != 0;
}

/* Makes the link's priority link, which it does not have; one that cannot be made is not tried again. */
void trib_link_priority_connect(trib_link *link);

/* The main link of an accepted one that has proved itself; NULL: there is none, or it has its second connection. To be asked
 * before the other side is told that this one is ready: what it has begun to use cannot go alone any more. */
trib_link *trib_link_find_main(const trib_link *link);
/* It is given to its main link, which is there. */
void trib_link_attach_to_main(trib_link *link);
/* Its connection has gone, and what waited for it has been given back; it is freed next. True: so has its main link's, whose
 * end comes after it. */
TRIB_CHECKED bool trib_link_detach_from_main(trib_link *link);

#endif

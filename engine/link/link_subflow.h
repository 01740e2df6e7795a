/*
 * link_subflow.h - a link's further connections, to the other addresses of its peer, so that chunks use the network
 * that has room.
 *
 * A member with several network interfaces has an address on each. The link uses one of these networks, and a subflow
 * is a connection over another, to the same reactor. The links of a core that use the same network share a credit
 * (egress.h). A network with room takes the partition that is first in the link's outbox. A fast network asks for
 * partitions more often than a slow one, so nobody needs to know how fast the networks are.
 *
 * Connections have no common order. So all contributions of a partition to a round stay on the connection that took the
 * first of them: the request waits in `begun` there. A withdrawal uses the same connection, and so does the round after
 * a withdrawal. Sums may use any connection: the sum of each chunk stands for itself, and a round begins only when all
 * sums of the last one have arrived.
 *
 * A subflow is a trib_link owned by its main link. It lives and ends as a priority link does (link_priority.h); a link
 * with subflows has no priority link. Subflows are made when the main link is ready, which does not wait for them. A
 * subflow carries frames as soon as it is ready itself.
 *
 * Subflows exist over TCP only, between machines, and only where machines do not sum first, because partial sums must
 * keep their order (relay.h).
 */
#ifndef TRIB_ENGINE_LINK_LINK_SUBFLOW_H
#define TRIB_ENGINE_LINK_LINK_SUBFLOW_H

#include "engine/link/link.h"

/* Chooses the network of a link (link->rail) before the link is connected to that list of addresses, and whether the
 * link may have subflows (link->forks). */
void trib_link_subflow_choose_rail(trib_link *link, const trib_address *to);
/* Connects the subflows of a link that has become READY, if it may have any. */
void trib_link_subflows_connect(trib_link *link);
/* Lets a subflow send that this side made and that has become READY. */
void trib_link_subflow_ready(trib_link *subflow);

#endif

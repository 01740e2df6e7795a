/*
 * link_subflow.h - a link's further connections, by the other addresses of its peer, so that chunks go by the network
 * that has room.
 *
 * Where members have several network interfaces a reactor is reached at an address of each. Its link goes by the first;
 * a subflow is a connection by another, to the same reactor. The links of a core that go by one of the networks share a
 * credit (egress.h), and whichever has room takes the partition that is first in the link's outbox: a fast network asks
 * more often than a slow one, and nobody needs to know how fast they are.
 *
 * There is no order between connections. So a partition's contributions to a round all go by the one that took the
 * first of them (its request waits in `begun` there); a withdrawal goes by the same one, and so does the round after a
 * withdrawal. Sums go by any: the sum of each chunk stands for itself, and a round begins when all sums of the last one
 * are there.
 *
 * A subflow is a trib_link that its main one owns; it lives and ends as a priority one does (link_priority.h), of which
 * such a link has none. It is made when the main one is ready, which does not wait for it, and begins to carry when it
 * is. Over TCP only, between machines, and where machines do not sum first: partial sums must keep their order
 * (relay.h).
 */
#ifndef TRIB_ENGINE_LINK_LINK_SUBFLOW_H
#define TRIB_ENGINE_LINK_LINK_SUBFLOW_H

#include "engine/link/link.h"

/* Before the link is connected to that address, which is a list: decides by which network it goes (link->rail), and
 * whether it may have subflows (link->forks). */
void trib_link_subflow_choose_rail(trib_link *link, const trib_address *to);
/* The link is READY: connects its subflows, if it may have any. */
void trib_link_subflows_connect(trib_link *link);
/* A subflow that this side has made is READY: it takes part in sending. */
void trib_link_subflow_ready(trib_link *subflow);

#endif

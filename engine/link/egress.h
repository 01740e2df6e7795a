/*
 * egress.h - the credit of a network, and each link's share of it in proportion to what it has to carry.
 *
 * Where some servers sum more than others, links that are treated alike finish at different times: the small ones are
 * through first, and the servers behind the large ones, whose way in was idle till then, are overrun at the end. So the
 * links by which a reactor pushes share one credit, and the next chunk is of the link that is furthest behind its
 * weight: weighted fair queueing (Demers, Keshav, Shenker, SIGCOMM'89), self-clocked (Golestani, INFOCOM'94), the
 * weight being the bytes that were submitted to the link so far. Within a link priorities decide, as everywhere.
 *
 * Where links are slow, and several reactors share them, the reactors also share one credit. What each has handed over
 * takes its part of the way out at the same time as what the others have, and a tensor that is all handed over arrives
 * all at once, at the end. For the same reason a part of the credit is enough there: the fewer chunks are on their way
 * together, the sooner each is there, and its sum may go back.
 *
 * Where links have connections by several networks (link_subflow.h) each network has a credit, and a connection by each
 * is a flow of its own; what is submitted to a link counts for all of its connections.
 *
 * This file keeps credits, clocks and shares; scheduler.c decides by them.
 */
#ifndef TRIB_ENGINE_LINK_EGRESS_H
#define TRIB_ENGINE_LINK_EGRESS_H

#include <stdint.h>

#include "api/tributary.h"
#include "engine/base/heap.h"

struct trib_link;
typedef struct trib_link_host trib_link_host;

/* With so much in flight a slow network has enough, if it is so many messages: a few large ones to a peer that takes
 * its time would hold up those to the others. */
#define TRIB_EGRESS_SLOW_BYTES (256u << 10)
#define TRIB_EGRESS_SLOW_MESSAGES 8u

/* A network's credit; where links have no subflows a reactor has one. */
typedef struct trib_egress {
    uint64_t limit;                       /* bytes that may be in flight before another chunk is let out */
    uint64_t in_flight;                   /* bytes with the transport, of all its links */
    uint32_t messages;                    /* that those are */
    uint32_t link_count;                  /* links that have joined; waiting has room for each */
    uint64_t offered;                     /* bytes ever submitted to its links */
    double clock;                         /* flow.at of the link that sent last; never falls */
    trib_min_heap waiting;                /* flows of the links that have something to send, by flow.at */
    const struct trib_transport *slow_by; /* transport that found its links to be slow; only compared */
    bool is_slow;                         /* its links are: the limit is a reactor's part of one credit */
    bool waits;                           /* something is left until what is with the transport is sent */
} trib_egress;

/* A link's share; in each link. */
typedef struct trib_egress_flow {
    trib_egress *egress;     /* NULL: the link has a credit to itself */
    trib_min_heap_node node; /* in egress->waiting while the link has something to send */
    uint64_t offered;        /* bytes ever submitted to the link */
    double at; /* bytes sent, over the link's share of all; no smaller than the clock when it began to wait */
} trib_egress_flow;

/* The reactor's links go by so many networks: each has its part of the credit. No-op for fewer than there were. */
void trib_egress_divide(trib_link_host *host, uint32_t networks);
/* The link, whose flow is zeroed, pushes by that network. TRIB_NO_MEMORY: it stays out. */
TRIB_CHECKED trib_status trib_egress_join(trib_egress *egress, struct trib_link *link);
/* The bytes that were submitted to a subflow's main link count for the subflow, too. */
void trib_egress_join_in(struct trib_link *subflow);
/* The link is about to be freed. No-op for one that never joined. */
void trib_egress_leave(struct trib_link *link);
/* So many bytes more were submitted to the link, for any of its connections. */
void trib_egress_offer(struct trib_link *link, uint64_t bytes);
/* Of what was submitted to one link, or to none, so many bytes are another's from now on: shares are as if they had
 * always been dealt like that. Either may be NULL, or a link that never joined. */
void trib_egress_move(struct trib_link *from, struct trib_link *to, uint64_t bytes);
/* The connection has something to send. No-op if it waits. */
void trib_egress_wait(struct trib_link *link);
/* The connection has nothing to send, or has ended. No-op if it does not wait. */
void trib_egress_rest(struct trib_link *link);
/* The i-th of the links that wait, in no particular order but for the first, which is furthest behind. */
struct trib_link *trib_egress_waiting_link(const trib_egress *egress, uint32_t i);

/* The turn of the link that is furthest behind its share begins: it is returned. At least one waits. */
struct trib_link *trib_egress_begin_turn(trib_link_host *host, trib_egress *egress);
/* ... and ends: so many bytes went out in it. */
void trib_egress_end_turn(struct trib_link *link, uint64_t bytes);

/* Does a link wait, and may it send? */
static inline bool trib_egress_has_room(const trib_egress *egress)
{
    const bool is_enough =
        egress->is_slow && egress->in_flight >= TRIB_EGRESS_SLOW_BYTES && egress->messages >= TRIB_EGRESS_SLOW_MESSAGES;
    return egress->waiting.count > 0 && egress->in_flight < egress->limit && !is_enough;
}

/* Have all networks that the reactor pushes by been found to be slow? */
bool trib_egress_is_slow(const trib_link_host *host);
/* Every link has left. */
void trib_egress_close(trib_link_host *host);

#endif

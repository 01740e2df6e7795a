/*
 * egress.h - the credit of a network, and the share of each link in it.
 *
 * Servers may own shards of different sizes. If all links got equal shares, the links with few bytes would finish
 * first. The servers with many bytes would then be overrun at the end, after their inbound bandwidth was idle before.
 * So the links over which a reactor pushes share one credit. The next chunk belongs to the link that is furthest behind
 * its weight, which is the number of bytes of all partitions that the reactor pushes over the link. This is weighted
 * fair queueing (Demers, Keshav, Shenker, SIGCOMM'89), self-clocked (Golestani, INFOCOM'94). Priorities decide within a
 * link.
 *
 * A partition counts once, however often it is pushed. A small tensor that only some servers sum may be pushed a
 * thousand times for each time of a large one, and would otherwise leave the links to these servers with far too large
 * shares of the large one.
 *
 * Several reactors of one engine share a credit if their links are slow. Chunks that the reactors send at the same time
 * share the bandwidth, and all arrive late. A smaller credit lets each chunk arrive sooner, so its sum may return
 * sooner.
 *
 * Links may have connections over several networks (link_subflow.h). Each network then has a credit of its own, and
 * each connection is a flow of its own. The weight of a link counts for all of its connections.
 *
 * This file keeps credits, clocks and shares; scheduler.c makes the decisions.
 */
#ifndef TRIB_ENGINE_LINK_EGRESS_H
#define TRIB_ENGINE_LINK_EGRESS_H

#include <stdint.h>

#include "api/tributary.h"
#include "engine/base/heap.h"

struct trib_link;
typedef struct trib_link_host trib_link_host;

/* Bytes in flight that are enough for a slow network, if they are in many messages. A few large messages to a slow peer
 * would hold up the messages to other peers. */
#define TRIB_EGRESS_SLOW_BYTES (256u << 10)
#define TRIB_EGRESS_SLOW_MESSAGES 8u

/* The credit of a network. A reactor has only one if its links have no subflows. */
typedef struct trib_egress {
    uint64_t limit;                       /* bytes that may be in flight before another chunk is sent */
    uint64_t in_flight;                   /* bytes that the transport holds, of all links of the network */
    uint32_t messages;                    /* number of messages that in_flight consists of */
    uint32_t link_count;                  /* links that have joined; `waiting` has room for all of them */
    uint64_t weight;                      /* sum of the weights of the network's flows */
    double clock;                         /* flow.at of the link that sent last; never decreases */
    trib_min_heap waiting;                /* flows of the links that have something to send, by flow.at */
    const struct trib_transport *slow_by; /* transport that reported slow links; only compared, never called */
    bool is_slow; /* the links are slow, and the limit is this reactor's part of a credit that all reactors share */
    bool waits;   /* a request has to wait until the transport has sent some of its bytes */
} trib_egress;

/* The share of one link; embedded in the link. */
typedef struct trib_egress_flow {
    trib_egress *egress;     /* NULL: the link has a credit of its own */
    trib_min_heap_node node; /* in egress->waiting while the link has something to send */
    uint64_t weight;         /* bytes of the partitions that this reactor pushes over the link */
    double at; /* bytes sent, divided by the link's share; raised to the clock when the link begins to wait */
} trib_egress_flow;

/* Divides the reactor's credit among that many networks. No-op if it is divided among as many already. */
void trib_egress_divide(trib_link_host *host, uint32_t networks);
/* Lets the link push over that network; its flow must be zeroed. TRIB_NO_MEMORY: the link has not joined. */
TRIB_CHECKED trib_status trib_egress_join(trib_egress *egress, struct trib_link *link);
/* Gives a subflow the weight of its main link. */
void trib_egress_join_in(struct trib_link *subflow);
/* Removes a link that is about to be freed. No-op if the link never joined. */
void trib_egress_leave(struct trib_link *link);
/* Moves the weight of a partition of that many bytes from one link to another. Either link may be NULL, or may have
 * never joined: a partition that is pushed for the first time comes from no link. */
void trib_egress_move(struct trib_link *from, struct trib_link *to, uint64_t bytes);
/* The connection has something to send. No-op if the connection waits already. */
void trib_egress_wait(struct trib_link *link);
/* The connection has nothing to send, or has ended. No-op if the connection does not wait. */
void trib_egress_stop_waiting(struct trib_link *link);
/* Returns the i-th waiting link. The first link is the furthest behind its share, and the others have no order. */
struct trib_link *trib_egress_waiting_link(const trib_egress *egress, uint32_t i);

/* Begins the turn of the link that is furthest behind its share, and returns the link. At least one link must wait. */
struct trib_link *trib_egress_begin_turn(trib_link_host *host, trib_egress *egress);
/* Ends the link's turn, in which that many bytes were sent. */
void trib_egress_end_turn(struct trib_link *link, uint64_t bytes);

/* True if a link waits and the credit lets it send. */
static inline bool trib_egress_has_room(const trib_egress *egress)
{
    const bool is_enough =
        egress->is_slow && egress->in_flight >= TRIB_EGRESS_SLOW_BYTES && egress->messages >= TRIB_EGRESS_SLOW_MESSAGES;
    return egress->waiting.count > 0 && egress->in_flight < egress->limit && !is_enough;
}

/* True if every network over which the reactor pushes was found to be slow. */
bool trib_egress_is_slow(const trib_link_host *host);
/* Every link must have left. */
void trib_egress_close(trib_link_host *host);

#endif

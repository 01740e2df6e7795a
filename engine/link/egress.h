/*
 * egress.h - the links over which a core pushes share its way out in proportion to what each has to carry.
 *
 * Where some servers sum more than others, links that are treated alike finish at different times: the small ones are
 * through first, and the servers behind the large ones, whose way in was idle till then, are overrun at the end. So there
 * is one credit for all of them, and the next chunk is of the link that is furthest behind its weight: weighted fair
 * queueing (Demers, Keshav, Shenker, SIGCOMM'89), self-clocked (Golestani, INFOCOM'94), the weight being the bytes that
 * were handed to the link so far. Within a link priorities decide, as everywhere.
 *
 * Where links are slow, and several cores share them, the cores also share one credit. What each has handed over takes
 * its part of the way out at the same time as what the others have, and a tensor that is all handed over arrives all at
 * once, at the end. For the same reason a part of the credit is enough there: the fewer chunks are on their way together,
 * the sooner each is there, and its sum may go back.
 *
 * Where links have connections by several networks (link_subflow.h) there is a credit for each network, and what has been
 * handed to a link is for all of its connections: of the networks that have room the one with the least under way is next.
 */
#ifndef TRIB_ENGINE_EGRESS_H
#define TRIB_ENGINE_EGRESS_H

#include <stdint.h>

#include "api/tributary.h"

struct trib_link;
typedef struct trib_link_host trib_link_host;

/* One for each network of a core; where links have no subflows there is one. */
typedef struct trib_egress {
    uint64_t limit, in_flight;  /* bytes with the transport, of all its links */
    uint32_t messages;          /* that those are */
    uint64_t offered;           /* bytes ever handed to its links */
    double clock;               /* where the link that sent last had come to */
    struct trib_link **waiting; /* a binary heap of the links that have something to send, by flow.at */
    uint32_t waiting_count, capacity, link_count;
    const struct trib_transport *slow_by; /* who found its links to be slow; only compared */
    bool is_slow;                         /* they are: the credit is a core's part of one */
    bool waits;                           /* something is left until what is with the transport is sent */
} trib_egress;

/* In each link. */
typedef struct trib_egress_flow {
    trib_egress *egress; /* NULL: the link has its credit to itself */
    uint64_t offered;
    double at;           /* bytes sent, over its share of all; never smaller than the clock was when it began to wait */
    uint32_t heap_index; /* UINT32_MAX: it has nothing to send */
} trib_egress_flow;

/* The core's links go by so many networks: each has its part of the credit. No-op for fewer than there were. */
void trib_egress_divide(trib_link_host *host, uint32_t networks);
/* The link pushes, by that network; its share has been zeroed. TRIB_NO_MEMORY: it stays out. */
TRIB_CHECKED trib_status trib_egress_join(trib_egress *egress, struct trib_link *link);
/* A subflow: what was offered to its main link was offered to it, too. */
void trib_egress_join_in(struct trib_link *subflow);
/* The link is about to be freed. No-op for one that never joined. */
void trib_egress_leave(struct trib_link *link);
/* So many bytes more wait in the link's outbox, for any of its connections. */
void trib_egress_offer(struct trib_link *link, uint64_t bytes);
/* That connection has something to send. No-op if it waits. */
void trib_egress_wait(struct trib_link *link);
/* What was offered to one link, or went nowhere, is another's from now on, so many bytes of it: shares are as if they had always
 * been dealt like that. Either may be NULL, or a link that never joined. */
void trib_egress_move(struct trib_link *from, struct trib_link *to, uint64_t bytes);
/* That connection has nothing to send, or has ended. No-op if it does not wait. */
void trib_egress_rest(struct trib_link *link);
/* Have all networks that the core pushes by been found to be slow? */
bool trib_egress_is_slow(const trib_link_host *host);
/* Lets out what the credit allows, of all links of the core. */
void trib_egress_pump(trib_link_host *host);
/* Every link has left. */
void trib_egress_close(trib_link_host *host);

#endif

/*
 * scheduler.h - decides what the links of one reactor send next; embedded in the reactor's trib_link_host.
 *
 * A request (trib_send_request) is submitted to a link and waits in that link's outbox. Whenever credit returns, or
 * something was submitted, the scheduler lets requests send chunk after chunk until no credit is left. The whole order,
 * from the network to the request, is in one function: choose_next in scheduler.c. Other files keep the mechanics:
 * egress.h the credit of a network and each link's share of it, link_priority.h and link_subflow.h the making of a
 * link's further connections, link.h the frames.
 *
 * Invariants
 * - A request is in one place at most: in its link's outbox, or in `begun` of one of that link's connections.
 * - A link's in_flight is what its transport has and has not reported sent; a network's is the sum over its links.
 * - Nothing here allocates, but for an outbox that grows.
 * The reactor's thread only.
 */
#ifndef TRIB_ENGINE_LINK_SCHEDULER_H
#define TRIB_ENGINE_LINK_SCHEDULER_H

#include "engine/link/egress.h"
#include "engine/link/link.h"

/* The last large chunk that the reactor's links sent: small urgent requests may overtake it (link_priority.h). */
typedef struct trib_bulk {
    int32_t priority; /* of the last large chunk */
    int64_t sent_ns;  /* when the transport had taken the last one */
} trib_bulk;

typedef struct trib_scheduler {
    trib_egress networks[TRIB_SUBFLOWS_MAX + 1]; /* the credit of pushes, for each network that the reactor pushes by */
    uint32_t network_count;                      /* 1..TRIB_SUBFLOWS_MAX + 1 */
    trib_bulk bulk;
    uint64_t next_age;   /* of the next request that is made: lower goes first among equals */
    trib_link *woken;    /* links that may have something new to send, by pump_next; the one to itself comes last */
    trib_post wake_post; /* runs the scheduler for each woken link at the end of the event */
} trib_scheduler;

void trib_scheduler_open(trib_link_host *host);
/* Every link has gone. */
void trib_scheduler_close(trib_link_host *host);

/* ---- What upper layers call ---- */

/* The request waits for the link's credit from now on. bytes: what it will send. TRIB_CLOSED: the link ends, and
 * nothing was taken; TRIB_NO_MEMORY: nothing was taken. */
TRIB_CHECKED trib_status trib_scheduler_submit(trib_link *link, trib_send_request *request, uint64_t bytes);
/* The request waits no more; no-op if it did not. */
void trib_scheduler_withdraw(trib_link *link, trib_send_request *request);
/* The age of a request that is made now. */
static inline uint64_t trib_scheduler_take_age(trib_scheduler *scheduler)
{
    return scheduler->next_age++;
}

/* ---- What the link's own files call ---- */

/* The link is looked at again at the end of this event. */
void trib_scheduler_wake(trib_link *link);
/* The connection has sent a frame with so large a payload, and its credit is back: lets out what that allows. */
void trib_scheduler_credit_returned(trib_link *connection, uint32_t payload_bytes);
/* A subflow that this side has made can carry requests from now on. */
void trib_scheduler_connection_ready(trib_link *subflow);
/* The link has ended: each request that waits for it is taken out, and told by on_drop. */
void trib_scheduler_drop_requests(trib_link *link);
/* The link is about to be freed; no request waits for it. */
void trib_scheduler_forget(trib_link *link);
/* A link that pushed has gone: lets out over the others what its credit allows. */
void trib_scheduler_link_gone(trib_link_host *host);

/* Bytes of a frame go to the link's transport, or have come back from it. Each take is followed by one return. */
static inline void trib_scheduler_take_credit(trib_link *link, uint32_t bytes)
{
    link->in_flight += bytes;
    if (link->flow.egress != NULL) {
        link->flow.egress->in_flight += bytes;
        link->flow.egress->messages++;
    }
}

static inline void trib_scheduler_return_credit(trib_link *link, uint32_t bytes)
{
    trib_assert(link->in_flight >= bytes);
    link->in_flight -= bytes;
    if (link->flow.egress != NULL) {
        trib_assert(link->flow.egress->in_flight >= bytes && link->flow.egress->messages > 0);
        link->flow.egress->in_flight -= bytes;
        link->flow.egress->messages--;
    }
}

/* ---- What may be asked ---- */

/* The connection of the link that takes what may go by any: ready, and with the least in flight. NULL: none has credit.
 * */
trib_link *trib_scheduler_connection_with_credit(trib_link *link);
/* Is there anything for this connection to send? */
bool trib_scheduler_has_work(const trib_link *connection);
/* Where a frame goes that must keep its place behind those of a request that took that connection of the link. */
trib_link *trib_link_connection_or_main(trib_link *link, uint8_t connection);

#endif

/*
 * scheduler.h - decides what the links of one reactor send next; embedded in the reactor's trib_link_host.
 *
 * A request (trib_send_request) is submitted to a link and waits in the link's outbox. When credit returns or a request
 * is submitted, the scheduler lets requests send chunk by chunk until no credit is left. The function choose_next in
 * scheduler.c holds the whole order, from the network down to the request. Other files hold the mechanics: egress.h the
 * credit of a network and each link's share of it, link_priority.h and link_subflow.h the making of further
 * connections, link.h the frames.
 *
 * Invariants
 *
 * - A request is in at most one place: its link's outbox, or the `begun` list of one of the link's connections.
 * - A link's in_flight is the number of bytes that its transport has and has not reported sent. A network's in_flight
 *   is the sum over its links.
 * - Only an outbox that grows allocates memory.
 *
 * Everything here belongs to the reactor's thread.
 */
#ifndef TRIB_ENGINE_LINK_SCHEDULER_H
#define TRIB_ENGINE_LINK_SCHEDULER_H

#include "engine/link/egress.h"
#include "engine/link/link.h"

/* The last large chunk that the reactor's links sent. Small urgent requests may overtake it (link_priority.h). */
typedef struct trib_bulk {
    int32_t priority; /* of the last large chunk */
    int64_t sent_ns;  /* time at which the transport had last sent a large chunk */
} trib_bulk;

typedef struct trib_scheduler {
    trib_egress networks[TRIB_SUBFLOWS_MAX + 1]; /* the credit of each network over which the reactor pushes */
    uint32_t network_count;                      /* 1..TRIB_SUBFLOWS_MAX + 1 */
    trib_bulk bulk;
    uint64_t next_age; /* age of the next request; a lower one is sent first among equal priorities */
    /* links that may have something new to send, by pump_next; the link to this process itself is last */
    trib_link *woken;
    trib_post wake_post; /* runs the scheduler for each woken link at the end of the event */
} trib_scheduler;

void trib_scheduler_open(trib_link_host *host);
/* Every link must have gone. */
void trib_scheduler_close(trib_link_host *host);

/* ---- For the upper layers ---- */

/* Lets the request wait for the link's credit. `bytes` is what it will send. TRIB_CLOSED (the link ends) and
 * TRIB_NO_MEMORY: nothing was taken. */
TRIB_CHECKED trib_status trib_scheduler_submit(trib_link *link, trib_send_request *request, uint64_t bytes);
/* Takes the request out. No-op if the request did not wait. */
void trib_scheduler_withdraw(trib_link *link, trib_send_request *request);
/* Returns the age of a request that is made now. */
static inline uint64_t trib_scheduler_take_age(trib_scheduler *scheduler)
{
    return scheduler->next_age++;
}

/* ---- For the files of the link ---- */

/* Looks at the link again at the end of this event. */
void trib_scheduler_wake(trib_link *link);
/* Lets requests send after the connection has sent a frame with a payload of that size, and its credit has returned. */
void trib_scheduler_credit_returned(trib_link *connection, uint32_t payload_bytes);
/* Lets a subflow that this side made carry requests. */
void trib_scheduler_connection_ready(trib_link *subflow);
/* Lets a connection that was made again carry requests. */
void trib_scheduler_resumed(trib_link *connection);
/* Takes out all requests that wait for a link that has ended, and calls their on_drop. */
void trib_scheduler_drop_requests(trib_link *link);
/* Forgets a link that is about to be freed; no request may wait for it. */
void trib_scheduler_forget(trib_link *link);
/* Lets other links use the credit of a link that pushed and has gone. */
void trib_scheduler_link_gone(trib_link_host *host);

/* Counts bytes of a frame that the link's transport takes, or has sent. Each take is followed by one return. */
static inline void trib_scheduler_take_credit(trib_link *link, uint32_t bytes)
{
    trib_assert(bytes >= TRIB_HEADER_SIZE && bytes <= TRIB_HEADER_SIZE + TRIB_PAYLOAD_MAX);
    link->in_flight += bytes;
    if (link->flow.egress != NULL) {
        link->flow.egress->in_flight += bytes;
        link->flow.egress->messages++;
        trib_assert(link->flow.egress->in_flight >= link->in_flight);
    }
}

static inline void trib_scheduler_return_credit(trib_link *link, uint32_t bytes)
{
    trib_assert(link->in_flight >= bytes);
    trib_assert(bytes >= TRIB_HEADER_SIZE); /* what trib_scheduler_take_credit counted */
    link->in_flight -= bytes;
    if (link->flow.egress != NULL) {
        trib_assert(link->flow.egress->in_flight >= bytes && link->flow.egress->messages > 0);
        link->flow.egress->in_flight -= bytes;
        link->flow.egress->messages--;
    }
}

/* ---- Queries ---- */

/* Returns the connection for a request that may use any: ready, and with the fewest bytes in flight. NULL: none has
 * credit. */
trib_link *trib_scheduler_connection_with_credit(trib_link *link);
/* True if there is something for this connection to send. */
bool trib_scheduler_has_work(const trib_link *connection);
/* Returns the connection for a frame that must stay behind a request that took that connection of the link. */
trib_link *trib_link_connection_or_main(trib_link *link, uint8_t connection);

#endif

/* link_priority.c - see link_priority.h. */
#include "engine/link/link_priority.h"

#include "engine/base/assert.h"
#include "engine/link/link_host.h"
#include "engine/link/link_subflow.h"

#define PRIORITY_CREDIT TRIB_LINK_PRIORITY_BYTES_MAX /* beyond which it is no faster than the other */
#define BULK_BYTES (16u << 10)                       /* less is no reason to wait */
#define BULK_NS (5 * INT64_C(1000000))               /* so long what was sent may lie in the kernel */

/* ---- What arrives ---- */

static void second_ready(trib_link *link)
{
    if (link->purpose == TRIB_PURPOSE_SUBFLOW && link->outgoing) {
        trib_link_subflow_ready(link);
    }
}

static trib_status second_header(trib_link *link, const trib_frame *frame, trib_recv_target *target, trib_error *error)
{
    trib_assert(link->main != NULL);
    return link->main->upcalls->header(link, frame, target, error);
}

static trib_status second_received(trib_link *link, const trib_frame *frame, const void *payload, bool in_place,
                                   trib_error *error)
{
    trib_assert(link->main != NULL);
    return link->main->upcalls->received(link, frame, payload, in_place, error);
}

static void second_closed(trib_link *link, trib_status status, const char *reason)
{
    (void)link;
    (void)status;
    (void)reason; /* the main link tells */
}

const trib_link_upcalls trib_link_second_upcalls = {
    .ready = second_ready,
    .header = second_header,
    .received = second_received,
    .closed = second_closed,
};

/* ---- Making it ---- */

static void connect_priority_link(trib_link *link)
{
    trib_link_host *host = link->host;
    const trib_roster *roster = host->engine->roster;
    trib_assert(link->priority_link == NULL && link->peer < roster->member_count);
    trib_link *priority_link = NULL;
    const trib_address *to = &roster->members[link->peer].addresses[link->peer_reactor];
    if (trib_link_connect(host, to, TRIB_PURPOSE_PRIORITY, link->peer, link->peer_reactor, &trib_link_second_upcalls,
                          NULL, &priority_link) != TRIB_OK) {
        link->priority_failed = true;
        return;
    }
    priority_link->main = link;
    priority_link->conn->urgent = true;
    link->priority_link = priority_link;
}

/* Where the main link has room for such a one; NULL: nowhere. */
static trib_link **free_place_in(trib_link *main, trib_purpose purpose)
{
    if (purpose == TRIB_PURPOSE_PRIORITY) {
        return main->priority_link == NULL ? &main->priority_link : NULL;
    }
    for (uint32_t i = 0; i < TRIB_SUBFLOWS_MAX; i++) {
        if (main->subflows[i] == NULL) {
            return &main->subflows[i];
        }
    }
    return NULL;
}

trib_link *trib_link_find_main(const trib_link *link)
{
    trib_link *main = link->host->links;
    while (main != NULL && (main->role != TRIB_LINK_ROLE_SERVER || main->peer != link->peer ||
                            main->peer_reactor != link->peer_reactor || main->state != TRIB_LINK_READY)) {
        main = main->next;
    }
    return main != NULL && free_place_in(main, link->purpose) != NULL ? main : NULL;
}

void trib_link_attach_to_main(trib_link *link)
{
    trib_link *main = trib_link_find_main(link);
    trib_assert(main != NULL);
    link->upcalls = &trib_link_second_upcalls;
    link->main = main;
    link->conn->urgent = link->purpose == TRIB_PURPOSE_PRIORITY;
    main->has_subflows = main->has_subflows || link->purpose == TRIB_PURPOSE_SUBFLOW;
    *free_place_in(main, link->purpose) = link;
}

bool trib_link_detach_from_main(trib_link *link)
{
    trib_link *main = link->main;
    if (main == NULL) {
        return false;
    }
    if (main->priority_link == link) {
        main->priority_link = NULL;
    }
    for (uint32_t i = 0; i < TRIB_SUBFLOWS_MAX; i++) {
        main->subflows[i] = main->subflows[i] == link ? NULL : main->subflows[i];
    }
    link->main = NULL;
    return main->conn_closed && !trib_link_has_others(main);
}

/* ---- Who takes it ---- */

void trib_link_priority_note(trib_link *link, int32_t priority, uint32_t bytes)
{
    if (bytes >= BULK_BYTES && link->purpose == TRIB_PURPOSE_DATA && link->conn != NULL) {
        link->host->bulk.priority = priority;
    }
}

void trib_link_priority_note_sent(trib_link *link, uint32_t bytes)
{
    if (bytes >= BULK_BYTES && link->purpose == TRIB_PURPOSE_DATA) {
        link->host->bulk.sent_ns = trib_now(link->host->reactor);
    }
}

/* The side that accepted it begins when the other has: until then that may not know it to be ready, and give it up. */
static bool is_ready(const trib_link *second)
{
    return second != NULL && second->state == TRIB_LINK_READY && (second->outgoing || second->has_received);
}

/* Much that is less urgent is ahead of it. */
static bool is_behind(const trib_link *link, int32_t priority)
{
    trib_link_host *host = link->host;
    if (priority <= host->bulk.priority) {
        return false;
    }
    const uint64_t in_flight = link->flow.egress != NULL ? link->flow.egress->in_flight : link->in_flight;
    return in_flight >= BULK_BYTES || trib_now(host->reactor) - host->bulk.sent_ns < BULK_NS;
}

void trib_link_priority_send(trib_link *link)
{
    while (link->heap_size > 0 && link->heap[0]->route == TRIB_ROUTE_ANY && is_behind(link, link->heap[0]->priority)) {
        if (link->priority_link == NULL && link->outgoing && !link->priority_failed) {
            connect_priority_link(link);
        }
        if (!is_ready(link->priority_link) || link->priority_link->in_flight > 0) {
            return;
        }
        trib_send_request *first = link->heap[0];
        const bool more = first->send_chunk(link->priority_link, first);
        trib_assert(!more);
        trib_link_dequeue(link, first);
    }
}

trib_link *trib_link_express_route(trib_link *link, const trib_send_request *request)
{
    if (request->route == TRIB_ROUTE_PINNED) {
        return trib_link_connection_or_main(link, request->connection);
    }
    const bool overtakes = request->route == TRIB_ROUTE_ANY && is_ready(link->priority_link) &&
                           link->priority_link->in_flight < PRIORITY_CREDIT && is_behind(link, request->priority);
    return overtakes ? link->priority_link : link;
}

trib_link *trib_link_connection_or_main(trib_link *link, uint8_t connection)
{
    trib_link *second = connection > 0 ? trib_link_connection(link, connection) : NULL;
    return is_ready(second) ? second : link;
}

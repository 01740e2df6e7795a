/* link_express.c - see link_express.h. */
#include "engine/link/link_express.h"

#include "engine/base/assert.h"
#include "engine/link/link_host.h"
#include "engine/link/link_strands.h"
#include "engine/server/server_shard.h"

#define EXPRESS_CREDIT TRIB_EXPRESS_BYTES_MAX /* beyond which it is no faster than the other */
#define BULK_BYTES (16u << 10)                /* less is no reason to wait */
#define BULK_NS (5 * INT64_C(1000000))        /* so long what was sent may lie in the kernel */

/* ---- What arrives ---- */

static void second_ready(trib_link *link)
{
    if (link->purpose == TRIB_PURPOSE_STRAND && link->outgoing) {
        trib_link_strands_ready(link);
    }
}

static trib_status second_header(trib_link *link, const trib_frame *frame, trib_landing *landing, trib_error *error)
{
    trib_assert(link->main != NULL);
    return link->main->upcalls->header(link, frame, landing, error);
}

static trib_status second_received(trib_link *link, const trib_frame *frame, const void *payload, bool lent,
                                   trib_error *error)
{
    trib_assert(link->main != NULL);
    return link->main->upcalls->received(link, frame, payload, lent, error);
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

static void make(trib_link *link)
{
    trib_link_host *host = link->host;
    const trib_roster *roster = host->engine->roster;
    trib_assert(link->express == NULL && link->peer < roster->member_count);
    trib_link *express = NULL;
    const trib_address *to = &roster->members[link->peer].addresses[link->peer_reactor];
    if (trib_link_connect(host, to, TRIB_PURPOSE_EXPRESS, link->peer, link->peer_reactor, &trib_link_second_upcalls,
                          NULL, &express) != TRIB_OK) {
        link->express_failed = true;
        return;
    }
    express->main = link;
    express->conn->urgent = true;
    link->express = express;
}

/* Where the main link has room for such a one; NULL: nowhere. */
static trib_link **place_in(trib_link *main, trib_purpose purpose)
{
    if (purpose == TRIB_PURPOSE_EXPRESS) {
        return main->express == NULL ? &main->express : NULL;
    }
    for (uint32_t i = 0; i < TRIB_STRANDS_MAX; i++) {
        if (main->strands[i] == NULL) {
            return &main->strands[i];
        }
    }
    return NULL;
}

trib_link *trib_link_express_find_main(const trib_link *link)
{
    trib_link *main = link->host->links;
    while (main != NULL && (main->role != TRIB_LINK_ROLE_SERVER || main->peer != link->peer ||
                            main->peer_reactor != link->peer_reactor || main->state != TRIB_LINK_READY)) {
        main = main->next;
    }
    return main != NULL && place_in(main, link->purpose) != NULL ? main : NULL;
}

void trib_link_express_adopt(trib_link *link)
{
    trib_link *main = trib_link_express_find_main(link);
    trib_assert(main != NULL);
    link->upcalls = &trib_link_second_upcalls;
    link->main = main;
    link->conn->urgent = link->purpose == TRIB_PURPOSE_EXPRESS;
    main->has_strands = main->has_strands || link->purpose == TRIB_PURPOSE_STRAND;
    *place_in(main, link->purpose) = link;
}

bool trib_link_express_detach(trib_link *link)
{
    trib_link *main = link->main;
    if (main == NULL) {
        return false;
    }
    if (main->express == link) {
        main->express = NULL;
    }
    for (uint32_t i = 0; i < TRIB_STRANDS_MAX; i++) {
        main->strands[i] = main->strands[i] == link ? NULL : main->strands[i];
    }
    link->main = NULL;
    return main->conn_closed && !trib_link_has_others(main);
}

/* ---- Who takes it ---- */

void trib_link_express_note(trib_link *link, int32_t priority, uint32_t bytes)
{
    if (bytes >= BULK_BYTES && link->purpose == TRIB_PURPOSE_DATA && link->conn != NULL) {
        link->host->bulk.priority = priority;
    }
}

void trib_link_express_note_sent(trib_link *link, uint32_t bytes)
{
    if (bytes >= BULK_BYTES && link->purpose == TRIB_PURPOSE_DATA) {
        link->host->bulk.sent_ns = trib_now(link->host->reactor);
    }
}

/* The side that accepted it begins when the other has: until then that may not know it to be ready, and give it up. */
static bool is_ready(const trib_link *second)
{
    return second != NULL && second->state == TRIB_LINK_READY && (second->outgoing || second->heard);
}

/* Much that is less urgent is ahead of it. */
static bool is_behind(const trib_link *link, int32_t priority)
{
    trib_link_host *host = link->host;
    if (priority <= host->bulk.priority) {
        return false;
    }
    const uint64_t in_flight = link->share.egress != NULL ? link->share.egress->in_flight : link->in_flight;
    return in_flight >= BULK_BYTES || trib_now(host->reactor) - host->bulk.sent_ns < BULK_NS;
}

void trib_link_express_let_out(trib_link *link)
{
    while (link->heap_size > 0 && link->heap[0]->route == TRIB_ROUTE_ANY && is_behind(link, link->heap[0]->priority)) {
        if (link->express == NULL && link->outgoing && !link->express_failed) {
            make(link);
        }
        if (!is_ready(link->express) || link->express->in_flight > 0) {
            return;
        }
        trib_waiter *first = link->heap[0];
        const bool more = first->emit(link->express, first);
        trib_assert(!more);
        trib_link_dequeue(link, first);
    }
}

trib_link *trib_link_express_route(trib_link *link, const trib_waiter *waiter)
{
    if (waiter->route == TRIB_ROUTE_PINNED) {
        return trib_link_express_follow(link, waiter->connection);
    }
    const bool overtakes = waiter->route == TRIB_ROUTE_ANY && is_ready(link->express) &&
                           link->express->in_flight < EXPRESS_CREDIT && is_behind(link, waiter->priority);
    return overtakes ? link->express : link;
}

trib_link *trib_link_express_follow(trib_link *link, uint8_t connection)
{
    trib_link *second = connection > 0 ? trib_link_connection(link, connection) : NULL;
    return is_ready(second) ? second : link;
}

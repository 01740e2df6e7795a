/* scheduler.c - see scheduler.h. */
#include "engine/link/scheduler.h"

#include <stdlib.h>

#include <utlist.h>

#include "engine/base/container_of.h"
#include "engine/link/link_host.h"
#include "engine/link/link_priority.h"
#include "engine/link/link_trace.h"

/* a request up to this size may be sent before the event ends, if nothing else waits */
#define AT_ONCE_BYTES (16u << 10)
#define BULK_BYTES (16u << 10)         /* a chunk below this size is no reason to overtake */
#define BULK_NS (5 * INT64_C(1000000)) /* for this long, sent bytes may still lie in the kernel */
#define PRIORITY_CREDIT                                                                                                \
    TRIB_LINK_PRIORITY_BYTES_MAX /* in bytes; with more in flight, a priority link is no faster than its main link */

/* ---- Connections and requests ---- */

/* True if the connection is past its handshake and may carry requests. The side that accepted a second connection waits
 * for a first frame on it. Before that the peer may not know that the connection is ready, and may give it up. */
static bool may_carry(const trib_link *connection)
{
    return connection->state == TRIB_LINK_READY &&
           (connection->main == NULL || connection->outgoing || connection->has_received);
}

trib_link *trib_link_connection_or_main(trib_link *link, uint8_t connection)
{
    trib_link *second = connection > 0 ? trib_link_connection(link, connection) : NULL;
    /* A frame that must stay behind others of a connection waits for it while it is made again. */
    const bool is_there = second != NULL && trib_link_is_up(second) && (second->outgoing || second->has_received);
    return is_there ? second : link;
}

static trib_send_request *first_request(const trib_link *link)
{
    trib_min_heap_node *node = trib_min_heap_first(&link->outbox);
    return node != NULL ? trib_container_of(node, trib_send_request, node) : NULL;
}

bool trib_scheduler_has_work(const trib_link *connection)
{
    const trib_link *main = trib_link_main(connection);
    return connection->begun != NULL || (main->outbox.count > 0 && (connection == main || may_carry(connection)));
}

/* ---- Step 1: a request that overtakes ---- */

/* True if many bytes of lower priority are ahead of a request of that priority. */
static bool is_behind_bulk(const trib_link *link, int32_t priority)
{
    const trib_bulk *bulk = &link->host->scheduler.bulk;
    if (priority <= bulk->priority) {
        return false;
    }
    const uint64_t in_flight = link->flow.egress != NULL ? link->flow.egress->in_flight : link->in_flight;
    return in_flight >= BULK_BYTES || trib_now(link->host->reactor) - bulk->sent_ns < BULK_NS;
}

/* Returns the link's first request if it is small and urgent, and the priority link has nothing in flight. The priority
 * link carries one message at a time, so a later and more urgent request can go next. */
static trib_send_request *find_overtaking(trib_link *link)
{
    trib_send_request *first = first_request(link);
    if (first == NULL || !trib_link_priority_is_possible(link) || first->route != TRIB_ROUTE_ANY ||
        !is_behind_bulk(link, first->priority)) {
        return NULL;
    }
    if (link->priority_link == NULL && link->outgoing && !link->priority_failed) {
        trib_link_priority_connect(link);
    }
    const trib_link *priority_link = link->priority_link;
    const bool is_free = priority_link != NULL && may_carry(priority_link) && priority_link->in_flight == 0;
    return is_free ? first : NULL;
}

/* ---- Steps 2 and 3: the link with credit, or the network ---- */

trib_link *trib_scheduler_connection_with_credit(trib_link *link)
{
    if (!link->has_subflows) {
        return link->state == TRIB_LINK_READY && link->in_flight < link->credit ? link : NULL;
    }
    trib_link *best = NULL;
    uint32_t ready = 0;
    for (uint32_t i = 0; i < trib_link_connections(link); i++) {
        trib_link *connection = trib_link_connection(link, i);
        if (connection != NULL && connection != link->priority_link && may_carry(connection)) {
            ready++;
            best = best == NULL || connection->in_flight < best->in_flight ? connection : best;
        }
    }
    return best != NULL && best->in_flight < link->credit / ready ? best : NULL;
}

/* Returns the network that has room and the fewest bytes in flight; the reactor's own network comes first among equals.
 * NULL: no network has room. */
static trib_egress *choose_network(trib_link_host *host)
{
    trib_scheduler *self = &host->scheduler;
    if (self->network_count == 1) {
        return trib_egress_has_room(&self->networks[0]) ? &self->networks[0] : NULL;
    }
    trib_egress *best = NULL;
    for (uint32_t i = 0; i < self->network_count; i++) {
        trib_egress *network = &self->networks[(host->reactor->index + i) % self->network_count];
        if (trib_egress_has_room(network) && (best == NULL || network->in_flight < best->in_flight)) {
            best = network;
        }
    }
    return best;
}

/* Lets a connection wait for its network's credit while it has something to send. */
static void update_waiting_connection(trib_link *connection)
{
    if (connection->flow.egress == NULL) {
        return;
    }
    if (trib_scheduler_has_work(connection) && connection->state == TRIB_LINK_READY) {
        trib_egress_wait(connection);
    } else {
        trib_egress_stop_waiting(connection);
    }
}

/* Updates all connections of the link after its requests have changed. */
static void update_waiting(trib_link *link)
{
    update_waiting_connection(link);
    for (uint32_t i = 0; link->has_subflows && i < TRIB_SUBFLOWS_MAX; i++) {
        if (link->subflows[i] != NULL) {
            update_waiting_connection(link->subflows[i]);
        }
    }
}

/* ---- Step 4: the connection, and the request ---- */

/* Chooses the connection for the first request of a link without subflows, when the link's turn has come. */
static trib_link *route_connection(trib_link *link, const trib_send_request *request)
{
    if (request->route == TRIB_ROUTE_PINNED) {
        return trib_link_connection_or_main(link, request->connection);
    }
    trib_link *priority_link = link->priority_link;
    const bool overtakes = request->route == TRIB_ROUTE_ANY && priority_link != NULL && may_carry(priority_link) &&
                           priority_link->in_flight < PRIORITY_CREDIT && is_behind_bulk(link, request->priority);
    return overtakes ? priority_link : link;
}

/* Puts the request into the connection's own list: first among those of its priority, or last. */
static void begin_request(trib_link *connection, trib_send_request *request, bool is_first)
{
    trib_assert(!trib_send_request_waits(request));
    trib_send_request *at = connection->begun;
    while (at != NULL && (at->priority > request->priority || (!is_first && at->priority == request->priority))) {
        at = at->begun_next;
    }
    DL_PREPEND_ELEM2(connection->begun, at, request, begun_previous, begun_next);
    request->begun_on = connection;
    trib_assert(request->node.place == 0); /* it is in one place at a time */
}

/* Returns the next request for a connection of a link that may have subflows. The first request of the outbox is begun
 * if it has a higher priority than those begun on the connection. NULL: that request is pinned to another connection,
 * and waits there now. */
static trib_send_request *begin_next_request(trib_link *main, trib_link *connection)
{
    trib_send_request *first = first_request(main);
    if (first == NULL || (connection->begun != NULL && connection->begun->priority >= first->priority)) {
        return connection->begun;
    }
    const bool is_pinned = first->route == TRIB_ROUTE_PINNED;
    trib_link *goes_by = is_pinned ? trib_link_connection_or_main(main, first->connection) : connection;
    trib_scheduler_withdraw(main, first);
    begin_request(goes_by, first, goes_by == connection && !is_pinned);
    update_waiting(main);
    return goes_by == connection ? connection->begun : NULL;
}

/* ---- The order in which requests send ---- */

/* The request that sends next. */
typedef struct choice {
    trib_link *link; /* main link for which the request waits */
    trib_send_request *request;
    trib_link *connection; /* connection of the link over which the frames go */
    trib_link *payer; /* connection whose share of its network's credit is used; NULL: the link uses its own credit */
    bool nothing_overtakes; /* step 1 is over for this run */
} choice;

/* Decides the whole order. woken: the link for which the scheduler runs; NULL: it has gone. Returns false if no request
 * may send until credit returns or a request is submitted. */
static bool choose_next(trib_link_host *host, trib_link *woken, choice *next)
{
    /* 1. A small urgent request of the woken link overtakes what is in flight, over the link's priority link. */
    if (!next->nothing_overtakes) {
        trib_send_request *urgent = woken != NULL ? find_overtaking(woken) : NULL;
        if (urgent != NULL) {
            *next = (choice){.link = woken, .request = urgent, .connection = woken->priority_link};
            return true;
        }
        next->nothing_overtakes = true;
    }
    next->payer = NULL;
    /* 2. A link with a credit of its own sends its first request, over the connection with the fewest bytes in
     * flight. */
    if (woken != NULL && woken->flow.egress == NULL) {
        next->link = woken;
        next->request = first_request(woken);
        next->connection = next->request != NULL ? trib_scheduler_connection_with_credit(woken) : NULL;
        if (next->connection == woken) {
            next->connection = route_connection(woken, next->request);
        }
        return next->connection != NULL;
    }
    /* 3. Links that push share the credit of their network. The network with the fewest bytes in flight is next. Of its
     * connections the one that is furthest behind its share has the turn. */
    for (trib_egress *network; (network = choose_network(host)) != NULL;) {
        next->payer = trib_egress_begin_turn(host, network);
        next->link = next->payer->main != NULL ? next->payer->main : next->payer;
        /* 4. The link's request of the highest priority sends, the oldest first. With subflows, a request stays on the
         * connection that began it, and a new one takes the connection that has the turn. A request that is pinned to
         * another connection waits for the turn of that one. */
        if (next->link->forks) {
            next->request = begin_next_request(next->link, next->payer);
            next->connection = next->payer;
        } else {
            next->request = first_request(next->link);
            next->connection = route_connection(next->link, next->request);
        }
        if (next->request != NULL) {
            return true;
        }
    }
    return false;
}

/* Lets the chosen request send one chunk. */
static void send_chosen(const choice *next)
{
    trib_link *link = next->link;
    trib_assert(next->link->main == NULL && trib_link_main(next->connection) == next->link);
    trib_assert(next->payer == NULL || next->payer->flow.egress != NULL);
    trib_send_request *request = next->request;
    const trib_egress *network = next->payer != NULL ? next->payer->flow.egress : NULL;
    const uint64_t link_before = link->in_flight, network_before = network != NULL ? network->in_flight : 0;
    const int32_t priority = request->priority;
    const bool is_single = request->is_single;
    if (is_single) {
        trib_scheduler_withdraw(link, request);
    }
    if (!request->send_chunk(next->connection, request) && !is_single) {
        trib_scheduler_withdraw(link, request);
    }
    const bool is_bulk = link->in_flight - link_before >= BULK_BYTES;
    if (is_bulk && !link->forks && link->purpose == TRIB_PURPOSE_DATA && link->conn != NULL) {
        link->host->scheduler.bulk.priority = priority;
    }
    if (network != NULL) {
        trib_egress_end_turn(next->payer, network->in_flight - network_before);
    }
}

void trib_link_note_waiting(trib_link *link, bool waits)
{
    if (waits != link->waits && link->main == NULL) {
        link->waits = waits;
        const uint32_t in_flight = link->in_flight < UINT32_MAX ? (uint32_t)link->in_flight : UINT32_MAX;
        trib_trace_link(link->host, waits ? TRIB_TRACE_LINK_WAIT : TRIB_TRACE_LINK_FREE, link, in_flight);
    }
}

static void note_waiting_links(trib_link_host *host)
{
    for (uint32_t k = 0; k < host->scheduler.network_count; k++) {
        trib_egress *network = &host->scheduler.networks[k];
        network->waits = network->waiting.count > 0;
        for (uint32_t i = 0; network->waits && trib_trace_ring_is_on(host->trace) && i < network->waiting.count; i++) {
            trib_link_note_waiting(trib_egress_waiting_link(network, i), true);
        }
    }
}

static void run_scheduler(trib_link_host *host, trib_link *woken)
{
    choice next = {.nothing_overtakes = false};
    while (choose_next(host, woken, &next)) {
        send_chosen(&next);
    }
    if (woken != NULL && woken->flow.egress == NULL) {
        trib_link_note_waiting(woken, woken->outbox.count > 0);
    } else {
        note_waiting_links(host);
    }
}

/* ---- Events ---- */

static void run_woken(trib_reactor *reactor, trib_post *post)
{
    (void)reactor;
    trib_link_host *host = trib_container_of(post, trib_link_host, scheduler.wake_post);
    for (trib_link *link; (link = host->scheduler.woken) != NULL;) {
        LL_DELETE2(host->scheduler.woken, link, pump_next);
        link->pump_queued = false;
        run_scheduler(host, link);
    }
}

void trib_scheduler_wake(trib_link *link)
{
    trib_scheduler *self = &link->host->scheduler;
    if (!link->pump_queued) {
        link->pump_queued = true;
        if (!link->is_self) {
            LL_PREPEND2(self->woken, link, pump_next);
        } else {
            /* Links to other members come first, because bytes for this process need no time to travel. */
            LL_APPEND2(self->woken, link, pump_next);
        }
    }
    trib_reactor_defer(link->host->reactor, &self->wake_post);
}

void trib_scheduler_credit_returned(trib_link *connection, uint32_t payload_bytes)
{
    if (payload_bytes >= BULK_BYTES && connection->purpose == TRIB_PURPOSE_DATA) {
        connection->host->scheduler.bulk.sent_ns = trib_now(connection->host->reactor);
    }
    run_scheduler(connection->host, connection->main != NULL ? connection->main : connection);
}

void trib_scheduler_connection_ready(trib_link *subflow)
{
    trib_assert(subflow->main != NULL && subflow->state == TRIB_LINK_READY);
    trib_egress_join_in(subflow);
    update_waiting(subflow->main);
    trib_scheduler_wake(subflow->main);
}

void trib_scheduler_resumed(trib_link *connection)
{
    trib_link *main = connection->main != NULL ? connection->main : connection;
    update_waiting(main);
    trib_scheduler_wake(main);
}

void trib_scheduler_link_gone(trib_link_host *host)
{
    run_scheduler(host, NULL);
}

/* ---- Requests ---- */

static void *allocate_outbox(void *user, size_t size)
{
    return trib_link_zalloc(user, size);
}

/* Tells the transport where to look whether more frames will follow. */
static void set_awaits_sent(const trib_link *connection, const bool *waits)
{
    if (connection->conn != NULL) {
        connection->conn->awaits_sent = connection->flow.egress != NULL ? &connection->flow.egress->waits : waits;
    }
}

/* True if a small request can be sent at once, because nothing is with the transport and nothing else waits. A more
 * urgent request that follows waits behind no more than this one. False where a priority link is possible, because
 * the transport then shall send the frames of one event in one system call. */
static bool may_go_at_once(const trib_link *link, uint64_t bytes)
{
    const trib_egress *egress = link->flow.egress;
    return bytes <= AT_ONCE_BYTES && !link->is_self && link->conn != NULL && link->state == TRIB_LINK_READY &&
           link->outbox.count == 1 && link->in_flight == 0 &&
           (egress == NULL || (egress->in_flight == 0 && egress->waiting.count == 1)) &&
           !trib_link_priority_is_possible(link);
}

trib_status trib_scheduler_submit(trib_link *link, trib_send_request *request, uint64_t bytes)
{
    trib_assert(!trib_send_request_waits(request));
    trib_assert(link->main == NULL && request->send_chunk != NULL); /* a second connection has no outbox */
    if (trib_link_is_ending(link)) {
        return TRIB_CLOSED;
    }
    if (!trib_min_heap_reserve(&link->outbox, link->outbox.count + 1, allocate_outbox, link->host)) {
        return TRIB_NO_MEMORY;
    }
    const trib_min_heap_key key = {.major = (uint64_t)((int64_t)INT32_MAX - request->priority), .minor = request->age};
    trib_min_heap_insert(&link->outbox, &request->node, key);
    set_awaits_sent(link, &link->waits);
    for (uint32_t i = 0; link->has_subflows && i < TRIB_SUBFLOWS_MAX; i++) {
        if (link->subflows[i] != NULL) {
            set_awaits_sent(link->subflows[i], &link->waits);
        }
    }
    if (link->flow.egress != NULL) {
        update_waiting(link);
    }
    if (may_go_at_once(link, bytes)) {
        run_scheduler(link->host, link);
    } else {
        /* Sending waits for the end of the event, so that all tensors of a step are compared by priority. */
        trib_scheduler_wake(link);
    }
    return TRIB_OK;
}

void trib_scheduler_withdraw(trib_link *link, trib_send_request *request)
{
    if (request->begun_on != NULL) {
        trib_assert(request->begun_on->begun != NULL && trib_link_main(request->begun_on) == trib_link_main(link));
        DL_DELETE2(request->begun_on->begun, request, begun_previous, begun_next);
        request->begun_on = NULL;
        update_waiting(link);
    } else if (request->node.place != 0) {
        trib_min_heap_remove(&link->outbox, &request->node);
        if (link->outbox.count == 0) {
            update_waiting(link);
        }
    }
}

static void drop_request(trib_link *main, trib_send_request *request)
{
    trib_scheduler_withdraw(main, request);
    if (request->on_drop != NULL) {
        request->on_drop(request);
    }
}

void trib_scheduler_drop_requests(trib_link *link)
{
    while (link->outbox.count > 0) {
        drop_request(link, trib_container_of(link->outbox.slots[link->outbox.count - 1].node, trib_send_request, node));
    }
    while (link->begun != NULL) {
        drop_request(link->main != NULL ? link->main : link, link->begun);
    }
}

void trib_scheduler_forget(trib_link *link)
{
    trib_assert(link->outbox.count == 0);
    trib_assert(link->begun == NULL);
    trib_assert(link->in_flight == 0);
    if (link->pump_queued) {
        LL_DELETE2(link->host->scheduler.woken, link, pump_next);
        link->pump_queued = false;
    }
    trib_egress_leave(link);
    trib_min_heap_close(&link->outbox);
}

void trib_scheduler_open(trib_link_host *host)
{
    trib_assert(host->scheduler.network_count == 0 && host->scheduler.woken == NULL);
    host->scheduler.wake_post.run = run_woken;
    trib_egress_divide(host, 1);
}

void trib_scheduler_close(trib_link_host *host)
{
    trib_assert(host->scheduler.woken == NULL);
    trib_egress_close(host);
}

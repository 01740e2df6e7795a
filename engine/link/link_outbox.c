/* link_outbox.c - what waits for a link's credit: a binary heap of requests, by priority and age. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/link/link_host.h"
#include "engine/link/link_priority.h"
#include "engine/link/link_subflow.h"
#include "engine/link/link_trace.h"

#define HEAP_CAPACITY_FIRST 64u
#define AT_ONCE_BYTES (16u << 10)

static bool goes_before(const trib_send_request *a, const trib_send_request *b)
{
    return a->priority != b->priority ? a->priority > b->priority : a->sequence < b->sequence;
}

static void heap_place(trib_link *link, uint32_t index, trib_send_request *request)
{
    link->heap[index] = request;
    request->heap_index = index;
}

static void heap_sift(trib_link *link, uint32_t index)
{
    trib_send_request *request = link->heap[index];
    while (index > 0 && goes_before(request, link->heap[(index - 1) / 2])) {
        heap_place(link, index, link->heap[(index - 1) / 2]);
        index = (index - 1) / 2;
    }
    for (;;) {
        uint32_t child = 2 * index + 1;
        if (child >= link->heap_size) {
            break;
        }
        if (child + 1 < link->heap_size && goes_before(link->heap[child + 1], link->heap[child])) {
            child++;
        }
        if (!goes_before(link->heap[child], request)) {
            break;
        }
        heap_place(link, index, link->heap[child]);
        index = child;
    }
    heap_place(link, index, request);
}

void trib_link_dequeue(trib_link *link, trib_send_request *request)
{
    const uint32_t index = request->heap_index;
    if (index == TRIB_SEND_IDLE) {
        return;
    }
    request->heap_index = TRIB_SEND_IDLE;
    if (index == TRIB_SEND_BEGUN) {
        trib_link_subflow_unbind(link, request);
        return;
    }
    trib_assert(index < link->heap_size && link->heap[index] == request);
    link->heap_size--;
    if (index < link->heap_size) {
        heap_place(link, index, link->heap[link->heap_size]);
        heap_sift(link, index);
    } else if (link->heap_size == 0 && link->flow.egress != NULL) {
        trib_link_subflows_update(link);
    }
}

static void await_sent(const trib_link *connection, const bool *waits)
{
    if (connection->conn != NULL) {
        connection->conn->awaits_sent = connection->flow.egress != NULL ? &connection->flow.egress->waits : waits;
    }
}

/* Nothing is with the transport and nothing else waits, so what is small can go at once: whatever is handed in next, however
 * urgent, comes behind no more than that. Where sends of one turn share a system call they shall. */
static bool may_go_at_once(const trib_link *link, uint64_t bytes)
{
    const trib_egress *egress = link->flow.egress;
    return bytes <= AT_ONCE_BYTES && link->conn != NULL && link->state == TRIB_LINK_READY && link->heap_size == 1 &&
           link->in_flight == 0 && (egress == NULL || (egress->in_flight == 0 && egress->waiting_count == 1)) &&
           !trib_link_priority_is_possible(link);
}

trib_status trib_link_enqueue(trib_link *link, trib_send_request *request, uint64_t bytes)
{
    trib_assert(request->heap_index == TRIB_SEND_IDLE);
    if (link->state == TRIB_LINK_CLOSING) {
        return TRIB_CLOSED;
    }
    if (link->heap_size == link->heap_capacity) {
        uint32_t capacity = link->heap_capacity == 0 ? HEAP_CAPACITY_FIRST : link->heap_capacity * 2;
        trib_send_request **heap = trib_link_zalloc(link->host, capacity * sizeof(trib_send_request *));
        if (heap == NULL) {
            return TRIB_NO_MEMORY;
        }
        if (link->heap_size > 0) {
            memcpy(heap, link->heap, link->heap_size * sizeof(trib_send_request *));
        }
        free(link->heap);
        link->heap = heap;
        link->heap_capacity = capacity;
    }
    heap_place(link, link->heap_size++, request);
    heap_sift(link, request->heap_index);
    await_sent(link, &link->waits);
    for (uint32_t i = 0; link->has_subflows && i < TRIB_SUBFLOWS_MAX; i++) {
        if (link->subflows[i] != NULL) {
            await_sent(link->subflows[i], &link->waits);
        }
    }
    if (link->flow.egress != NULL) {
        trib_egress_offer(link, bytes);
        trib_link_subflows_update(link);
    }
    if (may_go_at_once(link, bytes)) {
        trib_link_pump(link);
    } else {
        /* Sending waits for the end of the turn's event, so that all of a step's tensors are compared by priority. */
        trib_link_pump_later(link);
    }
    return TRIB_OK;
}

void trib_link_note_wait(trib_link *link, bool waits)
{
    if (waits != link->waits && link->main == NULL) {
        link->waits = waits;
        const uint32_t in_flight = link->in_flight < UINT32_MAX ? (uint32_t)link->in_flight : UINT32_MAX;
        trib_trace_link(link->host, waits ? TRIB_TRACE_LINK_WAIT : TRIB_TRACE_LINK_FREE, link, in_flight);
    }
}

/* Lets out one chunk of what is first in the outbox, over that connection or, if it may overtake, the priority one. */
static void send_next_over(trib_link *link, trib_link *connection)
{
    trib_send_request *top = link->heap[0];
    const uint64_t before = link->in_flight;
    const int32_t priority = top->priority;
    if (!top->send_chunk(connection != link ? connection : trib_link_express_route(link, top), top)) {
        trib_link_dequeue(link, top);
    }
    trib_link_priority_note(link, priority, (uint32_t)(link->in_flight - before));
}

void trib_link_send_next(trib_link *link)
{
    if (trib_link_main(link)->forks) {
        trib_link_subflow_send_next(link);
    } else {
        send_next_over(link, link);
    }
}

/* Which of its connections takes what is next; NULL: none has credit. */
static inline trib_link *with_credit(trib_link *link)
{
    const bool has = link->in_flight < link->credit && link->state == TRIB_LINK_READY;
    return link->has_subflows ? trib_link_subflow_least_loaded(link) : has ? link : NULL;
}

void trib_link_pump(trib_link *link)
{
    if (link->heap_size > 0 && trib_link_priority_is_possible(link)) {
        trib_link_priority_send(link);
    }
    if (link->flow.egress != NULL) {
        trib_egress_pump(link->host);
        return;
    }
    for (trib_link *next; link->heap_size > 0 && (next = with_credit(link)) != NULL;) {
        send_next_over(link, next);
    }
    trib_link_note_wait(link, link->heap_size > 0);
}

static void drop_request(trib_link *main, trib_send_request *request)
{
    trib_link_dequeue(main, request);
    if (request->on_drop != NULL) {
        request->on_drop(request);
    }
}

void trib_link_drop_requests(trib_link *link)
{
    while (link->heap_size > 0) {
        drop_request(link, link->heap[link->heap_size - 1]);
    }
    while (link->begun != NULL) {
        drop_request(link->main != NULL ? link->main : link, link->begun);
    }
}

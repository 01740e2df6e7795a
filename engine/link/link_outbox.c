/* link_outbox.c - what waits for a link's credit: a binary heap of waiters, by priority and age. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/link/link_host.h"
#include "engine/link/link_express.h"
#include "engine/link/link_strands.h"
#include "engine/link/link_trace.h"

#define HEAP_CAPACITY_FIRST 64u
#define AT_ONCE_BYTES (16u << 10)

static bool goes_before(const trib_waiter *a, const trib_waiter *b)
{
    return a->priority != b->priority ? a->priority > b->priority : a->sequence < b->sequence;
}

static void heap_place(trib_link *link, uint32_t index, trib_waiter *waiter)
{
    link->heap[index] = waiter;
    waiter->heap_index = index;
}

static void heap_sift(trib_link *link, uint32_t index)
{
    trib_waiter *waiter = link->heap[index];
    while (index > 0 && goes_before(waiter, link->heap[(index - 1) / 2])) {
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
        if (!goes_before(link->heap[child], waiter)) {
            break;
        }
        heap_place(link, index, link->heap[child]);
        index = child;
    }
    heap_place(link, index, waiter);
}

void trib_link_dequeue(trib_link *link, trib_waiter *waiter)
{
    const uint32_t index = waiter->heap_index;
    if (index == TRIB_WAITER_IDLE) {
        return;
    }
    waiter->heap_index = TRIB_WAITER_IDLE;
    if (index == TRIB_WAITER_BEGUN) {
        trib_link_strands_unbind(link, waiter);
        return;
    }
    trib_assert(index < link->heap_size && link->heap[index] == waiter);
    link->heap_size--;
    if (index < link->heap_size) {
        heap_place(link, index, link->heap[link->heap_size]);
        heap_sift(link, index);
    } else if (link->heap_size == 0 && link->share.egress != NULL) {
        trib_link_strands_settle(link);
    }
}

static void await_sent(const trib_link *connection, const bool *waits)
{
    if (connection->conn != NULL) {
        connection->conn->awaits_sent = connection->share.egress != NULL ? &connection->share.egress->waits : waits;
    }
}

/* Nothing is with the transport and nothing else waits, so what is small can go at once: whatever is handed in next, however
 * urgent, comes behind no more than that. Where sends of one turn share a system call they shall. */
static bool may_go_at_once(const trib_link *link, uint64_t bytes)
{
    const trib_egress *egress = link->share.egress;
    return bytes <= AT_ONCE_BYTES && link->conn != NULL && link->state == TRIB_LINK_READY && link->heap_size == 1 &&
           link->in_flight == 0 && (egress == NULL || (egress->in_flight == 0 && egress->waiting_count == 1)) &&
           !trib_link_express_is_possible(link);
}

trib_status trib_link_enqueue(trib_link *link, trib_waiter *waiter, uint64_t bytes)
{
    trib_assert(waiter->heap_index == TRIB_WAITER_IDLE);
    if (link->state == TRIB_LINK_CLOSING) {
        return TRIB_CLOSED;
    }
    if (link->heap_size == link->heap_capacity) {
        uint32_t capacity = link->heap_capacity == 0 ? HEAP_CAPACITY_FIRST : link->heap_capacity * 2;
        trib_waiter **heap = trib_link_zalloc(link->host, capacity * sizeof(trib_waiter *));
        if (heap == NULL) {
            return TRIB_NO_MEMORY;
        }
        if (link->heap_size > 0) {
            memcpy(heap, link->heap, link->heap_size * sizeof(trib_waiter *));
        }
        free(link->heap);
        link->heap = heap;
        link->heap_capacity = capacity;
    }
    heap_place(link, link->heap_size++, waiter);
    heap_sift(link, waiter->heap_index);
    await_sent(link, &link->waits);
    for (uint32_t i = 0; link->has_strands && i < TRIB_STRANDS_MAX; i++) {
        if (link->strands[i] != NULL) {
            await_sent(link->strands[i], &link->waits);
        }
    }
    if (link->share.egress != NULL) {
        trib_egress_offer(link, bytes);
        trib_link_strands_settle(link);
    }
    if (may_go_at_once(link, bytes)) {
        trib_link_pump(link);
    } else {
        /* Emitting waits for the end of the turn's event, so that all of a step's tensors are compared by priority. */
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

/* Lets out one chunk of what is first in the outbox, over that connection or, if it may overtake, the express one. */
static void emit_over(trib_link *link, trib_link *connection)
{
    trib_waiter *top = link->heap[0];
    const uint64_t before = link->in_flight;
    const int32_t priority = top->priority;
    if (!top->emit(connection != link ? connection : trib_link_express_route(link, top), top)) {
        trib_link_dequeue(link, top);
    }
    trib_link_express_note(link, priority, (uint32_t)(link->in_flight - before));
}

void trib_link_emit(trib_link *link)
{
    if (trib_link_main(link)->forks) {
        trib_link_strands_emit(link);
    } else {
        emit_over(link, link);
    }
}

/* Which of its connections takes what is next; NULL: none has credit. */
static inline trib_link *with_credit(trib_link *link)
{
    const bool has = link->in_flight < link->credit && link->state == TRIB_LINK_READY;
    return link->has_strands ? trib_link_strands_roomiest(link) : has ? link : NULL;
}

void trib_link_pump(trib_link *link)
{
    if (link->heap_size > 0 && trib_link_express_is_possible(link)) {
        trib_link_express_let_out(link);
    }
    if (link->share.egress != NULL) {
        trib_egress_pump(link->host);
        return;
    }
    for (trib_link *next; link->heap_size > 0 && (next = with_credit(link)) != NULL;) {
        emit_over(link, next);
    }
    trib_link_note_wait(link, link->heap_size > 0);
}

static void drop(trib_link *main, trib_waiter *waiter)
{
    trib_link_dequeue(main, waiter);
    if (waiter->dropped != NULL) {
        waiter->dropped(waiter);
    }
}

void trib_link_drop_waiters(trib_link *link)
{
    while (link->heap_size > 0) {
        drop(link, link->heap[link->heap_size - 1]);
    }
    while (link->begun != NULL) {
        drop(link->main != NULL ? link->main : link, link->begun);
    }
}

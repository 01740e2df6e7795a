/* egress.c - see egress.h. */
#include "engine/link/egress.h"

#include <stdlib.h>

#include "engine/base/assert.h"
#include "engine/link/link_host.h"
#include "engine/link/link_trace.h"

#define CAPACITY_FIRST 16u
#define PART_MIN (512u << 10) /* of the credit, for each of several networks: two chunks */
#define SLOW_MIN (128u << 10) /* ... for each of several cores, by slow links */
/* By those so much is enough, if it is so many messages: a few large ones to a peer that takes its time would hold up
 * those to the others. */
#define SLOW_BYTES (256u << 10)
#define SLOW_MESSAGES 8u

/* ---- The heap: who is furthest behind comes first ---- */

static void place_in_heap(trib_egress *self, uint32_t index, trib_link *link)
{
    self->waiting[index] = link;
    link->flow.heap_index = index;
}

static void sift_heap(trib_egress *self, uint32_t index)
{
    trib_link *link = self->waiting[index];
    const double at = link->flow.at;
    while (index > 0 && at < self->waiting[(index - 1) / 2]->flow.at) {
        place_in_heap(self, index, self->waiting[(index - 1) / 2]);
        index = (index - 1) / 2;
    }
    for (uint32_t child; (child = 2 * index + 1) < self->waiting_count; index = child) {
        if (child + 1 < self->waiting_count && self->waiting[child + 1]->flow.at < self->waiting[child]->flow.at) {
            child++;
        }
        if (at <= self->waiting[child]->flow.at) {
            break;
        }
        place_in_heap(self, index, self->waiting[child]);
    }
    place_in_heap(self, index, link);
}

/* ---- Links ---- */

trib_status trib_egress_join(trib_egress *egress, trib_link *link)
{
    if (egress->link_count == egress->capacity) {
        const uint32_t capacity = egress->capacity == 0 ? CAPACITY_FIRST : egress->capacity * 2;
        trib_link **waiting = realloc(egress->waiting, capacity * sizeof(trib_link *));
        if (waiting == NULL) {
            return TRIB_NO_MEMORY;
        }
        egress->waiting = waiting;
        egress->capacity = capacity;
    }
    egress->link_count++;
    link->flow.egress = egress;
    link->flow.heap_index = UINT32_MAX;
    return TRIB_OK;
}

void trib_egress_leave(trib_link *link)
{
    if (link->flow.egress != NULL) {
        trib_egress_rest(link);
        trib_assert(link->in_flight == 0);
        link->flow.egress->link_count--;
        if (link->conn != NULL) {
            link->conn->awaits_sent = NULL;
        }
        link->flow.egress = NULL;
    }
}

void trib_egress_join_in(trib_link *subflow)
{
    subflow->flow.offered = subflow->main->flow.offered;
    subflow->flow.egress->offered += subflow->flow.offered;
}

static void set_limit(const trib_link_host *host, trib_egress *egress)
{
    const uint64_t part = host->push_credit / host->egress_count;
    const uint64_t wanted = egress->is_slow ? part / host->engine->core_count : part;
    const uint64_t enough = egress->is_slow ? SLOW_MIN : PART_MIN;
    const uint64_t least = host->push_credit < enough ? host->push_credit : enough;
    egress->limit = wanted > least ? wanted : least;
}

void trib_egress_divide(trib_link_host *host, uint32_t networks)
{
    if (networks <= host->egress_count) {
        return;
    }
    host->egress_count = networks;
    for (uint32_t i = 0; i < networks; i++) {
        set_limit(host, &host->egress[i]);
    }
}

static inline void account_flow_bytes(trib_egress_flow *flow, uint64_t more, uint64_t less)
{
    trib_assert(flow->offered >= less);
    flow->offered += more - less;
    flow->egress->offered += more - less;
}

/* So many bytes more for all of the link's connections, or fewer. One that is not ready yet is told when it is. */
static inline void account_bytes(trib_link *link, uint64_t more, uint64_t less)
{
    account_flow_bytes(&link->flow, more, less);
    for (uint32_t i = 0; link->has_subflows && i < TRIB_SUBFLOWS_MAX; i++) {
        trib_link *subflow = link->subflows[i];
        if (subflow != NULL && subflow->state == TRIB_LINK_READY && subflow->flow.egress != NULL) {
            account_flow_bytes(&subflow->flow, more, less);
        }
    }
}

void trib_egress_offer(trib_link *link, uint64_t bytes)
{
    account_bytes(link, bytes, 0);
}

void trib_egress_wait(trib_link *link)
{
    trib_egress_flow *flow = &link->flow;
    trib_egress *egress = flow->egress;
    if (flow->heap_index == UINT32_MAX) {
        flow->at = flow->at > egress->clock ? flow->at : egress->clock; /* nobody saves up while it is idle */
        trib_assert(egress->waiting_count < egress->link_count);
        place_in_heap(egress, egress->waiting_count++, link);
        sift_heap(egress, flow->heap_index);
    }
}

void trib_egress_move(trib_link *from, trib_link *to, uint64_t bytes)
{
    if (from != NULL && from->flow.egress != NULL) {
        const uint64_t most = from->flow.offered;
        bytes = bytes < most ? bytes : most;
        account_bytes(from, 0, bytes);
    }
    if (to != NULL && to->flow.egress != NULL) {
        account_bytes(to, bytes, 0);
    }
}

void trib_egress_rest(trib_link *link)
{
    trib_egress *egress = link->flow.egress;
    const uint32_t index = link->flow.heap_index;
    if (egress == NULL || index == UINT32_MAX) {
        return;
    }
    trib_assert(index < egress->waiting_count && egress->waiting[index] == link);
    link->flow.heap_index = UINT32_MAX;
    trib_link_note_wait(link, false);
    egress->waiting_count--;
    if (index < egress->waiting_count) {
        place_in_heap(egress, index, egress->waiting[egress->waiting_count]);
        sift_heap(egress, index);
    }
}

static inline bool has_room(const trib_egress *egress)
{
    const bool is_enough = egress->is_slow && egress->in_flight >= SLOW_BYTES && egress->messages >= SLOW_MESSAGES;
    return egress->waiting_count > 0 && egress->in_flight < egress->limit && !is_enough;
}

/* The one that has room, and of those the one that is idle most; of several that are as much, the core's own. */
static trib_egress *least_loaded(trib_link_host *host)
{
    trib_egress *best = NULL;
    for (uint32_t i = 0; i < host->egress_count; i++) {
        trib_egress *egress = &host->egress[(host->reactor->index + i) % host->egress_count];
        if (has_room(egress) && (best == NULL || egress->in_flight < best->in_flight)) {
            best = egress;
        }
    }
    return best;
}

/* A link may go by another transport than the others, which knows nothing of slow links: only who said it takes it back. */
static inline void note_transport_speed(const trib_link_host *host, trib_egress *egress,
                                        const trib_transport *transport)
{
    if (transport->is_slow ? egress->is_slow : egress->slow_by != transport) {
        return;
    }
    egress->is_slow = transport->is_slow;
    egress->slow_by = transport->is_slow ? transport : NULL;
    trib_log(host->reactor->logger, TRIB_LOG_INFO, "reactor %u: %s", host->reactor->index,
             egress->is_slow ? "links are slow, so little is under way at a time, and packets are spaced out"
                             : "links are not slow any more, so the whole credit may be under way");
    set_limit(host, egress);
}

static inline void send_next_of(const trib_link_host *host, trib_egress *egress)
{
    trib_link *link = egress->waiting[0];
    trib_egress_flow *flow = &link->flow;
    const uint64_t before = egress->in_flight;
    egress->clock = flow->at;
    if (link->conn != NULL) {
        note_transport_speed(host, egress, link->conn->transport);
    }
    trib_link_send_next(link);
    /* Tensors of no bytes weigh nothing, and are few. */
    const double weight = flow->offered > 0 ? (double)flow->offered / (double)egress->offered : 1.0;
    flow->at += (double)(egress->in_flight - before) / weight;
    if (flow->heap_index != UINT32_MAX) {
        sift_heap(egress, flow->heap_index);
    }
}

bool trib_egress_is_slow(const trib_link_host *host)
{
    bool all = true;
    for (uint32_t i = 0; i < host->egress_count; i++) {
        all = all && host->egress[i].is_slow;
    }
    return all;
}

void trib_egress_pump(trib_link_host *host)
{
    if (host->egress_count == 1) {
        while (has_room(&host->egress[0])) {
            send_next_of(host, &host->egress[0]);
        }
    } else {
        for (trib_egress *egress = least_loaded(host); egress != NULL; egress = least_loaded(host)) {
            send_next_of(host, egress);
        }
    }
    for (uint32_t k = 0; k < host->egress_count; k++) {
        trib_egress *egress = &host->egress[k];
        egress->waits = egress->waiting_count > 0;
        if (egress->waits && trib_trace_ring_is_on(host->trace)) {
            for (uint32_t i = 0; i < egress->waiting_count; i++) {
                trib_link_note_wait(egress->waiting[i], true);
            }
        }
    }
}

void trib_egress_close(trib_link_host *host)
{
    for (uint32_t i = 0; i < TRIB_SUBFLOWS_MAX + 1; i++) {
        trib_assert(host->egress[i].link_count == 0);
        free(host->egress[i].waiting);
        host->egress[i].waiting = NULL;
    }
}

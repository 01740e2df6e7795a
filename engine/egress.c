/* egress.c - see egress.h. */
#include "engine/egress.h"

#include <stdlib.h>

#include "engine/assert.h"
#include "engine/core.h"
#include "engine/trace.h"

#define CAPACITY_FIRST 16u

/* ---- The heap: who is furthest behind comes first ---- */

static void place(trib_egress *self, uint32_t index, trib_link *link)
{
    self->waiting[index] = link;
    link->share.heap_index = index;
}

static void sift(trib_egress *self, uint32_t index)
{
    trib_link *link = self->waiting[index];
    const double at = link->share.at;
    while (index > 0 && at < self->waiting[(index - 1) / 2]->share.at) {
        place(self, index, self->waiting[(index - 1) / 2]);
        index = (index - 1) / 2;
    }
    for (uint32_t child; (child = 2 * index + 1) < self->waiting_count; index = child) {
        if (child + 1 < self->waiting_count && self->waiting[child + 1]->share.at < self->waiting[child]->share.at) {
            child++;
        }
        if (at <= self->waiting[child]->share.at) {
            break;
        }
        place(self, index, self->waiting[child]);
    }
    place(self, index, link);
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
    link->share.egress = egress;
    link->share.heap_index = UINT32_MAX;
    return TRIB_OK;
}

void trib_egress_leave(trib_link *link)
{
    if (link->share.egress != NULL) {
        trib_egress_rest(link);
        trib_assert(link->in_flight == 0);
        link->share.egress->link_count--;
        if (link->conn != NULL) {
            link->conn->awaits_sent = NULL;
        }
        link->share.egress = NULL;
    }
}

void trib_egress_offer(trib_link *link, uint64_t bytes)
{
    trib_egress_share *share = &link->share;
    trib_egress *egress = share->egress;
    share->offered += bytes;
    egress->offered += bytes;
    if (share->heap_index == UINT32_MAX) {
        share->at = share->at > egress->clock ? share->at : egress->clock; /* nobody saves up while it is idle */
        trib_assert(egress->waiting_count < egress->link_count);
        place(egress, egress->waiting_count++, link);
        sift(egress, share->heap_index);
    }
}

void trib_egress_move(trib_link *from, trib_link *to, uint64_t bytes)
{
    if (from != NULL && from->share.egress != NULL) {
        const uint64_t most = from->share.offered;
        bytes = bytes < most ? bytes : most;
        from->share.offered -= bytes;
        from->share.egress->offered -= bytes;
    }
    if (to != NULL && to->share.egress != NULL) {
        to->share.offered += bytes;
        to->share.egress->offered += bytes;
    }
}

void trib_egress_rest(trib_link *link)
{
    trib_egress *egress = link->share.egress;
    const uint32_t index = link->share.heap_index;
    if (egress == NULL || index == UINT32_MAX) {
        return;
    }
    trib_assert(index < egress->waiting_count && egress->waiting[index] == link);
    link->share.heap_index = UINT32_MAX;
    trib_link_note_wait(link, false);
    egress->waiting_count--;
    if (index < egress->waiting_count) {
        place(egress, index, egress->waiting[egress->waiting_count]);
        sift(egress, index);
    }
}

void trib_egress_pump(trib_egress *egress)
{
    while (egress->waiting_count > 0 && egress->in_flight < egress->limit) {
        trib_link *link = egress->waiting[0];
        trib_egress_share *share = &link->share;
        const uint64_t before = egress->in_flight;
        egress->clock = share->at;
        trib_link_emit(link);
        /* Tensors of no bytes weigh nothing, and are few. */
        const double weight = share->offered > 0 ? (double)share->offered / (double)egress->offered : 1.0;
        share->at += (double)(egress->in_flight - before) / weight;
        if (share->heap_index != UINT32_MAX) {
            sift(egress, share->heap_index);
        }
    }
    egress->waits = egress->waiting_count > 0;
    if (egress->waits && trib_trace_on(egress->waiting[0]->core)) {
        for (uint32_t i = 0; i < egress->waiting_count; i++) {
            trib_link_note_wait(egress->waiting[i], true);
        }
    }
}

void trib_egress_close(trib_egress *egress)
{
    trib_assert(egress->link_count == 0);
    free(egress->waiting);
    egress->waiting = NULL;
}

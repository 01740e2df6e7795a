/* quorums.c - see quorums.h. */
#include "engine/membership/quorums.h"

#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "engine/base/assert.h"
#include "engine/server/quorum.h"

/* A round whose set is being decided. */
struct trib_quorum_call {
    trib_registry_entry *entry;
    uint32_t round;
    struct trib_quorum_call *previous, *next;
    bool *awaited;       /* by member: it has yet to answer which workers have begun the round with it */
    unsigned char set[]; /* a bit for each worker that has begun the round somewhere */
};

typedef struct trib_quorum_call quorum_call;

static size_t set_bytes(const trib_coordinator *self)
{
    return (self->worker_count + 7) / 8;
}

static trib_registry_entry *find_entry(const trib_coordinator *self, uint32_t id)
{
    trib_registry_entry *entry = self->tensors_first;
    while (entry != NULL && (entry->id != id || entry->owners == NULL)) {
        entry = entry->newer;
    }
    return entry;
}

static quorum_call *find_call(const trib_coordinator *self, uint32_t tensor, uint32_t round)
{
    quorum_call *call = self->quorum_calls;
    while (call != NULL && (call->entry->id != tensor || call->round != round)) {
        call = call->next;
    }
    return call;
}

static void free_call(trib_coordinator *self, quorum_call *call)
{
    DL_DELETE2(self->quorum_calls, call, previous, next);
    free(call->awaited);
    free(call);
}

/* Each member learns how many partitions of the tensor each of its reactors sums, too: it keeps the set until all of
 * them have come to the round. */
static void tell_set(const trib_coordinator *self, const quorum_call *call, uint32_t member)
{
    unsigned char payload[(TRIB_CONTRIBUTORS_MAX + 7) / 8 + TRIB_REACTORS_MAX * sizeof(uint32_t)];
    uint32_t partitions[TRIB_REACTORS_MAX] = {0};
    trib_writer writer = {.data = payload, .capacity = sizeof payload};
    for (uint32_t i = 0; i < call->entry->partition_count; i++) {
        const trib_place_owner *owner = &call->entry->owners[i];
        if (owner->member == member) {
            trib_assert(owner->reactor < TRIB_REACTORS_MAX);
            partitions[owner->reactor]++;
        }
    }
    for (uint32_t i = 0; i < set_bytes(self); i++) {
        trib_put_u8(&writer, call->set[i]);
    }
    for (uint32_t i = 0; i < self->roster->members[member].reactors; i++) {
        trib_put_u32(&writer, partitions[i]);
    }
    trib_assert(!writer.overflow);
    const trib_frame frame = {.type = TRIB_FRAME_QUORUM_SET, .tensor = call->entry->id, .round = call->round};
    trib_link_send_copy(self->slots[member].link, frame, payload, writer.size);
}

static bool sums(const trib_coordinator *self, uint32_t member)
{
    return self->slots[member].link != NULL && !self->slots[member].lost && self->roster->members[member].sums;
}

static void decide_if_heard(trib_coordinator *self, quorum_call *call)
{
    for (uint32_t i = 0; i < trib_coordinator_slots(self); i++) {
        if (call->awaited[i] && sums(self, i)) {
            return;
        }
    }
    if (trib_quorum_count(call->set, self->worker_count) < call->entry->quorum) {
        /* A connection has ended in the middle of a contribution since the call, or the caller is wrong. */
        memset(call->set, 0xff, set_bytes(self));
    }
    for (uint32_t i = 0; i < trib_coordinator_slots(self); i++) {
        if (sums(self, i)) {
            tell_set(self, call, i);
        }
    }
    free_call(self, call);
}

static trib_status begin_call(trib_coordinator *self, uint32_t member, const trib_frame *frame, trib_error *error)
{
    trib_registry_entry *entry = find_entry(self, frame->tensor);
    if (entry == NULL || find_call(self, frame->tensor, frame->round) != NULL) {
        return TRIB_OK; /* it has ended meanwhile, or its owner has asked twice */
    }
    if (entry->quorum == 0 || entry->partition_count == 0 || entry->owners[0].member != member) {
        return trib_error_set(error, TRIB_PROTOCOL, "QUORUM_CALL about tensor %u of a member that does not decide it",
                              frame->tensor);
    }
    quorum_call *call = calloc(1, sizeof *call + set_bytes(self));
    bool *awaited = calloc(trib_coordinator_slots(self), sizeof *awaited);
    if (call == NULL || awaited == NULL) {
        free(call);
        free(awaited);
        return TRIB_OK; /* nobody was asked, so its owner calls again */
    }
    call->entry = entry;
    call->round = frame->round;
    call->awaited = awaited;
    DL_APPEND2(self->quorum_calls, call, previous, next);
    for (uint32_t i = 0; i < trib_coordinator_slots(self); i++) {
        if (sums(self, i)) {
            awaited[i] = true;
            const trib_frame ask = {.type = TRIB_FRAME_QUORUM_ASK, .tensor = frame->tensor, .round = frame->round};
            trib_link_send_copy(self->slots[i].link, ask, NULL, 0);
        }
    }
    return TRIB_OK;
}

trib_status trib_quorums_take(trib_coordinator *self, uint32_t member, const trib_frame *frame, const void *payload,
                              trib_error *error)
{
    if (!self->running || self->over || !self->roster->members[member].sums) {
        return self->over ? TRIB_OK
                          : trib_error_set(error, TRIB_PROTOCOL, "%s of a member that does not sum",
                                           trib_frame_name(frame->type));
    }
    if (frame->type == TRIB_FRAME_QUORUM_CALL) {
        return begin_call(self, member, frame, error);
    }
    quorum_call *call = find_call(self, frame->tensor, frame->round);
    if (frame->payload_size != set_bytes(self) || (call != NULL && !call->awaited[member])) {
        return trib_error_set(error, TRIB_PROTOCOL, "malformed QUORUM_BEGUN, or one that nobody has asked for");
    }
    if (call == NULL) {
        return TRIB_OK; /* the tensor has ended */
    }
    for (size_t i = 0; i < set_bytes(self); i++) {
        call->set[i] |= ((const unsigned char *)payload)[i];
    }
    call->awaited[member] = false;
    decide_if_heard(self, call);
    return TRIB_OK;
}

void trib_quorums_member_gone(trib_coordinator *self)
{
    quorum_call *call, *next;
    DL_FOREACH_SAFE2(self->quorum_calls, call, next, next)
    {
        decide_if_heard(self, call);
    }
}

void trib_quorums_entry_ended(trib_coordinator *self, const trib_registry_entry *entry)
{
    quorum_call *call, *next;
    DL_FOREACH_SAFE2(self->quorum_calls, call, next, next)
    {
        if (call->entry == entry) {
            free_call(self, call);
        }
    }
}

void trib_quorums_clear(trib_coordinator *self)
{
    while (self->quorum_calls != NULL) {
        free_call(self, self->quorum_calls);
    }
}

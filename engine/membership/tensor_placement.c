/* tensor_placement.c - decides which members own the partitions of a tensor, and tells its workers (DECLARED). */
#include <stdlib.h>

#include "engine/base/assert.h"
#include "engine/cluster/tensor_owners.h"
#include "engine/link/egress.h"
#include "engine/membership/coordinator_internal.h"
#include "engine/worker/op.h"

/* A slice is summed or handed out by the worker that it belongs to or goes to, if that one sums at all: then it crosses
 * the network once. *is_bound is false if the slice may be anywhere. */
static trib_place_owner slice_owner(const trib_coordinator *self, const trib_registry_entry *entry, uint32_t slice,
                                    uint32_t turn, bool *is_bound)
{
    const uint32_t place = entry->layout == TRIB_PAIRS ? slice % trib_registry_sharers(self, entry) : slice;
    const uint32_t rank = entry->group == NULL ? place : entry->group->ranks->ranks[place];
    const trib_member_info *info = &self->roster->members[rank];
    trib_assert(place < trib_registry_sharers(self, entry) && rank < self->worker_count && info->reactors > 0);
    *is_bound = entry->layout != TRIB_WHOLE && info->sums;
    return (trib_place_owner){.member = (uint16_t)rank, .reactor = (uint16_t)(turn % info->reactors)};
}

static bool deal_partitions(trib_coordinator *self, trib_registry_entry *entry)
{
    const trib_partitioning *cut = entry->cut;
    trib_assert(entry->owners == NULL && cut->partition_count <= TRIB_PARTITIONS_MAX);
    entry->owners = malloc((cut->partition_count > 0 ? cut->partition_count : 1) * sizeof *entry->owners);
    if (entry->owners == NULL) {
        return false;
    }
    trib_dealer *dealer = entry->group != NULL && entry->group->dealer != NULL ? entry->group->dealer : self->dealer;
    trib_dealer_begin(dealer, cut->bytes, cut->partition_bytes);
    for (uint32_t i = 0; i < cut->partition_count; i++) {
        bool is_bound = false;
        const uint32_t slice = trib_partitioning_slice_of(cut, i);
        entry->owners[i] = slice_owner(self, entry, slice, slice + i - cut->slices[slice].first, &is_bound);
        if (!is_bound) {
            entry->owners[i] = trib_dealer_next(dealer, trib_partitioning_size(cut, i));
        }
    }
    entry->partition_count = cut->partition_count;
    entry->partition_bytes = cut->partition_bytes;
    return true;
}

trib_dealer *trib_registry_make_dealer(const trib_coordinator *self,
                                       void (*limit)(const void *user, uint32_t member, trib_place_member *place),
                                       const void *user)
{
    const uint32_t count = trib_coordinator_slots(self);
    trib_place_member *members = calloc(count, sizeof *members);
    trib_dealer *dealer = NULL;
    double unused = 0;
    for (uint32_t i = 0; members != NULL && i < count; i++) {
        const trib_member_info *info = &self->roster->members[i];
        members[i] = (trib_place_member){.is_worker = i < self->worker_count,
                                         .can_sum = info->sums && !self->slots[i].lost,
                                         .bandwidth = info->bandwidth,
                                         .reactors = info->reactors};
        limit(user, i, &members[i]);
    }
    if (members != NULL && trib_place_weights(members, count, &unused) == TRIB_OK &&
        trib_dealer_create(members, count, &dealer) != TRIB_OK) {
        dealer = NULL;
    }
    free(members);
    return dealer;
}

uint32_t trib_registry_chunk_least(const trib_coordinator *self, const trib_registry_entry *entry)
{
    return trib_codec_chunk_least(self->roster, entry->codec, self->core->engine->env.modelled_codec, entry->dtype,
                                  entry->local_size > 0);
}

bool trib_registry_place(trib_coordinator *self, trib_registry_entry *entry)
{
    trib_assert(entry->cut == NULL && !entry->bad);
    trib_partitioning *cut = trib_partitioning_create(entry->layout, trib_registry_sharers(self, entry), entry->counts,
                                                      trib_dtype_size(entry->dtype));
    if (cut == NULL) {
        return false;
    }
    if (cut->bytes > TRIB_TENSOR_BYTES_MAX || cut->slice_count > TRIB_PARTITIONS_MAX ||
        (size_t)cut->slice_count * 8 > TRIB_PAYLOAD_MAX / 2) {
        free(cut);
        trib_registry_mark_bad(self, entry, TRIB_MISMATCH,
                               "its slices are too many, or have more than 2^44 bytes together");
        return true;
    }
    const bool is_slow = entry->local_size == 0 && trib_egress_is_slow(&self->core->host);
    const uint32_t least = trib_registry_chunk_least(self, entry);
    trib_partitioning_divide(cut,
                             is_slow ? trib_tensor_partition_bytes_slow(self->roster, cut->bytes, least)
                                     : trib_tensor_partition_bytes(self->roster, cut->bytes, entry->local_size, least));
    entry->cut = cut;
    return deal_partitions(self, entry);
}

trib_status trib_registry_send_declared(trib_coordinator *self, const trib_registry_entry *entry, uint32_t rank)
{
    const uint32_t slices = entry->cut->slice_count;
    trib_assert(entry->is_known && entry->tags[rank] < TRIB_TAG_RELEASED); /* members that sum know it first */
    trib_assert(self->slots[rank].link != NULL && entry->partition_count == entry->cut->partition_count);
    size_t size = trib_owners_size(entry->partition_count) + (size_t)slices * 8;
    unsigned char *payload = malloc(size);
    if (payload == NULL) {
        return TRIB_NO_MEMORY;
    }
    trib_writer writer = {.data = payload, .capacity = size};
    trib_owners_put(&writer, entry->partition_bytes, entry->partition_count, entry->owners);
    for (uint32_t i = 0; i < slices; i++) {
        trib_put_u64(&writer, entry->counts[i]);
    }
    trib_assert(!writer.overflow);
    const uint32_t base = entry->id < TRIB_TENSORS_MAX ? self->numbers[entry->id].round_base : 0;
    trib_frame frame = {.type = TRIB_FRAME_DECLARED,
                        .tensor = entry->tags[rank],
                        .aux = entry->id,
                        .root = entry->choice,
                        .partition = base,
                        .round = entry->join_round > base ? entry->join_round : base};
    trib_link_send_copy(self->slots[rank].link, frame, payload, size);
    free(payload);
    return TRIB_OK;
}

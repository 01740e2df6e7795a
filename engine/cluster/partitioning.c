/* partitioning.c - see partitioning.h. */
#include "engine/cluster/partitioning.h"

#include <stdlib.h>

#include "engine/base/assert.h"

uint64_t trib_partitioning_slice_count(trib_layout layout, uint32_t members)
{
    switch (layout) {
    case TRIB_SLICES:
        return members;
    case TRIB_PAIRS:
        return (uint64_t)members * members;
    default:
        return 1;
    }
}

void trib_partitioning_unref(trib_partitioning *self)
{
    if (self != NULL && atomic_fetch_sub(&self->references, 1) == 0) {
        free(self);
    }
}

trib_partitioning *trib_partitioning_create(trib_layout layout, uint32_t members, const uint64_t *counts,
                                            size_t element)
{
    trib_assert(members > 0 && element > 0);
    const uint64_t slices = trib_partitioning_slice_count(layout, members);
    trib_partitioning *cut = calloc(1, sizeof *cut + slices * sizeof cut->slices[0]);
    if (cut == NULL) {
        return NULL;
    }
    cut->layout = layout;
    cut->members = members;
    cut->slice_count = (uint32_t)slices;
    for (uint64_t i = 0; i < slices; i++) {
        const bool fits =
            counts[i] <= TRIB_TENSOR_BYTES_MAX / element && cut->bytes + counts[i] * element <= TRIB_TENSOR_BYTES_MAX;
        if (!fits) {
            cut->bytes = UINT64_MAX;
            return cut;
        }
        cut->slices[i] = (trib_slice){.begin = cut->bytes, .bytes = counts[i] * element};
        cut->bytes += cut->slices[i].bytes;
    }
    return cut;
}

static uint64_t number(trib_partitioning *cut, uint32_t partition_bytes)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < cut->slice_count; i++) {
        trib_slice *slice = &cut->slices[i];
        slice->first = (uint32_t)count;
        count += (slice->bytes + partition_bytes - 1) / partition_bytes;
    }
    return count == 0 && cut->layout == TRIB_WHOLE ? 1 : count;
}

void trib_partitioning_divide(trib_partitioning *cut, uint32_t partition_bytes)
{
    uint64_t size = partition_bytes, count;
    trib_assert(cut->bytes <= TRIB_TENSOR_BYTES_MAX && cut->slice_count <= TRIB_PARTITIONS_MAX);
    while ((count = number(cut, (uint32_t)size)) > TRIB_PARTITIONS_MAX && size <= UINT32_MAX / 2) {
        size *= 2;
    }
    trib_assert(count <= TRIB_PARTITIONS_MAX);
    cut->partition_bytes = (uint32_t)size;
    cut->partition_count = (uint32_t)count;
}

uint32_t trib_partitioning_slice_of(const trib_partitioning *cut, uint32_t partition)
{
    uint32_t low = 0, high = cut->slice_count;
    trib_assert(partition < cut->partition_count);
    trib_assert(cut->partition_bytes > 0); /* trib_partitioning_divide has been called */
    while (high - low > 1) { /* the last slice whose first partition is not above; slices before it may be empty */
        const uint32_t middle = low + (high - low) / 2;
        *(cut->slices[middle].first <= partition ? &low : &high) = middle;
    }
    return low;
}

/* Bytes of the slice before the partition. */
static uint64_t offset_in(const trib_partitioning *cut, const trib_slice *slice, uint32_t partition)
{
    return (uint64_t)(partition - slice->first) * cut->partition_bytes;
}

uint64_t trib_partitioning_offset(const trib_partitioning *cut, uint32_t partition)
{
    const trib_slice *slice = &cut->slices[trib_partitioning_slice_of(cut, partition)];
    return slice->begin + offset_in(cut, slice, partition);
}

uint32_t trib_partitioning_size(const trib_partitioning *cut, uint32_t partition)
{
    const trib_slice *slice = &cut->slices[trib_partitioning_slice_of(cut, partition)];
    const uint64_t left = slice->bytes - offset_in(cut, slice, partition);
    return left < cut->partition_bytes ? (uint32_t)left : cut->partition_bytes;
}

uint64_t trib_partitioning_send_bytes(const trib_partitioning *cut, uint32_t member)
{
    trib_assert(cut->layout != TRIB_PAIRS || member < cut->members);
    uint64_t bytes = cut->layout == TRIB_PAIRS ? 0 : cut->slices[member % cut->slice_count].bytes;
    for (uint32_t i = 0; i < cut->members && cut->layout == TRIB_PAIRS; i++) {
        bytes += cut->slices[member * cut->members + i].bytes;
    }
    return bytes;
}

uint64_t trib_partitioning_recv_bytes(const trib_partitioning *cut, uint32_t member)
{
    trib_assert(cut->layout != TRIB_PAIRS || member < cut->members);
    uint64_t bytes = cut->layout == TRIB_PAIRS ? 0 : cut->bytes;
    for (uint32_t i = 0; i < cut->members && cut->layout == TRIB_PAIRS; i++) {
        bytes += cut->slices[i * cut->members + member].bytes;
    }
    return bytes;
}

/*
 * partitioning.h - how a tensor is cut: into slices that belong to workers, and these into partitions. Pure functions.
 *
 * The collective on a tensor follows from the slices: who gives each slice and who takes it. A tensor that all workers
 * have as a whole is one slice. With TRIB_SLICES each worker has a slice of its own length. With TRIB_PAIRS each worker
 * has a slice for each worker, and the slice of worker i for worker j has the number i * members + j. No partition
 * crosses the border of a slice. A slice without bytes has no partition, except the one of a whole tensor.
 */
#ifndef TRIB_ENGINE_PARTITIONING_H
#define TRIB_ENGINE_PARTITIONING_H

#include <stdatomic.h>

#include "api/tributary.h"
#include "engine/base/limits.h"

typedef struct trib_slice {
    uint64_t begin, bytes; /* begin: bytes of all slices before this one */
    uint32_t first;        /* its first partition */
} trib_slice;

typedef struct trib_partitioning {
    trib_layout layout;
    uint32_t members, slice_count;
    uint64_t bytes; /* bytes of all slices */
    uint32_t partition_bytes, partition_count;
    atomic_uint references; /* references besides that of its maker */
    trib_slice slices[];
} trib_partitioning;

/* Takes a reference, for a user that may outlive the maker. The last reference to go frees it. */
static inline trib_partitioning *trib_partitioning_ref(trib_partitioning *self)
{
    atomic_fetch_add(&self->references, 1);
    return self;
}
/* NULL is fine. */
void trib_partitioning_unref(trib_partitioning *self);
/* The number of slices of a tensor of that many workers. */
uint64_t trib_partitioning_slice_count(trib_layout layout, uint32_t members);
/* Reads the lengths of all slices, in elements. Returns NULL if memory runs out; bytes is UINT64_MAX if the tensor
 * would be too large. trib_partitioning_divide must follow before partitions are asked for. Freed with free(). */
trib_partitioning *trib_partitioning_create(trib_layout layout, uint32_t members, const uint64_t *counts,
                                            size_t element);
/* Cuts the slices into partitions of that size, or of a multiple if there would be too many. */
void trib_partitioning_divide(trib_partitioning *cut, uint32_t partition_bytes);
/* The slice of a partition. */
uint32_t trib_partitioning_slice_of(const trib_partitioning *cut, uint32_t partition);
/* The place of a partition among the bytes of all slices, and its size. */
uint64_t trib_partitioning_offset(const trib_partitioning *cut, uint32_t partition);
uint32_t trib_partitioning_size(const trib_partitioning *cut, uint32_t partition);
/* Bytes that the worker has before a collective that gathers or exchanges, and that it has afterwards. */
uint64_t trib_partitioning_send_bytes(const trib_partitioning *cut, uint32_t member);
uint64_t trib_partitioning_recv_bytes(const trib_partitioning *cut, uint32_t member);

#endif

/*
 * heap.h - cuts the memory of an arena into blocks: neighbours by address, joined again when both are free.
 *
 * A heap takes memory from its source and never gives it back: the arena unmaps all of it once the heap is destroyed.
 * It keeps its records outside that memory, because devices may write there. All functions may be called from any
 * thread at any time between create and destroy.
 */
#ifndef TRIB_NUMA_HEAP_H
#define TRIB_NUMA_HEAP_H

#include "api/tributary.h"

/* A heap takes more than a block needs, so that the source's pieces stay few; but not more than this: a thread that
 * needs a little memory waits until the source has registered all that was taken. */
#define TRIB_HEAP_GROWTH_BYTES_MAX ((size_t)64 << 20)

/* Where a heap's memory comes from. */
typedef struct trib_heap_source {
    /* Fresh zeroed memory, or NULL: then the heap asks again, for no more than it needs. size: a multiple of the page
     * size; alignment: a power of two, at least a page. A block lies within one such piece. */
    void *(*take)(void *user, size_t size, size_t alignment);
    void *user;
} trib_heap_source;

typedef struct trib_heap trib_heap;

/* *source is copied. TRIB_NO_MEMORY. */
TRIB_CHECKED trib_status trib_heap_create(const trib_heap_source *source, trib_heap **heap_out);
/* Drops all records, even those of blocks still in use; the memory stays mapped. NULL is fine. */
void trib_heap_destroy(trib_heap *heap);
/* NULL when there is no memory. size above 0; alignment: a power of two of at least a cache line. */
void *trib_heap_alloc(trib_heap *heap, size_t size, size_t alignment);
/* Bytes the block really has: at least what was asked for. */
size_t trib_heap_usable_size(trib_heap *heap, const void *start);
void trib_heap_free(trib_heap *heap, void *start);
/* True if a block in use begins there. */
bool trib_heap_has(trib_heap *heap, const void *start);
/* The bytes that a heap without room takes for such a block, at least. */
size_t trib_heap_growth_for(size_t size);

#endif

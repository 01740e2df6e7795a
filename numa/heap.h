/*
 * heap.h - what an arena asks of the allocator that cuts its extents into blocks.
 *
 * Two implementations: the built-in pool (heap_pool.c), always there, and jemalloc (heap_jemalloc.c), which lives in a
 * module of its own because jemalloc's thread-local storage does not survive dlopen (docs/decisions/0001-jemalloc.md).
 * A heap takes memory from its source and never gives it back: the arena unmaps all of it once the heap is destroyed.
 * It must keep its own records outside that memory, because devices may write there.
 *
 * All functions of a heap may be called from any thread at any time between create and destroy.
 */
#ifndef TRIB_NUMA_HEAP_H
#define TRIB_NUMA_HEAP_H

#include "api/tributary.h"

/* A heap takes more than a block needs, so that the source's pieces stay few; but not more than this: who needs a little
 * memory waits until the source has registered all that was taken. */
#define TRIB_HEAP_GROWTH_BYTES_MAX ((size_t)64 << 20)

/* Where a heap's memory comes from. */
typedef struct trib_heap_source {
    /* Fresh zeroed memory, or NULL: then the heap asks for what it needs and no more. size: a multiple of the page size;
     * alignment: a power of two, at least a page. */
    void *(*take)(void *user, size_t size, size_t alignment);
    /* Whether two addresses lie in one extent: a block must never span two, as each is registered by itself. */
    bool (*same_extent)(void *user, const void *a, const void *b);
    void *user;
} trib_heap_source;

typedef struct trib_heap trib_heap;

typedef struct trib_heap_ops {
    const char *name;
    /* *source is copied. TRIB_NO_MEMORY. */
    TRIB_CHECKED trib_status (*create)(const trib_heap_source *source, trib_heap **heap_out);
    /* Drops all records, even those of blocks still in use; the memory stays mapped. NULL is fine. */
    void (*destroy)(trib_heap *heap);
    /* NULL when there is no memory. size above 0; alignment: a power of two of at least a cache line. */
    void *(*alloc)(trib_heap *heap, size_t size, size_t alignment);
    /* Bytes the block really has: at least what was asked for. */
    size_t (*usable_size)(trib_heap *heap, const void *block);
    void (*free)(trib_heap *heap, void *block);
    /* What it would have to take for such a block, at least, if it has no room itself. size: whole pages. */
    size_t (*need)(trib_heap *heap, size_t size, size_t alignment);
} trib_heap_ops;

extern const trib_heap_ops trib_heap_pool;

/* The module's only symbol; its version changes with the layout of the structs above. */
#define TRIB_HEAP_JEMALLOC_SYMBOL "trib_heap_jemalloc_v2"
#define TRIB_HEAP_JEMALLOC_MODULE "libtributary-jemalloc.so.0"
TRIB_API const trib_heap_ops *trib_heap_jemalloc_v2(void);

#endif

/*
 * heap.c - see heap.h.
 *
 * Every byte taken from the source belongs to exactly one block, free or used. The blocks of one take are linked by
 * address; no two free neighbours exist. Free blocks hang in bins by the power of two below their size, used ones in a
 * hash table by address. The records live outside the blocks and are used again, so the steady state calls no malloc.
 *
 * One mutex: blocks are taken when tensors are declared, not on the data path.
 */
#include "engine/base/assert.h"
#include "numa/arena.h"
#include "numa/heap.h"

#include <pthread.h>
#include <stdlib.h>

#define BIN_COUNT 64
#define BUCKETS_MIN 64
/* Blocks of the bin that may fit that are looked at before a bigger bin is tried. */
#define BIN_SCAN_MAX 32
/* A heap grows by at least this part of its size, but by no more than TRIB_HEAP_GROWTH_BYTES_MAX, so that the number of
 * extents stays small. */
#define GROWTH_DIVISOR 8

typedef struct block block;
struct block {
    uint8_t *start;
    size_t size;
    bool used;
    block *before, *after;  /* neighbours by address within one take */
    block *previous, *next; /* in its bin, its bucket or the list of spare records */
};

struct trib_heap {
    trib_heap_source source;
    pthread_mutex_t mutex; /* protects all below */
    block *bins[BIN_COUNT];
    block **buckets; /* a power of two of them */
    size_t bucket_count;
    size_t used_count;
    size_t taken_bytes;
    block *spare;
    size_t spare_count;
};

trib_status trib_heap_create(const trib_heap_source *source, trib_heap **heap_out)
{
    trib_heap *heap = calloc(1, sizeof(*heap));
    block **buckets = calloc(BUCKETS_MIN, sizeof(block *));
    if (heap == NULL || buckets == NULL || pthread_mutex_init(&heap->mutex, NULL) != 0) {
        free(heap);
        free(buckets);
        return TRIB_NO_MEMORY;
    }
    heap->source = *source;
    heap->buckets = buckets;
    heap->bucket_count = BUCKETS_MIN;
    *heap_out = heap;
    return TRIB_OK;
}

static void free_list(block *list)
{
    while (list != NULL) {
        block *next = list->next;
        free(list);
        list = next;
    }
}

void trib_heap_destroy(trib_heap *heap)
{
    if (heap == NULL) {
        return;
    }
    for (size_t i = 0; i < BIN_COUNT; i++) {
        free_list(heap->bins[i]);
    }
    for (size_t i = 0; i < heap->bucket_count; i++) {
        free_list(heap->buckets[i]);
    }
    free_list(heap->spare);
    free(heap->buckets);
    pthread_mutex_destroy(&heap->mutex);
    free(heap);
}

static void push_block(block **head, block *item)
{
    item->previous = NULL;
    item->next = *head;
    if (*head != NULL) {
        (*head)->previous = item;
    }
    *head = item;
}

static void remove_block(block **head, block *item)
{
    if (item->previous != NULL) {
        item->previous->next = item->next;
    } else {
        trib_assert(*head == item);
        *head = item->next;
    }
    if (item->next != NULL) {
        item->next->previous = item->previous;
    }
}

static size_t bin_of(size_t size)
{
    trib_assert(size > 0);
    return (size_t)(63 - __builtin_clzll((unsigned long long)size));
}

static block **bucket_of(const trib_heap *heap, const void *start)
{
    uint64_t hash = ((uint64_t)(uintptr_t)start / TRIB_CACHE_LINE_BYTES) * 0x9E3779B97F4A7C15u;
    return &heap->buckets[(hash >> 32) & (heap->bucket_count - 1)];
}

/* Makes sure of count spare records, so that the following steps cannot fail half-way. */
static bool reserve_spares(trib_heap *heap, size_t count)
{
    while (heap->spare_count < count) {
        block *item = malloc(sizeof(*item));
        if (item == NULL) {
            return false;
        }
        push_block(&heap->spare, item);
        heap->spare_count++;
    }
    return true;
}

static block *take_spare(trib_heap *heap, uint8_t *start, size_t size)
{
    trib_assert(heap->spare_count > 0);
    block *item = heap->spare;
    remove_block(&heap->spare, item);
    heap->spare_count--;
    *item = (block){.start = start, .size = size};
    return item;
}

static void give_spare(trib_heap *heap, block *item)
{
    push_block(&heap->spare, item);
    heap->spare_count++;
}

/* Doubles the table when it is full; without memory the chains just grow longer. */
static void grow_buckets(trib_heap *heap)
{
    if (heap->used_count < heap->bucket_count) {
        return;
    }
    size_t old_count = heap->bucket_count;
    block **old = heap->buckets;
    block **buckets = calloc(old_count * 2, sizeof(block *));
    if (buckets == NULL) {
        return;
    }
    heap->buckets = buckets;
    heap->bucket_count = old_count * 2;
    for (size_t i = 0; i < old_count; i++) {
        while (old[i] != NULL) {
            block *item = old[i];
            remove_block(&old[i], item);
            push_block(bucket_of(heap, item->start), item);
        }
    }
    free(old);
}

static size_t gap_before(const block *item, size_t alignment)
{
    uintptr_t start = (uintptr_t)item->start;
    return (size_t)(((start + alignment - 1) & ~(uintptr_t)(alignment - 1)) - start);
}

static bool block_fits(const block *item, size_t size, size_t alignment)
{
    size_t gap = gap_before(item, alignment);
    return gap <= item->size && item->size - gap >= size;
}

/* A free block that holds size bytes at that alignment, or NULL. */
static block *find_free(const trib_heap *heap, size_t size, size_t alignment)
{
    for (size_t bin = bin_of(size); bin < BIN_COUNT; bin++) {
        size_t scanned = 0;
        for (block *item = heap->bins[bin]; item != NULL && scanned < BIN_SCAN_MAX; item = item->next) {
            if (block_fits(item, size, alignment)) {
                return item;
            }
            scanned++;
        }
    }
    return NULL;
}

static size_t round_up_to_extents(size_t size)
{
    return (size + TRIB_EXTENT_BYTES - 1) & ~(TRIB_EXTENT_BYTES - 1);
}

/* Takes an extent that holds size bytes at that alignment; needs one spare record. */
static block *grow_heap(trib_heap *heap, size_t size, size_t alignment)
{
    if (size > SIZE_MAX / 4) {
        return NULL;
    }
    size_t least = round_up_to_extents(size);
    size_t wished = round_up_to_extents(heap->taken_bytes / GROWTH_DIVISOR);
    wished = wished < TRIB_HEAP_GROWTH_BYTES_MAX ? wished : TRIB_HEAP_GROWTH_BYTES_MAX;
    size_t taken = wished > least ? wished : least;
    size_t extent_alignment = alignment > TRIB_PAGE_BYTES ? alignment : TRIB_PAGE_BYTES;
    uint8_t *start = heap->source.take(heap->source.user, taken, extent_alignment);
    if (start == NULL && taken > least) {
        taken = least;
        start = heap->source.take(heap->source.user, taken, extent_alignment);
    }
    if (start == NULL) {
        return NULL;
    }
    heap->taken_bytes += taken;
    block *item = take_spare(heap, start, taken);
    push_block(&heap->bins[bin_of(taken)], item);
    return item;
}

/* Cuts item after size bytes; the rest becomes a free block. item itself must hang in no list. */
static void cut_block(trib_heap *heap, block *item, size_t size)
{
    trib_assert(size > 0 && size <= item->size);
    if (size == item->size) {
        return;
    }
    block *rest = take_spare(heap, item->start + size, item->size - size);
    rest->before = item;
    rest->after = item->after;
    if (rest->after != NULL) {
        rest->after->before = rest;
    }
    item->after = rest;
    item->size = size;
    push_block(&heap->bins[bin_of(rest->size)], rest);
}

static void *alloc_locked(trib_heap *heap, size_t size, size_t alignment)
{
    /* An extent's record, the gap in front and the rest behind. */
    if (!reserve_spares(heap, 3)) {
        return NULL;
    }
    block *item = find_free(heap, size, alignment);
    if (item == NULL) {
        item = grow_heap(heap, size, alignment);
    }
    if (item == NULL) {
        return NULL;
    }
    trib_assert(!item->used && block_fits(item, size, alignment));
    remove_block(&heap->bins[bin_of(item->size)], item);
    size_t gap = gap_before(item, alignment);
    if (gap > 0) {
        cut_block(heap, item, gap);
        push_block(&heap->bins[bin_of(gap)], item);
        item = item->after;
        trib_assert(item != NULL);
        remove_block(&heap->bins[bin_of(item->size)], item);
    }
    cut_block(heap, item, size);
    item->used = true;
    grow_buckets(heap);
    push_block(bucket_of(heap, item->start), item);
    heap->used_count++;
    return item->start;
}

void *trib_heap_alloc(trib_heap *heap, size_t size, size_t alignment)
{
    size_t unit = size >= TRIB_PAGE_BYTES ? TRIB_PAGE_BYTES : TRIB_CACHE_LINE_BYTES;
    if (size > SIZE_MAX - unit) {
        return NULL;
    }
    size_t whole_size = (size + unit - 1) & ~(unit - 1);
    pthread_mutex_lock(&heap->mutex);
    void *start = alloc_locked(heap, whole_size, alignment);
    pthread_mutex_unlock(&heap->mutex);
    return start;
}

static block *find_used(const trib_heap *heap, const void *start)
{
    block *item = *bucket_of(heap, start);
    while (item != NULL && item->start != start) {
        item = item->next;
    }
    return item;
}

size_t trib_heap_usable_size(trib_heap *heap, const void *start)
{
    pthread_mutex_lock(&heap->mutex);
    const block *item = find_used(heap, start);
    trib_assert(item != NULL);
    size_t size = item->size;
    pthread_mutex_unlock(&heap->mutex);
    return size;
}

bool trib_heap_has(trib_heap *heap, const void *start)
{
    pthread_mutex_lock(&heap->mutex);
    const bool has = find_used(heap, start) != NULL;
    pthread_mutex_unlock(&heap->mutex);
    return has;
}

/* Adds the free neighbour behind item to it. Neither may hang in a list. */
static void join_with_next(trib_heap *heap, block *item)
{
    block *gone = item->after;
    trib_assert(gone != NULL && item->start + item->size == gone->start);
    item->size += gone->size;
    item->after = gone->after;
    if (item->after != NULL) {
        item->after->before = item;
    }
    give_spare(heap, gone);
}

void trib_heap_free(trib_heap *heap, void *start)
{
    pthread_mutex_lock(&heap->mutex);
    block *item = find_used(heap, start);
    trib_assert(item != NULL && item->used);
    remove_block(bucket_of(heap, start), item);
    heap->used_count--;
    item->used = false;
    if (item->after != NULL && !item->after->used) {
        remove_block(&heap->bins[bin_of(item->after->size)], item->after);
        join_with_next(heap, item);
    }
    if (item->before != NULL && !item->before->used) {
        item = item->before;
        remove_block(&heap->bins[bin_of(item->size)], item);
        join_with_next(heap, item);
    }
    push_block(&heap->bins[bin_of(item->size)], item);
    pthread_mutex_unlock(&heap->mutex);
}

size_t trib_heap_growth_for(size_t size)
{
    return round_up_to_extents(size);
}

/*
 * arena.c - an arena: extents (extents.c) cut into blocks by a heap (heap.h), with counters.
 *
 * The order of locks is the heap's, then the extents'. Registrars run under both and may take their own. A blocking
 * allocation differs: the heap may take only what is left of extents, and if that is not enough, an extent is made
 * without the heap's lock before the heap is asked again.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "numa/arena.h"

#include "numa/extents.h"
#include "numa/heap.h"
#include "numa/poison.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

/* For smaller blocks a heap takes several blocks' worth at a time, which is worth more than what a registrar costs
 * then. */
#define BLOCKING_BYTES_MIN ((size_t)16 << 20)
/* Other threads may take what was reserved before this one can. */
#define BLOCKING_TRIES 4

struct trib_arena {
    trib_extents extents;
    trib_heap *heap;
    pthread_mutex_t blocking_mutex; /* its holder may set `frugal`; taken before all others */
    atomic_int frugal;              /* the thread for which no extents are made; 0: none */
    atomic_uint_fast64_t bytes_in_use;
    atomic_uint_fast64_t blocks_in_use;
};

void trib_arena_params_init(trib_arena_params *params)
{
    *params = (trib_arena_params){.node = -1};
}

static void *take_for_heap(void *user, size_t size, size_t alignment)
{
    trib_arena *arena = user;
    const int frugal = atomic_load(&arena->frugal);
    return frugal != 0 && frugal == (int)gettid() ? trib_extents_take_left(&arena->extents, size, alignment)
                                                  : trib_extents_take(&arena->extents, size, alignment);
}

trib_status trib_arena_create_with(const trib_arena_params *params, trib_arena **arena_out)
{
    if ((params->map == NULL) != (params->unmap == NULL)) {
        return TRIB_INVALID;
    }
    trib_arena *arena = calloc(1, sizeof(*arena));
    if (arena == NULL) {
        return TRIB_NO_MEMORY;
    }
    if (pthread_mutex_init(&arena->blocking_mutex, NULL) != 0) {
        free(arena);
        return TRIB_NO_MEMORY;
    }
    trib_status status = trib_extents_init(&arena->extents, params);
    if (status == TRIB_OK) {
        const trib_heap_source source = {.take = take_for_heap, .user = arena};
        status = trib_heap_create(&source, &arena->heap);
        if (status != TRIB_OK) {
            trib_extents_fini(&arena->extents);
        }
    }
    if (status != TRIB_OK) {
        pthread_mutex_destroy(&arena->blocking_mutex);
        free(arena);
        return status;
    }
    *arena_out = arena;
    return TRIB_OK;
}

trib_status trib_arena_create(int32_t node, trib_arena **arena_out)
{
    trib_arena_params params;
    trib_arena_params_init(&params);
    params.node = node;
    return trib_arena_create_with(&params, arena_out);
}

void trib_arena_destroy(trib_arena *arena)
{
    if (arena == NULL) {
        return;
    }
    trib_heap_destroy(arena->heap);
    trib_extents_fini(&arena->extents);
    pthread_mutex_destroy(&arena->blocking_mutex);
    free(arena);
}

static bool is_valid_block(size_t size, size_t alignment)
{
    return size > 0 && (alignment & (alignment - 1)) == 0 && alignment <= TRIB_EXTENT_BYTES && size <= SIZE_MAX / 4;
}

void *trib_arena_alloc(trib_arena *arena, size_t size, size_t alignment)
{
    if (!is_valid_block(size, alignment)) {
        return NULL;
    }
    size_t natural = size >= TRIB_PAGE_BYTES ? TRIB_PAGE_BYTES : TRIB_CACHE_LINE_BYTES;
    void *block = trib_heap_alloc(arena->heap, size, alignment > natural ? alignment : natural);
    if (block == NULL) {
        return NULL;
    }
    trib_unpoison(block, size);
    atomic_fetch_add_explicit(&arena->bytes_in_use, trib_heap_usable_size(arena->heap, block), memory_order_relaxed);
    atomic_fetch_add_explicit(&arena->blocks_in_use, 1, memory_order_relaxed);
    return block;
}

void *trib_arena_alloc_blocking(trib_arena *arena, size_t size, size_t alignment)
{
    void *block = NULL;
    if (size >= BLOCKING_BYTES_MIN && is_valid_block(size, alignment)) {
        /* Room for an alignment that the extent's free part may not have. */
        const size_t slack = alignment > TRIB_PAGE_BYTES ? alignment : 0;
        const size_t need = trib_heap_growth_for(size) + slack;
        bool is_room = true;
        pthread_mutex_lock(&arena->blocking_mutex);
        atomic_store(&arena->frugal, (int)gettid());
        for (int i = 0; block == NULL && is_room && i < BLOCKING_TRIES; i++) {
            block = trib_arena_alloc(arena, size, alignment);
            is_room = block != NULL || trib_extents_reserve(&arena->extents, need);
        }
        atomic_store(&arena->frugal, 0);
        pthread_mutex_unlock(&arena->blocking_mutex);
    }
    return block != NULL ? block : trib_arena_alloc(arena, size, alignment);
}

void trib_arena_free(trib_arena *arena, void *block)
{
    if (block == NULL) {
        return;
    }
    size_t size = trib_heap_usable_size(arena->heap, block);
    trib_poison(block, size);
    atomic_fetch_sub_explicit(&arena->bytes_in_use, size, memory_order_relaxed);
    atomic_fetch_sub_explicit(&arena->blocks_in_use, 1, memory_order_relaxed);
    trib_heap_free(arena->heap, block);
}

bool trib_arena_has(trib_arena *arena, const void *block)
{
    return trib_heap_has(arena->heap, block);
}

bool trib_arena_reserve(trib_arena *arena, size_t size)
{
    return trib_extents_reserve(&arena->extents, size);
}

trib_status trib_arena_add_registrar(trib_arena *arena, const trib_arena_registrar *registrar, uint32_t *id_out)
{
    return trib_extents_add_registrar(&arena->extents, registrar, id_out);
}

void trib_arena_remove_registrar(trib_arena *arena, uint32_t id)
{
    trib_extents_remove_registrar(&arena->extents, id);
}

trib_status trib_arena_adopt(trib_arena *arena, void *base, size_t size, const trib_arena_dmabuf *dmabuf,
                             trib_error *error)
{
    trib_error unseen;
    return trib_extents_adopt(&arena->extents, base, size, dmabuf, error != NULL ? error : &unseen);
}

trib_status trib_arena_disown(trib_arena *arena, void *base)
{
    return trib_extents_disown(&arena->extents, base);
}

size_t trib_arena_adopted_size(trib_arena *arena, const void *base)
{
    trib_extent extent;
    bool found = trib_extents_find(&arena->extents, base, &extent) && extent.adopted && extent.base == base;
    return found ? extent.size : 0;
}

bool trib_arena_find(trib_arena *arena, const void *address, uint32_t id, trib_arena_location *location_out)
{
    trib_extent extent;
    if (!trib_extents_find(&arena->extents, address, &extent)) {
        return false;
    }
    *location_out = (trib_arena_location){.base = extent.base, .size = extent.size, .status = TRIB_INVALID};
    if (id < TRIB_ARENA_REGISTRARS_MAX && extent.registrations[id].status != TRIB_PENDING) {
        location_out->status = extent.registrations[id].status;
        location_out->cookie = extent.registrations[id].cookie;
    }
    return true;
}

void trib_arena_get_stats(trib_arena *arena, trib_arena_stats *stats_out)
{
    *stats_out = (trib_arena_stats){.node = -1};
    trib_extents_stats(&arena->extents, stats_out);
    stats_out->bytes_in_use = atomic_load_explicit(&arena->bytes_in_use, memory_order_relaxed);
    stats_out->blocks_in_use = atomic_load_explicit(&arena->blocks_in_use, memory_order_relaxed);
}

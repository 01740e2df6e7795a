/*
 * extents.c - see extents.h. The list is sorted by address, so that finding an extent is a binary search.
 *
 * A heap asks for pieces of any number of pages. What is left of an extent after a piece is kept as the tail, and
 * serves the next pieces that fit; the space in front of an aligned piece is lost, which is rare and less than the
 * alignment.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "numa/extents.h"

#include "engine/assert.h"
#include "engine/log.h"
#include "numa/poison.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NODE_MASK_WORDS 16
#define WORD_BITS (8 * sizeof(unsigned long))

static size_t round_up(size_t value, size_t unit)
{
    return (value + unit - 1) & ~(unit - 1);
}

/* Maps more than is needed and cuts off what sticks out, as mmap aligns to small pages only. */
static void *map_anonymous(void *user, size_t size)
{
    (void)user;
    size_t whole_size = size + TRIB_EXTENT_BYTES - TRIB_PAGE_BYTES;
    void *whole = mmap(NULL, whole_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (whole == MAP_FAILED) {
        return NULL;
    }
    uintptr_t start = (uintptr_t)whole;
    size_t before = round_up(start, TRIB_EXTENT_BYTES) - start;
    size_t after = whole_size - before - size;
    uint8_t *base = (uint8_t *)whole + before;
    if (before > 0) {
        munmap(whole, before);
    }
    if (after > 0) {
        munmap(base + size, after);
    }
    return base;
}

static void unmap_anonymous(void *user, void *base, size_t size)
{
    (void)user;
    munmap(base, size);
}

trib_status trib_extents_init(trib_extents *extents, const trib_arena_params *params)
{
    *extents = (trib_extents){.params = *params};
    if (extents->params.map == NULL) {
        extents->params.map = map_anonymous;
        extents->params.unmap = unmap_anonymous;
    }
    if (pthread_mutex_init(&extents->registering, NULL) != 0) {
        return TRIB_NO_MEMORY;
    }
    if (pthread_rwlock_init(&extents->lock, NULL) != 0) {
        pthread_mutex_destroy(&extents->registering);
        return TRIB_NO_MEMORY;
    }
    return TRIB_OK;
}

static trib_status extent_register(const trib_extents *extents, trib_extent *extent, uint32_t id,
                                   const trib_arena_dmabuf *dmabuf, trib_error *error)
{
    const trib_arena_registrar *registrar = &extents->registrars[id];
    trib_extent_registration *registration = &extent->registrations[id];
    void *cookie = NULL;
    const trib_arena_memory memory = {
        .base = extent->base, .size = extent->size, .is_adopted = extent->adopted, .dmabuf = dmabuf};
    registration->status = extent->on_device && dmabuf == NULL
                               ? TRIB_UNSUPPORTED
                               : registrar->register_extent(registrar->user, &memory, &cookie, error);
    registration->cookie = registration->status == TRIB_OK ? cookie : NULL;
    return registration->status;
}

static void extent_unregister(const trib_extents *extents, trib_extent *extent, uint32_t id)
{
    const trib_arena_registrar *registrar = &extents->registrars[id];
    trib_extent_registration *registration = &extent->registrations[id];
    if (registration->status == TRIB_OK) {
        registrar->unregister_extent(registrar->user, extent->base, extent->size, registration->cookie);
    }
    *registration = (trib_extent_registration){.status = TRIB_PENDING};
}

void trib_extents_fini(trib_extents *extents)
{
    for (uint32_t id = 0; id < TRIB_ARENA_REGISTRARS_MAX; id++) {
        trib_extents_remove_registrar(extents, id);
    }
    for (size_t i = 0; i < extents->count; i++) {
        const trib_extent *extent = &extents->list[i];
        if (!extent->adopted) {
            trib_unpoison(extent->base, extent->size);
            extents->params.unmap(extents->params.map_user, extent->base, extent->size);
        }
    }
    free(extents->list);
    pthread_rwlock_destroy(&extents->lock);
    pthread_mutex_destroy(&extents->registering);
}

/* Prefers the node, so that the kernel falls back to another when it is full, rather than kill the process. */
static bool bind_to_node(void *base, size_t size, int32_t node)
{
    unsigned long mask[NODE_MASK_WORDS] = {0};
    size_t bits = NODE_MASK_WORDS * WORD_BITS;
    if ((size_t)node >= bits - 1) {
        return false;
    }
    mask[(size_t)node / WORD_BITS] |= 1UL << ((size_t)node % WORD_BITS);
    return syscall(SYS_mbind, base, size, MPOL_PREFERRED, mask, bits, 0) == 0;
}

/* The index of the first extent that lies above address. */
static size_t upper_index(const trib_extents *extents, const void *address)
{
    size_t low = 0;
    size_t high = extents->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if ((uintptr_t)extents->list[middle].base <= (uintptr_t)address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static const trib_extent *find_locked(const trib_extents *extents, const void *address)
{
    size_t index = upper_index(extents, address);
    if (index == 0) {
        return NULL;
    }
    const trib_extent *extent = &extents->list[index - 1];
    return (uintptr_t)address - (uintptr_t)extent->base < extent->size ? extent : NULL;
}

/* Room for one more in the list, taken before the mapping so that nothing is to be undone. */
static bool list_reserve(trib_extents *extents)
{
    if (extents->count < extents->capacity) {
        return true;
    }
    size_t capacity = extents->capacity == 0 ? 16 : extents->capacity * 2;
    trib_extent *list = realloc(extents->list, capacity * sizeof(*list));
    if (list == NULL) {
        return false;
    }
    extents->list = list;
    extents->capacity = capacity;
    return true;
}

static trib_extent *list_insert(trib_extents *extents, const trib_extent *extent)
{
    trib_assert(extents->count < extents->capacity);
    size_t index = upper_index(extents, extent->base);
    trib_extent *place = &extents->list[index];
    memmove(place + 1, place, (extents->count - index) * sizeof(*place));
    *place = *extent;
    extents->count++;
    return place;
}

/* Makes an extent of that size and registers it. */
static trib_extent *extent_make(trib_extents *extents, size_t size)
{
    size_t bytes_max = extents->params.bytes_max;
    bool fits = bytes_max == 0 || (size <= bytes_max && extents->mapped_bytes <= bytes_max - size);
    void *base = fits && list_reserve(extents) ? extents->params.map(extents->params.map_user, size) : NULL;
    if (base == NULL) {
        extents->map_failures++;
        return NULL;
    }
    trib_assert(((uintptr_t)base & (TRIB_EXTENT_BYTES - 1)) == 0);
    if (extents->params.node >= 0 && !bind_to_node(base, size, extents->params.node)) {
        extents->bind_failures++;
    }
    if (madvise(base, size, MADV_HUGEPAGE) != 0) {
        extents->huge_page_failures++;
    }
    trib_extent *extent = list_insert(extents, &(trib_extent){.base = base, .size = size});
    extents->mapped_bytes += size;
    trib_error unseen;
    for (uint32_t id = 0; id < TRIB_ARENA_REGISTRARS_MAX; id++) {
        extent->registrations[id].status = TRIB_PENDING;
        if (extents->used[id] && extent_register(extents, extent, id, NULL, &unseen) != TRIB_OK) {
            extents->registration_failures++;
        }
    }
    trib_poison(base, size);
    return extent;
}

static void *tail_take(trib_extents *extents, size_t size, size_t alignment)
{
    uintptr_t start = (uintptr_t)extents->tail;
    size_t before = round_up(start, alignment) - start;
    if (before > extents->tail_size || extents->tail_size - before < size) {
        return NULL;
    }
    uint8_t *piece = extents->tail + before;
    extents->tail = piece + size;
    extents->tail_size -= before + size;
    return piece;
}

static void *take_locked(trib_extents *extents, size_t size, size_t alignment)
{
    void *piece = tail_take(extents, size, alignment);
    if (piece != NULL) {
        return piece;
    }
    /* Extents are aligned to TRIB_EXTENT_BYTES: only a coarser alignment needs slack. */
    size_t slack = alignment > TRIB_EXTENT_BYTES ? alignment : 0;
    if (size > SIZE_MAX / 4 || slack > SIZE_MAX / 4) {
        return NULL;
    }
    const trib_extent *extent = extent_make(extents, round_up(size + slack, TRIB_EXTENT_BYTES));
    if (extent == NULL) {
        return NULL;
    }
    uintptr_t start = (uintptr_t)extent->base;
    size_t before = round_up(start, alignment) - start;
    size_t left = extent->size - before - size;
    piece = extent->base + before;
    /* Two tails would need a list; the bigger one is worth keeping. */
    if (left > extents->tail_size) {
        extents->tail = (uint8_t *)piece + size;
        extents->tail_size = left;
    }
    return piece;
}

void *trib_extents_take(trib_extents *extents, size_t size, size_t alignment)
{
    trib_assert(size > 0 && size % TRIB_PAGE_BYTES == 0);
    trib_assert(alignment >= TRIB_PAGE_BYTES && (alignment & (alignment - 1)) == 0);
    int saved_errno = errno;
    pthread_rwlock_wrlock(&extents->lock);
    void *piece = take_locked(extents, size, alignment);
    pthread_rwlock_unlock(&extents->lock);
    errno = saved_errno;
    return piece;
}

bool trib_extents_reserve(trib_extents *extents, size_t size)
{
    pthread_rwlock_wrlock(&extents->lock);
    bool is_there = size <= extents->tail_size;
    if (!is_there && size <= SIZE_MAX / 4) {
        const trib_extent *extent = extent_make(extents, round_up(size, TRIB_EXTENT_BYTES));
        is_there = extent != NULL;
        extents->tail = is_there ? extent->base : extents->tail;
        extents->tail_size = is_there ? extent->size : extents->tail_size;
    }
    pthread_rwlock_unlock(&extents->lock);
    return is_there;
}

bool trib_extents_same(trib_extents *extents, const void *a, const void *b)
{
    pthread_rwlock_rdlock(&extents->lock);
    const trib_extent *extent = find_locked(extents, a);
    bool same = extent != NULL && extent == find_locked(extents, b);
    pthread_rwlock_unlock(&extents->lock);
    return same;
}

bool trib_extents_find(trib_extents *extents, const void *address, trib_extent *extent_out)
{
    pthread_rwlock_rdlock(&extents->lock);
    const trib_extent *extent = find_locked(extents, address);
    if (extent != NULL) {
        *extent_out = *extent;
    }
    pthread_rwlock_unlock(&extents->lock);
    return extent != NULL;
}

trib_status trib_extents_add_registrar(trib_extents *extents, const trib_arena_registrar *registrar, uint32_t *id_out)
{
    pthread_mutex_lock(&extents->registering);
    pthread_rwlock_wrlock(&extents->lock);
    uint32_t id = 0;
    while (id < TRIB_ARENA_REGISTRARS_MAX && extents->used[id]) {
        id++;
    }
    if (id < TRIB_ARENA_REGISTRARS_MAX) {
        trib_error unseen;
        extents->used[id] = true;
        extents->registrars[id] = *registrar;
        for (size_t i = 0; i < extents->count; i++) {
            trib_extent *extent = &extents->list[i];
            extents->registration_failures += extent_register(extents, extent, id, NULL, &unseen) != TRIB_OK;
        }
        *id_out = id;
    }
    pthread_rwlock_unlock(&extents->lock);
    pthread_mutex_unlock(&extents->registering);
    return id < TRIB_ARENA_REGISTRARS_MAX ? TRIB_OK : TRIB_BUSY;
}

void trib_extents_remove_registrar(trib_extents *extents, uint32_t id)
{
    pthread_mutex_lock(&extents->registering);
    pthread_rwlock_wrlock(&extents->lock);
    if (id < TRIB_ARENA_REGISTRARS_MAX && extents->used[id]) {
        for (size_t i = 0; i < extents->count; i++) {
            extent_unregister(extents, &extents->list[i], id);
        }
        extents->used[id] = false;
    }
    pthread_rwlock_unlock(&extents->lock);
    pthread_mutex_unlock(&extents->registering);
}

/* ---- Memory of somebody else's ---- */

/* An extent of which part lies there; NULL. Called with the lock held. */
static const trib_extent *overlapping(const trib_extents *extents, const void *base, size_t size)
{
    size_t index = upper_index(extents, (const uint8_t *)base + (size - 1));
    const trib_extent *last = index > 0 ? &extents->list[index - 1] : NULL;
    bool overlaps = last != NULL && (uintptr_t)last->base + last->size > (uintptr_t)base;
    return overlaps ? last : NULL;
}

static trib_status check_free(trib_extents *extents, const void *base, size_t size, trib_error *error)
{
    pthread_rwlock_rdlock(&extents->lock);
    const trib_extent *other = overlapping(extents, base, size);
    trib_status status = TRIB_OK;
    if (other != NULL && other->adopted) {
        status = trib_error_set(error, TRIB_INVALID, "%zu bytes at %p: part of them is registered, as %zu bytes at %p",
                                size, base, other->size, (void *)other->base);
    } else if (other != NULL) {
        status = trib_error_set(error, TRIB_INVALID,
                                "%zu bytes at %p: part of them is the engine's own memory, which is "
                                "registered",
                                size, base);
    }
    pthread_rwlock_unlock(&extents->lock);
    return status;
}

static void unregister_with_all(const trib_extents *extents, trib_extent *extent)
{
    for (uint32_t id = 0; id < TRIB_ARENA_REGISTRARS_MAX; id++) {
        extent_unregister(extents, extent, id);
    }
}

/* With all registrars or none. */
static trib_status register_with_all(const trib_extents *extents, trib_extent *extent, const trib_arena_dmabuf *dmabuf,
                                     trib_error *error)
{
    trib_status status = TRIB_OK;
    for (uint32_t id = 0; id < TRIB_ARENA_REGISTRARS_MAX; id++) {
        extent->registrations[id].status = TRIB_PENDING;
        if (extents->used[id] && status == TRIB_OK) {
            status = extent_register(extents, extent, id, dmabuf, error);
        }
    }
    if (status != TRIB_OK) {
        unregister_with_all(extents, extent);
    }
    return status;
}

trib_status trib_extents_adopt(trib_extents *extents, void *base, size_t size, const trib_arena_dmabuf *dmabuf,
                               trib_error *error)
{
    trib_extent extent = {.base = base, .size = size, .adopted = true, .on_device = dmabuf != NULL};
    if (base == NULL || size == 0 || (uintptr_t)base > UINTPTR_MAX - size) {
        return trib_error_set(error, TRIB_INVALID, "%zu bytes at %p are no memory", size, base);
    }
    pthread_mutex_lock(&extents->registering);
    trib_status status = check_free(extents, base, size, error);
    status = status == TRIB_OK ? register_with_all(extents, &extent, dmabuf, error) : status;
    if (status == TRIB_OK) {
        pthread_rwlock_wrlock(&extents->lock);
        if (list_reserve(extents)) {
            list_insert(extents, &extent);
            extents->adopted_count++;
        } else {
            status = trib_error_set(error, TRIB_NO_MEMORY, "out of memory");
        }
        pthread_rwlock_unlock(&extents->lock);
        if (status != TRIB_OK) {
            unregister_with_all(extents, &extent);
        }
    }
    pthread_mutex_unlock(&extents->registering);
    return status;
}

trib_status trib_extents_disown(trib_extents *extents, void *base)
{
    trib_extent extent = {.base = NULL};
    pthread_mutex_lock(&extents->registering);
    pthread_rwlock_wrlock(&extents->lock);
    size_t above = upper_index(extents, base);
    trib_extent *place = above > 0 ? &extents->list[above - 1] : NULL;
    if (place != NULL && place->adopted && place->base == base) {
        extent = *place;
        memmove(place, place + 1, (extents->count - above) * sizeof(*place));
        extents->count--;
        extents->adopted_count--;
    }
    pthread_rwlock_unlock(&extents->lock);
    if (extent.base != NULL) {
        unregister_with_all(extents, &extent);
    }
    pthread_mutex_unlock(&extents->registering);
    return extent.base != NULL ? TRIB_OK : TRIB_INVALID;
}

void trib_extents_stats(trib_extents *extents, trib_arena_stats *stats)
{
    pthread_rwlock_rdlock(&extents->lock);
    stats->node = extents->params.node;
    stats->extents = extents->count - extents->adopted_count;
    stats->adopted = extents->adopted_count;
    stats->bytes_mapped = extents->mapped_bytes;
    stats->bind_failures = extents->bind_failures;
    stats->huge_page_failures = extents->huge_page_failures;
    stats->registration_failures = extents->registration_failures;
    stats->map_failures = extents->map_failures;
    pthread_rwlock_unlock(&extents->lock);
}

/*
 * extents.c - see extents.h. The list is sorted by address, so that finding an extent is a binary search.
 *
 * A heap asks for pieces of any number of pages. What is left of an extent after a piece is kept as its tail, and
 * serves the next pieces that fit. The space in front of an aligned piece is lost, which is rare and less than the
 * alignment. The largest few tails are kept, so that what is left of a reserved extent is not lost.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "numa/extents.h"

#include "engine/base/assert.h"
#include "engine/base/log.h"
#include "numa/pages.h"
#include "numa/poison.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static size_t round_up(size_t value, size_t unit)
{
    return (value + unit - 1) & ~(unit - 1);
}

trib_status trib_extents_init(trib_extents *extents, const trib_arena_params *params)
{
    *extents = (trib_extents){.params = *params};
    extents->params.is_shared = params->is_shared && params->map == NULL;
    if (extents->params.map == NULL) {
        extents->params.map = trib_pages_map;
        extents->params.unmap = trib_pages_unmap;
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

static trib_status register_extent_with(const trib_extents *extents, trib_extent *extent, uint32_t id,
                                        const trib_arena_dmabuf *dmabuf, trib_error *error)
{
    const trib_arena_registrar *registrar = &extents->registrars[id];
    trib_extent_registration *registration = &extent->registrations[id];
    void *cookie = NULL;
    const trib_arena_memory memory = {
        .base = extent->base, .size = extent->size, .is_adopted = extent->adopted, .fd = extent->fd, .dmabuf = dmabuf};
    registration->status = extent->on_device && dmabuf == NULL
                               ? TRIB_UNSUPPORTED
                               : registrar->register_extent(registrar->user, &memory, &cookie, error);
    registration->cookie = registration->status == TRIB_OK ? cookie : NULL;
    return registration->status;
}

static void unregister_extent_with(const trib_extents *extents, trib_extent *extent, uint32_t id)
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
        if (extent->adopted) {
            continue;
        }
        trib_unpoison(extent->base, extent->size);
        if (extent->fd >= 0) {
            trib_pages_unmap_shared(extent->base, extent->size, extent->fd);
        } else {
            extents->params.unmap(extents->params.map_user, extent->base, extent->size);
        }
    }
    free(extents->list);
    pthread_rwlock_destroy(&extents->lock);
    pthread_mutex_destroy(&extents->registering);
}

/* The index of the first extent that lies above address. */
static size_t index_above(const trib_extents *extents, const void *address)
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
    size_t index = index_above(extents, address);
    if (index == 0) {
        return NULL;
    }
    const trib_extent *extent = &extents->list[index - 1];
    return (uintptr_t)address - (uintptr_t)extent->base < extent->size ? extent : NULL;
}

/* Makes room for one more in the list, before the mapping, so that nothing has to be undone. */
static bool reserve_in_list(trib_extents *extents)
{
    if (extents->count + extents->coming < extents->capacity) {
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

static void insert_in_list(trib_extents *extents, const trib_extent *extent)
{
    trib_assert(extents->count < extents->capacity);
    size_t index = index_above(extents, extent->base);
    trib_extent *place = &extents->list[index];
    memmove(place + 1, place, (extents->count - index) * sizeof(*place));
    *place = *extent;
    extents->count++;
}

/* ---- Mapped extents: claimed and settled with the lock held for writing, mapped with or without it ---- */

static bool claim_extent(trib_extents *extents, size_t size)
{
    const size_t bytes_max = extents->params.bytes_max;
    const bool fits = bytes_max == 0 || (size <= bytes_max && extents->mapped_bytes <= bytes_max - size);
    if (!fits || !reserve_in_list(extents)) {
        extents->failures.map++;
        return false;
    }
    extents->mapped_bytes += size;
    extents->coming++;
    return true;
}

/* Maps and registers an extent, and changes nothing of `extents`, whose registrars stay as long as the caller holds
 * `lock` or `registering`. False: no memory. */
static bool map_extent(const trib_extents *extents, size_t size, trib_extent *extent, trib_extent_failures *failures)
{
    int fd = -1;
    uint8_t *base = extents->params.is_shared ? trib_pages_map_shared(size, &fd) : NULL;
    if (base == NULL) {
        base = extents->params.map(extents->params.map_user, size);
    }
    *extent = (trib_extent){.base = base, .size = size, .fd = fd};
    if (base == NULL) {
        failures->map++;
        return false;
    }
    trib_assert(((uintptr_t)base & (TRIB_EXTENT_BYTES - 1)) == 0);
    if (extents->params.node >= 0 && !trib_pages_bind(base, size, extents->params.node)) {
        failures->bind++;
    }
    (void)madvise(base, size, MADV_HUGEPAGE); /* the arena works with small pages, too */
    trib_error unseen;
    for (uint32_t id = 0; id < TRIB_ARENA_REGISTRARS_MAX; id++) {
        extent->registrations[id].status = TRIB_PENDING;
        if (extents->used[id] && register_extent_with(extents, extent, id, NULL, &unseen) != TRIB_OK) {
            failures->registration++;
        }
    }
    trib_poison(base, size);
    return true;
}

/* Ends a claim: the extent is there, or base is NULL. */
static void settle_extent(trib_extents *extents, const trib_extent *extent, const trib_extent_failures *failures)
{
    trib_assert(extents->coming > 0 && extents->mapped_bytes >= extent->size);
    extents->coming--;
    extents->failures.map += failures->map;
    extents->failures.bind += failures->bind;
    extents->failures.registration += failures->registration;
    if (extent->base != NULL) {
        insert_in_list(extents, extent);
    } else {
        extents->mapped_bytes -= extent->size;
    }
}

/* Keeps the larger tails only, as each would cost every search. */
static void keep_tail(trib_extents *extents, uint8_t *start, size_t size)
{
    trib_extent_tail *least = &extents->tails[0];
    for (size_t i = 1; i < TRIB_EXTENT_TAILS_MAX; i++) {
        least = extents->tails[i].size < least->size ? &extents->tails[i] : least;
    }
    if (size > least->size) {
        *least = (trib_extent_tail){.start = start, .size = size};
    }
}

/* Cuts from the smallest tail with room: large ones were made for large pieces. */
static void *take_from_tail(trib_extents *extents, size_t size, size_t alignment)
{
    trib_extent_tail *best = NULL;
    for (size_t i = 0; i < TRIB_EXTENT_TAILS_MAX; i++) {
        trib_extent_tail *tail = &extents->tails[i];
        const size_t before = round_up((uintptr_t)tail->start, alignment) - (uintptr_t)tail->start;
        const bool fits = before <= tail->size && tail->size - before >= size;
        best = fits && (best == NULL || tail->size < best->size) ? tail : best;
    }
    if (best == NULL) {
        return NULL;
    }
    const size_t before = round_up((uintptr_t)best->start, alignment) - (uintptr_t)best->start;
    uint8_t *piece = best->start + before;
    *best = (trib_extent_tail){.start = piece + size, .size = best->size - before - size};
    return piece;
}

static void *take_locked(trib_extents *extents, size_t size, size_t alignment)
{
    void *piece = take_from_tail(extents, size, alignment);
    if (piece != NULL) {
        return piece;
    }
    /* Extents are aligned to TRIB_EXTENT_BYTES: only a coarser alignment needs slack. */
    size_t slack = alignment > TRIB_EXTENT_BYTES ? alignment : 0;
    if (size > SIZE_MAX / 4 || slack > SIZE_MAX / 4) {
        return NULL;
    }
    const size_t whole = round_up(size + slack, TRIB_EXTENT_BYTES);
    trib_extent extent;
    trib_extent_failures failures = {0};
    if (!claim_extent(extents, whole)) {
        return NULL;
    }
    const bool is_there = map_extent(extents, whole, &extent, &failures);
    settle_extent(extents, &extent, &failures);
    if (!is_there) {
        return NULL;
    }
    uintptr_t start = (uintptr_t)extent.base;
    size_t before = round_up(start, alignment) - start;
    piece = extent.base + before;
    keep_tail(extents, extent.base + before + size, extent.size - before - size);
    return piece;
}

static void check_piece(size_t size, size_t alignment)
{
    trib_assert(size > 0 && size % TRIB_PAGE_BYTES == 0);
    trib_assert(alignment >= TRIB_PAGE_BYTES && (alignment & (alignment - 1)) == 0);
}

void *trib_extents_take(trib_extents *extents, size_t size, size_t alignment)
{
    check_piece(size, alignment);
    int saved_errno = errno;
    pthread_rwlock_wrlock(&extents->lock);
    void *piece = take_locked(extents, size, alignment);
    pthread_rwlock_unlock(&extents->lock);
    errno = saved_errno;
    return piece;
}

void *trib_extents_take_left(trib_extents *extents, size_t size, size_t alignment)
{
    check_piece(size, alignment);
    pthread_rwlock_wrlock(&extents->lock);
    void *piece = take_from_tail(extents, size, alignment);
    pthread_rwlock_unlock(&extents->lock);
    return piece;
}

static bool has_tail(const trib_extents *extents, size_t size)
{
    bool has = false;
    for (size_t i = 0; i < TRIB_EXTENT_TAILS_MAX; i++) {
        has = has || extents->tails[i].size >= size;
    }
    return has;
}

bool trib_extents_reserve(trib_extents *extents, size_t size)
{
    pthread_mutex_lock(&extents->registering);
    pthread_rwlock_wrlock(&extents->lock);
    bool is_there = has_tail(extents, size);
    const bool is_coming =
        !is_there && size <= SIZE_MAX / 4 && claim_extent(extents, round_up(size, TRIB_EXTENT_BYTES));
    pthread_rwlock_unlock(&extents->lock);
    if (is_coming) {
        trib_extent extent;
        trib_extent_failures failures = {0};
        is_there = map_extent(extents, round_up(size, TRIB_EXTENT_BYTES), &extent, &failures);
        pthread_rwlock_wrlock(&extents->lock);
        settle_extent(extents, &extent, &failures);
        if (is_there) {
            keep_tail(extents, extent.base, extent.size);
        }
        pthread_rwlock_unlock(&extents->lock);
    }
    pthread_mutex_unlock(&extents->registering);
    return is_there;
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
            extents->failures.registration += register_extent_with(extents, extent, id, NULL, &unseen) != TRIB_OK;
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
            unregister_extent_with(extents, &extents->list[i], id);
        }
        extents->used[id] = false;
    }
    pthread_rwlock_unlock(&extents->lock);
    pthread_mutex_unlock(&extents->registering);
}

/* ---- Adopted memory ---- */

/* An extent that overlaps the range, or NULL. Called with the lock held. */
static const trib_extent *find_overlap(const trib_extents *extents, const void *base, size_t size)
{
    size_t index = index_above(extents, (const uint8_t *)base + (size - 1));
    const trib_extent *last = index > 0 ? &extents->list[index - 1] : NULL;
    bool overlaps = last != NULL && (uintptr_t)last->base + last->size > (uintptr_t)base;
    return overlaps ? last : NULL;
}

static trib_status check_free(trib_extents *extents, const void *base, size_t size, trib_error *error)
{
    pthread_rwlock_rdlock(&extents->lock);
    const trib_extent *other = find_overlap(extents, base, size);
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
        unregister_extent_with(extents, extent, id);
    }
}

/* Registers with all registrars or with none. */
static trib_status register_with_all(const trib_extents *extents, trib_extent *extent, const trib_arena_dmabuf *dmabuf,
                                     trib_error *error)
{
    trib_status status = TRIB_OK;
    for (uint32_t id = 0; id < TRIB_ARENA_REGISTRARS_MAX; id++) {
        extent->registrations[id].status = TRIB_PENDING;
        if (extents->used[id] && status == TRIB_OK) {
            status = register_extent_with(extents, extent, id, dmabuf, error);
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
    trib_extent extent = {.base = base, .size = size, .adopted = true, .on_device = dmabuf != NULL, .fd = -1};
    if (base == NULL || size == 0 || (uintptr_t)base > UINTPTR_MAX - size) {
        return trib_error_set(error, TRIB_INVALID, "%zu bytes at %p are no memory", size, base);
    }
    pthread_mutex_lock(&extents->registering);
    trib_status status = check_free(extents, base, size, error);
    status = status == TRIB_OK ? register_with_all(extents, &extent, dmabuf, error) : status;
    if (status == TRIB_OK) {
        pthread_rwlock_wrlock(&extents->lock);
        if (reserve_in_list(extents)) {
            insert_in_list(extents, &extent);
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
    size_t above = index_above(extents, base);
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
    stats->bind_failures = extents->failures.bind;
    stats->registration_failures = extents->failures.registration;
    stats->map_failures = extents->failures.map;
    pthread_rwlock_unlock(&extents->lock);
}

/*
 * extents.h - the memory of an arena: big mappings, bound to a NUMA node and registered with the registrars.
 *
 * An extent is a multiple of TRIB_EXTENT_BYTES, aligned to it, and lives until trib_extents_fini. Each registrar is
 * called once per extent, when the extent is made or when the registrar is added, whichever is later; and once more
 * before the extent is unmapped or when the registrar is removed, whichever is earlier. All functions are thread-safe.
 *
 * Adopted memory is an extent of any place and size, which is never mapped, unmapped, bound or handed out.
 *
 * Registering takes long for large memory. So adopted and reserved memory is registered without `lock`, under which
 * reactors find extents and take pieces of them. Only a caller that takes more than is left of any extent registers
 * with it held.
 */
#ifndef TRIB_NUMA_EXTENTS_H
#define TRIB_NUMA_EXTENTS_H

#include "numa/arena.h"

#include <pthread.h>

typedef struct trib_extent_registration {
    trib_status status; /* TRIB_PENDING: never tried */
    void *cookie;       /* the registrar's, if status is TRIB_OK */
} trib_extent_registration;

typedef struct trib_extent {
    uint8_t *base;
    size_t size;
    bool adopted;
    bool on_device; /* adopted by a dma-buf */
    int fd;         /* the file of a shared extent; -1: none */
    trib_extent_registration registrations[TRIB_ARENA_REGISTRARS_MAX];
} trib_extent;

/* The part at the end of an extent that no piece has been cut from yet. */
typedef struct trib_extent_tail {
    uint8_t *start;
    size_t size;
} trib_extent_tail;

typedef struct trib_extent_failures {
    uint64_t map, bind, registration;
} trib_extent_failures;

#define TRIB_EXTENT_TAILS_MAX 8

typedef struct trib_extents {
    trib_arena_params params;
    pthread_mutex_t registering; /* held to add, remove, adopt, disown or reserve; taken before lock */
    pthread_rwlock_t lock; /* protects all below; written only when an extent is made or a registrar comes or goes */
    trib_extent *list;     /* by address */
    size_t count, capacity;
    size_t adopted_count; /* number of adopted extents */
    size_t coming;        /* extents that are being made without lock; the list has room for them */
    bool used[TRIB_ARENA_REGISTRARS_MAX];
    trib_arena_registrar registrars[TRIB_ARENA_REGISTRARS_MAX];
    trib_extent_tail tails[TRIB_EXTENT_TAILS_MAX]; /* size 0: none */
    size_t mapped_bytes;                           /* with extents that are coming */
    trib_extent_failures failures;
} trib_extents;

TRIB_CHECKED trib_status trib_extents_init(trib_extents *extents, const trib_arena_params *params);
void trib_extents_fini(trib_extents *extents);

/* Fresh zeroed memory out of one extent; NULL if there is none. size and alignment: multiples of the page size. */
void *trib_extents_take(trib_extents *extents, size_t size, size_t alignment);
/* As trib_extents_take, but only from existing extents: none is made. */
void *trib_extents_take_left(trib_extents *extents, size_t size, size_t alignment);

/* As trib_arena_reserve. */
bool trib_extents_reserve(trib_extents *extents, size_t size);

/* Copies the extent that address lies in; false if it lies in none. */
bool trib_extents_find(trib_extents *extents, const void *address, trib_extent *extent_out);

TRIB_CHECKED trib_status trib_extents_add_registrar(trib_extents *extents, const trib_arena_registrar *registrar,
                                                    uint32_t *id_out);
void trib_extents_remove_registrar(trib_extents *extents, uint32_t id);

/* See arena.h. */
TRIB_CHECKED trib_status trib_extents_adopt(trib_extents *extents, void *base, size_t size,
                                            const trib_arena_dmabuf *dmabuf, trib_error *error);
TRIB_CHECKED trib_status trib_extents_disown(trib_extents *extents, void *base);

/* Fills in its part of *stats. */
void trib_extents_stats(trib_extents *extents, trib_arena_stats *stats);

#endif

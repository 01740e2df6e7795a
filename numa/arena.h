/*
 * arena.h - memory for payloads: page-aligned blocks on one NUMA node, on huge pages where there are any, registered
 * once.
 *
 * An arena takes big extents from the kernel and keeps them until it is destroyed, so that transports and devices
 * register memory when an extent is made and never again. A heap (heap.h) cuts them into blocks.
 *
 * Memory of the caller's own can be adopted: it is registered and found as extents are; nothing else is done with it.
 *
 * Registering takes time: with CUDA 0.3 ms and more for each MiB. Extents are made as blocks need them, of up to 64 MiB
 * or what one block needs. The caller waits for that, and so does each thread that takes or looks up a block meanwhile.
 * A thread that may wait spares the others: trib_arena_reserve, trib_arena_alloc_blocking.
 *
 * THREADS    Every function may be called from any thread, create and destroy apart. A registrar runs inside the call
 * that made the extent, adopted, added or removed it, with locks of the arena held: it must not call the arena. It may
 * be called for two pieces of memory at once.
 */
#ifndef TRIB_NUMA_ARENA_H
#define TRIB_NUMA_ARENA_H

#include "api/tributary.h"

#define TRIB_EXTENT_BYTES ((size_t)2 << 20)
#define TRIB_PAGE_BYTES ((size_t)4096)
#define TRIB_CACHE_LINE_BYTES ((size_t)64)
#define TRIB_ARENA_REGISTRARS_MAX 8

typedef struct trib_arena trib_arena;

/* Memory of a device, which no processor needs to reach, as a dma-buf. */
typedef struct trib_arena_dmabuf {
    int fd; /* open while it is being registered; a registrar that needs it for longer duplicates it */
    uint64_t offset;
} trib_arena_dmabuf;

typedef struct trib_arena_memory {
    void *base;
    size_t size;
    bool is_adopted;                 /* not mapped by the arena */
    int fd;                          /* a file that other processes can map; -1: none */
    const trib_arena_dmabuf *dmabuf; /* NULL: host memory */
} trib_arena_memory;

/* A transport or device that must know memory before it can move it: verbs, CUDA. */
typedef struct trib_arena_registrar {
    /* A failure is not fatal: the extent stays usable, and trib_arena_find tells that this registrar does not know it.
     * The owner of adopted memory reads in the error why. */
    trib_status (*register_extent)(void *user, const trib_arena_memory *memory, void **cookie_out, trib_error *error);
    /* Called only for extents that this registrar has registered. */
    void (*unregister_extent)(void *user, void *base, size_t size, void *cookie);
    void *user;
} trib_arena_registrar;

typedef struct trib_arena_params {
    int32_t node;     /* the operating system's number of the NUMA node to bind to; -1: do not bind */
    size_t bytes_max; /* most bytes to map; 0: no limit but the machine's */
    bool is_shared;   /* extents are files without a name where the process may have such (trib_arena_memory.fd) */
    /* How to map and unmap, and nothing is shared then; NULL: mmap. map returns memory aligned to TRIB_EXTENT_BYTES, or
     * NULL; two threads may be in it. */
    void *(*map)(void *user, size_t size);
    void (*unmap)(void *user, void *base, size_t size);
    void *map_user;
} trib_arena_params;

void trib_arena_params_init(trib_arena_params *params);

/* An arena on that node (-1: any) with the defaults. */
TRIB_CHECKED trib_status trib_arena_create(int32_t node, trib_arena **arena_out);
/* TRIB_INVALID, TRIB_NO_MEMORY. */
TRIB_CHECKED trib_status trib_arena_create_with(const trib_arena_params *params, trib_arena **arena_out);
/* Unregisters and unmaps everything, blocks still in use included. NULL is fine. */
void trib_arena_destroy(trib_arena *arena);

/*
 * A block, aligned to alignment (a power of two up to TRIB_EXTENT_BYTES; 0: the natural one) and at least to a page if
 * size is at least a page, else to a cache line. It lies in one extent; its content is undefined. NULL when there is no
 * memory, or for size 0 or a wrong alignment.
 */
void *trib_arena_alloc(trib_arena *arena, size_t size, size_t alignment);
/* The same for a thread that may wait. Memory for a block of 16 MiB or more is registered while other threads go on,
 * but for those that adopt, disown, reserve, allocate blocking, or add or remove registrars. */
void *trib_arena_alloc_blocking(trib_arena *arena, size_t size, size_t alignment);
/* NULL is fine. */
void trib_arena_free(trib_arena *arena, void *block);
/* True if it is a block of the arena in use. */
bool trib_arena_has(trib_arena *arena, const void *block);

/* Makes an extent of that size ahead, unless what is left of one is as large: blocks are cut from it as long as there
 * is room, without waiting for a registrar. Other threads wait as in trib_arena_alloc_blocking. False: no memory, or
 * more than bytes_max. */
bool trib_arena_reserve(trib_arena *arena, size_t size);

/* Adds a registrar, which is called for the extents that exist and for later ones. TRIB_BUSY: there are
 * TRIB_ARENA_REGISTRARS_MAX already. */
TRIB_CHECKED trib_status trib_arena_add_registrar(trib_arena *arena, const trib_arena_registrar *registrar,
                                                  uint32_t *id_out);
/* Unregisters every extent that the registrar knows. */
void trib_arena_remove_registrar(trib_arena *arena, uint32_t id);

/*
 * Registers memory that is not the arena's with all registrars, and those to come, until it is disowned or the arena
 * destroyed; meanwhile it must stay where it is. Takes as long as the registrars do, and holds up no other function but
 * this, trib_arena_disown, those about registrars, and those that make memory ahead. TRIB_INVALID: part of it is an
 * extent, or adopted already; or the status of the first registrar that refused: then no registrar knows the memory.
 * TRIB_NO_MEMORY. dmabuf: NULL for host memory. Memory of a device is unknown to registrars that come later.
 */
TRIB_CHECKED trib_status trib_arena_adopt(trib_arena *arena, void *base, size_t size, const trib_arena_dmabuf *dmabuf,
                                          trib_error *error);
/* base as it was adopted, else TRIB_INVALID. */
TRIB_CHECKED trib_status trib_arena_disown(trib_arena *arena, void *base);
/* Returns the size that was adopted at base; 0: none. */
size_t trib_arena_adopted_size(trib_arena *arena, const void *base);

typedef struct trib_arena_location {
    void *base; /* start of the extent */
    size_t size;
    trib_status status; /* result of the registration; TRIB_INVALID if there is no such registrar */
    void *cookie;       /* NULL unless status is TRIB_OK */
} trib_arena_location;

/*
 * Tells where the address lies, and how registrar id answered for that extent. Returns false if it is not the arena's.
 */
bool trib_arena_find(trib_arena *arena, const void *address, uint32_t id, trib_arena_location *location_out);

typedef struct trib_arena_stats {
    int32_t node;
    uint64_t extents;
    uint64_t bytes_mapped;
    uint64_t adopted;      /* pieces of memory, not among the extents */
    uint64_t bytes_in_use; /* size of all blocks, rounded up as the heap does */
    uint64_t blocks_in_use;
    /* None of these stops the arena from working. */
    uint64_t bind_failures;
    uint64_t registration_failures;
    uint64_t map_failures;
} trib_arena_stats;

void trib_arena_get_stats(trib_arena *arena, trib_arena_stats *stats_out);

#endif

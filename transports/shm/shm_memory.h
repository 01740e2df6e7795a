/*
 * shm_memory.h - memory that a process offers to its peers, which read it in place.
 *
 * A process offers the extents of its engine's arena: each extent is a file without a name, and a list says at which
 * addresses the extents lie. When a peer first hears of a payload there, it reads the list out of this process's
 * memory, copies the descriptor, and maps the file. The kernel demands for it the same right as for reading the memory
 * itself. Where the right is missing, the payload is read as any other.
 *
 * Invariants
 * - An entry of the list does not change after it was counted, and its file stays until the list is destroyed, which
 *   is after the last connection.
 * - A peer's list is not trusted. A file is mapped only if it cannot shrink and has the size that the list says, for
 *   reading only, and at most as many files as a list can have, even if the list changes each time.
 */
#ifndef TRIB_TRANSPORTS_SHM_SHM_MEMORY_H
#define TRIB_TRANSPORTS_SHM_SHM_MEMORY_H

#include <stdatomic.h>
#include <sys/types.h>

#include "engine/base/counter.h"
#include "numa/arena.h"

/* ---- Offering ---- */

typedef struct shm_offer shm_offer;

/* Offers the extents that the arena has and will have. TRIB_NO_MEMORY, TRIB_BUSY (arena.h). */
TRIB_CHECKED trib_status trib_shm_offer_create(trib_arena *arena, shm_offer **offer_out);
/* Called before the arena is destroyed. NULL is fine. */
void trib_shm_offer_destroy(shm_offer *offer);
/* The address of the list in this process; 0 if offer is NULL. */
uint64_t trib_shm_offer_address(const shm_offer *offer);
/* True if a peer can map those bytes. Any thread; takes no lock. NULL: false. *hint_io is the caller's, 0 at first:
 * where the last search ended. */
bool trib_shm_is_offered(const shm_offer *offer, const void *data, uint32_t size, uint32_t *hint_io);

/* ---- Reading ---- */

typedef struct shm_mapping {
    uint64_t base, size; /* the address in the peer, and bytes */
    unsigned char *here;
} shm_mapping;

/* The memory of a peer as one connection sees it. */
typedef struct shm_peer_memory {
    pid_t pid;
    uint64_t address; /* address of the peer's list; 0: the peer has none */
    uint64_t probe_address, probe;
    uint32_t pause;       /* payloads to be read without a search, after one that could not be mapped */
    uint32_t count, last; /* last: the index of the mapping that was used last */
    shm_mapping *mappings;
    trib_counter *system_calls;
} shm_peer_memory;

/* True if the peer's number can be read there, which proves that pid is the process that named it. */
bool trib_shm_peer_can_be_read(const shm_peer_memory *peer);
/* As process_vm_readv of bytes of the peer. It reads the peer's number too: errno is ESRCH if pid is another process
 * by now. */
ssize_t trib_shm_peer_read(const shm_peer_memory *peer, uint64_t address, void *to, uint32_t size);
/* Returns where those bytes of the peer can be read here; NULL if they cannot. Maps the extent if that is new. */
const void *trib_shm_peer_find(shm_peer_memory *peer, uint64_t address, uint32_t size);
void trib_shm_peer_forget(shm_peer_memory *peer);

#endif

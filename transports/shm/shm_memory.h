/*
 * shm_memory.h - memory that a process offers to its peers, who read it where it is.
 *
 * What an engine's arena makes it offers: each extent is a file without a name, and a list says at which addresses they lie. A
 * peer reads that list out of this process's memory, takes the descriptors from it, and maps them, when it is first told of
 * a payload that lies there. All of that takes the right that reading the memory itself takes. Where it cannot be had the payload
 * is read as any other.
 *
 * Invariants
 * - An entry of the list does not change after it was counted, and what it names stays until the list goes, which no connection
 *   outlives.
 * - Of a peer's list nothing is believed: what cannot shrink and is as large as it says is mapped, for reading, and no more
 *   of it than a list can have, though it may be another each time.
 */
#ifndef TRIB_TRANSPORTS_SHM_SHM_MEMORY_H
#define TRIB_TRANSPORTS_SHM_SHM_MEMORY_H

#include <stdatomic.h>
#include <sys/types.h>

#include "engine/base/counter.h"
#include "numa/arena.h"

/* ---- Offering ---- */

typedef struct shm_offer shm_offer;

/* Offers what that arena has made and will make. TRIB_NO_MEMORY, TRIB_BUSY (arena.h). */
TRIB_CHECKED trib_status trib_shm_offer_create(trib_arena *arena, shm_offer **offer_out);
/* Before the arena goes. NULL is fine. */
void trib_shm_offer_destroy(shm_offer *offer);
/* Where peers find the list. NULL: 0, there is none. */
uint64_t trib_shm_offer_address(const shm_offer *offer);
/* Any thread; takes no lock. NULL: false. *hint_io is the caller's: where it was found the last time, 0 at first. */
bool trib_shm_is_offered(const shm_offer *offer, const void *data, uint32_t size, uint32_t *hint_io);

/* ---- Reading ---- */

typedef struct shm_mapping {
    uint64_t base, size; /* in the peer */
    unsigned char *here;
} shm_mapping;

/* A peer's, as one connection sees it. */
typedef struct shm_peer_memory {
    pid_t pid;
    uint64_t address; /* of its list; 0: it has none */
    uint64_t probe_address, probe;
    uint32_t pause;       /* so many payloads are not looked for, after one that could not be mapped */
    uint32_t count, last; /* last: where something was found the last time */
    shm_mapping *mappings;
    trib_counter *system_calls;
} shm_peer_memory;

/* Whether that number can be read there: this is the process that said so. */
bool trib_shm_peer_can_be_read(const shm_peer_memory *peer);
/* As process_vm_readv of those bytes, which the process that said so has: errno is ESRCH where its id is another's by now. */
ssize_t trib_shm_peer_read(const shm_peer_memory *peer, uint64_t address, void *to, uint32_t size);
/* Where those bytes of the peer's can be read; NULL: they cannot be. Maps the extent if that is new. */
const void *trib_shm_peer_find(shm_peer_memory *peer, uint64_t address, uint32_t size);
void trib_shm_peer_forget(shm_peer_memory *peer);

#endif

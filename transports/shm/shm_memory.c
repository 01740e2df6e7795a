/* shm_memory.c - see shm_memory.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "transports/shm/shm_memory.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "engine/base/assert.h"
#include "engine/base/descriptor.h"
#include "engine/base/fork.h"
#include "numa/pages.h"

#define EXTENTS_MAX 1024u /* 64 GiB or more in the arena's extents; later extents are not offered */
#define ENTRIES_AT_ONCE 32u
#define PAUSE 256u /* payloads until the next attempt to map: a lack of descriptors passes, a prohibition does not */

typedef struct shm_entry {
    uint64_t base, size;
    int32_t fd;
    uint32_t unused;
} shm_entry;

/* The list as peers read it. */
typedef struct shm_list {
    _Atomic uint32_t count;
    shm_entry entries[EXTENTS_MAX];
} shm_list;

struct shm_offer {
    trib_arena *arena;
    uint32_t registrar;
    pthread_mutex_t lock; /* held to add to the list: two threads may make extents at once */
    shm_list list;
};

/* ---- Offering ---- */

static trib_status register_extent(void *user, const trib_arena_memory *memory, void **cookie_out, trib_error *error)
{
    (void)error;
    shm_offer *offer = user;
    *cookie_out = NULL;
    if (memory->fd < 0) {
        return TRIB_OK; /* a payload in it is sent as any other */
    }
    *cookie_out = memory->base;
    if (!trib_fork_own_memory(memory->base, memory->size, memory->fd)) {
        (void)madvise(memory->base, memory->size, MADV_DONTFORK); /* a child must not write to it */
    }
    pthread_mutex_lock(&offer->lock);
    const uint32_t count = atomic_load_explicit(&offer->list.count, memory_order_relaxed);
    if (count < EXTENTS_MAX) {
        offer->list.entries[count] =
            (shm_entry){.base = (uintptr_t)memory->base, .size = memory->size, .fd = memory->fd};
        atomic_store_explicit(&offer->list.count, count + 1, memory_order_release);
    }
    pthread_mutex_unlock(&offer->lock);
    return TRIB_OK;
}

static void unregister_extent(void *user, void *base, size_t size, void *cookie)
{
    (void)user; /* entries are not removed one by one */
    (void)size;
    if (cookie != NULL) {
        trib_fork_disown_memory(base);
    }
}

trib_status trib_shm_offer_create(trib_arena *arena, shm_offer **offer_out)
{
    shm_offer *offer = calloc(1, sizeof *offer);
    if (offer == NULL) {
        return TRIB_NO_MEMORY;
    }
    offer->arena = arena;
    const trib_arena_registrar registrar = {
        .register_extent = register_extent, .unregister_extent = unregister_extent, .user = offer};
    trib_status status = pthread_mutex_init(&offer->lock, NULL) == 0 ? TRIB_OK : TRIB_NO_MEMORY;
    if (status == TRIB_OK) {
        status = trib_arena_add_registrar(arena, &registrar, &offer->registrar);
        if (status != TRIB_OK) {
            pthread_mutex_destroy(&offer->lock);
        }
    }
    if (status != TRIB_OK) {
        free(offer);
        return status;
    }
    *offer_out = offer;
    return TRIB_OK;
}

void trib_shm_offer_destroy(shm_offer *offer)
{
    if (offer != NULL) {
        trib_arena_remove_registrar(offer->arena, offer->registrar);
        pthread_mutex_destroy(&offer->lock);
        free(offer);
    }
}

uint64_t trib_shm_offer_address(const shm_offer *offer)
{
    return offer == NULL ? 0 : (uintptr_t)&offer->list;
}

static bool lies_in(uint64_t base, uint64_t bytes, uint64_t address, uint32_t size)
{
    return address >= base && address - base <= bytes && bytes - (address - base) >= size;
}

bool trib_shm_is_offered(const shm_offer *offer, const void *data, uint32_t size, uint32_t *hint_io)
{
    const uint32_t count = offer == NULL ? 0 : atomic_load_explicit(&offer->list.count, memory_order_acquire);
    for (uint32_t i = 0, at = *hint_io; i < count; i++, at++) {
        const shm_entry *entry = &offer->list.entries[at % count];
        if (lies_in(entry->base, entry->size, (uintptr_t)data, size)) {
            *hint_io = at % count;
            return true;
        }
    }
    return false;
}

/* ---- Reading ---- */

static bool read_from(const shm_peer_memory *peer, uint64_t address, void *to, size_t size)
{
    const struct iovec local = {.iov_base = to, .iov_len = size};
    const struct iovec remote = {.iov_base = (void *)(uintptr_t)address, .iov_len = size};
    trib_counter_add(peer->system_calls, 1);
    return process_vm_readv(peer->pid, &local, 1, &remote, 1, 0) == (ssize_t)size;
}

/* The number and the bytes are read in one call, so out of one process: an id can name another process a moment
 * later. */
ssize_t trib_shm_peer_read(const shm_peer_memory *peer, uint64_t address, void *to, uint32_t size)
{
    uint64_t found = ~peer->probe;
    const struct iovec local[2] = {{.iov_base = &found, .iov_len = sizeof found}, {.iov_base = to, .iov_len = size}};
    const struct iovec remote[2] = {{.iov_base = (void *)(uintptr_t)peer->probe_address, .iov_len = sizeof found},
                                    {.iov_base = (void *)(uintptr_t)address, .iov_len = size}};
    trib_counter_add(peer->system_calls, 1);
    const ssize_t got = process_vm_readv(peer->pid, local, 2, remote, 2, 0);
    if (got < 0) {
        return got;
    }
    if (got < (ssize_t)sizeof found || found != peer->probe) {
        errno = ESRCH;
        return -1;
    }
    return got - (ssize_t)sizeof found;
}

bool trib_shm_peer_can_be_read(const shm_peer_memory *peer)
{
    uint64_t found = ~peer->probe;
    return peer->pid > 0 && read_from(peer, peer->probe_address, &found, sizeof found) && found == peer->probe;
}

/* Finds the entry of the peer's list that has all those bytes. */
static bool find_entry(const shm_peer_memory *peer, uint64_t address, uint32_t size, shm_entry *entry_out)
{
    shm_entry some[ENTRIES_AT_ONCE];
    uint32_t count = 0;
    if (!read_from(peer, peer->address + offsetof(shm_list, count), &count, sizeof count) || count > EXTENTS_MAX) {
        return false;
    }
    for (uint32_t first = 0; first < count; first += ENTRIES_AT_ONCE) {
        const uint32_t here = count - first < ENTRIES_AT_ONCE ? count - first : ENTRIES_AT_ONCE;
        if (!read_from(peer, peer->address + offsetof(shm_list, entries) + first * sizeof some[0], some,
                       here * sizeof some[0])) {
            return false;
        }
        for (uint32_t i = 0; i < here; i++) {
            if (lies_in(some[i].base, some[i].size, address, size)) {
                *entry_out = some[i];
                return true;
            }
        }
    }
    return false;
}

static bool map_entry(shm_peer_memory *peer, int process, const shm_entry *entry)
{
    trib_counter_add(peer->system_calls, 7);
    shm_mapping *mappings = realloc(peer->mappings, (peer->count + 1) * sizeof *mappings);
    if (mappings == NULL) {
        return false;
    }
    peer->mappings = mappings;
    const int fd = trib_descriptor_keep((int)syscall(SYS_pidfd_getfd, process, entry->fd, 0));
    unsigned char *here = fd >= 0 ? trib_pages_map_foreign(fd, entry->size) : NULL;
    if (fd >= 0) {
        close(fd);
    }
    if (here != NULL) {
        mappings[peer->count++] = (shm_mapping){.base = entry->base, .size = entry->size, .here = here};
    }
    return here != NULL;
}

static const void *find_mapped(shm_peer_memory *peer, uint64_t address, uint32_t size)
{
    for (uint32_t i = 0, at = peer->last; i < peer->count; i++, at++) {
        const shm_mapping *mapping = &peer->mappings[at % peer->count];
        if (lies_in(mapping->base, mapping->size, address, size)) {
            peer->last = at % peer->count;
            return mapping->here + (address - mapping->base);
        }
    }
    return NULL;
}

const void *trib_shm_peer_find(shm_peer_memory *peer, uint64_t address, uint32_t size)
{
    const void *found = find_mapped(peer, address, size);
    if (found != NULL || peer->address == 0 || peer->count == EXTENTS_MAX) {
        return found;
    }
    if (peer->pause > 0) {
        peer->pause--;
        return NULL;
    }
    shm_entry entry;
    /* The number is read after the process was opened, so it proves that this is not another process with the same
     * id. */
    trib_counter_add(peer->system_calls, 2);
    const int process = trib_descriptor_keep((int)syscall(SYS_pidfd_open, peer->pid, 0));
    if (process >= 0) {
        if (trib_shm_peer_can_be_read(peer) && find_entry(peer, address, size, &entry) &&
            map_entry(peer, process, &entry)) {
            found = find_mapped(peer, address, size);
        }
        close(process);
    }
    peer->pause = found == NULL ? PAUSE : 0;
    return found;
}

void trib_shm_peer_forget(shm_peer_memory *peer)
{
    for (uint32_t i = 0; i < peer->count; i++) {
        munmap(peer->mappings[i].here, peer->mappings[i].size);
    }
    free(peer->mappings);
    peer->mappings = NULL;
    peer->count = 0;
}

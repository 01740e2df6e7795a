/* handle.c - see handle.h. */
#include "engine/base/handle.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "engine/base/assert.h"

/* A handle's bits: 1, the kind, the place, and the number of the use. A place is used 2^37 times before a number comes
 * again. */
#define KIND_BITS 2u
#define PLACE_BITS 24u
#define PLACE_SHIFT (1u + KIND_BITS)
#define USE_SHIFT (PLACE_SHIFT + PLACE_BITS)
_Static_assert(sizeof(uintptr_t) == 8, "a handle has room for a place and the number of its use");

#define CHUNK_PLACES 4096u
#define CHUNKS_MAX ((1u << PLACE_BITS) / CHUNK_PLACES)

typedef struct handle_place {
    _Atomic uintptr_t handle; /* the one that is accepted; 0: none */
    _Atomic(void *) object;
    uintptr_t uses;             /* only the owner of the place reads and writes it */
    _Atomic uint32_t next_free; /* the next free place, plus one; 0: none */
} handle_place;

/* State of the process. Places outlive the engines that use them. */
static _Atomic(handle_place *) chunks[CHUNKS_MAX];
static atomic_uint places_used; /* no place from this number on was ever taken */
/* The first free place, plus one, in the low half. The high half counts the changes: a thread that was interrupted
 * between reading and writing notices that others have taken the place and given it back. */
static _Atomic uint64_t free_places;

static handle_place *find_place(uint32_t place)
{
    handle_place *chunk = place / CHUNK_PLACES < CHUNKS_MAX ? atomic_load(&chunks[place / CHUNK_PLACES]) : NULL;
    return chunk == NULL ? NULL : &chunk[place % CHUNK_PLACES];
}

static handle_place *make_place(uint32_t place)
{
    if (place / CHUNK_PLACES >= CHUNKS_MAX) {
        return NULL;
    }
    _Atomic(handle_place *) *at = &chunks[place / CHUNK_PLACES];
    if (atomic_load(at) == NULL) {
        handle_place *none = NULL, *made = calloc(CHUNK_PLACES, sizeof *made);
        if (made == NULL || !atomic_compare_exchange_strong(at, &none, made)) {
            free(made);
        }
    }
    return find_place(place);
}

static uint32_t pop_free(void)
{
    uint64_t head = atomic_load(&free_places);
    while ((uint32_t)head != 0) {
        const uint32_t place = (uint32_t)head - 1;
        const uint64_t next = ((head >> 32) + 1) << 32 | atomic_load(&find_place(place)->next_free);
        if (atomic_compare_exchange_weak(&free_places, &head, next)) {
            return place;
        }
    }
    return TRIB_NO_PLACE;
}

uint32_t trib_handle_take_place(void *object)
{
    uint32_t place = pop_free();
    if (place == TRIB_NO_PLACE) {
        place = atomic_load(&places_used);
        do {
            if (make_place(place) == NULL) {
                return TRIB_NO_PLACE;
            }
        } while (!atomic_compare_exchange_weak(&places_used, &place, place + 1));
    }
    atomic_store(&find_place(place)->object, object);
    return place;
}

void trib_handle_give_place(uint32_t place)
{
    handle_place *mine = place == TRIB_NO_PLACE ? NULL : find_place(place);
    if (mine == NULL) {
        return;
    }
    atomic_store(&mine->handle, 0);
    atomic_store(&mine->object, NULL);
    uint64_t head = atomic_load(&free_places);
    do {
        atomic_store(&mine->next_free, (uint32_t)head);
    } while (!atomic_compare_exchange_weak(&free_places, &head, ((head >> 32) + 1) << 32 | (place + 1)));
}

uintptr_t trib_handle_open(uint32_t place, trib_handle_kind kind)
{
    handle_place *mine = find_place(place);
    trib_assert(mine != NULL);
    const uintptr_t handle =
        ++mine->uses << USE_SHIFT | (uintptr_t)place << PLACE_SHIFT | (uintptr_t)kind << 1 | (uintptr_t)1;
    atomic_store_explicit(&mine->handle, handle, memory_order_release);
    return handle;
}

static handle_place *place_of(uintptr_t handle)
{
    return (handle & 1) == 0 ? NULL : find_place((uint32_t)(handle >> PLACE_SHIFT & ((1u << PLACE_BITS) - 1)));
}

bool trib_handle_close(uintptr_t handle)
{
    handle_place *mine = place_of(handle);
    return mine != NULL && atomic_compare_exchange_strong(&mine->handle, &handle, 0);
}

void *trib_handle_find(uintptr_t handle, trib_handle_kind kind)
{
    handle_place *mine = place_of(handle);
    if (mine == NULL || (handle >> 1 & ((1u << KIND_BITS) - 1)) != (uintptr_t)kind ||
        atomic_load_explicit(&mine->handle, memory_order_acquire) != handle) {
        return NULL;
    }
    return atomic_load_explicit(&mine->object, memory_order_relaxed);
}

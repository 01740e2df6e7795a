/* trace_ring.c - making a ring and looking into it; see trace_ring.h. */
#include "engine/trace/trace_ring.h"

#include <stdlib.h>

#include "engine/base/assert.h"

#define RECORDS_MIN 256u
_Static_assert((RECORDS_MIN & (RECORDS_MIN - 1)) == 0, "a ring's capacity is a power of two");
_Static_assert(sizeof(trib_trace_record) == TRIB_TRACE_WORDS * sizeof(uint64_t), "records are copied as words");

bool trib_trace_ring_open(trib_trace_ring *ring, uint64_t bytes)
{
    trib_assert(ring->slots == NULL);
    uint64_t capacity = RECORDS_MIN;
    while (capacity * 2 <= bytes / TRIB_TRACE_RECORD_BYTES) {
        capacity *= 2;
    }
    /* Zeroed by the kernel as it is touched: what is never recorded costs nothing. */
    ring->slots = calloc(capacity, TRIB_TRACE_RECORD_BYTES);
    ring->capacity = ring->slots != NULL ? capacity : 0;
    trib_assert((ring->capacity & (ring->capacity - 1)) == 0); /* positions are found by a mask */
    return ring->slots != NULL;
}

void trib_trace_ring_close(trib_trace_ring *ring)
{
    atomic_store(&ring->on, false);
    free((void *)(uintptr_t)ring->slots);
    ring->slots = NULL;
    ring->capacity = 0;
}

uint64_t trib_trace_ring_copy(trib_trace_ring *ring, trib_trace_record *records, uint64_t *lost_out)
{
    const uint64_t base = atomic_load_explicit(&ring->base, memory_order_relaxed);
    const uint64_t end = atomic_load_explicit(&ring->written, memory_order_acquire);
    uint64_t first = end > ring->capacity && end - ring->capacity > base ? end - ring->capacity : base;
    for (uint64_t i = first; i < end; i++) {
        const _Atomic uint64_t *slot = &ring->slots[(i & (ring->capacity - 1)) * TRIB_TRACE_WORDS];
        uint64_t words[TRIB_TRACE_WORDS];
        for (unsigned k = 0; k < TRIB_TRACE_WORDS; k++) {
            words[k] = atomic_load_explicit(&slot[k], memory_order_acquire);
        }
        memcpy(&records[i - first], words, sizeof words);
    }
    const uint64_t begun = atomic_load_explicit(&ring->begun, memory_order_relaxed);
    const uint64_t whole = begun > ring->capacity ? begun - ring->capacity : 0;
    if (whole > first) {
        const uint64_t dropped = whole < end ? whole - first : end - first;
        memmove(records, records + dropped, (end - first - dropped) * sizeof *records);
        first += dropped;
    }
    trib_assert(first >= base && end - first <= ring->capacity);
    *lost_out = first - base;
    return end - first;
}

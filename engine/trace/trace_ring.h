/*
 * trace_ring.h - a core's records: a ring of fixed size, written by the core alone and wait-free, read from any thread.
 *
 * When it is full the oldest records are overwritten; how many went that way is known from the counters. A reader
 * copies without stopping the writer and drops what the writer may have been overwriting meanwhile: the writer says
 * which record it begins before it touches the slot (`begun`), and each word of the record is released after that, so
 * a reader that sees a new word sees that it was begun.
 */
#ifndef TRIB_ENGINE_TRACE_TRACE_RING_H
#define TRIB_ENGINE_TRACE_TRACE_RING_H

#include <stdatomic.h>
#include <stdbool.h>

#include "engine/trace/trace_format.h"

#define TRIB_TRACE_WORDS (TRIB_TRACE_RECORD_BYTES / 8)

typedef struct trib_trace_ring {
    atomic_bool on; /* any thread; the slots exist before this becomes true, and stay */
    _Atomic uint64_t *slots;
    uint64_t capacity;        /* records, a power of two */
    _Atomic uint64_t begun;   /* records that the core has begun to write */
    _Atomic uint64_t written; /* records that are whole; begun - 1 or begun */
    _Atomic uint64_t base;    /* index of the first record of this recording */
} trib_trace_ring;

/* Makes room for that many bytes, rounded down to a power of two of records. False: out of memory. */
bool trib_trace_ring_open(trib_trace_ring *ring, uint64_t bytes);
void trib_trace_ring_close(trib_trace_ring *ring);

static inline bool trib_trace_ring_is_on(const trib_trace_ring *ring)
{
    return __builtin_expect(atomic_load_explicit(&ring->on, memory_order_acquire), 0);
}

/* Drops all records. */
static inline void trib_trace_ring_clear(trib_trace_ring *ring)
{
    atomic_store_explicit(&ring->base, atomic_load_explicit(&ring->written, memory_order_acquire),
                          memory_order_relaxed);
}

/* Adds a record; on the core's thread only. */
static inline void trib_trace_ring_put(trib_trace_ring *ring, const trib_trace_record *record)
{
    const uint64_t index = atomic_load_explicit(&ring->written, memory_order_relaxed);
    _Atomic uint64_t *slot = &ring->slots[(index & (ring->capacity - 1)) * TRIB_TRACE_WORDS];
    uint64_t words[TRIB_TRACE_WORDS];
    memcpy(words, record, sizeof words);
    atomic_store_explicit(&ring->begun, index + 1, memory_order_relaxed);
    for (unsigned i = 0; i < TRIB_TRACE_WORDS; i++) {
        atomic_store_explicit(&slot[i], words[i], memory_order_release);
    }
    atomic_store_explicit(&ring->written, index + 1, memory_order_release);
}

/* Any thread: copies at most `capacity` records, the oldest first. Returns their number, and in *lost_out the number of
 * records that were overwritten. */
uint64_t trib_trace_ring_copy(trib_trace_ring *ring, trib_trace_record *records, uint64_t *lost_out);

#endif

/*
 * counter.h - a counter that one thread writes and any thread reads at any time.
 *
 * Access is relaxed on both sides, and with one writer there is nothing to lock: on x86-64 adding costs what it costs
 * on a plain integer. A reader may see an old value. The order in which two counters change means nothing.
 */
#ifndef TRIB_ENGINE_BASE_COUNTER_H
#define TRIB_ENGINE_BASE_COUNTER_H

#include <stdatomic.h>
#include <stdint.h>

typedef struct trib_counter {
    _Atomic uint64_t value;
} trib_counter;

/* For the writer only. */
static inline void trib_counter_add(trib_counter *counter, uint64_t count)
{
    uint64_t before = atomic_load_explicit(&counter->value, memory_order_relaxed);
    atomic_store_explicit(&counter->value, before + count, memory_order_relaxed);
}

/* For the writer only. */
static inline void trib_counter_take_one(trib_counter *counter)
{
    trib_counter_add(counter, UINT64_MAX);
}

static inline uint64_t trib_counter_get(const trib_counter *counter)
{
    return atomic_load_explicit(&counter->value, memory_order_relaxed);
}

#endif

/*
 * ticks.h - the monotonic clock for who asks for it very often: the processor's counter, set by the system's clock every
 * fraction of a millisecond. Off from it by less than some 100 ns, for half of the price; also where the one who sets it is
 * interrupted just then, which a counter that is read once would be off by until it is set again.
 *
 * Used only where the kernel itself takes that counter for its clock (then it is steady, and the same on all cores); else
 * the system is asked each time. One owner, one thread.
 */
#ifndef TRIB_ENGINE_TICKS_H
#define TRIB_ENGINE_TICKS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct trib_ticks {
    int64_t (*clock_ns)(void);
    uint64_t set_at, span; /* ticks: when it was set, and how long that holds; 0: ask the system */
    uint64_t origin;       /* rates are taken from here */
    int64_t set_ns, origin_ns, last_ns;
    double tick_ns;
    bool usable, has_origin;
} trib_ticks;

void trib_ticks_init(trib_ticks *ticks, int64_t (*clock_ns)(void));
/* The slow way: asks the system and sets the counter anew. */
int64_t trib_ticks_set(trib_ticks *ticks);

static inline uint64_t trib_ticks_count(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    return 0;
#endif
}

/* Never before what it said last. */
static inline int64_t trib_ticks_now(trib_ticks *ticks)
{
    const uint64_t passed = trib_ticks_count() - ticks->set_at;
    if (passed >= ticks->span) {
        return trib_ticks_set(ticks);
    }
    const int64_t ns = ticks->set_ns + (int64_t)((double)(int64_t)passed * ticks->tick_ns);
    ticks->last_ns = ns > ticks->last_ns ? ns : ticks->last_ns;
    return ticks->last_ns;
}

#endif

/*
 * tsc_clock.h - a cheap monotonic clock for hot paths: the processor's counter, set by the system's clock every
 * fraction of a millisecond. It differs from the system's by less than some 100 ns, for half of the price. The counter
 * is read together with the clock, and read again if the thread was interrupted in between: else it would be off by
 * that until it is set again.
 *
 * Used only where the kernel itself takes that counter for its clock (then it is steady, and the same on all cores);
 * else the system is asked each time. A clock belongs to one thread.
 */
#ifndef TRIB_ENGINE_REACTOR_TSC_CLOCK_H
#define TRIB_ENGINE_REACTOR_TSC_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

typedef struct trib_tsc_clock {
    int64_t (*clock_ns)(void); /* the system's clock */
    uint64_t set_at, span;     /* ticks: when the counter was set, and how long that holds; 0: ask the system */
    uint64_t origin;           /* start of the interval over which rates are measured */
    int64_t set_ns, origin_ns, last_ns;
    double tick_ns;
    bool usable, has_origin;
} trib_tsc_clock;

void trib_tsc_clock_init(trib_tsc_clock *clock, int64_t (*clock_ns)(void));
/* The slow way: asks the system and sets the counter anew. */
int64_t trib_tsc_clock_set(trib_tsc_clock *clock);

static inline uint64_t trib_tsc_clock_count(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    return 0;
#endif
}

/* Returns the time, which is never before the time that it returned last. */
static inline int64_t trib_tsc_clock_now(trib_tsc_clock *clock)
{
    const uint64_t passed = trib_tsc_clock_count() - clock->set_at;
    if (passed >= clock->span) {
        return trib_tsc_clock_set(clock);
    }
    const int64_t ns = clock->set_ns + (int64_t)((double)(int64_t)passed * clock->tick_ns);
    clock->last_ns = ns > clock->last_ns ? ns : clock->last_ns;
    return clock->last_ns;
}

#endif

/*
 * linger.h - how long a thread that has nothing to do looks for more before it sleeps.
 *
 * A thread that sleeps is woken 20 to 200 us late, and a virtual machine's is later than others; to look for long takes a
 * core. So a thread looks for `least_ns` after work, and for longer, up to `most_ns`, where looking so long would have found
 * the next work: the pauses of the past say so. Where work comes too seldom for that the window halves at each arrival.
 */
#ifndef TRIB_ENGINE_LINGER_H
#define TRIB_ENGINE_LINGER_H

#include <stdbool.h>
#include <stdint.h>

typedef struct trib_linger {
    int64_t least_ns, most_ns; /* both 0: never */
    int64_t window_ns;
    int64_t worked_ns; /* when there was work last */
} trib_linger;

static inline trib_linger trib_linger_between(int64_t least_ns, int64_t most_ns)
{
    return (trib_linger){
        .least_ns = least_ns, .most_ns = most_ns > least_ns ? most_ns : least_ns, .window_ns = least_ns};
}

/* There was work. What comes by itself, such as heartbeats, is no reason to look for longer: it does not teach. */
static inline void trib_linger_worked(trib_linger *linger, int64_t now_ns, bool teaches)
{
    const int64_t pause_ns = now_ns - linger->worked_ns;
    if (teaches && pause_ns > linger->window_ns) {
        const int64_t wanted = pause_ns <= linger->most_ns ? pause_ns + pause_ns / 2 : linger->window_ns / 2;
        const int64_t some = wanted > linger->least_ns ? wanted : linger->least_ns;
        linger->window_ns = some < linger->most_ns ? some : linger->most_ns;
    }
    linger->worked_ns = now_ns;
}

/* True while it is worth looking. */
static inline bool trib_linger_goes_on(const trib_linger *linger, int64_t now_ns)
{
    return now_ns - linger->worked_ns < linger->window_ns;
}

#endif

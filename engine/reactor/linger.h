/*
 * linger.h - how long a thread that has nothing to do looks for more before it sleeps.
 *
 * A thread that sleeps is woken 20 to 200 us late, and a virtual machine's is later than others; to look for long takes a
 * core. So a thread looks for `least_ns` after work, and for longer, up to `most_ns`, where looking so long would have found
 * the next work: the pauses of the past say so. Where work comes too seldom for that the window halves at each arrival; and what was
 * learned from work is forgotten where only what comes by itself, such as heartbeats, has come for a second.
 *
 * Who looks lets other threads of its core run in between. If one of them is busy each such chance costs its whole slice, which
 * waking up does not: a thread that gets its core back late does not look for many times as long, unless it is told to
 * (least_ns).
 */
#ifndef TRIB_ENGINE_LINGER_H
#define TRIB_ENGINE_LINGER_H

#include <stdbool.h>
#include <stdint.h>

#define TRIB_LINGER_LATE_NS INT64_C(50000) /* no mere caller that was told of a sum has the core for so long */
#define TRIB_LINGER_FORGETS_NS INT64_C(1000000000)
#define TRIB_LINGER_LETS_BE 32 /* so slices that others take cost at most about 3 % of the time */

typedef struct trib_linger {
    int64_t least_ns, most_ns; /* both 0: never */
    int64_t window_ns;
    int64_t worked_ns;  /* when there was work last */
    int64_t taught_ns;  /* when there was some last that did not come by itself */
    int64_t lets_be_ns; /* others want the core until then */
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
    if (teaches) {
        linger->taught_ns = now_ns;
    } else if (now_ns - linger->taught_ns > TRIB_LINGER_FORGETS_NS) {
        linger->window_ns = linger->least_ns;
    }
    linger->worked_ns = now_ns;
}

/* As that, for who knows when the work began, too: it is no part of the pause. */
static inline void trib_linger_worked_since(trib_linger *linger, int64_t begun_ns, int64_t now_ns, bool teaches)
{
    trib_linger_worked(linger, begun_ns, teaches);
    linger->worked_ns = now_ns;
}

/* Other threads of the core had their chance. */
static inline void trib_linger_yielded(trib_linger *linger, int64_t left_ns, int64_t again_ns)
{
    const int64_t late_ns = again_ns - left_ns;
    if (late_ns > TRIB_LINGER_LATE_NS && linger->least_ns == 0) {
        linger->lets_be_ns = again_ns + TRIB_LINGER_LETS_BE * late_ns;
    }
}

/* True while it is worth looking. */
static inline bool trib_linger_goes_on(const trib_linger *linger, int64_t now_ns)
{
    return now_ns - linger->worked_ns < linger->window_ns && now_ns >= linger->lets_be_ns;
}

#endif

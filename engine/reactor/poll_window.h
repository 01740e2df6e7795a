/*
 * poll_window.h - how long an idle thread polls for work before it sleeps.
 *
 * A thread that sleeps is woken 20 to 200 us late, and a virtual machine's is later than others; to look for long takes
 * a core. So a thread looks for `least_ns` after work, and for longer, up to `most_ns`, where looking so long would
 * have found the next work, as far as the pauses of the past tell. Where work comes too seldom for that the window
 * halves at each arrival; and the window falls back to least_ns where only heartbeats have come for a second.
 *
 * A thread that looks lets other threads of its core run in between. If one of them is busy each such chance costs its
 * whole slice, which waking up does not: a thread that gets its core back late does not look for many times as long,
 * unless least_ns tells it to.
 */
#ifndef TRIB_ENGINE_REACTOR_POLL_WINDOW_H
#define TRIB_ENGINE_REACTOR_POLL_WINDOW_H

#include <stdbool.h>
#include <stdint.h>

/* a thread that is late by more than this: a caller that is told of a sum has the core for less */
#define TRIB_POLL_WINDOW_LATE_NS INT64_C(50000)
#define TRIB_POLL_WINDOW_FORGETS_NS INT64_C(1000000000)
#define TRIB_POLL_WINDOW_YIELD_FACTOR 32 /* by this factor slices of other threads cost at most about 3 % of the time */

typedef struct trib_poll_window {
    int64_t least_ns, most_ns; /* both 0: never */
    int64_t window_ns;         /* the present window, least_ns..most_ns */
    int64_t worked_ns;         /* when there was work last */
    int64_t taught_ns;         /* when work last came that may widen the window */
    int64_t yield_until_ns;    /* other threads want the core until then */
} trib_poll_window;

static inline trib_poll_window trib_poll_window_between(int64_t least_ns, int64_t most_ns)
{
    return (trib_poll_window){
        .least_ns = least_ns, .most_ns = most_ns > least_ns ? most_ns : least_ns, .window_ns = least_ns};
}

/* Notes an arrival of work. teaches is false for heartbeats and the like, which come by themselves and are no reason to
 * poll for longer. */
static inline void trib_poll_window_note_work(trib_poll_window *window, int64_t now_ns, bool teaches)
{
    const int64_t pause_ns = now_ns - window->worked_ns;
    if (teaches && pause_ns > window->window_ns) {
        const int64_t wanted = pause_ns <= window->most_ns ? pause_ns + pause_ns / 2 : window->window_ns / 2;
        const int64_t some = wanted > window->least_ns ? wanted : window->least_ns;
        window->window_ns = some < window->most_ns ? some : window->most_ns;
    }
    if (teaches) {
        window->taught_ns = now_ns;
    } else if (now_ns - window->taught_ns > TRIB_POLL_WINDOW_FORGETS_NS) {
        window->window_ns = window->least_ns;
    }
    window->worked_ns = now_ns;
}

/* As trib_poll_window_note_work, for a caller that knows when the work began: the work itself is no part of the
 * pause. */
static inline void trib_poll_window_note_work_since(trib_poll_window *window, int64_t begun_ns, int64_t now_ns,
                                                    bool teaches)
{
    trib_poll_window_note_work(window, begun_ns, teaches);
    window->worked_ns = now_ns;
}

/* Notes that other threads of the core had their chance to run. */
static inline void trib_poll_window_note_yield(trib_poll_window *window, int64_t left_ns, int64_t again_ns)
{
    const int64_t late_ns = again_ns - left_ns;
    if (late_ns > TRIB_POLL_WINDOW_LATE_NS && window->least_ns == 0) {
        window->yield_until_ns = again_ns + TRIB_POLL_WINDOW_YIELD_FACTOR * late_ns;
    }
}

/* True while polling is worth its cost. */
static inline bool trib_poll_window_is_open(const trib_poll_window *window, int64_t now_ns)
{
    return now_ns - window->worked_ns < window->window_ns && now_ns >= window->yield_until_ns;
}

#endif

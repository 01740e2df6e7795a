/*
 * bench_neighbour.c - measures what a reactor loses when another thread spins on its core, as a caller does that
 * waits for a GPU, and how much of that a short slice saves (trib_thread_set_timer_slack).
 *
 * The load is bursts of 16 posts, 60 us apart, of 40 us each. A burst takes 1 ms if the reactor has the core for
 * itself. Between bursts the reactor polls for the given time, and sleeps.
 *
 *     build/release/tests/bench_neighbour
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "engine/reactor/reactor_ev.h"
#include "engine/base/thread_signals.h"

enum { BURST = 16, BURSTS = 150, APART_US = 60, WORK_US = 40, PAUSE_US = 15000, CORE = 0, OTHER_CORE = 1 };

typedef struct piece {
    trib_post post; /* first */
    atomic_int *left;
} piece;

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static void burn(double us)
{
    for (const double until = now_ms() + us / 1e3; now_ms() < until;) {}
}

static void work(trib_reactor *reactor, trib_post *post)
{
    (void)reactor;
    burn(WORK_US);
    atomic_fetch_sub(((piece *)post)->left, 1);
}

static atomic_int told;
static atomic_bool prompt, spins;

static void tell(trib_reactor *reactor, trib_post *post)
{
    (void)reactor;
    (void)post;
    trib_thread_set_timer_slack(atomic_load(&prompt));
    atomic_store(&told, 1);
}

static void run_on(int core)
{
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(core, &cores);
    if (pthread_setaffinity_np(pthread_self(), sizeof cores, &cores) != 0) {
        fprintf(stderr, "bench_neighbour: this process may not run on core %d\n", core);
        exit(1);
    }
}

static void *spin(void *argument)
{
    (void)argument;
    run_on(CORE);
    while (atomic_load(&spins)) {}
    return NULL;
}

static int by_time(const void *a, const void *b)
{
    const double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static double burst(trib_reactor *reactor, piece *pieces, atomic_int *left)
{
    burn(PAUSE_US);
    const double began = now_ms();
    atomic_store(left, BURST);
    for (int i = 0; i < BURST; i++) {
        trib_reactor_post(reactor, &pieces[i].post);
        burn(APART_US);
    }
    while (atomic_load(left) > 0) {}
    return now_ms() - began;
}

static void measure(trib_reactor *reactor, int64_t window_us, bool has_neighbour, bool is_prompt)
{
    static double times[BURSTS];
    piece pieces[BURST];
    atomic_int left = 0;
    trib_post telling = {.run = tell};
    pthread_t neighbour;
    for (int i = 0; i < BURST; i++) {
        pieces[i] = (piece){.post.run = work, .left = &left};
    }
    atomic_store(&told, 0);
    atomic_store(&prompt, is_prompt);
    trib_reactor_post(reactor, &telling);
    while (atomic_load(&told) == 0) {}
    atomic_store(&spins, true);
    const bool spinning = has_neighbour && pthread_create(&neighbour, NULL, spin, NULL) == 0;
    for (int i = 0; i < BURSTS; i++) {
        times[i] = burst(reactor, pieces, &left);
    }
    atomic_store(&spins, false);
    if (spinning) {
        pthread_join(neighbour, NULL);
    }
    qsort(times, BURSTS, sizeof times[0], by_time);
    printf("looks for %3lld us, %s, %s slice: %.2f ms (quartiles %.2f to %.2f)\n", (long long)window_us,
           spinning ? "a neighbour" : "alone", is_prompt ? "a short" : "the usual", times[BURSTS / 2],
           times[BURSTS / 4], times[BURSTS * 3 / 4]);
    fflush(stdout);
}

static bool run(int64_t window_us)
{
    trib_logger logger = {.level = TRIB_LOG_WARN};
    trib_reactor *reactor = NULL;
    if (trib_reactor_ev_create(0, &logger, NULL, &reactor) != TRIB_OK) {
        return false;
    }
    trib_reactor_ev_set_poll_window(reactor, window_us * 1000, window_us * 1000, false);
    const bool starts = trib_reactor_ev_start(reactor, CORE, false) == TRIB_OK;
    for (int turn = 0; starts && turn < 3; turn++) {
        measure(reactor, window_us, turn > 0, turn > 1);
    }
    if (starts) {
        trib_reactor_ev_stop(reactor);
        trib_reactor_ev_join(reactor);
    }
    trib_reactor_ev_destroy(reactor);
    return starts;
}

int main(void)
{
    run_on(OTHER_CORE);
    return run(0) && run(500) ? 0 : 1;
}

/*
 * bench_trace.c - what a hook costs, in nanoseconds: while nothing is recorded, and while it is, the time it looks at
 * included. Medians of rounds that take turns.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "engine/trace.h"

#define ROUNDS 31
#define RECORDS 200000u

static int64_t now_ns(trib_reactor *reactor)
{
    (void)reactor;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    const double *left = a, *right = b;
    return (*left > *right) - (*left < *right);
}

static double round_of(trib_core *core, bool on)
{
    const trib_contribution what = {.tensor = 3, .partition = 5, .round = 7};
    atomic_store(&core->trace.on, on);
    const int64_t began_ns = now_ns(NULL);
    for (uint32_t i = 0; i < RECORDS; i++) {
        trib_trace_sum(core, TRIB_TRACE_SUM_ARRIVE, &what, 1, i);
    }
    return (double)(now_ns(NULL) - began_ns) / RECORDS;
}

int main(void)
{
    trib_reactor_ops ops = {.now_ns = now_ns};
    trib_reactor reactor = {.ops = &ops};
    trib_core *core = calloc(1, sizeof *core);
    if (core == NULL || !trib_trace_ring_open(&core->trace, TRIB_TRACE_BYTES_DEFAULT)) {
        return 1;
    }
    core->reactor = &reactor;
    double off[ROUNDS], on[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        off[i] = round_of(core, false);
        on[i] = round_of(core, true);
    }
    qsort(off, ROUNDS, sizeof off[0], compare);
    qsort(on, ROUNDS, sizeof on[0], compare);
    printf("a hook: %.1f ns while nothing is recorded, %.1f ns while it is (quartiles %.1f, %.1f)\n", off[ROUNDS / 2],
           on[ROUNDS / 2], on[ROUNDS / 4], on[ROUNDS * 3 / 4]);
    trib_trace_ring_close(&core->trace);
    free(core);
    return 0;
}

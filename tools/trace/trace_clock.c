/*
 * trace_clock.c - estimates a clock's offset from samples: see trace_run.h.
 *
 * A sample bounds the offset at its time to rtt/2 on both sides. Two samples bound the drift between them. The drift
 * hardly changes, so the drift that all pairs allow together is subtracted; the rest of it bounds how fast the
 * remaining offset may change. So a bound at one time, widened, is a bound at every other time. The intersection of
 * all bounds is an interval, whose middle is the estimate.
 */
#include <stdlib.h>

#include "tools/trace/trace_run.h"

typedef struct bounds {
    double low, high;
} bounds;

static int by_time(const void *a, const void *b)
{
    const trib_clock_sample *left = a, *right = b;
    return (left->at_ns > right->at_ns) - (left->at_ns < right->at_ns);
}

static void narrow_bounds(bounds *mine, const bounds *neighbour, double gap_ns, double drift)
{
    const double low = neighbour->low - gap_ns * drift, high = neighbour->high + gap_ns * drift;
    mine->low = mine->low > low ? mine->low : low;
    mine->high = mine->high < high ? mine->high : high;
}

/* Returns the middle of the constant drifts that all samples allow, and in *left_out the distance to the largest
 * of them. If no constant drift fits: 0, and the largest drift that is possible. */
static double steady_drift(const trib_clock_sample *samples, const bounds *of, uint32_t count, double *left_out)
{
    double low = -TRACE_DRIFT, high = TRACE_DRIFT;
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t k = i + 1; k < count; k++) {
            const double gap_ns = (double)(samples[k].at_ns - samples[i].at_ns);
            if (gap_ns > 0) {
                const double most = (of[k].high - of[i].low) / gap_ns, least = (of[k].low - of[i].high) / gap_ns;
                high = most < high ? most : high;
                low = least > low ? least : low;
            }
        }
    }
    const bool steady = low <= high && (high - low) / 2 + TRACE_WANDER < TRACE_DRIFT;
    *left_out = steady ? (high - low) / 2 + TRACE_WANDER : TRACE_DRIFT;
    return steady ? (low + high) / 2 : 0;
}

bool trace_clock_make(trace_clock *clock, const trib_clock_sample *samples, uint32_t count)
{
    *clock = (trace_clock){.count = count};
    if (count == 0) {
        return true;
    }
    trib_clock_sample *sorted = malloc(count * sizeof *sorted);
    bounds *left = malloc(count * sizeof *left);
    clock->knots = malloc(count * sizeof *clock->knots);
    if (sorted == NULL || left == NULL || clock->knots == NULL) {
        free(sorted);
        free(left);
        free(clock->knots);
        clock->knots = NULL;
        clock->count = 0;
        return false;
    }
    memcpy(sorted, samples, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, by_time);
    /* Offsets are relative to the first one: a double has too few digits for the years in a clock. */
    const int64_t base_ns = sorted[0].offset_ns;
    for (uint32_t i = 0; i < count; i++) {
        const double middle = (double)(sorted[i].offset_ns - base_ns), half = (double)sorted[i].rtt_ns / 2;
        left[i] = (bounds){middle - half, middle + half};
    }
    double drift_left = TRACE_DRIFT;
    const double drift = steady_drift(sorted, left, count, &drift_left);
    for (uint32_t i = 0; i < count; i++) {
        const double moved = drift * (double)(sorted[i].at_ns - sorted[0].at_ns);
        left[i] = (bounds){left[i].low - moved, left[i].high - moved};
    }
    for (uint32_t i = 1; i < count; i++) {
        narrow_bounds(&left[i], &left[i - 1], (double)(sorted[i].at_ns - sorted[i - 1].at_ns), drift_left);
    }
    for (uint32_t i = count - 1; i-- > 0;) {
        narrow_bounds(&left[i], &left[i + 1], (double)(sorted[i + 1].at_ns - sorted[i].at_ns), drift_left);
    }
    clock->drift = drift;
    clock->drift_left = drift_left;
    for (uint32_t i = 0; i < count; i++) {
        const bool possible = left[i].low <= left[i].high + 1;
        const double moved = drift * (double)(sorted[i].at_ns - sorted[0].at_ns);
        clock->broken = clock->broken || !possible;
        clock->knots[i] = (trace_knot){
            .at_ns = sorted[i].at_ns,
            .offset_ns = possible ? base_ns + (int64_t)((left[i].low + left[i].high) / 2 + moved) : sorted[i].offset_ns,
            .error_ns =
                possible ? (int64_t)((left[i].high - left[i].low) / 2) + 1 : (int64_t)(sorted[i].rtt_ns / 2) + 1,
        };
    }
    free(sorted);
    free(left);
    return true;
}

int64_t trace_clock_map(const trace_clock *clock, int64_t at_ns, int64_t *error_out)
{
    int64_t unused = 0, *error = error_out != NULL ? error_out : &unused;
    if (clock->count == 0) {
        *error = INT64_MAX;
        return at_ns;
    }
    uint32_t low = 0, high = clock->count; /* the last knot that is not later than at_ns */
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        if (clock->knots[middle].at_ns <= at_ns) {
            low = middle;
        } else {
            high = middle;
        }
    }
    const trace_knot *from = &clock->knots[low], *to = low + 1 < clock->count ? &clock->knots[low + 1] : from;
    if (at_ns <= from->at_ns || to->at_ns == from->at_ns) {
        const double away = (double)(at_ns - from->at_ns);
        *error = from->error_ns + (int64_t)((away > 0 ? away : -away) * clock->drift_left);
        return at_ns + from->offset_ns + (int64_t)(away * clock->drift);
    }
    const double share = (double)(at_ns - from->at_ns) / (double)(to->at_ns - from->at_ns);

    const double near = (double)(share < 0.5 ? at_ns - from->at_ns : to->at_ns - at_ns);
    *error = (from->error_ns > to->error_ns ? from->error_ns : to->error_ns) + (int64_t)(near * clock->drift_left);
    return at_ns + from->offset_ns + (int64_t)(share * (double)(to->offset_ns - from->offset_ns));
}

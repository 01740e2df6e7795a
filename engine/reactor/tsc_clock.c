/* tsc_clock.c - see tsc_clock.h. */
#include "engine/reactor/tsc_clock.h"
#include "engine/base/descriptor.h"

#include <stdio.h>
#include <string.h>

/* time for which one setting holds: a clock that is slewed by 500 millionths is off by 125 ns */
#define SPAN_NS 250000.0
#define BASE_MIN_NS 2000000 /* the shortest and the longest time over which a rate is taken */
#define BASE_MAX_NS INT64_C(1000000000)
#define APART_MAX_NS 1000 /* most time between the readings of the system's clock before and after the counter's */
#define TRIES 3u

static bool is_kernels_clock(void)
{
#if defined(__x86_64__)
    char name[16] = "";
    FILE *file = trib_descriptor_open_text("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    const bool read = file != NULL && fgets(name, sizeof name, file) != NULL;
    if (file != NULL) {
        fclose(file);
    }
    return read && strcmp(name, "tsc\n") == 0;
#else
    return false;
#endif
}

/* The counter and the system's time of one moment. False: the thread was interrupted in between each time, so the two
 * may be any time apart; *ns_out is the system's time now all the same. */
static bool read_both(const trib_tsc_clock *clock, uint64_t *count_out, int64_t *ns_out)
{
    for (unsigned i = 0; i < TRIES; i++) {
        const int64_t before_ns = clock->clock_ns();
        *count_out = trib_tsc_clock_count();
        *ns_out = clock->clock_ns();
        if (*ns_out - before_ns <= APART_MAX_NS) {
            return true;
        }
    }
    return false;
}

void trib_tsc_clock_init(trib_tsc_clock *clock, int64_t (*clock_ns)(void))
{
    *clock = (trib_tsc_clock){.clock_ns = clock_ns, .usable = is_kernels_clock()};
    clock->has_origin = read_both(clock, &clock->origin, &clock->origin_ns);
}

int64_t trib_tsc_clock_set(trib_tsc_clock *clock)
{
    uint64_t now = 0;
    int64_t now_ns = 0;
    const bool together = clock->usable && read_both(clock, &now, &now_ns);
    now_ns = clock->usable ? now_ns : clock->clock_ns();
    const int64_t base_ns = now_ns - clock->origin_ns;
    clock->span = 0;
    if (together && clock->has_origin && now > clock->origin && base_ns >= BASE_MIN_NS) {
        clock->tick_ns = (double)base_ns / (double)(now - clock->origin);
        clock->span = (uint64_t)(SPAN_NS / clock->tick_ns);
    }
    if (together && (!clock->has_origin || base_ns > BASE_MAX_NS)) {
        clock->origin = now;
        clock->origin_ns = now_ns;
        clock->has_origin = true;
    }
    clock->set_at = now;
    clock->set_ns = now_ns;
    clock->last_ns = now_ns > clock->last_ns ? now_ns : clock->last_ns;
    return clock->last_ns;
}

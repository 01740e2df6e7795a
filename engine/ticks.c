/* ticks.c - see ticks.h. */
#include "engine/ticks.h"

#include <stdio.h>
#include <string.h>

#define SPAN_NS 250000.0    /* that one setting holds: a clock that is slewed by 500 millionths is off by 125 ns */
#define BASE_MIN_NS 2000000 /* over which a rate is taken */
#define BASE_MAX_NS INT64_C(1000000000)

static bool is_kernels_clock(void)
{
#if defined(__x86_64__)
    char name[16] = "";
    FILE *file = fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "r");
    const bool read = file != NULL && fgets(name, sizeof name, file) != NULL;
    if (file != NULL) {
        fclose(file);
    }
    return read && strcmp(name, "tsc\n") == 0;
#else
    return false;
#endif
}

void trib_ticks_init(trib_ticks *ticks, int64_t (*clock_ns)(void))
{
    *ticks = (trib_ticks){.clock_ns = clock_ns, .usable = is_kernels_clock()};
    ticks->origin_ns = clock_ns();
    ticks->origin = trib_ticks_count();
}

int64_t trib_ticks_set(trib_ticks *ticks)
{
    const int64_t now_ns = ticks->clock_ns();
    const uint64_t now = trib_ticks_count();
    const int64_t base_ns = now_ns - ticks->origin_ns;
    if (ticks->usable && now > ticks->origin && base_ns >= BASE_MIN_NS) {
        ticks->tick_ns = (double)base_ns / (double)(now - ticks->origin);
        ticks->span = (uint64_t)(SPAN_NS / ticks->tick_ns);
    }
    if (base_ns > BASE_MAX_NS) {
        ticks->origin = now;
        ticks->origin_ns = now_ns;
    }
    ticks->set_at = now;
    ticks->set_ns = now_ns;
    ticks->last_ns = now_ns > ticks->last_ns ? now_ns : ticks->last_ns;
    return ticks->last_ns;
}

/* pin.c - see pin.h. Machines with more than the 1024 CPUs of a cpu_set_t exist, so it takes several. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "numa/pin.h"

#include <sched.h>

trib_status trib_pin_among(pid_t thread, const trib_place_cpus *cpus)
{
    cpu_set_t set[TRIB_PLACE_CPUS_MAX / CPU_SETSIZE];
    bool any = false;
    CPU_ZERO_S(sizeof set, set);
    for (int32_t cpu = 0; cpu < TRIB_PLACE_CPUS_MAX; cpu++) {
        if (trib_place_cpus_have(cpus, cpu)) {
            CPU_SET_S((size_t)cpu, sizeof set, set);
            any = true;
        }
    }
    if (!any) {
        return TRIB_INVALID;
    }
    return sched_setaffinity(thread, sizeof set, set) == 0 ? TRIB_OK : TRIB_SYSTEM;
}

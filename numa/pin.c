/*
 * pin.c - see pin.h. The CPU set is made as large as the CPU's number needs: machines with more than 1024 exist.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "numa/pin.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>

#define CPUS_MAX 65536
#define THREAD_NAME_SIZE 16

trib_status trib_pin_thread(int32_t cpu)
{
    if (cpu < 0 || cpu >= CPUS_MAX) {
        return TRIB_INVALID;
    }
    cpu_set_t *set = CPU_ALLOC(cpu + 1);
    if (set == NULL) {
        return TRIB_NO_MEMORY;
    }
    size_t size = CPU_ALLOC_SIZE(cpu + 1);
    CPU_ZERO_S(size, set);
    CPU_SET_S(cpu, size, set);
    int error = pthread_setaffinity_np(pthread_self(), size, set);
    CPU_FREE(set);
    return error == 0 ? TRIB_OK : TRIB_SYSTEM;
}

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

void trib_name_thread(const char *name)
{
    char cut[THREAD_NAME_SIZE];
    size_t length = strnlen(name, sizeof(cut) - 1);
    memcpy(cut, name, length);
    cut[length] = '\0';
    (void)pthread_setname_np(pthread_self(), cut);
}

/*
 * topo_fallback.c - see topo_fallback.h. Each CPU counts as a core; if even the affinity is unknown, CPU 0 is assumed.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "numa/topo_fallback.h"

#include <sched.h>
#include <stdlib.h>

#define CPUS_MAX 8192

static void add_core(trib_topo *topo, int cpu)
{
    topo->cores[topo->core_count++] = (trib_topo_core){.cpu = cpu, .l2 = -1, .l3 = -1};
}

trib_status trib_topo_fallback(trib_topo *topo)
{
    cpu_set_t *set = CPU_ALLOC(CPUS_MAX);
    size_t size = CPU_ALLOC_SIZE(CPUS_MAX);
    topo->nodes = calloc(1, sizeof(*topo->nodes));
    topo->cores = calloc(CPUS_MAX, sizeof(*topo->cores));
    if (set == NULL || topo->nodes == NULL || topo->cores == NULL) {
        if (set != NULL) {
            CPU_FREE(set);
        }
        return TRIB_NO_MEMORY;
    }
    CPU_ZERO_S(size, set);
    if (sched_getaffinity(0, size, set) == 0) {
        for (int cpu = 0; cpu < CPUS_MAX; cpu++) {
            if (CPU_ISSET_S(cpu, size, set)) {
                add_core(topo, cpu);
            }
        }
    }
    CPU_FREE(set);
    if (topo->core_count == 0) {
        add_core(topo, 0);
    }
    topo->machine_core_count = topo->core_count;
    topo->node_count = 1;
    topo->nodes[0].core_count = topo->core_count;
    topo->fallback = true;
    return TRIB_OK;
}

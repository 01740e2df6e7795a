/*
 * topo_fallback.h - the machine where hwloc sees nothing: one node, with the CPUs of sched_getaffinity.
 */
#ifndef TRIB_NUMA_TOPO_FALLBACK_H
#define TRIB_NUMA_TOPO_FALLBACK_H

#include "numa/topo.h"

/* Fills an empty topology. TRIB_NO_MEMORY. */
TRIB_CHECKED trib_status trib_topo_fallback(trib_topo *topo);

#endif

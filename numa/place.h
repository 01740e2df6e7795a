/*
 * place.h - plans where an engine's reactors and memory go, from a topology and a request. A pure function: it touches
 * no machine.
 *
 * The processes of one machine do not talk before they place themselves. Each owns every local_count-th core of the
 * list, starting with its local_index, whatever its GPU or NIC: so no two of them ever choose the same core, as long as
 * all are given the same local_count and see the same cores. Among its own, a process takes those nearest to its GPU,
 * else its NIC.
 *
 * With several addresses to listen on, each has a NIC, and each is the own one of as many reactors, or one more.
 * Without a GPU reactors go near the NICs in the order of the addresses, in turns. Then each reactor in turn takes, of
 * the addresses that are still free for it, the one whose NIC is nearest to the reactor's core: the GPU's own NIC, then
 * one of its node, of its socket, one that is near no node, any. Of equally near ones it takes the one with fewest
 * reactors, then the first: so where all are equally near, reactor i has the i-th address. The processes of a machine
 * go on where the one before them ends: the second of those with one reactor begins with the second address.
 *
 * Cores that other jobs' reactors are pinned to are left to them as long as the process has others: a shared core is
 * worse than a far one. If it has none, they count as free.
 *
 * A process that its launcher has bound to part of the machine pins nothing: whether the others share that part cannot
 * be seen from inside, and the launcher has placed it already.
 */
#ifndef TRIB_NUMA_PLACE_H
#define TRIB_NUMA_PLACE_H

#include "numa/topo.h"

#include <stdio.h>

#define TRIB_PLACE_REACTORS_MAX 64
/* More loops than this are not needed to fill a link, and each costs connections. */
#define TRIB_PLACE_REACTORS_DEFAULT_MAX 4
#define TRIB_PLACE_NICS_MAX 16

#define TRIB_PLACE_CPUS_MAX 8192

/* CPUs, by the operating system's numbers. */
typedef struct trib_place_cpus {
    uint64_t bits[TRIB_PLACE_CPUS_MAX / 64];
} trib_place_cpus;

static inline void trib_place_cpus_add(trib_place_cpus *cpus, int32_t cpu)
{
    cpus->bits[cpu / 64] |= UINT64_C(1) << cpu % 64;
}

static inline bool trib_place_cpus_have(const trib_place_cpus *cpus, int32_t cpu)
{
    return cpu < TRIB_PLACE_CPUS_MAX && (cpus->bits[cpu / 64] >> cpu % 64 & 1) != 0;
}

typedef struct trib_place_request {
    uint32_t reactors; /* 0: the default; at most TRIB_PLACE_REACTORS_MAX */
    /* addresses to listen on: 1..TRIB_PLACE_NICS_MAX. The default for all processes together is a multiple */
    uint32_t addresses;
    uint32_t local_index;     /* number of this process among the job's processes on the machine */
    uint32_t local_count;     /* processes of the job on this machine; at least 1 */
    uint32_t reactors_in_all; /* reactors of those processes; 0: unknown, each has as many as this one */
    int32_t gpu;              /* index into the topology's GPUs; -1: none */
    /* The NICs of the addresses to listen on, in their order, by name or RDMA device. NULL, or one that hwloc does not
     * know: near no node. */
    const char *nics[TRIB_PLACE_NICS_MAX];
    const trib_place_cpus *taken; /* CPUs taken by reactors of other jobs; NULL: none */
    bool pin;
    bool busy_poll;
} trib_place_request;

typedef struct trib_place_reactor {
    int32_t cpu;      /* CPU to pin to, the operating system's number; -1: do not pin */
    int32_t node;     /* index into the topology's nodes; -1: any */
    uint32_t address; /* address on which it listens: index into the request's NICs */
    int32_t nic;      /* NIC of that address: index into the topology's NICs; -1: unknown */
} trib_place_reactor;

typedef struct trib_place_plan {
    uint32_t reactor_count;
    trib_place_reactor reactors[TRIB_PLACE_REACTORS_MAX];
    /* NUMA node for trib_arena_create, the operating system's number; -1: do not bind (one node, or the reactors may
     * run on several) */
    int32_t arena_node;
    int32_t gpu;      /* as requested */
    uint64_t sharing; /* reactors, of all processes, that share the cores which this one may use */
    bool busy_poll;   /* false where spinning would leave the callers' threads no core */
    bool crowded;     /* more reactors than cores on this machine: none is pinned */
    bool roomy;       /* beside all reactors a thread of each other process has a core */
    bool bound;       /* the launcher has placed this process: none is pinned */
} trib_place_plan;

/* The default number of reactors, one process, no GPU, any NIC, pinned, sleeping. */
void trib_place_request_init(trib_place_request *request);

/* TRIB_INVALID with *error (may be NULL): too many reactors, an index out of range. */
TRIB_CHECKED trib_status trib_place_make(const trib_topo *topo, const trib_place_request *request,
                                         trib_place_plan *plan_out, trib_error *error);

/* The cores for a thread that works beside reactors: those that this process may use and has no reactor on, on the
 * GPU's node if there are any. None if reactors are not pinned, or have all cores. */
void trib_place_rest(const trib_topo *topo, const trib_place_plan *plan, trib_place_cpus *cpus_out);

/* One JSON object each, over several lines, without a newline at the end. */
void trib_place_print(const trib_place_plan *plan, const trib_topo *topo, FILE *out);
void trib_topo_print(const trib_topo *topo, FILE *out);

#endif

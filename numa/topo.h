/*
 * topo.h - the machine as placement needs it: cores, NUMA nodes, NICs and GPUs, in plain arrays.
 *
 * Loaded from the machine or from an XML file that lstopo wrote, so that tests need no such machine. Loading the
 * machine never fails for what the machine is: where hwloc sees nothing, one node with the CPUs the process may use is
 * described.
 *
 * A loaded topology is never changed and may be read from any thread.
 */
#ifndef TRIB_NUMA_TOPO_H
#define TRIB_NUMA_TOPO_H

#include "api/tributary.h"

#define TRIB_TOPO_NAME_SIZE 32
#define TRIB_TOPO_PCI_SIZE 16

/* A core that this process may use. Ordered by node, then by hwloc's logical order: neighbours share caches. */
typedef struct trib_topo_core {
    int32_t cpu;     /* the operating system's number of its first usable hardware thread */
    int32_t node;    /* index into nodes */
    int32_t package; /* logical index of the socket; 0 if unknown */
    int32_t l2, l3;  /* logical index of the cache; -1 if unknown */
    uint64_t l2_bytes, l3_bytes;
} trib_topo_core;

typedef struct trib_topo_node {
    int32_t os_index;
    int32_t package;       /* socket of its cores; -1 if it has none */
    uint32_t core_count;   /* number of usable cores */
    uint64_t memory_bytes; /* 0 if unknown */
} trib_topo_node;

typedef struct trib_topo_nic {
    char name[TRIB_TOPO_NAME_SIZE];        /* "eth0"; "mlx5_0" if it has no network interface */
    char rdma_device[TRIB_TOPO_NAME_SIZE]; /* "mlx5_0"; "" if it has no RDMA */
    char pci[TRIB_TOPO_PCI_SIZE];          /* "0000:17:00.0"; "" if it is no PCI device */
    int32_t node;                          /* index into nodes; -1 if near none in particular */
} trib_topo_nic;

typedef struct trib_topo_gpu {
    char pci[TRIB_TOPO_PCI_SIZE];
    char model[TRIB_TOPO_NAME_SIZE]; /* "" if unknown */
    int32_t node;                    /* as in trib_topo_nic */
    int32_t nic; /* index of the NIC behind the most PCI bridges in common, else on its node; -1: none */
} trib_topo_gpu;

typedef struct trib_topo {
    trib_topo_core *cores; /* at least one */
    uint32_t core_count;
    /* cores of the machine, also those that this process is bound away from; at least core_count */
    uint32_t machine_core_count;
    trib_topo_node *nodes; /* at least one; ordered by os_index */
    uint32_t node_count;
    trib_topo_nic *nics; /* ordered by PCI address, then by name */
    uint32_t nic_count;
    trib_topo_gpu *gpus; /* ordered by PCI address, as CUDA_DEVICE_ORDER=PCI_BUS_ID does */
    uint32_t gpu_count;
    bool fallback; /* hwloc could not be used: only CPUs are known */
} trib_topo;

/* xml_path NULL: this machine. TRIB_INVALID (no such file, or not hwloc's XML), TRIB_NO_MEMORY, with *error (may be
 * NULL). */
TRIB_CHECKED trib_status trib_topo_load(const char *xml_path, trib_topo **topo_out, trib_error *error);
/* NULL is fine. */
void trib_topo_free(trib_topo *topo);

/* Index of the NIC with that name or RDMA device, of the GPU with that PCI address (case ignored, a short domain
 * allowed); -1. */
int32_t trib_topo_nic_find(const trib_topo *topo, const char *name);
int32_t trib_topo_gpu_find(const trib_topo *topo, const char *pci);

#endif

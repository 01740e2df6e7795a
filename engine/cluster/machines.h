/*
 * machines.h - which workers share a machine, and whether a machine's workers sum first (relay.h). Pure functions, for
 * the coordinator.
 *
 * The host part of an address identifies a machine: members that listen at one host share its link. The ranks of a
 * machine must be consecutive and all machines must have equally many, so that a rank's machine is rank / local_size.
 */
#ifndef TRIB_ENGINE_MACHINES_H
#define TRIB_ENGINE_MACHINES_H

#include "engine/cluster/placement.h"
#include "engine/cluster/roster.h"

#define TRIB_MACHINES_WHY_SIZE 160u

/* The number of workers of each machine of the roster, whose members, counts, sizes and order are filled in. 0, with
 * the reason in `why`, if the workers of a machine shall not sum first. */
uint32_t trib_machines_local_size(const trib_roster *roster, trib_local_sum wanted, char why[TRIB_MACHINES_WHY_SIZE]);

/* The first member, server or worker, on the same machine as that one. */
uint32_t trib_machines_first(const trib_roster *roster, uint32_t member);

/* A member's place among the members of the job that share its cores, servers too. Containers and network namespaces
 * have addresses, and perhaps links, of their own, but one kernel schedules their cores. */
typedef struct trib_machine_place {
    uint32_t index, count; /* 0 <= index < count members */
    uint32_t reactors;     /* reactors of all these members */
    bool others_placed;    /* a launcher has placed some of the others, without knowing of the rest */
} trib_machine_place;

trib_machine_place trib_machines_place(const trib_roster *roster, uint32_t member);

/* A worker's place among the workers. */
typedef struct trib_machine_ranks {
    int32_t local_rank, local_size; /* on its machine, by rank */
    int32_t cross_rank, cross_size; /* among the workers that have its local rank on their machines, by rank */
} trib_machine_ranks;

/* False if out of memory. */
bool trib_machines_ranks(const trib_roster *roster, uint32_t worker, trib_machine_ranks *ranks_out);

/* As trib_place_weights, for machines with local_size workers each, which are the first members. A machine's workers
 * share its link, its load and its weight. TRIB_NO_MEMORY. */
TRIB_CHECKED trib_status trib_machines_weights(trib_place_member *members, uint32_t member_count, uint32_t worker_count,
                                               uint32_t local_size, double *t_opt_factor_out);

#endif

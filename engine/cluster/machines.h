/*
 * machines.h - which workers share a machine, and whether those sum first (relay.h). Pure functions, for the coordinator.
 *
 * A machine is told by the address: who listens at the same host shares its link. The ranks of a machine must be
 * consecutive and all machines must have equally many, so that a rank's machine is rank / local_size.
 */
#ifndef TRIB_ENGINE_MACHINES_H
#define TRIB_ENGINE_MACHINES_H

#include "engine/cluster/placement.h"
#include "engine/cluster/roster.h"

#define TRIB_MACHINES_WHY_SIZE 160u

/* Workers of each machine of the roster, whose members, counts, sizes and order are filled in; 0 with the reason in `why`
 * if they are not to sum first. */
uint32_t trib_machines_local_size(const trib_roster *roster, trib_local_sum wanted, char why[TRIB_MACHINES_WHY_SIZE]);

/* The first member that shares that one's machine: servers too. */
uint32_t trib_machines_first(const trib_roster *roster, uint32_t member);

/* How a member shares its machine's cores with others of the job, servers too. Containers and network namespaces have
 * addresses, and perhaps links, of their own, but no cores: one kernel deals them out. */
typedef struct trib_machine_place {
    uint32_t index, count; /* which of those members it is, counted from 0 */
    uint32_t reactors;     /* of all of them */
    bool others_placed;    /* a launcher has placed some of the others, as if there were nobody else */
} trib_machine_place;

trib_machine_place trib_machines_place(const trib_roster *roster, uint32_t member);

/* As trib_place_weights, for machines of so many workers each, the members' first: a machine's workers share its link, what
 * it carries and what it sums. TRIB_NO_MEMORY. */
TRIB_CHECKED trib_status trib_machines_weights(trib_place_member *members, uint32_t member_count, uint32_t worker_count,
                                               uint32_t local_size, double *t_opt_factor_out);

#endif

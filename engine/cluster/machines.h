/*
 * machines.h - which workers share a machine, and whether those sum first (relay.h). Pure functions, called by the
 * coordinator.
 *
 * A machine is known by its address: members that listen at the same host share its link. The ranks of a machine
 * must be consecutive, and all machines must have equally many, so that a rank's machine is rank / local_size.
 */
#ifndef TRIB_ENGINE_MACHINES_H
#define TRIB_ENGINE_MACHINES_H

#include "engine/cluster/placement.h"
#include "engine/cluster/roster.h"

#define TRIB_MACHINES_WHY_SIZE 160u

/* Returns the number of workers of each machine of the roster, whose members, counts, sizes and order are filled in.
 * Returns 0, with the reason in `why`, if they are not to sum first. */
uint32_t trib_machines_local_size(const trib_roster *roster, trib_local_sum wanted, char why[TRIB_MACHINES_WHY_SIZE]);

/* Returns the first member, server or worker, that shares that member's machine. */
uint32_t trib_machines_first(const trib_roster *roster, uint32_t member);

/* How a member shares its machine's cores with other members of the job, servers included. Containers and network
 * namespaces have addresses, and perhaps links, of their own, but no cores: one kernel schedules them all. */
typedef struct trib_machine_place {
    uint32_t index, count; /* the member's number among those, counted from 0 */
    uint32_t reactors;     /* of all those members together */
    bool others_placed;    /* a launcher has placed some of the other members, as if it were alone */
} trib_machine_place;

trib_machine_place trib_machines_place(const trib_roster *roster, uint32_t member);

/* As trib_place_weights, for machines of that many workers each; the weights are the members'. A machine's workers
 * share its link, what the link carries and what the machine sums. Returns TRIB_NO_MEMORY when memory is short. */
TRIB_CHECKED trib_status trib_machines_weights(trib_place_member *members, uint32_t member_count, uint32_t worker_count,
                                               uint32_t local_size, double *t_opt_factor_out);

#endif

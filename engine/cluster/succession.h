/* succession.h - which member sums the partitions of a lost server, and which worker keeps their sums until then. Pure
 * functions: members that know of the same losses in the same order name the same successor. */
#ifndef TRIB_ENGINE_SUCCESSION_H
#define TRIB_ENGINE_SUCCESSION_H

#include "engine/cluster/roster.h"

/* Replaces the owner of a partition by another one that sums, on the reactor of the same index, so that every worker
 * keeps the partition on its core. `is_gone` is true for members that have left or are lost. Returns false if nobody
 * else sums. */
TRIB_CHECKED bool trib_succession_find(const trib_roster *roster, bool (*is_gone)(const void *user, uint32_t member),
                                       const void *user, uint32_t tensor, uint32_t partition, trib_place_owner *owner);

/* The worker that keeps the partition's sums for all of them (server/keeper.h). */
static inline uint32_t trib_keeper_rank(const trib_roster *roster, uint32_t partition)
{
    return partition % roster->worker_count;
}

#endif

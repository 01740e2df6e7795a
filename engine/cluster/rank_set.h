/*
 * rank_set.h - the ranks of a group of workers, in the order in which the group counts them.
 *
 * The coordinator gives a group its number and tells every member of the job which ranks it has, before the group has
 * its first tensor. A set never changes. The aggregators of a group that has ended may outlive it, so sets are counted.
 */
#ifndef TRIB_ENGINE_RANK_SET_H
#define TRIB_ENGINE_RANK_SET_H

#include <stdatomic.h>

#include "engine/wire/wire.h"

#define TRIB_RANK_ABSENT UINT32_MAX

typedef struct trib_rank_set {
    uint32_t id; /* number of the group, above 0: 0 stands for all workers of the job */
    uint32_t count;
    uint32_t worker_count;
    uint32_t *index; /* by rank: its place in the group, or TRIB_RANK_ABSENT */
    atomic_uint references;
    bool is_ending; /* core 0 of a member: its group ends */
    uint32_t ranks[];
} trib_rank_set;

/* Returns NULL if memory runs out, or, with *is_valid false, if a rank is too high or occurs twice or there is none. It
 * has one reference. */
trib_rank_set *trib_rank_set_create(uint32_t id, const uint32_t *ranks, uint32_t count, uint32_t worker_count,
                                    bool *is_valid);

void trib_rank_set_ref(const trib_rank_set *set);
/* Frees the set with its last reference. NULL is fine. */
void trib_rank_set_unref(const trib_rank_set *set);

static inline uint32_t trib_rank_set_index(const trib_rank_set *set, uint32_t rank)
{
    return rank < set->worker_count ? set->index[rank] : TRIB_RANK_ABSENT;
}

#endif

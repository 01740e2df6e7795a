/* rank_set.c - see rank_set.h. */
#include "engine/cluster/rank_set.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"

trib_rank_set *trib_rank_set_create(uint32_t id, const uint32_t *ranks, uint32_t count, uint32_t worker_count,
                                    bool *is_valid)
{
    *is_valid = count > 0 && count <= worker_count;
    if (!*is_valid) {
        return NULL;
    }
    trib_rank_set *set = calloc(1, sizeof *set + ((size_t)count + worker_count) * sizeof(uint32_t));
    if (set == NULL) {
        return NULL;
    }
    atomic_init(&set->references, 1);
    set->id = id;
    set->count = count;
    set->worker_count = worker_count;
    set->index = &set->ranks[count];
    memset(set->index, 0xff, worker_count * sizeof *set->index);
    for (uint32_t i = 0; i < count; i++) {
        if (ranks[i] >= worker_count || set->index[ranks[i]] != TRIB_RANK_ABSENT) {
            *is_valid = false;
            free(set);
            return NULL;
        }
        set->ranks[i] = ranks[i];
        set->index[ranks[i]] = i;
    }
    return set;
}

void trib_rank_set_ref(const trib_rank_set *set)
{
    const uint32_t before = atomic_fetch_add(&((trib_rank_set *)(uintptr_t)set)->references, 1);
    trib_assert(before > 0);
}

void trib_rank_set_unref(const trib_rank_set *set)
{
    trib_rank_set *mine = (trib_rank_set *)(uintptr_t)set;
    if (mine != NULL && atomic_fetch_sub(&mine->references, 1) == 1) {
        free(mine);
    }
}

/* rank_group.c - see rank_group.h. */
#include "engine/worker/rank_group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static trib_group *find(const trib_engine *engine, const char *name)
{
    trib_group *group = engine->groups;
    while (group != NULL && (atomic_load(&group->is_over) || strcmp(group->name, name) != 0)) {
        group = group->next;
    }
    return group;
}

static bool has_ranks(const trib_group *group, const trib_group_desc *desc)
{
    bool same = group->count == desc->rank_count;
    for (uint32_t i = 0; same && i < group->count; i++) {
        same = group->ranks[i] == (uint32_t)desc->ranks[i];
    }
    return same;
}

/* The ranks have been checked, and this worker is one of them. */
static trib_group *make(trib_engine *engine, const trib_group_desc *desc)
{
    trib_group *group = calloc(1, sizeof *group);
    uint32_t *ranks = calloc(desc->rank_count, sizeof *ranks);
    if (group == NULL || ranks == NULL) {
        free(group);
        free(ranks);
        return NULL;
    }
    for (uint32_t i = 0; i < desc->rank_count; i++) {
        ranks[i] = (uint32_t)desc->ranks[i];
        group->place = desc->ranks[i] == engine->config.rank ? i : group->place;
    }
    group->engine = engine;
    snprintf(group->name, sizeof group->name, "%s", desc->name);
    group->count = desc->rank_count;
    group->ranks = ranks;
    group->create_post.run = engine->hooks->create_group;
    group->tag = engine->group_count++;
    group->next = engine->groups;
    engine->groups = group;
    return group;
}

trib_status trib_rank_group_find_or_add(trib_engine *engine, const trib_group_desc *desc, trib_group **group_out,
                                        trib_error *error)
{
    pthread_mutex_lock(&engine->mutex);
    trib_group *group = find(engine, desc->name);
    trib_status status = TRIB_OK;
    if (group != NULL && !has_ranks(group, desc)) {
        status = trib_error_set(error, TRIB_MISMATCH, "group \"%s\" was made before with other ranks: use another name",
                                desc->name);
    } else if (group == NULL) {
        group = make(engine, desc);
        if (group == NULL) {
            status = trib_error_set(error, TRIB_NO_MEMORY, "out of memory for group \"%s\"", desc->name);
        } else {
            trib_reactor_post(engine->reactors[0].reactor, &group->create_post);
        }
    }
    pthread_mutex_unlock(&engine->mutex);
    if (status == TRIB_OK) {
        *group_out = group;
    }
    return status;
}

void trib_rank_groups_end(trib_engine *engine)
{
    for (trib_group *group = engine->groups; group != NULL; group = group->next) {
        atomic_store(&group->is_over, true);
        group->waiting = NULL;
        group->barrier_tensor = NULL;
    }
}

void trib_rank_sets_free(trib_engine *engine)
{
    for (uint32_t i = 0; i < TRIB_GROUPS_MAX; i++) {
        free((void *)(uintptr_t)atomic_exchange(&engine->rank_sets[i], NULL));
    }
}

void trib_rank_groups_free(trib_engine *engine)
{
    while (engine->groups != NULL) {
        trib_group *group = engine->groups;
        engine->groups = group->next;
        free(group->ranks);
        free(group);
    }
    trib_rank_sets_free(engine);
}

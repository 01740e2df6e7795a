/* rank_group.c - see rank_group.h. */
#include "engine/worker/rank_group.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/handle.h"
#include "engine/worker/op.h"

/* The bytes of a group that stay when its memory is used again: another thread may be reading them. */
#define KEPT_BYTES offsetof(trib_group, handle)

static trib_group *find(const trib_engine *engine, const char *name)
{
    trib_group *group = engine->groups;
    while (group != NULL && (group->handle == 0 || atomic_load(&group->is_over) || strcmp(group->name, name) != 0)) {
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

/* A group that is all zero but for its engine and the place of its handles. */
static trib_group *take_memory(trib_engine *engine)
{
    trib_group *group = engine->free_groups;
    if (group != NULL) {
        engine->free_groups = group->next;
        memset((unsigned char *)group + KEPT_BYTES, 0, sizeof *group - KEPT_BYTES);
        return group;
    }
    group = calloc(1, sizeof *group);
    const uint32_t place = group == NULL ? TRIB_NO_PLACE : trib_handle_take_place(group);
    if (place == TRIB_NO_PLACE) {
        free(group);
        return NULL;
    }
    group->engine = engine;
    group->handle_place = place;
    return group;
}

/* The ranks have been checked, and this worker is one of them. */
static trib_group *make(trib_engine *engine, const trib_group_desc *desc)
{
    uint32_t *ranks = calloc(desc->rank_count, sizeof *ranks);
    trib_group *group = ranks == NULL ? NULL : take_memory(engine);
    if (group == NULL) {
        free(ranks);
        return NULL;
    }
    for (uint32_t i = 0; i < desc->rank_count; i++) {
        ranks[i] = (uint32_t)desc->ranks[i];
        group->place = desc->ranks[i] == engine->config.rank ? i : group->place;
    }
    snprintf(group->name, sizeof group->name, "%s", desc->name);
    group->count = desc->rank_count;
    group->ranks = ranks;
    group->references = 1;
    group->create_post.run = engine->hooks->create_group;
    group->end_post.run = engine->hooks->group_ended;
    group->tag = engine->group_count++;
    group->handle = trib_handle_open(group->handle_place, TRIB_HANDLE_GROUP);
    group->next = engine->groups;
    engine->groups = group;
    engine->groups_alive++;
    return group;
}

trib_status trib_rank_group_find_or_add(trib_engine *engine, const trib_group_desc *desc, uint32_t epoch,
                                        uintptr_t *handle_out, trib_error *error)
{
    pthread_mutex_lock(&engine->mutex);
    trib_group *group = find(engine, desc->name);
    trib_status status = trib_engine_check_open_locked(engine, error);
    if (status != TRIB_OK) {
        pthread_mutex_unlock(&engine->mutex);
        return status;
    }
    if (epoch != 0 && engine->roster->epoch != epoch) {
        status = trib_error_set(error, TRIB_EPOCH_CHANGED,
                                "group \"%s\": the membership has changed, and its ranks with it: create it anew, with "
                                "the ranks of this epoch",
                                desc->name);
    } else if (group != NULL && !has_ranks(group, desc)) {
        status = trib_error_set(error, TRIB_MISMATCH,
                                "group \"%s\" was made before with other ranks: use another name, or release the first "
                                "one",
                                desc->name);
    } else if (group == NULL && engine->groups_alive + 1 >= TRIB_GROUPS_MAX) {
        status = trib_error_set(error, TRIB_BUSY,
                                "group \"%s\": this worker has %u groups, with those that were released and have not "
                                "ended everywhere yet: release some, or try again",
                                desc->name, engine->groups_alive);
    } else if (group == NULL) {
        group = make(engine, desc);
        if (group == NULL) {
            status = trib_error_set(error, TRIB_NO_MEMORY, "out of memory for group \"%s\"", desc->name);
        } else {
            trib_reactor_post(engine->reactors[0].reactor, &group->create_post);
        }
    }
    if (status == TRIB_OK) {
        *handle_out = group->handle;
    }
    pthread_mutex_unlock(&engine->mutex);
    return status;
}

/* ---- Handles ---- */

trib_status trib_rank_group_hold(trib_engine *engine, uintptr_t handle, trib_group **group_out, trib_error *error)
{
    *group_out = NULL;
    if (handle == 0) {
        return TRIB_OK;
    }
    trib_status status = TRIB_OK;
    pthread_mutex_lock(&engine->mutex);
    trib_group *group = trib_handle_find(handle, TRIB_HANDLE_GROUP);
    if (group == NULL) {
        status = trib_error_set(error, TRIB_INVALID, "group is not a handle of a group, or was released before");
    } else if (group->engine != engine) {
        status = trib_error_set(error, TRIB_INVALID, "the group belongs to another engine");
    } else if (atomic_load(&group->is_over)) {
        status = trib_error_set(error, TRIB_EPOCH_CHANGED,
                                "group \"%s\" has ended with its epoch: create it anew, with the ranks of this one",
                                group->name);
    } else {
        group->calls++;
        *group_out = group;
    }
    pthread_mutex_unlock(&engine->mutex);
    return status;
}

void trib_rank_group_let_go(trib_group *group)
{
    if (group != NULL) {
        pthread_mutex_lock(&group->engine->mutex);
        trib_assert(group->calls > 0 && group->handle != 0);
        group->calls--;
        pthread_mutex_unlock(&group->engine->mutex);
    }
}

/* ---- The end of a group ---- */

/* Returns a tensor of the group that is in use, or NULL. */
static const trib_tensor *find_used(const trib_engine *engine, const trib_group *group)
{
    for (uint32_t tag = 0; tag < engine->tensor_count; tag++) {
        const trib_tensor *tensor = engine->tensors[tag];
        if (tensor->group == group && (atomic_load(&tensor->in_flight) > 0 || tensor->prepared > 0)) {
            return tensor;
        }
    }
    return NULL;
}

static trib_status check_unused(const trib_engine *engine, const trib_group *group, trib_error *error)
{
    const trib_tensor *tensor = find_used(engine, group);
    if (tensor != NULL) {
        return trib_error_set(
            error, TRIB_STATE,
            "group \"%s\": %u operations on its tensor \"%s\" are in flight, and %u prepared: release "
            "the group when they are over",
            group->name, atomic_load(&tensor->in_flight), tensor->name, tensor->prepared);
    }
    return group->calls == 0
               ? TRIB_OK
               : trib_error_set(error, TRIB_STATE, "group \"%s\": another thread is using it in a call", group->name);
}

trib_status trib_rank_group_release(trib_engine *engine, uintptr_t handle, trib_error *error)
{
    pthread_mutex_lock(&engine->mutex);
    trib_group *group = trib_handle_find(handle, TRIB_HANDLE_GROUP);
    trib_status status =
        group != NULL && group->engine == engine
            ? check_unused(engine, group, error)
            : trib_error_set(error, TRIB_INVALID, "group is not a handle of a group, or was released before");
    if (status == TRIB_OK) {
        for (uint32_t tag = 0; tag < engine->tensor_count; tag++) {
            trib_tensor *tensor = engine->tensors[tag];
            if (tensor->group == group && tensor->state == TRIB_TENSOR_DECLARED) {
                trib_tensor_release_idle(tensor);
            }
        }
        (void)trib_handle_close(handle);
        group->handle = 0;
        trib_rank_group_unref_locked(group);
    }
    pthread_mutex_unlock(&engine->mutex);
    return status;
}

void trib_rank_group_unref_locked(trib_group *group)
{
    trib_assert(group->references > 0);
    if (--group->references == 0) {
        trib_reactor_post(group->engine->reactors[0].reactor, &group->end_post);
    }
}

void trib_rank_group_forgotten(trib_group *group)
{
    trib_engine *engine = group->engine;
    pthread_mutex_lock(&engine->mutex);
    trib_assert(group->references == 0 && group->handle == 0 && group->waiting == NULL);
    trib_group **at = &engine->groups;
    while (*at != group) {
        trib_assert(*at != NULL);
        at = &(*at)->next;
    }
    *at = group->next;
    engine->groups_alive--;
    free(group->ranks);
    group->ranks = NULL;
    group->next = engine->free_groups;
    engine->free_groups = group;
    pthread_mutex_unlock(&engine->mutex);
}

/* ---- Between epochs, and at the end ---- */

void trib_rank_groups_end(trib_engine *engine)
{
    for (trib_group *group = engine->groups; group != NULL; group = group->next) {
        atomic_store(&group->is_over, true);
        group->waiting = NULL;
    }
}

void trib_rank_sets_free(trib_engine *engine)
{
    for (uint32_t i = 0; i < TRIB_GROUPS_MAX; i++) {
        trib_rank_set_unref(atomic_exchange(&engine->rank_sets[i], NULL));
    }
}

static void free_groups(trib_group **list)
{
    while (*list != NULL) {
        trib_group *group = *list;
        *list = group->next;
        trib_handle_give_place(group->handle_place);
        free(group->ranks);
        free(group);
    }
}

void trib_rank_groups_free(trib_engine *engine)
{
    free_groups(&engine->groups);
    free_groups(&engine->free_groups);
    trib_rank_sets_free(engine);
}

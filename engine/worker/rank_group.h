/*
 * rank_group.h - the groups that this worker is a member of.
 *
 * A group is made known to all members of the job before its first tensor is declared. Tensors that are declared
 * earlier wait in the group's list on core 0.
 */
#ifndef TRIB_ENGINE_RANK_GROUP_H
#define TRIB_ENGINE_RANK_GROUP_H

#include "engine/base/hash.h"
#include "engine/cluster/rank_set.h"
#include "engine/job/job.h"

typedef enum trib_group_state {
    TRIB_GROUP_ASKED, /* the coordinator has not answered yet */
    TRIB_GROUP_MADE,  /* all members of the job know its ranks */
    TRIB_GROUP_BAD,   /* its members disagree, or the job has too many groups */
} trib_group_state;

/*
 * A group ends when this worker has released it and its last tensor in it is forgotten. Its memory stays with the
 * engine, so a caller that uses a handle while another thread releases it reads a group all the same.
 */
struct trib_group {
    trib_engine *engine;   /* engine of the group; stays as it is when the memory is used again */
    uint32_t handle_place; /* place of its handles (base/handle.h); stays, too */
    uintptr_t handle;      /* guarded by the engine's mutex; 0: it was released */
    /* Guarded by the engine's mutex: 1 while it is not released, and 1 for each of its tensors in this process. */
    uint32_t references;
    uint32_t calls; /* calls in progress that use the group, guarded by the engine's mutex */
    char name[TRIB_TENSOR_NAME_MAX + 1];
    uint32_t tag;   /* this member's own number for the group */
    uint32_t place; /* place of this worker in the group */
    uint32_t count;
    uint32_t *ranks;
    uint32_t bytes_calls; /* operations on bytes so far, guarded by the engine's mutex */
    bool has_gap;         /* see trib_rank_group_gap */
    trib_post create_post, end_post;
    atomic_bool is_over;     /* the group's epoch is over, so its ranks name no workers any more (job/formation.h) */
    struct trib_group *next; /* in engine->groups, newest first */
    /* On core 0: */
    trib_group_state state;
    bool is_asked; /* the coordinator has been told */
    bool ends;     /* the coordinator learns of the end when it has answered */
    uint32_t id;   /* number of the group; set when the coordinator has made it */
    trib_status bad_status;
    char bad_text[TRIB_ERROR_TEXT_SIZE];
    struct trib_tensor *waiting; /* tensors to be declared when it is made */
};

/* epoch: of the roster whose ranks the caller has compared the description with, as it may have changed since; 0: the
 * first one has yet to come. */
TRIB_CHECKED trib_status trib_rank_group_find_or_add(trib_engine *engine, const trib_group_desc *desc, uint32_t epoch,
                                                     uintptr_t *handle_out, trib_error *error);
/* *group_out is the group of the handle, NULL for 0. It is not released before trib_rank_group_let_go, which the same
 * call of the program must follow with. */
TRIB_CHECKED trib_status trib_rank_group_hold(trib_engine *engine, uintptr_t handle, trib_group **group_out,
                                              trib_error *error);
void trib_rank_group_let_go(trib_group *group); /* NULL is fine */
TRIB_CHECKED trib_status trib_rank_group_release(trib_engine *engine, uintptr_t handle, trib_error *error);
/* Gives back a reference: a tensor of the group is forgotten, or the group was released. The caller holds the mutex. */
void trib_rank_group_unref_locked(trib_group *group);
/* Core 0: the coordinator has learned of the end, or never will: the memory is free for the next group. */
void trib_rank_group_forgotten(trib_group *group);
/* Between two epochs: ends all groups. Their names are free again. The caller holds the mutex. */
void trib_rank_groups_end(trib_engine *engine);
/* Frees the rank sets of the job's groups, when no aggregator uses them any more. */
void trib_rank_sets_free(trib_engine *engine);
void trib_rank_groups_free(trib_engine *engine);

/* True if this worker does not know how often it has used the names of the group's tensors (worker_stall.c): it has
 * released one, or an operation was refused, which may have begun on others. NULL: those of all workers. Guarded by the
 * engine's mutex. */
static inline bool *trib_rank_group_gap(trib_engine *engine, trib_group *group)
{
    return group == NULL ? &engine->stalls.has_gap : &group->has_gap;
}

/* This worker's place among the group's workers; NULL: its rank. */
static inline uint32_t trib_rank_group_own(const trib_engine *engine, const trib_group *group)
{
    return group == NULL ? (uint32_t)atomic_load(&engine->rank) : group->place;
}

/* The number of workers that share the tensors of a group, and this worker's place among them; NULL: all of the job. */
static inline uint32_t trib_rank_group_count(const trib_engine *engine, const trib_group *group)
{
    return group == NULL ? (uint32_t)atomic_load(&engine->worker_count) : group->count;
}

static inline uint32_t trib_rank_group_place(const trib_engine *engine, const trib_group *group)
{
    return group == NULL ? engine->member_id : group->place;
}

/* Roots must be below this number: the count of ranks, lost ones included where ranks stay as they were. */
static inline uint32_t trib_rank_group_roots(const trib_engine *engine, const trib_group *group)
{
    const uint32_t used = atomic_load(&engine->ranks_used);
    return group == NULL && used > 0 ? used : trib_rank_group_count(engine, group);
}

/* The rank of the worker at a place of the group. */
static inline uint32_t trib_rank_group_rank(const trib_group *group, uint32_t place)
{
    return group == NULL ? place : group->ranks[place];
}

#endif

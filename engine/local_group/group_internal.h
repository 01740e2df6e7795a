/* group_internal.h - what the files of the group share. Everything here belongs to core 0. */
#ifndef TRIB_ENGINE_GROUP_INTERNAL_H
#define TRIB_ENGINE_GROUP_INTERNAL_H

#include "engine/local_group/group.h"
#include "engine/local_group/group_door.h"
#include "engine/worker/worker.h"

struct trib_group {
    trib_core *core;
    uint32_t local_size, local_rank, machine;
    trib_leader *leader;                   /* local rank 0 */
    trib_sequence *sequence;               /* leader, where collectives are issued as they are handed in; else NULL */
    trib_link *links[TRIB_LOCAL_SIZE_MAX]; /* leader: by local rank; others: [0], to the leader */
    /* Collectives that this rank has been told to do, or has issued; those that are back from its device, and of these those that it
     * has carried out. All count the same ones in the same order, modulo 2^32. */
    uint32_t begun, back, carried_out;
    uint32_t links_left;         /* leader: local ranks that left in good order */
    uint32_t last_left;          /* which of them was the last */
    trib_device_task *announced; /* newest first */
    trib_tensor **tensors;       /* by id */
    uint32_t tensors_capacity;
    trib_post pump_post;
    trib_device_job id_job, join_job;
    unsigned char id[TRIB_DEVICE_ID_SIZE];
    trib_device_op *unnotified; /* operations that failed before there was a connection to the leader */
    bool id_known;
    bool ended;
    trib_door door;
};

const char *trib_group_name_of(const trib_group *group, uint32_t local_rank);
void trib_group_end_job(trib_group *group, trib_status status, const char *text);
/* Takes it from the list of what is announced. */
void trib_group_forget(trib_group *group, trib_device_task *device);
/* It is announced from now on: goes to the door with it, or tells the leader. */
void trib_group_take_announced(trib_group *group, trib_device_task *device);
/* What a launch of that takes may be kept as far as this rank goes; whether it is, on all. */
bool trib_group_may_keep(const trib_device_task *device, const trib_op *op, const trib_device_job *job);
void trib_group_note_kept(trib_device_task *device, trib_device_job *job, bool steady);
/* Tells the task's core: ordered (TRIB_OK), or called off. */
void trib_group_answer(trib_device_task *device, trib_status status);
void trib_group_call_off(trib_group *group, uint32_t tensor, uint32_t round, trib_status status, const char *text);
TRIB_CHECKED trib_status trib_group_take_order(trib_group *group, const trib_announcement *what, trib_error *error);
TRIB_CHECKED trib_status trib_group_leader_takes_ready(trib_group *group, uint32_t local_rank,
                                                       const trib_announcement *what);
/* The connection to the leader is there: says what has happened so far. */
void trib_group_reached_leader(trib_group *group);
/* The job is over: gives up what could not be told. */
void trib_group_drop_unnotified(trib_group *group);
/* A collective of this rank has failed: the others wait for it on their devices. */
void trib_group_end_for_failure(trib_group *group, const trib_tensor *tensor, const trib_device_job *job);
/* What is done in an operation, the same on all ranks; where each launches by itself with what it keeps, too. */
#define TRIB_VARIANT_STEADY 0x80000000u
uint32_t trib_group_variant_of(const trib_op *op);
/* How frames name a collective's kind, and whether it is steady. */
#define TRIB_GROUP_STEADY 256u
static inline uint32_t trib_group_chunk_of(const trib_announcement *what)
{
    return (uint32_t)what->kind | (what->steady ? TRIB_GROUP_STEADY : 0);
}
/* False: no rank says that. */
bool trib_group_read(const trib_frame *frame, trib_announcement *what_out);

trib_announcement trib_group_announcement_of(const trib_device_task *device);
/* It has been announced here: tells the leader. */
void trib_group_notify_ready(trib_group *group, trib_device_task *device);

/* ---- group_door.c ---- */
/* At opening; when the group's id is known; when the job is over; when its thread has gone. */
void trib_door_open(trib_group *group);
void trib_door_take_id(trib_group *group);
void trib_door_end(trib_group *group);
void trib_door_close(trib_group *group, const trib_env *env);
/* In plain memory of one process nobody looks all the time: they are told. Any thread. */
void trib_door_ring(const trib_group *group);
/* It has been announced here: goes to the door with it, or tells the leader. */
void trib_door_announce(trib_group *group, trib_device_task *device);
/* Who waits there passes, or tells the leader: before anything else is said to that. */
void trib_door_settle(trib_group *group);
/* Nothing is announced here any more. */
void trib_door_come_back(trib_group *group);

/* ---- group_door_call.c: whose turn at the door it is ---- */
/* If nothing is under way: from now on whoever calls may take it. */
void trib_door_offer(trib_group *group);
/* Core 0's turn. False: a call has it, and what core 0 has to announce is held until it comes back. */
bool trib_door_take_back(trib_group *group);
void trib_door_hold(trib_group *group, trib_device_task *device);
/* The job is over: what is held is announced, for what that is worth. */
trib_device_task *trib_door_take_held(trib_group *group);
void trib_door_turn_open(trib_group *group);
/* Core 0: an operation has arrived that has passed in its call. */
void trib_door_passed_in_call(trib_group *group, trib_op *op);
/* ... and is over. */
void trib_door_issued_back(trib_group *group, trib_op *op);

/* ---- group_order.c ---- */
/* Core 0: tells the leader of what was issued, if it can be reached. */
void trib_group_notify_issued(trib_group *group);
/* The job is over: gives up what could not be told. */
void trib_group_drop_issued(trib_engine *engine);
TRIB_CHECKED trib_status trib_group_leader_takes_issued(trib_group *group, uint32_t local_rank, uint32_t place,
                                                        const trib_issued *what);
/* Leader: the rank hands its collectives in in another way than this one. */
void trib_group_end_for_modes(trib_group *group, uint32_t local_rank);

/* What the leader decides. */
void trib_group_order(void *user, const trib_announcement *what);
void trib_group_called_off(void *user, uint32_t rank, uint32_t tensor, uint32_t round, trib_status status,
                           const char *text);
void trib_group_pump(trib_reactor *reactor, trib_post *post);

#endif

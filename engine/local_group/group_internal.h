/* group_internal.h - declarations that the files of the group share. All of it belongs to core 0. */
#ifndef TRIB_ENGINE_GROUP_INTERNAL_H
#define TRIB_ENGINE_GROUP_INTERNAL_H

#include "engine/local_group/group.h"
#include "engine/worker/worker.h"

struct trib_group {
    trib_core *core;
    uint32_t local_size, local_rank, machine;
    trib_leader *leader;                   /* local rank 0 */
    trib_link *links[TRIB_LOCAL_SIZE_MAX]; /* leader: by local rank; other ranks: [0] leads to the leader */
    /* Collectives that this rank was told to do; of these those that are back from the device; and of these those
     * that succeeded. All ranks count the same ones in the same order, modulo 2^32. */
    uint32_t begun, back, carried_out;
    uint32_t links_left;         /* leader: local ranks that left in good order */
    uint32_t last_left;          /* the last of them */
    trib_device_task *announced; /* newest first */
    trib_tensor **tensors;       /* by id */
    uint32_t tensors_capacity;
    trib_post pump_post;
    trib_device_job id_job, join_job;
    unsigned char id[TRIB_DEVICE_ID_SIZE];
    trib_device_op *unnotified; /* operations that failed before the connection to the leader was up */
    bool id_known;
    bool ended;
};

const char *trib_group_name_of(const trib_group *group, uint32_t local_rank);
/* This process failed by itself. */
void trib_group_end_job(trib_group *group, trib_status status, const char *detail);
/* Takes the task out of the announced list. */
void trib_group_forget(trib_group *group, trib_device_task *device);
/* Posts to the task's core: ordered (TRIB_OK) or called off. */
void trib_group_answer(trib_device_task *device, trib_status status);
void trib_group_call_off(trib_group *group, uint32_t tensor, uint32_t round, trib_status status, const char *text);
TRIB_CHECKED trib_status trib_group_take_order(trib_group *group, const trib_announcement *what, trib_error *error);
TRIB_CHECKED trib_status trib_group_leader_takes_ready(trib_group *group, uint32_t local_rank,
                                                       const trib_announcement *what);
/* The connection to the leader is up: sends what has been held back. */
void trib_group_reached_leader(trib_group *group);
/* The job is over: drops failures that the leader was not told of. */
void trib_group_drop_unnotified(trib_group *group);
/* Ends the job, because a collective has failed here and the other ranks' devices wait for it. */
void trib_group_end_for_failure(trib_group *group, const trib_tensor *tensor, const trib_device_job *job);
/* A number for the operation's reduction or root, the same on all ranks. */
uint32_t trib_group_variant_of(const trib_op *op);
/* False: the frame is malformed. */
bool trib_group_read(const trib_frame *frame, trib_announcement *what_out);

/* The leader's upcalls. */
void trib_group_order(void *user, const trib_announcement *what);
void trib_group_called_off(void *user, uint32_t rank, uint32_t tensor, uint32_t round, trib_status status,
                           const char *text);
void trib_group_pump(trib_reactor *reactor, trib_post *post);

#endif

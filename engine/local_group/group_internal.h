/* group_internal.h - declarations that the files of the group share. All of it belongs to core 0. */
#ifndef TRIB_ENGINE_GROUP_INTERNAL_H
#define TRIB_ENGINE_GROUP_INTERNAL_H

#include "engine/local_group/group.h"
#include "engine/worker/worker.h"

/* The leader's word on a round that this rank had not come to when it heard it. It is kept until later rounds of the
 * tensor fail (TRIB_LEADER_KEPT), or the group ends. */
typedef struct trib_group_failure {
    uint32_t tensor, round;
    trib_status status;
    char text[TRIB_ERROR_TEXT_SIZE];
    struct trib_group_failure *next;
} trib_group_failure;

struct trib_local_group {
    trib_core *core;
    uint32_t local_size, local_rank, machine;
    trib_leader *leader; /* NULL except on local rank 0 */
    /* on the leader by local rank; on other ranks [0] is the link to the leader */
    trib_link *links[TRIB_LOCAL_SIZE_MAX];
    uint64_t awaited; /* leader: local ranks that have yet to connect, a bit for each */
    /* Numbers of collectives that this rank was ordered to do, that the device has given back, and that succeeded. All
     * ranks count the same collectives in the same order, modulo 2^32. */
    uint32_t begun, back, carried_out;
    uint32_t links_left;         /* leader: local ranks that left in good order */
    uint32_t last_left;          /* the last of those ranks */
    trib_device_task *announced; /* announced collectives that were not answered, newest first */
    trib_tensor **tensors;       /* by id */
    uint32_t tensors_capacity;
    trib_post pump_post;
    trib_device_job id_job, join_job;
    unsigned char id[TRIB_DEVICE_ID_SIZE];
    trib_group_failure *failures; /* newest first */
    trib_device_op *unnotified;   /* operations that failed before the connection to the leader was up */
    bool id_known;
    bool ended;
};

const char *trib_group_name_of(const trib_local_group *group, uint32_t local_rank);
/* Ends the job, because this process failed by itself. */
void trib_group_end_job(trib_local_group *group, trib_status status, const char *detail);
/* Takes the task out of the announced list. */
void trib_group_forget(trib_local_group *group, trib_device_task *device);
/* Posts the answer to the task's core: ordered (TRIB_OK) or called off. */
void trib_group_answer(trib_device_task *device, trib_status status);
/* Fails the operation that has announced collectives of that round. Returns false if none has. */
bool trib_group_call_off(trib_local_group *group, uint32_t tensor, uint32_t round, trib_status status,
                         const char *text);
/* Takes the leader's word, also for an operation that has announced nothing yet. Returns false if memory runs out. */
bool trib_group_take_failure(trib_local_group *group, uint32_t tensor, uint32_t round, trib_status status,
                             const char *text);
void trib_group_drop_failures(trib_local_group *group);
TRIB_CHECKED trib_status trib_group_take_order(trib_local_group *group, const trib_announcement *what,
                                               trib_error *error);
TRIB_CHECKED trib_status trib_group_leader_takes_ready(trib_local_group *group, uint32_t local_rank,
                                                       const trib_announcement *what);
/* Sends what was held back until the connection to the leader was READY. */
void trib_group_reached_leader(trib_local_group *group);
/* Drops failures that the leader was not told of, because the job is over. */
void trib_group_drop_unnotified(trib_local_group *group);
/* Reads an announcement. Returns false if the frame is malformed. */
bool trib_group_read(const trib_frame *frame, trib_announcement *what_out);

/* The leader's upcalls. */
void trib_group_order(void *user, const trib_announcement *what);
void trib_group_called_off(void *user, uint32_t rank, uint32_t tensor, uint32_t round, trib_status status,
                           const char *text);
void trib_group_pump(trib_reactor *reactor, trib_post *post);

#endif

/*
 * group.h - the processes of one machine agree on the order of their collectives.
 *
 * NCCL matches the calls of a communicator by their order, so all local ranks must make them in one order, whatever order
 * their tensors become ready in. Local rank 0 is the leader: each rank announces what it is ready for; what all are
 * ready for the leader puts in order, by priority and under a credit, and says so to all. Orders travel on one
 * connection to each rank, and each rank submits in the order of arrival, so the order is the same everywhere.
 *
 * A rank whose operation has failed says so; the leader calls the operation's remaining collectives off, for all who
 * have announced them or will. What has been ordered is done by all, failed or not: nobody waits for one that does not
 * come. A rank that is lost ends the job (membership), which stops the device. One that leaves in good order says how many
 * collectives it has carried out, and all are told (member.h): who has begun more than that ends the job.
 *
 * Where the program promises one order nothing is put in order: what was issued is only compared (group_order.c).
 *
 * What nothing else competes with goes by the door, without the leader (group_door.h).
 *
 * The group lives on core 0. Ranks of a machine are consecutive: machine m has ranks m * local_size and following.
 */
#ifndef TRIB_ENGINE_GROUP_H
#define TRIB_ENGINE_GROUP_H

#include "engine/device/device_task.h"

typedef struct trib_group trib_group;

/* Core 0, when the roster is there: connects to the leader; joined waits for it. */
TRIB_CHECKED trib_status trib_group_open(trib_core *core, trib_error *error);
/* Core 0: how many collectives of the machine's devices this rank has carried out, modulo 2^32. */
uint32_t trib_group_carried_out(const trib_core *core);
/* Core 0: everything that its device was given is back. */
bool trib_group_is_through(const trib_core *core);
/* Core 0: a member has left in good order, or a collective has begun: does this rank wait for one that will not come? */
void trib_group_check_departed(trib_core *core);
/* Core 0: an accepted link of a local rank has proved itself. */
void trib_group_adopt(trib_link *link);
/* Core 0: the job is over; calls off what is announced. */
void trib_group_end(trib_core *core, trib_status status, const char *text);
void trib_group_close(trib_group *group, const trib_env *env);

/* The task's core: this rank is ready for that collective. order_post runs on the task's core when it has been submitted
 * (order_status TRIB_OK; the job's post follows) or called off. */
void trib_group_announce(trib_core *core, trib_device_task *device, trib_device_job *job);
/* Caller's thread, with the engine's mutex held: may it go to the door in its call? If so it must, without the mutex. */
bool trib_group_take_turn(const trib_op *op);
/* True: all local ranks have come, and its collective has been issued. False: it is announced as any other. */
bool trib_group_pass_in_call(trib_op *op);
/* Any core: the operation has failed here. */
void trib_group_op_failed(trib_op *op);
/* Core 0: an operation has arrived that was issued where it was handed in. In program order each is told. */
void trib_group_issued(trib_core *core, trib_op *op);
/* Core 0: its collective is over. */
void trib_group_issued_back(trib_core *core, trib_op *op);

extern const trib_link_upcalls trib_group_member_upcalls;

/* ---- group_leader.c: what the leader knows. Pure state; what it decides comes back through the upcalls. ---- */
typedef struct trib_leader trib_leader;

typedef enum trib_announcement_kind {
    TRIB_ANNOUNCE_REDUCE = 0,
    TRIB_ANNOUNCE_GATHER = 1,
    TRIB_ANNOUNCE_ISSUED = 2 /* of a whole tensor: it is under way */
} trib_announcement_kind;

typedef struct trib_announcement {
    uint32_t tensor, slice, round;
    trib_announcement_kind kind;
    int32_t priority;
    uint32_t bytes;
    uint32_t variant; /* what is done; all must say the same */
    bool steady;      /* the buffers are those of the round before; ordered: on all ranks */
} trib_announcement;

typedef struct trib_leader_upcalls {
    void (*order)(void *user, const trib_announcement *what);
    void (*called_off)(void *user, uint32_t rank, uint32_t tensor, uint32_t round, trib_status status,
                       const char *text);
    void *user;
} trib_leader_upcalls;

trib_leader *trib_leader_create(uint32_t local_size, uint64_t credit_bytes, const trib_leader_upcalls *upcalls);
void trib_leader_free(trib_leader *leader);
/* Who says another variant than the first fails the operation on all. TRIB_PROTOCOL: the rank has said so before.
 * TRIB_NO_MEMORY. */
TRIB_CHECKED trib_status trib_leader_ready(trib_leader *leader, uint32_t rank, const trib_announcement *what);
TRIB_CHECKED trib_status trib_leader_fail(trib_leader *leader, uint32_t rank, uint32_t tensor, uint32_t round,
                                          trib_status status, const char *text);
/* Calls everything off that waits for somebody, or for credit. */
TRIB_CHECKED trib_status trib_leader_fail_all(trib_leader *leader, uint32_t rank, trib_status status, const char *text);
/* An ordered reduction has ended on the leader's own device. */
void trib_leader_reduced(trib_leader *leader, uint32_t bytes);
/* One has begun that was not put in order here: all ranks have come to it by the door (group_door.h). */
void trib_leader_passed(trib_leader *leader, const trib_announcement *what);
/* Lets out what the credit allows; after a batch of the above. */
void trib_leader_pump(trib_leader *leader);
/* Entries that wait for somebody; 0 at rest. */
uint32_t trib_leader_waiting(const trib_leader *leader);
/* Bytes of reductions that were ordered and have not ended; 0 at rest. */
uint64_t trib_leader_in_flight(const trib_leader *leader);

/* ---- group_order.c: what the leader knows where collectives are issued. Pure state ---- */
typedef struct trib_sequence trib_sequence;

typedef struct trib_issued {
    uint64_t tensor; /* its key */
    uint32_t round, variant;
} trib_issued;

trib_sequence *trib_sequence_create(uint32_t ranks);
void trib_sequence_free(trib_sequence *self);
/* A rank has issued that at that place. TRIB_MISMATCH: another has issued something else there, *other_out. TRIB_PROTOCOL: the
 * rank has told of the place before, or it is far off. TRIB_NO_MEMORY. */
TRIB_CHECKED trib_status trib_sequence_add(trib_sequence *self, uint32_t rank, uint32_t place, const trib_issued *what,
                                           trib_issued *other_out, uint32_t *other_rank_out);

#endif

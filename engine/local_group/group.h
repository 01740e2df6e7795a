/*
 * group.h - the local ranks of a machine agree on the order of their collectives.
 *
 * NCCL matches the calls of a communicator by their order, so all local ranks must make them in one order, whatever
 * order their tensors become ready in. Local rank 0 is the leader. Each rank announces the collectives that it is
 * ready for. A collective that all ranks have announced is put in order, by priority and under a credit, and all
 * ranks are told. Orders travel on one connection to each rank, and each rank submits in the order of arrival, so the
 * order is the same everywhere.
 *
 * A rank whose operation has failed tells the leader, which calls off the operation's collectives that have not been
 * ordered, for all ranks. A collective that has been ordered is carried out by all, failed or not, so no rank waits
 * in vain. A leader that leaves waits until all ranks have connected, so that each knows that it has left. A rank that
 * is lost ends the job (membership), which stops the device. A rank that leaves in good order
 * says how many collectives it has carried out, and all members are told (member.h); a rank that has begun more ends
 * the job.
 *
 * The group lives on core 0. Ranks of a machine are consecutive: machine m has ranks m * local_size and following.
 */
#ifndef TRIB_ENGINE_GROUP_H
#define TRIB_ENGINE_GROUP_H

#include "engine/worker/device_hooks.h"
#include "engine/device/device_task.h"

/* The cores of a process go from round to round independently. A core may announce slices of a failed round while
 * another core is some rounds ahead. The core is told the reason if the round is not longer ago than this. */
#define TRIB_LEADER_KEPT 8u

typedef struct trib_local_group trib_local_group;

/* Core 0, with the roster: connects to the leader. Joining is not over before that. */
TRIB_CHECKED trib_status trib_group_open(trib_core *core, trib_error *error);
/* Core 0: how many collectives of the machine's devices this rank has carried out, modulo 2^32. */
uint32_t trib_group_carried_out(const trib_core *core);
/* Core 0: true if the device has given back all jobs of collectives. */
bool trib_group_is_through(const trib_core *core);
/* Core 0, when a member has left in good order or a collective has begun: ends the job if this rank waits for one
 * that left, for its part of a collective or for the group's name. */
void trib_group_check_departed(trib_core *core);
/* Core 0: takes an accepted link of a local rank after its handshake. */
void trib_group_adopt(trib_link *link);
/* Any core: true if this is the leader's core 0, and a local rank that has not left has yet to connect to it. */
bool trib_group_awaits_ranks(const trib_core *core);
/* Core 0: calls off all announced collectives, because the job is over. */
void trib_group_end(trib_core *core, trib_status status, const char *text);
void trib_group_close(trib_local_group *group);

/* The task's core: announces a collective that this rank is ready for. order_post runs on the task's core when it has
 * been submitted (order_status TRIB_OK; the job's post follows) or called off. */
void trib_group_announce(trib_core *core, trib_device_task *device, trib_device_job *job);
/* Any core: tells the group that an operation has failed on this rank. */
void trib_group_op_failed(trib_op *op);

extern const trib_link_upcalls trib_group_member_upcalls;

/* ---- group_leader.c: the leader's state, without I/O; its decisions come through the upcalls. ---- */
typedef struct trib_leader trib_leader;

typedef enum trib_announcement_kind { TRIB_ANNOUNCE_REDUCE = 0, TRIB_ANNOUNCE_GATHER = 1 } trib_announcement_kind;

typedef struct trib_announcement {
    uint32_t tensor, slice, round;
    trib_announcement_kind kind;
    int32_t priority;
    uint32_t bytes;
    uint32_t variant; /* reduction or root; the same on all ranks */
    uint32_t step;    /* the operation's step tag; so is this */
} trib_announcement;

typedef struct trib_leader_upcalls {
    void (*order)(void *user, const trib_announcement *what);
    void (*called_off)(void *user, uint32_t rank, uint32_t tensor, uint32_t round, trib_status status,
                       const char *text);
    void *user;
} trib_leader_upcalls;

trib_leader *trib_leader_create(uint32_t local_size, uint64_t credit_bytes, const trib_leader_upcalls *upcalls);
void trib_leader_free(trib_leader *leader);
/* Notes that a rank is ready. The operation fails on all ranks if variant or step differ from the first rank's.
 * TRIB_PROTOCOL: the rank has announced the collective before. May return TRIB_NO_MEMORY. */
TRIB_CHECKED trib_status trib_leader_ready(trib_leader *leader, uint32_t rank, const trib_announcement *what);
TRIB_CHECKED trib_status trib_leader_fail(trib_leader *leader, uint32_t rank, uint32_t tensor, uint32_t round,
                                          trib_status status, const char *text);
/* Calls off all collectives that wait for a rank or for credit. */
TRIB_CHECKED trib_status trib_leader_fail_all(trib_leader *leader, uint32_t rank, trib_status status, const char *text);
/* Calls off rounds that have failed, on a rank that has not announced them. */
void trib_leader_tell_failed(trib_leader *leader, uint32_t rank);
/* Returns the credit of an ordered reduction that has ended on the leader's own device. */
void trib_leader_reduced(trib_leader *leader, uint32_t bytes);
/* Orders as much as the credit allows. Call this after a batch of the calls above. */
void trib_leader_pump(trib_leader *leader);
/* Number of collectives that have not been ordered; 0 at rest. */
uint32_t trib_leader_waiting(const trib_leader *leader);
/* Bytes of reductions that were ordered and have not ended; 0 at rest. */
uint64_t trib_leader_in_flight(const trib_leader *leader);

/* The functions that the worker calls for devices (engine/worker/device_hooks.h), even if this machine has one rank. */
extern const trib_device_hooks trib_group_device_hooks;

#endif

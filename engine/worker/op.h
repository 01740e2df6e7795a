/*
 * op.h - tensors, their operations, and the partitions that move through the pipeline.
 *
 * A tensor is cut into partitions once, when the coordinator has assigned their owners (the members that sum them).
 * Each partition belongs to one core. Its task, the partition's place in the pipeline, is made then, so that
 * operations allocate nothing.
 *
 * An operation posts one op_core to every core with partitions of its tensor, and to core 0. Operations on a tensor
 * run in order: on each core, round r + 1 waits until the tasks of round r have settled.
 *
 * An operation is complete when every core has settled its tasks. The first failure gives the operation its status
 * and text.
 */
#ifndef TRIB_ENGINE_OP_H
#define TRIB_ENGINE_OP_H

#include "engine/base/limits.h"
#include "engine/base/hash.h"
#include "engine/core/core.h"
#include "engine/worker/task.h"

typedef struct trib_op_core trib_op_core;

/* The part of a tensor that one core handles. */
typedef struct trib_tensor_core {
    trib_task *tasks;
    uint32_t task_count;
    uint32_t round_next;   /* the next round to start */
    trib_op_core *active;  /* the running round */
    trib_op_core *pending; /* later rounds, in ascending order */
    /* The last pending round, valid while there is one; and the last pending round that arrived after a later one.
     * NULL: no such round is pending. */
    trib_op_core *pending_last, *pending_late;
    trib_post bad_post; /* tells the core that the workers disagree about the tensor */
    struct trib_tensor *tensor;
    /* A move to other owners (tensor_move.c). */
    trib_post move_post;
    uint32_t move_known; /* number of the last proposal that the coordinator has decided */
    uint32_t moved_from; /* first round of the owners that the tasks have not taken yet; 0: the tasks are up to date */
} trib_tensor_core;

typedef struct trib_tensor {
    trib_engine *engine;
    char name[TRIB_TENSOR_NAME_MAX + 1];
    trib_dtype dtype;
    int32_t priority;
    uint64_t count, bytes;
    uint64_t key; /* hash of the name */
    uint32_t tag; /* this member's own number for the tensor */
    UT_hash_handle hh;
    uint32_t rounds; /* submitted rounds, TRIB_ROUNDS_MAX at most; guarded by the engine's mutex */

    /* Written on core 0, then published by state. */
    atomic_bool placed; /* true once the tensor has partitions and owners */
    atomic_bool bad;    /* the workers disagree about the tensor: its operations fail with bad_text */
    char bad_text[TRIB_ERROR_TEXT_SIZE];
    uint32_t id;
    uint32_t partition_bytes, chunk_bytes, partition_count;
    const struct trib_plan *plan; /* stages of its collectives */
    trib_place_owner *owners;     /* written by core 0; each task has its own copy */
    uint32_t *task_index;         /* by partition: the index of its task on its core */
    trib_tensor_core *cores;
    uint32_t cores_used; /* cores that take part in operations: cores with tasks, and core 0 */
    uint64_t *received_bits;
    bool on_device;                    /* TRIB_TENSOR_DEVICE */
    struct trib_device_tensor *device; /* made at placement; a large one, before the tensor is declared */
    atomic_uint ahead_round;           /* round whose input is being copied ahead; later rounds wait. 0: none */
    trib_post declare_post;
    /* A move to other owners (tensor_move.c): the proposed owners, the number of the proposal, and the first round
     * that waits for the coordinator's decision. */
    trib_place_owner *owners_next;
    atomic_uint move_number, move_round, move_cores_left;
    uint32_t moved_from;
    atomic_bool left_unacknowledged; /* a former owner may not have received the withdraw of a given-up round yet */
    trib_op_core *waiting_head, *waiting_tail; /* core 0: operations submitted before the placement */
} trib_tensor;

struct trib_op_core {
    trib_post submit_post, cancel_post, input_post;
    trib_timer deadline;
    struct trib_op *op;
    trib_core *core;               /* the core that it arrived at; NULL: not yet */
    trib_op_core *next, *previous; /* the core's list */
    trib_op_core *queue_next;      /* the tensor's pending or waiting list */
    uint32_t tasks_left;
    bool abort;          /* open tasks are to fail */
    int64_t abort_ns;    /* time when `abort` was set */
    bool grace_extended; /* the grace period was repeated because this process had been suspended */
    bool released;       /* this core will not touch the operation's buffers again */
    trib_timer grace;
};

struct trib_op {
    trib_engine *engine;
    trib_tensor *tensor;
    trib_collective collective;
    trib_reduce reduce;
    uint32_t root;
    int32_t priority;
    const unsigned char *input;
    unsigned char *output;
    trib_done_cb done_cb;
    void *user;
    uint32_t round;
    int64_t submit_ns, deadline_ns, duration_ns; /* deadline 0: no deadline */
    /* Cores that may still touch the buffers, plus an input copy that goes ahead. At 0 the operation is complete. */
    atomic_uint cores_left;
    /* Cores whose op_core is still linked. An operation that is given up before its turn stays linked until its
     * turn. */
    atomic_uint cores_booked;
    bool spread;      /* posted to every core; false: to core 0, which posts it on after the placement */
    atomic_int claim; /* 0: no failure; else the failure's status, whose text is written or about to be */
    char text[TRIB_ERROR_TEXT_SIZE];
    uint32_t reason_at;            /* offset of the reason in the text, after the tensor's name */
    atomic_bool has_text;          /* the text is complete and will not change */
    atomic_int status;             /* TRIB_PENDING until complete, seen by callers */
    atomic_bool cancelled;         /* cancellation was requested */
    atomic_uint references;        /* held by the completion, the cores and the caller; at 0 the slot is free */
    atomic_uint counts;            /* of these, the completion and the caller; above 0: counts for ops_max */
    struct trib_device_op *device; /* NULL until the slot is first used for a device tensor */
    trib_post done_post;
    struct trib_op *next;      /* free list */
    struct trib_op *made_next; /* list of all slots */
    trib_op_core cores[];      /* one per core */
};

/* Returns true for a broadcast whose bytes this member sends. The sender is the root or, for a device tensor, any
 * member on the root's machine. */
static inline bool trib_op_gives(const trib_op *op)
{
    if (op->collective != TRIB_COLLECTIVE_BROADCAST) {
        return false;
    }
    return op->tensor->on_device
               ? trib_device_root_machine(op->root) == op->engine->member_id / (uint32_t)op->engine->config.local_size
               : op->root == op->engine->member_id;
}

/* The collective as written in frames and trace records. Device tensors have their own values, because one member
 * of each machine contributes to a shard. The worker's side is otherwise the same. */
static inline uint8_t trib_op_wire_collective(const trib_op *op)
{
    if (!op->tensor->on_device) {
        return (uint8_t)op->collective;
    }
    return op->collective == TRIB_COLLECTIVE_BROADCAST ? TRIB_COLLECTIVE_DEVICE_BROADCAST
                                                       : TRIB_COLLECTIVE_DEVICE_ALL_REDUCE;
}

/* ---- tensor.c: declaring and placing ---- */
TRIB_CHECKED trib_status trib_tensor_find_or_add(trib_engine *engine, const char *name, trib_dtype dtype,
                                                 uint64_t count, int32_t priority, uint32_t flags,
                                                 trib_tensor **tensor_out, trib_error *error);
/* Core 0: the coordinator has placed the tensor. */
void trib_tensor_placed(trib_tensor *tensor, uint32_t id, trib_place_owner *owners_owned, uint32_t partition_count,
                        uint32_t partition_bytes);
void trib_tensor_bad(trib_tensor *tensor, const char *text);
/* Most pushes of all workers (or machines, for device tensors) for a finely cut tensor. Their cost is small next
 * to the tensor's bytes. */
#define TRIB_TENSOR_MESSAGES_MAX 256u
/* Returns true if the core takes part in operations on the placed tensor. */
static inline bool trib_tensor_is_used(const trib_tensor *tensor, uint32_t core)
{
    return core == 0 || tensor->cores[core].task_count > 0;
}

/* Returns false while a copy ahead of an earlier round, possibly given up, still writes to the tensor's staging
 * memory. */
static inline bool trib_tensor_copy_allows(const trib_tensor *tensor, uint32_t round)
{
    const uint32_t ahead = atomic_load(&tensor->ahead_round);
    return ahead == 0 || round <= ahead;
}

/* Returns the size of a shard: partition_bytes, or less, so that each of `summers` owners gets several shards of a
 * small tensor. */
uint32_t trib_shard_bytes(uint64_t bytes, uint32_t partition_bytes, uint32_t chunk_bytes, uint32_t local_size,
                          uint32_t machines, uint32_t summers);
/* Returns the partition size of a tensor; local_size: local ranks that share it on their devices, 0: host memory. */
uint32_t trib_tensor_partition_bytes(const trib_roster *roster, uint64_t bytes, uint32_t local_size);
/* Returns the partition size in host memory when links were measured to be slow. */
uint32_t trib_tensor_partition_bytes_slow(const trib_roster *roster, uint64_t bytes);
/* Returns the chunk size. All members compute the same value. */
uint32_t trib_tensor_chunk_bytes(const trib_roster *roster, uint64_t bytes);
/* Allocates one bit per chunk of `tasks` partitions. Returns NULL if memory runs out. */
uint64_t *trib_tensor_make_bits(const trib_tensor *tensor, uint32_t tasks);
/* Allocates the tasks counted for each core. Returns false if memory runs out. */
TRIB_CHECKED bool trib_tensor_take_tasks(trib_tensor *tensor);
/* Fills in the task of the partition and advances *bits past the words that it uses. */
void trib_tensor_make_task(trib_tensor *tensor, uint32_t partition, trib_task *task, uint64_t **bits);
uint32_t trib_tensor_partition_count(uint64_t bytes, uint32_t partition_bytes);
void trib_tensors_free(trib_engine *engine);
/* For texts. The caller holds the mutex. */
const char *trib_tensor_name_of(const trib_engine *engine, uint32_t tag);

/* ---- tensor_move.c: moving a tensor's partitions to other owners ---- */
/* Core 0: takes a proposal of owners and takes ownership of the array. *round_out is the first round that waits
 * for the decision. The value 0 rejects the proposal, because the last move is not complete. */
void trib_tensor_move_propose(trib_tensor *tensor, trib_place_owner *owners_owned, uint32_t *round_out);
/* Core 0: the proposed owners hold from that round on; 0: the proposal is dropped. */
void trib_tensor_move_decide(trib_tensor *tensor, uint32_t round);
/* Returns true if no undecided proposal keeps the round from beginning on the core. */
bool trib_tensor_move_may_begin(const trib_tensor *tensor, const trib_tensor_core *mine, uint32_t round);
/* Gives the core's tasks their new owners if the next round is the first one after a move. Always returns true. */
bool trib_tensor_move_apply(trib_tensor *tensor, trib_tensor_core *mine);

/* ---- op.c: submitting, cancelling and completing ---- */
TRIB_CHECKED trib_status trib_op_submit(trib_engine *engine, const trib_op_params *params, trib_collective collective,
                                        trib_tensor *tensor, trib_op **op_out, trib_error *error);
/* Any core: fails the operation. Later failures are ignored. The text begins with the tensor's name. */
void trib_op_fail(trib_op *op, trib_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Returns the reason of the failure without the tensor's name. Valid once has_text is set. */
static inline const char *trib_op_reason(const trib_op *op)
{
    return op->text + op->reason_at;
}
/* Any thread: asks every core to give up the operation. Only the first call counts. */
void trib_op_give_up(trib_op *op);
/* The core will not touch the operation's buffers again. */
void trib_op_core_done(trib_op *op, trib_core *core);
/* `count` of the operation's cores have unlinked their op_core. */
void trib_op_unbook_cores(trib_op *op, uint32_t count);
void trib_op_unref(trib_op *op);
/* The caller returns its handle. */
void trib_op_give_back(trib_op *op);
/* Returns the tensor of an operation in flight whose buffers overlap the memory, or NULL. */
const trib_tensor *trib_op_find_user(trib_engine *engine, const void *memory, size_t size);
void trib_ops_free(trib_engine *engine);

/* ---- worker.c ---- */
/* An operation has arrived at the core that it was posted to. */
void trib_worker_arrived(trib_core *core, trib_op_core *op_core);
void trib_worker_prepare_op_core(trib_op_core *op_core);
void trib_worker_tensor_bad(trib_reactor *reactor, trib_post *post);

#endif

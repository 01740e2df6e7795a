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
#include "engine/cluster/partitioning.h"
#include "engine/codec/codec.h"
#include "engine/core/core.h"
#include "engine/worker/rank_group.h"
#include "engine/worker/task.h"

#define TRIB_TENSOR_TEXT_SIZE 96 /* bytes of a tensor's type and shape in words; longer texts are cut */

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
    trib_post end_post; /* the core forgets the tensor */
    trib_post bad_post; /* tells the core that the workers disagree about the tensor */
    struct trib_tensor *tensor;
    /* A move to other owners (tensor_move.c). */
    trib_post move_post;
    uint32_t move_known; /* number of the last proposal that the coordinator has decided */
    uint32_t moved_from; /* first round of the owners that the tasks have not taken yet; 0: the tasks are up to date */
    uint32_t orphans;    /* tasks whose owner is lost (worker_orphan.h): no round begins until all know how to go on */
    bool is_over;        /* the core has forgotten the tensor */
} trib_tensor_core;

/* The life of a tensor. Its memory stays with the engine, and another tensor gets it after the end (tensor_end.c). */
typedef enum trib_tensor_state {
    TRIB_TENSOR_UNUSED,   /* no tensor, but memory for the next one */
    TRIB_TENSOR_DECLARED, /* callers may use it */
    TRIB_TENSOR_RELEASED, /* callers know it no more; operations that were given up may have to spend their rounds */
    TRIB_TENSOR_ENDING,   /* no operation is left, and the cores forget it */
    TRIB_TENSOR_ENDED,    /* the coordinator has been told, or will be when the job has formed */
    TRIB_TENSOR_STATES
} trib_tensor_state;

/* The fields that every operation needs come first, and share few cache lines. */
typedef struct trib_tensor {
    trib_engine *engine;
    uintptr_t handle; /* handle that the caller has; 0: the tensor is the engine's own, or was released */
    uint64_t count,
        bytes; /* size as declared here: TRIB_SLICES: of this worker's slice; TRIB_PAIRS: of its slices for all */
    uint64_t key, known_key; /* hashes of the name, and of what the program knows of it */
    trib_group *group;       /* NULL: all workers */
    trib_dtype dtype;
    trib_layout layout;
    int32_t priority;
    uint32_t members;     /* number of workers that share the tensor */
    uint32_t group_place; /* place of this worker among the workers that share the tensor */
    uint32_t tag;         /* this member's own number for the tensor */
    bool on_device;       /* TRIB_TENSOR_DEVICE */
    /* On a device, and local ranks exchange a shard each; another one is staged. False before the roster. */
    atomic_bool is_sharded;
    bool is_covered; /* the loss of a server that sums a part of it costs nothing */
    uint32_t place;  /* of its handles (engine/base/handle.h) */

    /* Guarded by the engine's mutex. */
    _Atomic trib_tensor_state state;   /* set by trib_tensor_set_state alone */
    uint32_t rounds;                   /* number of the last round that was submitted, TRIB_ROUNDS_MAX at most */
    uint32_t prepared;                 /* operations that are prepared on it */
    uint32_t submitted, rounds_before; /* rounds in all epochs; rounds before the last boundary (boundary.h) */
    uint64_t last_number;              /* number of the last operation that was submitted */
    struct trib_tensor *next_free;
    /* Written by any thread. */
    atomic_uint references; /* held by the declaration, and by every slot in use of an operation on the tensor */
    atomic_uint in_flight;  /* operations on it that are not complete */

    /* Written on core 0, then published by state. */
    atomic_bool placed;        /* true once the tensor has partitions and owners */
    atomic_bool bad;           /* it cannot be used: its operations fail with bad_status and bad_text */
    atomic_bool waits_for_use; /* of an earlier epoch; its first operation in this epoch declares the tensor again */
    uint32_t id;
    uint32_t number_base; /* rounds up to this one belong to earlier tensors with the same id */
    uint32_t round_base;  /* this worker's first round is behind this one: number_base, or that of the last trib_join */
    uint32_t partition_bytes, chunk_bytes, partition_count;
    uint32_t cores_used; /* cores that take part in operations: cores with tasks, and core 0 */
    trib_tensor_core *cores;
    uint32_t *task_index;         /* by partition: the index of its task on its core */
    trib_partitioning *cut;       /* written at placement */
    const struct trib_plan *plan; /* stages of its collectives */
    trib_place_owner *owners;     /* written by core 0; each task has its own copy */
    unsigned char *copies; /* memory for copies of its sums (worker_orphan.h); NULL: no copies, or it has no bytes */
    uint64_t *received_bits;
    uint32_t quorum; /* 0: all workers contribute to its sums (server/quorum.h) */
    int64_t quorum_timeout_ns;
    struct trib_device_tensor *device;  /* made at placement; a large one, before the tensor is declared */
    struct trib_kept_input *kept_spare; /* memory for copies of inputs (op_carry.h); guarded by the mutex */
    atomic_uint ahead_round;            /* round whose input is being copied ahead; later rounds wait. 0: none */
    /* A move to other owners (tensor_move.c): the proposed owners, the number of the proposal, and the first round
     * that waits for the coordinator's decision. */
    trib_place_owner *owners_next;
    atomic_uint move_number, move_round, move_cores_left;
    uint32_t moved_from;
    atomic_bool left_unacknowledged; /* a former owner may not have received the withdraw of a given-up round yet */
    atomic_uint gave_up_round; /* the last round that has failed here, of which frames may be on their way; 0: none */
    trib_op_core *waiting_head, *waiting_tail; /* core 0: operations submitted before the placement */

    trib_codec_config codec; /* codec of its sums; none from the placement on if the tensor cannot have it */
    bool names_codec;        /* the declaration names the codec; else the job's setting does */
    char codec_text[TRIB_CODEC_TEXT_SIZE]; /* as declared, "auto" too, in its one form; workers must agree */
    trib_status bad_status; /* TRIB_MISMATCH: the workers disagree. TRIB_PEER_LEFT: one left without declaring it */
    char bad_text[TRIB_ERROR_TEXT_SIZE];
    trib_post declare_post;
    bool is_declared; /* core 0: DECLARE was sent */
    trib_post use_post;
    atomic_bool use_posted;
    bool is_stale; /* only the coordinator of an earlier epoch knew the tensor, so its end is not sent */
    trib_post end_post;
    atomic_uint end_cores_left;
    struct trib_tensor *group_next; /* core 0: next tensor in the group's list of tensors that wait for it */
    bool waits_for_group;           /* core 0: it is in that list */

    uint64_t row;
    uint64_t *splits;     /* TRIB_PAIRS: as declared here */
    uint32_t name_begin;  /* as declared: where in `name` the name begins that the program knows */
    uint32_t name_length; /* as declared: so much of it is shared with tensors of other shapes; 0: it is not */
    bool is_numbered;     /* TRIB_TENSOR_NUMBERED */
    uint8_t dims;         /* number of dimensions; 0: no shape was given */
    uint64_t shape[TRIB_TENSOR_DIMS_MAX];
    UT_hash_handle hh;
    char name[TRIB_TENSOR_NAME_MAX + 1];
    char table_key[TRIB_TENSOR_NAME_MAX + 12]; /* the name, after the number of its group */
} trib_tensor;

struct trib_op_core {
    trib_post submit_post, cancel_post, input_post;
    trib_timer deadline;
    struct trib_op *op;
    trib_core *core;               /* core at which the operation arrived; NULL: not yet */
    trib_op_core *next, *previous; /* the core's list */
    trib_op_core *queue_next;      /* the tensor's pending or waiting list */
    uint32_t tasks_left;
    bool abort;           /* open tasks are to fail */
    uint32_t grace_parts; /* of the grace period, and of what devices get beyond it, that have passed */
    bool is_kept;         /* this core's part of the input is in the operation's copy; core 0, on a device: all of it */
    bool released;        /* this core will not touch the operation's buffers again */
    unsigned char *missing; /* ranks that a partition lacks (base/rank_bits.h); NULL: more than one was never said */
    uint32_t missing_partition; /* the first open one of which that was said */
    trib_timer grace;
};

struct trib_op {
    trib_engine *engine;
    trib_tensor *tensor;
    uint32_t place;   /* of its handles (engine/base/handle.h) */
    uintptr_t handle; /* handle of the caller, or of the prepared operation; 0: nobody has one */
    uint32_t step;    /* the caller's step; all contributions to a round have the same */
    uint64_t scale;   /* factor of the sum, packed (base/scale.h) */
    double prescale;  /* factor of integers before they are summed; 1: none */
    trib_collective collective;
    trib_reduce reduce;
    uint32_t root, root_rank; /* place of the root, and its rank as the caller gives it; TRIB_NO_MEMBER: none */
    bool names_root;          /* for bytes whose length only the root knows */
    int32_t priority;
    const unsigned char *input;
    unsigned char *output;
    uint64_t input_bytes, output_bytes; /* sizes of the buffers as the caller gives them; 0: not given */
    uint64_t input_given, output_given; /* what it has said */
    unsigned char *kept;                /* memory for a copy of the input, or NULL (op_carry.h) */
    uint64_t number;                    /* the order of submission */
    uint32_t ordinal;                   /* its number among this worker's operations on the tensor */
    bool is_boundary;                   /* the all-reduce of a checkpoint (boundary.h) */
    atomic_int mark;                    /* whether a boundary waits for it */
    uint64_t boundary_number, boundary_operations;
    bool is_again;  /* submitted, or held back, in an earlier epoch */
    bool is_pinned; /* `kept` is memory that devices know */
    bool is_spent;  /* it has failed here, and is carried over to spend its round */
    bool allocates; /* the output is the engine's, from the placement to the slot's next use */
    void *allocated;
    trib_done_cb done_cb;
    void *user;
    uint32_t round;
    int64_t submit_ns, deadline_ns, duration_ns; /* deadline 0: no deadline */
    _Atomic int64_t stall_ns; /* the age at which the log says next what the operation waits for (worker_stall.c) */
    trib_post stall_post;     /* tells core 0 that the operation is stalled; holds a reference meanwhile */
    atomic_bool stall_posted;
    atomic_uint lacked; /* a rank whose contribution is missing; TRIB_NO_MEMBER: a declaration is */
    /* Cores that may still touch the buffers, plus an input copy that goes ahead. At 0 the operation is complete. */
    atomic_uint cores_left;
    /* Cores whose op_core is still linked. An operation that is given up before its turn stays linked until its
     * turn. */
    atomic_uint cores_booked;
    /* roster of the epoch in which the operation was begun, then of the epoch in which it completed; or NULL */
    const trib_roster *roster; /* held (trib_op_take_roster) */
    uint32_t contributors;     /* number of workers whose contributions are in the result */
    /* a bit for each worker whose contribution is in the sums; late_count workers came too late (server/quorum.h) */
    unsigned char *in_sum;
    uint32_t late_count;    /* 0: in_sum is not read */
    trib_partitioning *cut; /* partitioning in that epoch, if the tensor has slices */
    bool is_held;           /* the operation waits until all workers are through with its round (op_commit.h) */
    bool spread;            /* posted to every core; false: to core 0, which posts it on after the placement */
    atomic_int claim;       /* 0: no failure; else the failure's status, whose text is written or about to be */
    char text[TRIB_ERROR_TEXT_SIZE];
    atomic_bool is_second_hand;    /* the text came with a refusal, which says why another worker withdrew */
    uint32_t reason_at;            /* offset of the reason in the text, after the tensor's name */
    atomic_bool has_text;          /* the text is complete and will not change */
    atomic_bool is_complete;       /* nothing will change the result any more */
    atomic_int status;             /* TRIB_PENDING until complete, seen by callers */
    atomic_bool is_over;           /* its callback has begun, so a prepared operation may be started again */
    atomic_bool is_awaited;        /* threads wait for it, or did, and are to be woken at its end */
    atomic_bool cancelled;         /* cancellation was requested */
    atomic_bool is_cancelled;      /* the caller has cancelled the operation */
    atomic_uint references;        /* held by the completion, the cores and the caller; at 0 the slot is free */
    atomic_uint counts;            /* of these, the completion and the caller; above 0: counts for ops_max */
    struct trib_device_op *device; /* NULL until the slot is first used for a device tensor */
    trib_post done_post;
    struct trib_op *next;      /* free list */
    struct trib_op *made_next; /* list of all slots */
    trib_op_core cores[];      /* one per core */
};

/* Returns true for a broadcast of a whole tensor whose bytes this member sends. The sender is the root or, for a device
 * tensor, any member on the root's machine. */
static inline bool trib_op_contributes(const trib_op *op)
{
    if (op->collective != TRIB_COLLECTIVE_BROADCAST) {
        return false;
    }
    return op->tensor->is_sharded
               ? trib_device_root_machine(op->root) == op->engine->member_id / (uint32_t)op->engine->config.local_size
               : op->root == op->tensor->group_place;
}

/* ---- Senders and receivers of a task's bytes ---- */

/* The root of the partition: the operation's root, or the worker whose slice it is. In a pair it is the first
 * worker. */
static inline uint32_t trib_task_root(const trib_task *task)
{
    return task->tensor->layout == TRIB_SLICES  ? task->slice
           : task->tensor->layout == TRIB_PAIRS ? 0
                                                : task->op_core->op->root;
}

/* TRIB_PAIRS: the places of the two workers. */
static inline uint32_t trib_task_sender(const trib_task *task)
{
    return task->slice / task->tensor->members;
}

static inline uint32_t trib_task_receiver(const trib_task *task)
{
    return task->slice % task->tensor->members;
}

/* A slice of a worker for itself, which is copied and not sent. */
static inline bool trib_task_is_own(const trib_task *task)
{
    return task->tensor->layout == TRIB_PAIRS && trib_task_sender(task) == trib_task_receiver(task);
}

/* True if this worker alone brings the partition's bytes. */
static inline bool trib_task_contributes(const trib_task *task)
{
    const trib_op *op = task->op_core->op;
    if (task->tensor->layout == TRIB_PAIRS) {
        return trib_task_sender(task) == task->tensor->group_place;
    }
    return task->tensor->layout == TRIB_SLICES
               ? op->collective == TRIB_COLLECTIVE_BROADCAST && task->slice == task->tensor->group_place
               : trib_op_contributes(op);
}

/* True if this worker sends the partition's bytes. */
static inline bool trib_task_sends(const trib_task *task)
{
    return trib_collective_is_sum(task->op_core->op->collective) || trib_task_contributes(task);
}

/* True if this worker gets the partition's bytes, or their sum, from the owner. */
static inline bool trib_task_receives(const trib_task *task)
{
    return task->op_core->op->collective == TRIB_COLLECTIVE_REDUCE ? trib_task_root(task) == task->tensor->group_place
                                                                   : !trib_task_contributes(task);
}

/* True if the partition goes to the relay of this machine (relay.h), not to its owner. */
static inline bool trib_task_is_relayed(const trib_core *core, const trib_task *task)
{
    return core->engine->roster->local_size > 0 && !task->tensor->is_sharded && task->tensor->group == NULL &&
           task->tensor->layout != TRIB_PAIRS;
}

/* Fills in the fields that PUSH and WITHDRAW share, from a task and its operation; not the owner code. */
trib_frame trib_task_frame(const trib_task *task, trib_frame_type type);

/* The collective as written in frames and trace records. Sharded tensors have their own values, because one member
 * of each machine contributes to a shard. The worker's side is otherwise the same. */
static inline uint8_t trib_op_wire_collective(const trib_op *op)
{
    if (!op->tensor->is_sharded) {
        return (uint8_t)op->collective;
    }
    return op->collective == TRIB_COLLECTIVE_BROADCAST ? TRIB_COLLECTIVE_DEVICE_BROADCAST
                                                       : TRIB_COLLECTIVE_DEVICE_ALL_REDUCE;
}

/* ---- tensor.c: declaring and placing ---- */
/* `desc` has been checked, but not against other declarations of its name. handle_out may be NULL. */
TRIB_CHECKED trib_status trib_tensor_find_or_add(trib_engine *engine, const trib_tensor_desc *desc,
                                                 trib_tensor **tensor_out, uintptr_t *handle_out, trib_error *error);
static inline bool trib_tensor_is_reserved(const trib_tensor *tensor)
{
    return tensor->name[0] == '_' && tensor->name[1] == '_';
}
/* Returns the handle of the tensor of that name, or 0. */
uintptr_t trib_tensor_lookup(trib_engine *engine, const char *name);
/* Writes "float32[2x3]", or "float32[6]" if no shape was given. */
void trib_tensor_describe(char *text, size_t size, trib_dtype dtype, uint64_t count, uint32_t dims,
                          const uint64_t *shape);
/* Core 0: the coordinator has placed the tensor. Takes ownership of `cut` and `owners`. */
void trib_tensor_placed(trib_tensor *tensor, uint32_t id, uint32_t round_base, trib_place_owner *owners_owned,
                        trib_partitioning *cut_owned);
void trib_tensor_bad(trib_tensor *tensor, trib_status status, const char *text);
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
/* Returns the size below which chunks and partitions are not made smaller, because encoded they would be hardly larger
 * than their headers; 0: there is none. `codec` is the text of the tensor's declaration; `modelled`: see trib_env. */
uint32_t trib_codec_chunk_least(const trib_roster *roster, const char *codec, const char *modelled, trib_dtype dtype,
                                bool is_sharded);
/* The same of a tensor that all have declared. */
uint32_t trib_tensor_chunk_least(const trib_tensor *tensor);
/* Returns the partition size of a tensor; local_size: local ranks that share it on their devices, 0: host memory. */
uint32_t trib_tensor_partition_bytes(const trib_roster *roster, uint64_t bytes, uint32_t local_size, uint32_t least);
/* Returns the partition size in host memory when links were measured to be slow. */
uint32_t trib_tensor_partition_bytes_slow(const trib_roster *roster, uint64_t bytes, uint32_t least);
/* Returns the chunk size. All members compute the same value. */
uint32_t trib_tensor_chunk_bytes(const trib_roster *roster, uint64_t bytes, uint32_t least);
/* Allocates one bit per chunk of `tasks` partitions. Returns NULL if memory runs out. */
uint64_t *trib_tensor_make_bits(const trib_tensor *tensor, uint32_t tasks);
/* Allocates and fills in the tasks of a tensor in host memory, or of one that the host exchanges for its devices.
 * Returns false if memory runs out. */
TRIB_CHECKED bool trib_tensor_make_tasks(trib_tensor *tensor);
/* Allocates the tasks counted for each core. Returns false if memory runs out. */
TRIB_CHECKED bool trib_tensor_take_tasks(trib_tensor *tensor);
/* Fills in the task of the partition and advances *bits past the words that it uses. */
void trib_tensor_make_task(trib_tensor *tensor, uint32_t partition, trib_task *task, uint64_t **bits);
/* Frees what a placement has allocated. */
void trib_tensor_free_parts(trib_tensor *tensor);
void trib_tensors_free(trib_engine *engine);
/* tensor_epoch.c, core 0: an epoch is over, and no core uses a tensor. Returns all tensors to their state after the
 * declaration. The caller holds the mutex. */
void trib_tensors_reset(trib_engine *engine);
/* Core 0: the roster is there, which says whether devices exchange shards. */
void trib_tensors_choose_sharded(trib_engine *engine);
/* Core 0: adapts the tensors to the workers of the new epoch. The caller holds the mutex. */
void trib_tensors_renumber(trib_engine *engine);
/* Core 0: declares a tensor of an earlier epoch that has not been used in this one. */
void trib_tensor_use(struct trib_core *core, trib_tensor *tensor);
/* The caller holds the mutex: lets core 0 call trib_tensor_use. */
void trib_tensor_want(trib_tensor *tensor);
/* The tensor of the tag, or of a place that is free. NULL: no tensor has had that tag. Takes the mutex. */
trib_tensor *trib_tensor_at(trib_engine *engine, uint32_t tag);
/* Returns the name for texts. The caller holds the mutex. */
const char *trib_tensor_name_of(const trib_engine *engine, uint32_t tag);

/* ---- tensor_end.c: the end of a tensor ---- */
/* The caller holds the mutex. */
void trib_tensor_set_state(trib_tensor *tensor, trib_tensor_state state);
/* Any thread: callers know the tensor no more, and its name is free. TRIB_STATE: operations are in flight or prepared
 * on it. TRIB_INVALID: the handle is not a tensor's. */
TRIB_CHECKED trib_status trib_tensor_release_handle(trib_engine *engine, uintptr_t handle, trib_error *error);
/* As trib_tensor_release_handle, for a tensor without operations; the caller holds the mutex. */
void trib_tensor_release_idle(trib_tensor *tensor);
/* The caller holds the mutex: the engine's own tensor ends when the operations on it are over. */
void trib_tensor_release_once(trib_tensor *tensor);
/* Any thread. False if the tensor is not placed yet, or its last reference has gone, so that its end has begun. */
TRIB_CHECKED bool trib_tensor_ref_placed(trib_tensor *tensor);
/* Any thread: a slot of an operation on the tensor is free, or the tensor was released. */
void trib_tensor_unref(trib_tensor *tensor);
/* Core 0: the coordinator will not speak of the tensor any more, so its memory and tag are free. */
void trib_tensor_forgotten(trib_tensor *tensor);
void trib_tensor_forgotten_locked(trib_tensor *tensor); /* the caller holds the mutex */

/* ---- tensor_move.c: moving a tensor's partitions to other owners ---- */
/* Core 0: takes a proposal of owners and takes ownership of the array. *round_out is the first round that waits
 * for the decision. The value 0 rejects the proposal, because the last move is not complete. */
void trib_tensor_move_propose(trib_tensor *tensor, trib_place_owner *owners_owned, uint32_t *round_out);
/* Core 0: the proposed owners hold from that round on; 0: the proposal is dropped. */
void trib_tensor_move_decide(trib_tensor *tensor, uint32_t round);
/* Returns true if no undecided proposal keeps the round from beginning on the core. */
bool trib_tensor_move_may_begin(const trib_tensor *tensor, const trib_tensor_core *mine, uint32_t round);
/* The tensor has ended, so the core waits for no move any more. */
void trib_tensor_move_forget(trib_tensor_core *mine);
/* Gives the core's tasks their new owners if the next round is the first one after a move. Always returns true. */
bool trib_tensor_move_apply(trib_tensor *tensor, trib_tensor_core *mine);

#define TRIB_BARRIER_NAME "__barrier"
#define TRIB_BYTES_NAME "__bytes." /* followed by a number; shape[1]: 0 if all give, else the root plus one */

/* ---- op.c: cancelling and completing ---- */
/* The caller holds the mutex: takes a slot, which counts for ops_max. trib_op_put_back undoes that. The caller is about
 * to give back `replaced` operations that count. */
TRIB_CHECKED trib_status trib_op_take(trib_engine *engine, uint32_t replaced, trib_op **op_out, trib_error *error);
void trib_op_put_back(trib_op *op);
/* Makes the operation's output fit the placed tensor: takes memory for it, or fails an operation whose buffers are too
 * small. Called before any core sees both the operation and the placement, with the engine's mutex held. */
void trib_op_fit(trib_op *op);
/* The operation reads that roster from now on, and no other one. NULL: it reads none. */
void trib_op_take_roster(trib_op *op, const trib_roster *roster);
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
/* True if the worker's contribution is in the result. */
static inline bool trib_op_has(const trib_op *op, uint32_t worker)
{
    return op->late_count == 0 || (op->in_sum[worker / 8] >> worker % 8 & 1) != 0;
}
/* Notes on a core of the operation which workers' contributions are in its sums. */
void trib_op_take_set(trib_op *op, const unsigned char *set);
/* True if one worker gives the bytes that all get. */
bool trib_op_is_from_one(const trib_op *op);
/* The operation is over: its callback will run. */
void trib_op_complete(trib_op *op, trib_core *core);
/* `count` of the operation's cores have unlinked their op_core. */
void trib_op_unbook_cores(trib_op *op, uint32_t count);
void trib_op_unref(trib_op *op);
/* Any thread: takes a reference, unless the slot is free. It may be that of another operation by now. */
TRIB_CHECKED bool trib_op_try_ref(trib_op *op);
/* The caller has returned its handle, which is closed. */
void trib_op_give_back(trib_op *op);
/* The result of an operation that is complete. Its strings live as long as the slot is in use. */
void trib_op_read_result(const trib_op *op, trib_result *result);
/* Returns the tensor of an operation in flight whose buffers overlap the memory, or NULL. */
const trib_tensor *trib_op_find_user(trib_engine *engine, const void *memory, size_t size);
void trib_ops_free(trib_engine *engine);

/* ---- worker.c ---- */
/* An operation has arrived at the core that it was posted to. */
void trib_worker_arrived(trib_core *core, trib_op_core *op_core);
void trib_worker_prepare_op_core(trib_op_core *op_core);
/* Core 0: prepares the operation to be submitted again. No core has it. is_over: its buffers are not used again. */
void trib_worker_prepare_again(trib_op_core *op_core, bool is_over);
void trib_worker_tensor_bad(trib_reactor *reactor, trib_post *post);

#endif

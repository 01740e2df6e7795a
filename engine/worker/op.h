/*
 * op.h - tensors, the operations on them, and the partitions that move through the pipeline.
 *
 * A tensor is cut into partitions once, when the coordinator has told who sums what; each partition belongs to one
 * core, and its task (its place in the pipeline) is made then, so that operations allocate nothing. An operation
 * posts one op_core to every core that owns partitions of its tensor, and to core 0. Operations on a tensor run one after the other: on
 * each core round r + 1 waits until the tasks of round r have settled there.
 *
 * An operation is complete when every core has settled its tasks; the first failure gives it its status and text.
 */
#ifndef TRIB_ENGINE_OP_H
#define TRIB_ENGINE_OP_H

#include "engine/core/core.h"
#include "engine/base/hash.h"

typedef struct trib_op_core trib_op_core;

/* A round of a partition that was given up here when all of it had gone, as long as its owner has not answered. */
typedef struct trib_kept_round {
    const trib_link *link; /* to the owner; only compared */
    uint32_t round;
    uint32_t chunks; /* whose sums have not come; 0: none is kept */
} trib_kept_round;

/* One partition of a tensor and where it stands. */
typedef struct trib_task {
    trib_send_request request; /* first: in its link's outbox while it is being pushed */
    struct trib_tensor *tensor;
    trib_op_core *op_core; /* the operation it works for; NULL: none */
    trib_link *link;       /* to the core that sums it */
    uint64_t offset;       /* in the tensor, bytes */
    uint32_t size;
    uint32_t partition;
    uint8_t connection;     /* of the link, that its contributions took (link_priority.h, link_subflow.h) */
    trib_place_owner owner; /* of the partition, in the round that runs or is next; not of an absent share */
    uint32_t chunk_count;
    uint32_t chunks_sent;              /* given to the link */
    uint32_t sends_in_flight;          /* of those, not reported sent */
    struct trib_self_lease *self_held; /* chunks that the server of this process reads where they are */
    uint32_t chunks_received;
    uint32_t receives_in_progress;   /* payload that is being received in the caller's buffer right now */
    uint32_t device_holds;           /* what a device or its group may still do with this task */
    struct trib_device_task *device; /* NULL: the tensor lies in host memory */
    uint32_t stage;                  /* index into the plan */
    bool running;                    /* inside a stage's start: a completion that comes now is only noted */
    bool resumed;
    bool failed;
    bool settled;
    bool withdrawn; /* since the last round that began its server has been told that one is given up */
    bool in_order;  /* what the server was told of the last round may still be on its way: this one goes behind it */
    bool held;      /* in PUSH, until its owner has answered a round that was given up (worker_held.c) */
    trib_kept_round kept[TRIB_SUM_KEPT_ROUNDS_MAX];
    uint32_t missing_rank; /* last heard reason of waiting; TRIB_NO_MEMBER: none */
    int64_t since_ns;      /* in this stage */
    uint64_t *received;    /* one bit per chunk */
} trib_task;

/* A tensor on one core. */
typedef struct trib_tensor_core {
    trib_task *tasks;
    uint32_t task_count;
    uint32_t round_next;   /* the round that may start */
    trib_op_core *active;  /* the round that runs */
    trib_op_core *pending; /* later rounds, by round */
    /* While there are any: the last of them; and of those that came when later ones were there already, where the last one is.
     * NULL: none, or it has gone. */
    trib_op_core *pending_last, *pending_late;
    trib_post bad_post; /* tells the core that the workers disagree */
    struct trib_tensor *tensor;
    /* Another placement (tensor_move.c). */
    trib_post move_post;
    uint32_t move_known; /* the last one that the coordinator has spoken about for the second time */
    uint32_t moved_from; /* the round from which the tensor's owners are those of its tasks; 0: they are */
} trib_tensor_core;

typedef struct trib_tensor {
    trib_engine *engine;
    char name[TRIB_TENSOR_NAME_MAX + 1];
    trib_dtype dtype;
    int32_t priority;
    uint64_t count, bytes;
    uint64_t key; /* its name, in few bytes */
    uint32_t tag; /* this member's own number for it */
    UT_hash_handle hh;
    uint32_t rounds; /* submitted, TRIB_ROUNDS_MAX at most; guarded by the engine's mutex */

    /* Written on core 0, then published by state. */
    atomic_bool placed; /* it has partitions and owners */
    atomic_bool bad;    /* the workers disagree about it: every operation on it fails for bad_text */
    char bad_text[TRIB_ERROR_TEXT_SIZE];
    uint32_t id;
    uint32_t partition_bytes, chunk_bytes, partition_count;
    trib_place_owner *owners; /* core 0's; a core's tasks have their own copy */
    uint32_t *task_index;     /* of a partition among its core's tasks */
    trib_tensor_core *cores;
    uint32_t cores_used; /* that have tasks of it, and core 0: operations go to those */
    uint64_t *received_bits;
    bool on_device;                    /* TRIB_TENSOR_DEVICE */
    struct trib_device_tensor *device; /* if on_device: made at placement, of a large one before it is declared */
    atomic_uint ahead_round;           /* whose input is being copied to its host memory; later ones wait. 0: none */
    trib_post declare_post;
    /* Another placement: what the coordinator proposed, which one that is, and the first round that waits until it has said
     * from when it holds. See tensor_move.c. */
    trib_place_owner *owners_next;
    atomic_uint move_number, move_round, move_cores_left;
    uint32_t moved_from;
    atomic_bool
        left_unacknowledged; /* an owner may have yet to hear of a round that was given up before the tensor left it */
    trib_op_core *waiting_head, *waiting_tail; /* core 0: those that came before the placement */
} trib_tensor;

struct trib_op_core {
    trib_post submit_post, cancel_post, input_post;
    trib_timer deadline;
    struct trib_op *op;
    trib_core *core;               /* where it arrived; NULL: not yet */
    trib_op_core *next, *previous; /* the core's list */
    trib_op_core *queue_next;      /* tensor's pending or waiting list */
    uint32_t tasks_left;
    bool abort;          /* fail what is not settled */
    int64_t abort_ns;    /* since when */
    bool grace_extended; /* its grace was prolonged, as this process stood still */
    bool released;       /* this core does not and will not touch the operation's buffers: it may complete */
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
    int64_t submit_ns, deadline_ns, duration_ns; /* deadline 0: none */
    /* Cores that may still touch its buffers, and input that goes ahead; at 0 the operation is complete. */
    atomic_uint cores_left;
    /* Nodes that are still in some core's books: a round that was given up before its turn is spent at its turn. */
    atomic_uint cores_booked;
    bool spread;      /* posted to every core; false: to core 0 only, which does so when the tensor has been placed */
    atomic_int claim; /* 0: no failure yet; else the failure's status, text is being or has been written */
    char text[TRIB_ERROR_TEXT_SIZE];
    uint32_t reason_at;            /* where in the text the reason begins, behind the name of the tensor */
    atomic_bool has_text;          /* it has been written, and stays */
    atomic_int status;             /* TRIB_PENDING until complete, seen by callers */
    atomic_bool cancelled;         /* asked for */
    atomic_uint references;        /* the completion's, the cores', and the caller's: the slot is in use */
    atomic_uint counts;            /* of these the completion's and the caller's: it counts for ops_max */
    struct trib_device_op *device; /* NULL: never yet used for a device tensor */
    trib_post done_post;
    struct trib_op *next;      /* free list */
    struct trib_op *made_next; /* all there are */
    trib_op_core cores[];      /* one per core */
};

/* A broadcast whose bytes this member has, or its machine: they travel from here. */
static inline bool trib_op_gives(const trib_op *op)
{
    if (op->collective == TRIB_COLLECTIVE_BROADCAST) {
        return op->root == op->engine->member_id;
    }
    return op->collective == TRIB_COLLECTIVE_DEVICE_BROADCAST &&
           trib_device_root_machine(op->root) == op->engine->member_id / (uint32_t)op->engine->config.local_size;
}

/* ---- tensor.c: declaring and placing ---- */
TRIB_CHECKED trib_status trib_tensor_find_or_add(trib_engine *engine, const char *name, trib_dtype dtype,
                                                 uint64_t count, int32_t priority, uint32_t flags,
                                                 trib_tensor **tensor_out, trib_error *error);
/* Core 0: the coordinator answered. */
void trib_tensor_placed(trib_tensor *tensor, uint32_t id, trib_place_owner *owners_owned, uint32_t partition_count,
                        uint32_t partition_bytes);
void trib_tensor_bad(trib_tensor *tensor, const char *text);
/* The largest tensor, also of those that another member declares: as many partitions as a DECLARED frame names, of as many
 * chunks as can be summed, of the least size. */
#define TRIB_TENSOR_BYTES_MAX (UINT64_C(1) << 44)
/* A job's tensors are numbered from 0 and end below this; each core of each worker has a table of them. */
#define TRIB_TENSORS_MAX (1u << 20)
/* Of a tensor. Numbers do not begin again: everywhere a later round has a higher one, and what is compared may be a few beyond. */
#define TRIB_ROUNDS_MAX (UINT32_MAX - 1024u)
/* With which all workers, or all machines of devices, together push a tensor that is cut finer than a few parts for each
 * who sums: as many as go unnoticed beside its bytes. */
#define TRIB_TENSOR_MESSAGES_MAX 256u
/* A placed tensor: does that core take part in operations on it? */
static inline bool trib_tensor_is_used(const trib_tensor *tensor, uint32_t core)
{
    return core == 0 || tensor->cores[core].task_count > 0;
}

/* False: a copy ahead of an earlier round, which may have been given up, still writes to the tensor's staging
 * memory. */
static inline bool trib_tensor_copy_allows(const trib_tensor *tensor, uint32_t round)
{
    const uint32_t ahead = atomic_load(&tensor->ahead_round);
    return ahead == 0 || round <= ahead;
}

/* The size of a shard: partition_bytes, or less, so that all `summers` have several pieces also of a small tensor. */
uint32_t trib_shard_bytes(uint64_t bytes, uint32_t partition_bytes, uint32_t chunk_bytes, uint32_t local_size,
                          uint32_t machines, uint32_t summers);
/* Of a tensor in that job; local_size: local ranks that share it on their devices, 0: in host memory. */
uint32_t trib_tensor_partition_bytes(const trib_roster *roster, uint64_t bytes, uint32_t local_size);
/* ... in host memory, where links have been found to be slow. */
uint32_t trib_tensor_partition_bytes_slow(const trib_roster *roster, uint64_t bytes);
/* The chunks that those travel in; all members come to the same. */
uint32_t trib_tensor_chunk_bytes(const trib_roster *roster, uint64_t bytes);
/* Bits for the chunks of so many partitions; NULL: out of memory. */
uint64_t *trib_tensor_make_bits(const trib_tensor *tensor, uint32_t tasks);
/* Memory for as many tasks as have been counted for each core; false: out of memory. */
TRIB_CHECKED bool trib_tensor_take_tasks(trib_tensor *tensor);
/* Fills in a task for that partition; its words of *bits are taken. */
void trib_tensor_make_task(trib_tensor *tensor, uint32_t partition, trib_task *task, uint64_t **bits);
uint32_t trib_tensor_partition_count(uint64_t bytes, uint32_t partition_bytes);
void trib_tensors_free(trib_engine *engine);

/* ---- tensor_move.c: the partitions of a tensor get other owners ---- */
/* Core 0: these are proposed. *round_out: the first round that does not begin here until it is decided; 0: the last proposal is not
 * carried out yet, so not now. Takes owners over. */
void trib_tensor_move_propose(trib_tensor *tensor, trib_place_owner *owners_owned, uint32_t *round_out);
/* Core 0: they hold from that round on; 0: never. */
void trib_tensor_move_decide(trib_tensor *tensor, uint32_t round);
/* May that round begin on the core, as far as placement is concerned? */
bool trib_tensor_move_may_begin(const trib_tensor *tensor, const trib_tensor_core *mine, uint32_t round);
/* Before a round begins on the core: if it is the first of another placement, the core's tasks learn who their owners are.
 * True. */
bool trib_tensor_move_apply(trib_tensor *tensor, trib_tensor_core *mine);

/* ---- op.c: taking, cancelling and completing ---- */
TRIB_CHECKED trib_status trib_op_submit(trib_engine *engine, const trib_op_params *params, trib_collective collective,
                                        trib_tensor *tensor, trib_op **op_out, trib_error *error);
/* Any core: its first failure; later ones are ignored. The name of the tensor is put before the text. */
void trib_op_fail(trib_op *op, trib_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Why it failed, once has_text is set, without the name of the tensor. */
static inline const char *trib_op_reason(const trib_op *op)
{
    return op->text + op->reason_at;
}
/* Any thread: asks every core to give the operation up. Only the first call counts. */
void trib_op_give_up(trib_op *op);
/* A core touches its buffers no more. */
void trib_op_core_done(trib_op *op, trib_core *core);
/* So many of its cores are out of the books. */
void trib_op_unbook_cores(trib_op *op, uint32_t count);
void trib_op_unref(trib_op *op);
/* The caller gives its handle back. */
void trib_op_give_back(trib_op *op);
/* The tensor of an operation in flight that has a buffer there, in part at least; NULL. */
const trib_tensor *trib_op_find_user(trib_engine *engine, const void *memory, size_t size);
void trib_ops_free(trib_engine *engine);

/* Where the task's bytes come from, and where its sums go. */
const unsigned char *trib_task_input(const trib_task *task);
unsigned char *trib_task_output(const trib_task *task);

/* ---- worker.c ---- */
/* An operation's turn to go on the core that it was posted to. */
void trib_worker_arrived(trib_core *core, trib_op_core *op_core);
void trib_worker_prepare_op_core(trib_op_core *op_core);
void trib_worker_tensor_bad(trib_reactor *reactor, trib_post *post);

#endif

/*
 * task.h - one partition of a tensor on its way through the pipeline: its state and its holds.
 *
 * Only pipeline.c writes a task's stage and state. A hold stands for one use of the caller's buffers, and a task
 * cannot settle while it has holds. The code that lets another party use the buffers takes a hold and releases it
 * when the use is over. A failed task therefore settles with its last hold.
 */
#ifndef TRIB_ENGINE_TASK_H
#define TRIB_ENGINE_TASK_H

#include "engine/base/assert.h"
#include "engine/core/core.h"

struct trib_op_core;
struct trib_device_task;
struct trib_orphan;
struct trib_task_codec;

typedef enum trib_task_state {
    TRIB_TASK_IDLE,    /* no round has begun, or one is about to */
    TRIB_TASK_QUEUED,  /* in its stage's queue, where it waits for credit */
    TRIB_TASK_RUNNING, /* inside a function of its stage */
    TRIB_TASK_RESUMED, /* still inside the function, but the stage is already done */
    TRIB_TASK_WAITING, /* the stage is PENDING */
    TRIB_TASK_FAILING, /* given up, but it still has holds */
    TRIB_TASK_SETTLED,
    TRIB_TASK_STATES
} trib_task_state;

typedef enum trib_hold {
    TRIB_HOLD_SEND,    /* a chunk given to the link and not yet reported sent */
    TRIB_HOLD_RECEIVE, /* a sum that is being received into the task's buffer */
    TRIB_HOLD_ENCODE,  /* chunks that are still to be encoded or decoded (task_codec.h) */
    TRIB_HOLD_DEVICE,  /* work that a device or its group may still do */
    TRIB_HOLD_DRIVER,  /* the pipeline is about to give it up */
    TRIB_HOLD_COUNT
} trib_hold;

/* A round of a partition that this worker gave up after all its chunks were sent. The entry lasts until the owner
 * answers. */
typedef struct trib_kept_round {
    const trib_link *link; /* link to the owner; compared, never followed */
    uint32_t round;
    uint32_t chunks; /* chunks whose sums have not arrived; 0: the entry is free */
} trib_kept_round;

/* The bytes of a partition in one of their forms. */
typedef struct trib_view {
    unsigned char *data; /* NULL: no bytes */
    uint32_t bytes;
    uint32_t chunk_bytes; /* size of every chunk but the last, and distance between chunks */
} trib_view;

/* The places of the round's bytes. Stages redirect the views: a copy to the host redirects the source, a codec the
 * encoded bytes. Device memory that the network accesses directly is a view like any other. */
typedef struct trib_task_io {
    trib_view source;      /* this worker's contribution, only read */
    trib_view encoded;     /* the bytes that PUSH sends */
    trib_view received;    /* place of the sum as received */
    trib_view destination; /* place of the decoded sum */
} trib_task_io;

/* A partition of a tensor and its place in the pipeline. */
typedef struct trib_task {
    trib_send_request request; /* must be the first field; in the link's outbox while the task is pushed */
    struct trib_tensor *tensor;
    struct trib_op_core *op_core; /* the current operation; NULL: none */
    trib_link *link;              /* link to the core that sums the partition */
    uint64_t offset;              /* bytes before the partition in the tensor; TRIB_PAIRS: in the sender's input */
    uint64_t offset_own;          /* bytes before the partition in its slice; TRIB_PAIRS: in the receiver's output */
    uint32_t slice;               /* slice that the partition belongs to (partitioning.h) */
    uint32_t size;
    uint32_t partition;
    uint8_t connection;     /* link connection that carried its contributions (link_priority.h, link_subflow.h) */
    trib_place_owner owner; /* owner in the running or next round; unset for an absent share */
    uint32_t chunk_count;
    uint32_t chunks_sent; /* chunks given to the link */
    uint32_t chunks_received;
    struct trib_self_lease *self_held; /* chunks that this process's own server reads in place */
    trib_task_io io;
    /* Where the loss of a server costs nothing (worker_orphan.h): memory for a copy of the sum, the round whose whole
     * sum is there (0: none), and the other fields of that round's PUSH. */
    unsigned char *copy;
    uint32_t copy_round, copy_step;
    uint8_t copy_reduce;
    bool lands_in_copy; /* the round's sum lands in the copy first, as whole partition or not at all */
    bool keeps; /* this worker is the partition's keeper, and keeps the round's sum for all workers (server/keeper.h) */
    bool has_landed;            /* a chunk of the sum has begun to land since the round was pushed */
    bool is_kept;               /* the keeper has the round's sum, so this worker needs no copy */
    uint32_t giver;             /* worker that sends the round's finished sum to all; TRIB_NO_MEMBER: the owner sums */
    struct trib_orphan *orphan; /* the owner is lost, and the next owner has not said how to go on; else NULL */
    struct trib_device_task *device; /* NULL: the tensor is in host memory */
    struct trib_task_codec *codec;   /* NULL: the tensor has no codec (task_codec.h) */
    trib_task_state state;
    uint32_t stage; /* index into the plan */
    uint32_t holds; /* number of all holds: the sum of `held` */
    uint32_t held[TRIB_HOLD_COUNT];
    bool has_credit;                               /* its bytes count against the credit of its stage */
    struct trib_task *queue_next, *queue_previous; /* neighbours in the queue, while QUEUED */
    /* A round has been given up since the last one began; messages about it to the server may still be in flight. */
    bool gave_up;
    trib_status gave_up_as; /* status that the owner was told for the given-up round */
    bool has_weight;        /* its bytes count in the weight of the link that pushes it (egress.h) */
    bool in_order;          /* this round uses the same connection as the messages of the round before it */
    bool next_in_order;     /* the next round does so too, whether or not this one is given up */
    bool refused;           /* the owner refused this round and need not be told that it is given up */
    bool held_back;         /* waits in PUSH until the owner answers a given-up round (worker_held.c) */
    trib_kept_round kept[TRIB_SUM_KEPT_ROUNDS_MAX];
    uint32_t missing_rank; /* rank last reported missing; TRIB_NO_MEMBER: none */
    int64_t since_ns;      /* time of entry into the stage */
    uint64_t *received;    /* one bit per chunk */
} trib_task;

static inline unsigned char *trib_view_chunk(const trib_view *view, uint32_t chunk)
{
    trib_assert((uint64_t)chunk * view->chunk_bytes <= view->bytes);
    return view->data + (uint64_t)chunk * view->chunk_bytes;
}

static inline uint32_t trib_view_chunk_size(const trib_view *view, uint32_t chunk)
{
    const uint64_t left = view->bytes - (uint64_t)chunk * view->chunk_bytes;
    return left < view->chunk_bytes ? (uint32_t)left : view->chunk_bytes;
}

/* Returns true if the task is neither given up nor settled. */
static inline bool trib_task_is_open(const trib_task *task)
{
    return task->state <= TRIB_TASK_WAITING;
}

static inline void trib_task_hold(trib_task *task, trib_hold reason)
{
    trib_assert(task->state != TRIB_TASK_SETTLED && reason < TRIB_HOLD_COUNT);
    task->holds++;
    task->held[reason]++;
    trib_assert(task->holds >= task->held[reason] && task->held[reason] > 0); /* neither count wrapped around */
}

/* pipeline.c. A task that fails settles with its last hold. */
void trib_task_release(trib_core *core, trib_task *task, trib_hold reason);

#endif

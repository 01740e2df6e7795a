/*
 * task.h - one partition of a tensor on its way through the pipeline: where it stands, and what holds it.
 *
 * pipeline.c alone writes a task's stage and state. A hold is a use of the caller's buffers that the task waits for before it
 * settles: whoever lets somebody use them takes one, and releases it when that use is over. So a task that fails settles with
 * its last hold, whatever that was for.
 */
#ifndef TRIB_ENGINE_TASK_H
#define TRIB_ENGINE_TASK_H

#include "engine/base/assert.h"
#include "engine/core/core.h"

struct trib_op_core;
struct trib_device_task;

typedef enum trib_task_state {
    TRIB_TASK_IDLE,    /* no round has begun, or one is about to */
    TRIB_TASK_QUEUED,  /* in its stage's queue, for credit */
    TRIB_TASK_RUNNING, /* inside a function of its stage */
    TRIB_TASK_RESUMED, /* inside it still, and the stage is done already */
    TRIB_TASK_WAITING, /* its stage is under way */
    TRIB_TASK_FAILING, /* given up, as long as something holds it */
    TRIB_TASK_SETTLED,
    TRIB_TASK_STATES
} trib_task_state;

typedef enum trib_hold {
    TRIB_HOLD_SEND,    /* a chunk that the link has and has not reported sent */
    TRIB_HOLD_RECEIVE, /* a sum that is being received where the task wants it */
    TRIB_HOLD_DEVICE,  /* what a device or its group may still do */
    TRIB_HOLD_DRIVER,  /* the pipeline is about to give it up */
    TRIB_HOLD_COUNT
} trib_hold;

/* A round of a partition that was given up here when all of it had gone, as long as its owner has not answered. */
typedef struct trib_kept_round {
    const trib_link *link; /* to the owner; only compared */
    uint32_t round;
    uint32_t chunks; /* whose sums have not come; 0: none is kept */
} trib_kept_round;

/* Bytes of a partition, in one of their forms. */
typedef struct trib_view {
    unsigned char *data; /* NULL: there are none */
    uint32_t bytes;
    uint32_t chunk_bytes; /* of each chunk but the last, and from one to the next */
} trib_view;

/* Where the bytes of the round are. Stages put others in place: a copy to the host that of the source, a codec those of what
 * travels. Memory of a device that the network reads and writes is a view as any other. */
typedef struct trib_task_io {
    trib_view source;      /* this worker's contribution, only read */
    trib_view encoded;     /* what PUSH sends */
    trib_view received;    /* where the sum lands, as it travels */
    trib_view destination; /* where the sum is when it has been decoded */
} trib_task_io;

/* One partition of a tensor and where it stands. */
typedef struct trib_task {
    trib_send_request request; /* first: in its link's outbox while it is being pushed */
    struct trib_tensor *tensor;
    struct trib_op_core *op_core; /* the operation it works for; NULL: none */
    trib_link *link;              /* to the core that sums it */
    uint64_t offset;              /* in the tensor, bytes */
    uint32_t size;
    uint32_t partition;
    uint8_t connection;     /* of the link, that its contributions took (link_priority.h, link_subflow.h) */
    trib_place_owner owner; /* of the partition, in the round that runs or is next; not of an absent share */
    uint32_t chunk_count;
    uint32_t chunks_sent; /* given to the link */
    uint32_t chunks_received;
    struct trib_self_lease *self_held; /* chunks that the server of this process reads where they are */
    trib_task_io io;
    struct trib_device_task *device; /* NULL: the tensor lies in host memory */
    trib_task_state state;
    uint32_t stage; /* index into the plan */
    uint32_t holds; /* the sum of held */
    uint32_t held[TRIB_HOLD_COUNT];
    bool has_credit;                               /* its bytes count as its stage's in flight */
    struct trib_task *queue_next, *queue_previous; /* while QUEUED */
    /* Since the last round that began one was given up: what its server was told may be on its way still. */
    bool gave_up;
    bool in_order;  /* what the server was told of the last round may still be on its way: this one goes behind it */
    bool refused;   /* by the owner, in this round: it need not be told that the round is given up */
    bool held_back; /* in PUSH, until its owner has answered a round that was given up (worker_held.c) */
    trib_kept_round kept[TRIB_SUM_KEPT_ROUNDS_MAX];
    uint32_t missing_rank; /* last heard reason of waiting; TRIB_NO_MEMBER: none */
    int64_t since_ns;      /* in this stage */
    uint64_t *received;    /* one bit per chunk */
} trib_task;

static inline unsigned char *trib_view_chunk(const trib_view *view, uint32_t chunk)
{
    return view->data + (uint64_t)chunk * view->chunk_bytes;
}

static inline uint32_t trib_view_chunk_size(const trib_view *view, uint32_t chunk)
{
    const uint64_t left = view->bytes - (uint64_t)chunk * view->chunk_bytes;
    return left < view->chunk_bytes ? (uint32_t)left : view->chunk_bytes;
}

/* Neither given up nor over: of a round that has been prepared. */
static inline bool trib_task_is_open(const trib_task *task)
{
    return task->state <= TRIB_TASK_WAITING;
}

static inline void trib_task_hold(trib_task *task, trib_hold reason)
{
    trib_assert(task->state != TRIB_TASK_SETTLED);
    task->holds++;
    task->held[reason]++;
}

/* pipeline.c. A task that fails settles with its last hold. */
void trib_task_release(trib_core *core, trib_task *task, trib_hold reason);

#endif

/*
 * device_task.h - a partition of a tensor on a device: what it keeps beside its task.
 *
 * A device tensor is cut into slices, and each slice into one share for each local rank. The share is the partition that
 * travels: local rank j of every machine contributes to it, so a sum has one contributor for each machine. A local rank
 * whose share of the last slice is empty has a task all the same, because it takes part in the slice's collectives.
 *
 * The task's holds count what may still touch the caller's buffers or this memory: jobs that the device has, and an
 * announced collective, until it has been ordered or called off. A task settles when there are none. What is the operation's,
 * and no task's, is counted there (trib_op.cores_left), and later rounds wait for it.
 */
#ifndef TRIB_ENGINE_DEVICE_TASK_H
#define TRIB_ENGINE_DEVICE_TASK_H

#include "engine/device/device.h"
#include "engine/worker/op.h"

typedef struct trib_device_task trib_device_task;

struct trib_device_task {
    trib_task *task;
    trib_device_job reduce, to_host, to_device, gather;
    unsigned char *staging; /* host memory for the share */
    /* Where this round's bytes are pushed from, and where its sums land: staging, or the place on the device (GPUDirect). */
    const unsigned char *pushed;
    unsigned char *recv_buffer;
    /* The device's, of its all-reduce where no other machine is, and what that is for; source NULL: nothing. */
    void *kept;
    const void *kept_source;
    void *kept_target;
    trib_reduce kept_reduce;
    bool awaits_reduce;    /* its memory may be read when what the device has now is over */
    uint64_t slice_offset; /* in the tensor, bytes */
    uint32_t slice_bytes, slice;
    bool last_job; /* nothing follows what the device has now */

    /* in the copy queue of its core */
    trib_device_task *copy_next, *copy_previous;
    bool copy_waits;

    /* announced to the group, on core 0 */
    trib_post announce_post, order_post;
    trib_device_job *announced_job; /* reduce or gather */
    trib_status order_status;       /* TRIB_OK: ordered; else called off */
    trib_device_task *next, *previous;
};

/* What a device tensor keeps beside itself. */
typedef struct trib_device_tensor {
    trib_device_task *tasks; /* by slice */
    uint32_t slice_count;
    unsigned char *staging; /* of all tasks */
    uint64_t staging_bytes;
} trib_device_tensor;

typedef enum trib_device_input { TRIB_INPUT_AWAITED, TRIB_INPUT_READY, TRIB_INPUT_FAILED } trib_device_input;

/* What an operation on one keeps beside itself; made when the operation's memory is used for one the first time. */
typedef struct trib_device_op {
    trib_op *op;
    uint32_t root;            /* broadcast: the rank; TRIB_NO_MEMBER: it is a sum */
    bool steady;              /* what launching it takes may be kept (trib_device_job.keep) */
    bool was_asked, may_keep; /* ... as far as the device goes, if it was asked */
    trib_device_job wait;     /* until the input is there */
    uint64_t ahead_bytes;     /* of the input, that go to the host with that, whatever cores do meanwhile */
    atomic_int input;         /* trib_device_input */
    atomic_uint posts_left;   /* cores that are being told of the input and have not heard */
    trib_device_gate gate;
    atomic_uint gate_count;
    trib_post failed_post; /* to core 0: tells the group */
    atomic_bool notified;
    struct trib_device_op *next; /* failed, or issued: to be told when the leader can be reached */
    bool is_in_call;             /* the call counts in device_jobs until core 0 has heard of the operation */
    /* device_order.c */
    bool is_issued;        /* its collective was issued where it was handed in */
    trib_device_job whole; /* that: of the whole tensor */
    bool is_over;          /* core 0: it is back, or what went ahead */
    bool has_begun;        /* core 0: the group counts it; by the call, or by its end if that is here first */
    bool is_booked;        /* core 0: the leader counts its bytes */
    bool grace_extended;   /* core 0: grace was prolonged, as this process stood still */
    trib_timer grace;      /* core 0: for it to come back, when the operation has failed */
} trib_device_op;

static inline uint32_t trib_engine_local_size(const trib_engine *engine)
{
    return (uint32_t)engine->config.local_size;
}

/* Are there other machines? */
static inline bool trib_device_alone(const trib_engine *engine)
{
    return engine->config.local_size == engine->config.worker_count;
}

/* Is each operation issued where it is handed in? */
static inline bool trib_device_in_order(const trib_engine *engine)
{
    return engine->config.device_order == TRIB_DEVICE_ORDER_PROGRAM && trib_device_alone(engine);
}

static inline trib_core *trib_device_task_core(const trib_device_task *device)
{
    return device->task->op_core->core;
}

/* Gives a job to the device; the task holds on until it is back. done runs on the task's core. */
void trib_device_submit(trib_core *core, trib_device_task *device, trib_device_job *job,
                        void (*done)(trib_reactor *reactor, trib_post *post));
/* A collective is over: on the task's core. */
void trib_device_collective_done(trib_reactor *reactor, trib_post *post);
/* Which way the round's bytes go: whether the network's device reads them at `source`, and writes sums to `target`, by itself.
 * NULL: that way nothing goes. */
void trib_device_route(trib_core *core, trib_task *task, const unsigned char *source, unsigned char *target);
/* One hold is over: settles the task if it has failed, moves it on if this was the last one of its last stage. */
void trib_device_release(trib_core *core, trib_task *task);
/* A job is back: takes note of its failure and releases its hold. False: it failed, or the task had before. */
bool trib_device_job_back(trib_core *core, trib_device_task *device, const trib_device_job *job);

/* A job came back because all was stopped: if the job was lost, that is why the operation fails. */
void trib_device_fail_if_job_lost(trib_op *op, trib_status status);

/* ---- The queue for copies to the host, by priority and credit ---- */
/* Of all cores. Their copies follow each other on one stream, so what one core submits at once the others wait for; and each needs a
 * second one while it hears of the first. */
#define TRIB_COPY_CREDIT_BYTES (8u << 20)
#define TRIB_COPIES_LEAST 2u

void trib_copy_queue_add(trib_copy_queue *queue, trib_device_task *device);
void trib_copy_queue_remove(trib_copy_queue *queue, trib_device_task *device);

/* ---- An operation on a device tensor ---- */
/* Caller's thread, before the operation is taken: makes what it keeps beside itself. buffers: NULL, or with which the device is
 * asked whether what launching the operation takes may be kept. */
TRIB_CHECKED trib_status trib_device_op_prepare(trib_op *op, const trib_op_params *buffers, trib_error *error);
/* An operation that has been filled in as if for host memory: what it is on devices. */
void trib_device_op_fill(trib_op *op);
/* Caller's thread, with the engine's mutex held, in the order of rounds. `same`: it is like the sum before, in its buffers, or the
 * first of a tensor whose buffers stay. */
void trib_device_op_compare(trib_op *op, bool same);
/* Caller's thread, with the engine's mutex held where the engine has other machines, before its op_cores are posted: waits for the
 * stream's mark, if there is one. */
void trib_device_op_begin(trib_op *op, void *mark);
/* The same thread, if bytes go ahead, when its cores are being woken. */
void trib_device_op_go_ahead(trib_op *op);
/* Nothing of an earlier round that goes ahead, and may have been given up, is still on its way to where this one's bytes lie. */
static inline bool trib_device_may_begin(const trib_tensor *tensor, uint32_t round)
{
    const uint32_t ahead = atomic_load(&tensor->ahead_round);
    return ahead == 0 || round <= ahead;
}
/* Does COPYD2H find those bytes on the host? */
static inline bool trib_device_is_ahead(const trib_task *task)
{
    return task->offset + task->size <= task->op_core->op->device->ahead_bytes;
}
/* Where the tensor's bytes lie on this device in the end: the output, which a broadcast's root need not have. */
static inline unsigned char *trib_device_data(const trib_op *op)
{
    return op->output != NULL ? op->output : (unsigned char *)(uintptr_t)op->input;
}
/* What all local ranks call a collective of its slice. */
static inline uint64_t trib_device_label(const trib_op *op, uint32_t slice)
{
    return (uint64_t)op->tensor->id << 32 ^ (uint64_t)op->round << 16 ^ slice;
}
/* The core's share of the round may begin: its input is there, or never will be. The op_core's input_post. */
void trib_device_input_arrived(trib_reactor *reactor, trib_post *post);
/* It is complete: opens its gate, whatever became of it. */
void trib_device_op_end(trib_op *op);

/* ---- device_order.c: an operation that is issued where it is handed in ---- */
/* Caller's thread, before its op_cores are posted: its collective. Takes the mark over, which may be NULL. */
void trib_device_order_fill(trib_op *op, void *mark);
void trib_device_order_issue(trib_op *op, bool here); /* as trib_device_ops.issue */
/* May the calling thread make calls that another rank can hold up? */
bool trib_device_may_wait_here(const trib_engine *engine);
/* Any core: it has failed here; its collective goes on, and is waited for. */
void trib_device_order_failed(trib_op *op);

/* ---- A tensor ---- */
/* The size of a share: partition_bytes, or less, so that a small tensor too is summed by all of that many members, in
 * several pieces each. */
uint32_t trib_device_partition_bytes(uint64_t bytes, uint32_t partition_bytes, uint32_t chunk_bytes,
                                     uint32_t local_size, uint32_t machines, uint32_t summers);
/* Caller's thread, without the mutex: takes the host memory of a tensor that is large enough for registering it to hold up a core,
 * before it is declared; of others NULL. */
TRIB_CHECKED trib_status trib_device_tensor_ahead(trib_engine *engine, const char *name, uint64_t bytes,
                                                  trib_device_tensor **device_out, trib_error *error);
/* NULL is fine. */
void trib_device_tensor_drop(trib_engine *engine, trib_device_tensor *device);
/* Core 0: makes the tasks of this local rank. False: out of memory. */
bool trib_device_tensor_place(trib_tensor *tensor);
void trib_device_tensor_free(trib_tensor *tensor);

#endif

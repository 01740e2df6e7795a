/*
 * device_task.h - the state of a device tensor's partition beside its task.
 *
 * A staged tensor, of a group or with slices for each worker, has the tasks of a tensor in host memory, and each of
 * them passes through a piece of host memory. In a job that goes on without workers all tensors are staged. The rest is
 * about sharded tensors, whole ones of all workers.
 *
 * A sharded tensor is cut into slices, and each slice into one shard for each local rank. The shard is the partition
 * that travels: local rank j of every machine contributes to it, so a sum has one contributor per machine. A local rank
 * whose shard of the last slice is empty still has a task, because it takes part in the slice's collectives.
 *
 * The task's holds count uses of the caller's buffers and of this memory: jobs that the device has, and an announced
 * collective until it has been ordered or called off. A task settles when it has no holds. Uses by the operation, not
 * by a task, are counted in trib_op.cores_left, and later rounds wait for them.
 */
#ifndef TRIB_ENGINE_DEVICE_TASK_H
#define TRIB_ENGINE_DEVICE_TASK_H

#include "engine/base/limits.h"
#include "engine/device/device.h"
#include "engine/worker/device_hooks.h"

typedef struct trib_device_task trib_device_task;

struct trib_device_task {
    trib_task *task;
    trib_device_job reduce, to_host, to_device, gather;
    unsigned char *staging;        /* host memory for the partition */
    trib_device_encoding encoding; /* of the round's contribution, then of its sum, if the device has the codec */
    void *kept;                    /* the device's: the residual and the momentum; NULL: it has none yet */
    bool encodes_here;             /* processors have the residual: the device had no memory for it */
    unsigned char *wanted;         /* staged: the place of the round's result on the device; NULL: none */
    /* job after which the round's bytes are in place on the device; NULL: they are in place */
    const trib_device_job *ready;
    bool awaits_jobs;      /* the stage is done when the device has given back all jobs */
    uint64_t slice_offset; /* bytes; offset in the tensor */
    uint32_t slice_bytes, slice;

    /* The announcement to the group. announce_post runs on core 0, order_post on the task's core. */
    trib_post announce_post, order_post;
    trib_device_job *announced_job; /* reduce or gather */
    trib_status order_status;       /* TRIB_OK: ordered; any other: called off */
    trib_device_task *next, *previous;
};

/* The state of a device tensor beside its trib_tensor. */
typedef struct trib_device_tensor {
    trib_device_task *tasks; /* by slice, if the tensor is not staged */
    uint32_t task_count;
    uint32_t slice_count;   /* 0: the tensor is staged */
    unsigned char *staging; /* staging memory of all tasks */
    uint64_t staging_bytes;
} trib_device_tensor;

typedef enum trib_device_input { TRIB_INPUT_AWAITED, TRIB_INPUT_READY, TRIB_INPUT_FAILED } trib_device_input;

/* The state of an operation on a device tensor. It is made when the operation's slot first serves a device tensor. */
typedef struct trib_device_op {
    trib_op *op;
    uint32_t root;          /* root of a broadcast; TRIB_NO_MEMBER: the operation is a sum */
    trib_device_job wait;   /* waits for the input, or copies its first bytes, or keeps it */
    uint64_t ahead_bytes;   /* bytes of the input that the job copies to the host; 0: none */
    bool keeps;             /* the input is copied to the host before a core may read it */
    bool has_come;          /* core 0: the stream has come, and the copy waits for the beginning of the round */
    bool holds_round;       /* core 0: the round has begun, and is not over before the stream has come */
    atomic_int input;       /* a trib_device_input */
    atomic_uint posts_left; /* cores whose input_post has not run */
    trib_device_end end;
    trib_post failed_post; /* runs on core 0 */
    atomic_bool notified;
    struct trib_device_op *next; /* next in trib_local_group.unnotified */
    bool is_over;                /* core 0: the copy ahead is back */
    uint32_t grace_parts;        /* core 0: of the grace period that have passed */
    trib_timer grace;            /* core 0: bounds the copy ahead of a failed operation */
} trib_device_op;

static inline trib_core *trib_device_task_core(const trib_device_task *device)
{
    return device->task->op_core->core;
}

/* Submits a job with a hold until the device gives it back. `done` runs on the task's core. */
void trib_device_submit(trib_core *core, trib_device_task *device, trib_device_job *job,
                        void (*done)(trib_reactor *reactor, trib_post *post));
/* The post of a collective that the device has given back; runs on the task's core. */
void trib_device_collective_done(trib_reactor *reactor, trib_post *post);
/* Decides how the round's bytes travel in each wanted direction. The network device reads them at the task's source and
 * writes them to its destination, or they pass through staging, which becomes the destination then. Returns true if the
 * network device reads the source. */
bool trib_device_route(trib_core *core, trib_task *task, bool pushes, bool pulls);
/* True if the device encodes the round's contribution on its way to `staging`. Fills in device->encoding then, and
 * tells the task where its chunks will lie. */
bool trib_device_encode_there(const trib_core *core, trib_task *task);
/* The ENCODE job is back. */
void trib_device_note_encoded(trib_core *core, trib_task *task, const trib_device_job *job);
/* True if the device keeps the residual or the momentum of the tensor. */
bool trib_device_keeps(const trib_tensor *tensor);
/* DECOMPRESS: lets the device decode the round's sum on its way from `staging`, if it can. */
void trib_device_decode_there(const trib_core *core, trib_task *task);
/* The device had no memory for a codec (trib_device_job.was_full). Says so in the log, once. */
void trib_device_note_full(trib_core *core, const trib_task *task);
/* Drops the hold of a job that is back, and fails its operation if the job has failed. Returns false if the job or its
 * task has failed. */
bool trib_device_job_back(trib_core *core, trib_device_task *device, const trib_device_job *job);

/* Fails the operation with the reason for which the engine has ended, if the status is that of a stopped device. */
void trib_device_fail_if_job_lost(trib_op *op, trib_status status);

/* ---- An operation on a device tensor ---- */
/* Caller's thread, before the operation is filled in: makes its trib_device_op. */
TRIB_CHECKED trib_status trib_device_op_prepare(trib_op *op, trib_error *error);
/* Turns an operation that was filled in as for host memory into one on devices. */
void trib_device_op_fill(trib_op *op);
/* When it is known whether the tensor is sharded. */
void trib_device_op_fit(trib_op *op);
/* The core has begun the operation's round: keeps the input, if it has come, or lets the round wait for it. */
void trib_device_op_round_began(trib_core *core, trib_op *op);
/* The core gives the round up: it waits for no stream any more. */
void trib_device_op_given_up(trib_core *core, trib_op *op);
/* Caller's thread, with the engine's mutex held, before the nodes are posted: begins the wait for the stream's marker,
 * or prepares the copy ahead. A NULL marker means that the input is there. */
void trib_device_op_begin(trib_op *op, void *marker);
/* Submits the copy ahead. Call this after the cores have been posted to, if bytes go ahead. */
void trib_device_op_go_ahead(trib_op *op);

/* True if the task's bytes were copied ahead. */
static inline bool trib_device_is_ahead(const trib_task *task)
{
    return task->offset + task->size <= task->op_core->op->device->ahead_bytes;
}
/* Returns the device memory that gets the result: the output, or the input of a broadcast's root that gives no
 * output. */
static inline unsigned char *trib_device_data(const trib_op *op)
{
    return op->output != NULL ? op->output : (unsigned char *)(uintptr_t)op->input;
}
/* Returns the label of a slice's collective, which is the same on all local ranks. */
static inline uint64_t trib_device_label(const trib_op *op, uint32_t slice)
{
    return (uint64_t)op->tensor->id << 32 ^ (uint64_t)op->round << 16 ^ slice;
}
/* Any core: an operation with a copy ahead has failed here. The operation is complete when that copy is over. */
void trib_device_ahead_failed(trib_op *op);

/* ---- A tensor: see device_hooks.h ---- */
/* Caller's thread, without the mutex: takes a tensor's host memory before its declaration. Otherwise registering the
 * memory of a large tensor would hold up a core. *device_out is NULL for a smaller tensor. */
TRIB_CHECKED trib_status trib_device_tensor_ahead(trib_engine *engine, const char *name, uint64_t bytes,
                                                  trib_device_tensor **device_out, trib_error *error);
/* Frees the state; `device` may be NULL. */
void trib_device_tensor_drop(trib_engine *engine, trib_device_tensor *device);
/* Core 0: makes the tasks of this local rank. Returns false if there is no memory. */
bool trib_device_tensor_place(trib_tensor *tensor);
/* Core 0: gives the tasks of a staged tensor their host memory. Returns false if there is none. */
bool trib_device_tensor_stage(trib_tensor *tensor);
void trib_device_tensor_free(trib_tensor *tensor);

#endif

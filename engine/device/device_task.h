/*
 * device_task.h - the state of a device tensor's partition beside its task.
 *
 * A device tensor is cut into slices, and each slice into one share per local rank. The share is the partition that
 * travels: local rank j of every machine contributes to it, so a sum has one contributor per machine. A local rank
 * whose share of the last slice is empty has a task all the same, because it takes part in the slice's collectives.
 *
 * The task's holds count uses of the caller's buffers and of this memory: jobs that the device has, and an announced
 * collective until it has been ordered or called off. A task settles when it has no holds. Uses by the operation, not
 * by a task, are counted in trib_op.cores_left, and later rounds wait for them.
 */
#ifndef TRIB_ENGINE_DEVICE_TASK_H
#define TRIB_ENGINE_DEVICE_TASK_H

#include "engine/device/device.h"
#include "engine/worker/device_hooks.h"

typedef struct trib_device_task trib_device_task;

struct trib_device_task {
    trib_task *task;
    trib_device_job reduce, to_host, to_device, gather;
    unsigned char *staging; /* host memory for the share */
    /* Source of this round's pushes and target of its sums: staging, or memory on the device (GPUDirect). */
    const unsigned char *pushed;
    unsigned char *recv_buffer;
    bool awaits_reduce;    /* GPUDirect: COPYD2H ends when the jobs of the device are over */
    uint64_t slice_offset; /* in the tensor, bytes */
    uint32_t slice_bytes, slice;
    bool last_job; /* no job follows those that the device has */

    /* In the copy queue of its core. */
    trib_device_task *copy_next, *copy_previous;
    bool copy_waits;

    /* Announced to the group; core 0. */
    trib_post announce_post, order_post;
    trib_device_job *announced_job; /* reduce or gather */
    trib_status order_status;       /* TRIB_OK: ordered; else called off */
    trib_device_task *next, *previous;
};

/* The state of a device tensor beside trib_tensor. */
typedef struct trib_device_tensor {
    trib_device_task *tasks; /* by slice */
    uint32_t slice_count;
    unsigned char *staging; /* of all tasks */
    uint64_t staging_bytes;
} trib_device_tensor;

typedef enum trib_device_input { TRIB_INPUT_AWAITED, TRIB_INPUT_READY, TRIB_INPUT_FAILED } trib_device_input;

/* The state of an operation on a device tensor; made when the operation's slot is first used for one. */
typedef struct trib_device_op {
    trib_op *op;
    uint32_t root;          /* of a broadcast; TRIB_NO_MEMBER: the operation is a sum */
    trib_device_job wait;   /* waits for the input, or copies its first bytes */
    uint64_t ahead_bytes;   /* of the input, which that job copies to the host; 0: none */
    atomic_int input;       /* trib_device_input */
    atomic_uint posts_left; /* cores whose input_post has not run */
    trib_device_semaphore semaphore;
    atomic_uint semaphore_count;
    trib_post failed_post; /* to core 0 */
    atomic_bool notified;
    struct trib_device_op *next; /* in trib_group.untold */
    bool is_over;                /* core 0: the copy ahead is back */
    bool grace_extended;         /* core 0: grace was extended once, as this process had been stopped */
    trib_timer grace;            /* core 0: for the copy ahead of a failed operation */
} trib_device_op;

static inline trib_core *trib_device_task_core(const trib_device_task *device)
{
    return device->task->op_core->core;
}

/* Submits a job, with a hold until it is back. done runs on the task's core. */
void trib_device_submit(trib_core *core, trib_device_task *device, trib_device_job *job,
                        void (*done)(trib_reactor *reactor, trib_post *post));
/* The post of a collective that is over; runs on the task's core. */
void trib_device_collective_done(trib_reactor *reactor, trib_post *post);
/* Decides how the round's bytes travel: by way of staging, or read at `source` and written to `target` by the network
 * device. NULL: no bytes travel in that direction. */
void trib_device_route(trib_core *core, trib_task *task, const unsigned char *source, unsigned char *target);
/* Drops a hold. Settles the task if it has failed; resumes it if it waits for its last hold. */
void trib_device_release(trib_core *core, trib_task *task);
/* A job is back: fails its operation if it has failed, and drops its hold. False: the job or its task has failed. */
bool trib_device_job_back(trib_core *core, trib_device_task *device, const trib_device_job *job);

/* The status is of a device that was stopped: fails the operation with the reason for which the engine has ended. */
void trib_device_fail_if_job_lost(trib_op *op, trib_status status);

/* ---- The queue for copies to the host, by priority and credit ---- */
/* Credit of all cores. Their copies share a stream, so each core waits for what the others have submitted. Each core
 * has two copies at least, so that one runs while the end of the other is reported. */
#define TRIB_COPY_CREDIT_BYTES (8u << 20)
#define TRIB_COPIES_LEAST 2u

void trib_copy_queue_add(trib_copy_queue *queue, trib_device_task *device);
void trib_copy_queue_remove(trib_copy_queue *queue, trib_device_task *device);

/* ---- An operation on a device tensor ---- */
/* Caller's thread, before the operation is filled in: makes its trib_device_op. */
TRIB_CHECKED trib_status trib_device_op_prepare(trib_op *op, trib_error *error);
/* Turns an operation that was filled in as for host memory into one on devices. */
void trib_device_op_fill(trib_op *op);
/* Caller's thread, with the engine's mutex held, before the nodes are posted: waits for the stream's marker, or
 * copies bytes ahead. NULL: the input is there. */
void trib_device_op_begin(trib_op *op, void *marker);
/* After the cores have been posted to, if bytes go ahead. */
void trib_device_op_go_ahead(trib_op *op);

/* True: the task's bytes were copied ahead. */
static inline bool trib_device_is_ahead(const trib_task *task)
{
    return task->offset + task->size <= task->op_core->op->device->ahead_bytes;
}
/* The device memory that has the result: the output, or the input of a broadcast's root that gives no output. */
static inline unsigned char *trib_device_data(const trib_op *op)
{
    return op->output != NULL ? op->output : (unsigned char *)(uintptr_t)op->input;
}
/* The label of a slice's collective, the same on all local ranks. */
static inline uint64_t trib_device_label(const trib_op *op, uint32_t slice)
{
    return (uint64_t)op->tensor->id << 32 ^ (uint64_t)op->round << 16 ^ slice;
}
/* The post of a node whose input is there, or has failed. */
void trib_device_input_arrived(trib_reactor *reactor, trib_post *post);
/* Any core: an operation with a copy ahead has failed here. The operation is complete when that copy is over. */
void trib_device_ahead_failed(trib_op *op);
/* The operation is complete: signals its semaphore, also after a failure. */
void trib_device_op_end(trib_op *op);

/* ---- A tensor: see device_hooks.h ---- */
/* Caller's thread, without the mutex, before a tensor is declared: takes its host memory if the tensor is so large that
 * registering the memory would hold up a core. Else *device_out is NULL. */
TRIB_CHECKED trib_status trib_device_tensor_ahead(trib_engine *engine, const char *name, uint64_t bytes,
                                                  trib_device_tensor **device_out, trib_error *error);
/* `device` may be NULL. */
void trib_device_tensor_drop(trib_engine *engine, trib_device_tensor *device);
/* Core 0: makes the tasks of this local rank. False: out of memory. */
bool trib_device_tensor_place(trib_tensor *tensor);
void trib_device_tensor_free(trib_tensor *tensor);

#endif

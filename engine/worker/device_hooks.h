/*
 * device_hooks.h - the functions that operations and tensors call in the device layer. An engine without a device
 * has no hooks and no device tensors.
 */
#ifndef TRIB_ENGINE_WORKER_DEVICE_HOOKS_H
#define TRIB_ENGINE_WORKER_DEVICE_HOOKS_H

#include "engine/worker/op.h"

typedef struct trib_device_hooks {
    /* ---- Operations. On the caller's thread, in this order; `begin` and `wake` run with the engine's mutex held.
     * ---- */
    /* Records the current position of the stream. *marker_out is NULL if the stream's work is already complete. */
    trib_status (*marker_record)(trib_engine *engine, void *stream, void **marker_out, trib_error *error);
    void (*marker_drop)(trib_engine *engine, void *marker);
    /* Makes the operation's trib_device_op. Called before the operation is filled in. */
    trib_status (*prepare)(trib_op *op, trib_error *error);
    /* Turns an operation filled in for host memory into a device operation. */
    void (*fill)(trib_op *op);
    /* As trib_op_fit, when it is known whether the tensor is sharded. */
    void (*fit)(trib_op *op);
    /* Waits for the marker, or copies bytes ahead. Called before the posts to the cores. Takes ownership of the
     * marker. */
    void (*begin)(trib_op *op, void *marker);
    /* Wakes the reactors whose bits are set (bit i: index i) and starts a copy ahead. Called after the posts. */
    void (*wake)(trib_op *op, uint32_t reactors);
    /* Any core: the operation's round has begun there. */
    void (*round_began)(trib_core *core, trib_op *op);
    /* Any core: the operation's round is given up there. */
    void (*given_up)(trib_core *core, trib_op *op);
    /* Any core: the operation has failed on that core. */
    void (*failed)(trib_op *op);
    /* The core: returns a noun phrase for what an operation in its input stage waits for. */
    const char *(*awaited)(const trib_op *op);

    /* ---- Tensors ---- */
    /* Caller's thread, without the mutex, before the tensor is declared: allocates host memory whose registration
     * would delay a core. Else *device_out is NULL. */
    trib_status (*take_ahead)(trib_engine *engine, const char *name, uint64_t bytes,
                              struct trib_device_tensor **device_out, trib_error *error);
    /* `device` may be NULL. */
    void (*drop)(trib_engine *engine, struct trib_device_tensor *device);
    /* Core 0: makes the tasks of this local rank for a sharded tensor. Returns false if memory runs out. */
    bool (*place)(trib_tensor *tensor);
    /* Core 0: gives the tasks of a staged tensor the host memory that they pass through. Returns false if memory runs
     * out. */
    bool (*stage)(trib_tensor *tensor);
    void (*free)(trib_tensor *tensor);
} trib_device_hooks;

#endif

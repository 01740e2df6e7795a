/*
 * device_hooks.h - what operations and tensors ask of the layer that knows devices. An engine without a device has none, and no
 * tensor of its lies on one.
 */
#ifndef TRIB_ENGINE_WORKER_DEVICE_HOOKS_H
#define TRIB_ENGINE_WORKER_DEVICE_HOOKS_H

#include "engine/worker/op.h"

typedef struct trib_device_hooks {
    /* ---- Operations. The caller's thread, in this order; `begin` and `wake` with the engine's mutex held. ---- */
    /* Remembers where the stream is now; NULL in *marker_out: the stream is there already. */
    trib_status (*marker_record)(trib_engine *engine, void *stream, void **marker_out, trib_error *error);
    void (*marker_drop)(trib_engine *engine, void *marker);
    /* Makes the operation's trib_device_op, before it is filled in. */
    trib_status (*prepare)(trib_op *op, trib_error *error);
    /* Turns an operation that was filled in as for host memory into one on devices. */
    void (*fill)(trib_op *op);
    /* Before the cores are posted to: waits for the marker, or copies bytes ahead. Takes the marker over. */
    void (*begin)(trib_op *op, void *marker);
    /* After the posts: wakes those reactors, bit i for that with index i, and starts a copy ahead. */
    void (*wake)(trib_op *op, uint32_t reactors);
    /* Any core: the operation has failed here. */
    void (*failed)(trib_op *op);
    /* The last core: the operation is complete; what waits for it on a stream goes on. */
    void (*end)(trib_op *op);
    /* The core: what an operation whose input stage has not ended waits for, as a noun for a text. */
    const char *(*awaited)(const trib_op *op);
    bool (*awaits_input)(const trib_op *op);
    /* The core: where the task's bytes are pushed from, and where their sums go. */
    const unsigned char *(*source)(const trib_task *task);
    unsigned char *(*target)(const trib_task *task);

    /* ---- Tensors ---- */
    /* Caller's thread, without the mutex, before the tensor is declared: takes its host memory if registering that would hold
     * up a core; else *device_out is NULL. */
    trib_status (*take_ahead)(trib_engine *engine, const char *name, uint64_t bytes,
                              struct trib_device_tensor **device_out, trib_error *error);
    /* `device` may be NULL. */
    void (*drop)(trib_engine *engine, struct trib_device_tensor *device);
    /* Core 0: makes the tasks of this local rank. False: out of memory. */
    bool (*place)(trib_tensor *tensor);
    void (*free)(trib_tensor *tensor);
} trib_device_hooks;

#endif

/* op_submit.h - requests: operations to be submitted, checked by the API, and operations that may be started again. */
#ifndef TRIB_ENGINE_OP_SUBMIT_H
#define TRIB_ENGINE_OP_SUBMIT_H

#include "engine/worker/op.h"

/* An operation that the caller may start again and again. */
typedef struct trib_prepared {
    trib_engine *engine;
    trib_tensor *tensor;
    uintptr_t tensor_handle;
    trib_collective collective;
    trib_op_params params; /* checked */
    uint32_t place;
    _Atomic uintptr_t current; /* handle of the operation that was started last; 0: none yet */
    bool is_claimed;           /* guarded by the engine's mutex: it is being started */
    struct trib_prepared *next, *made_next;
} trib_prepared;

/* An operation to be submitted. The fields of the second half are for op_submit.c. */
typedef struct trib_request {
    const trib_op_params *params; /* checked */
    trib_collective collective;
    uint32_t step;
    trib_tensor *tensor;     /* tensor of the operation; NULL: the engine makes one for this operation (TRIB_OP_ONCE) */
    uintptr_t tensor_handle; /* handle that the caller gave; 0: the tensor is the engine's own */
    trib_prepared *prepared; /* NULL: this is no start of a prepared operation */
    uintptr_t prepared_handle;
    trib_op **handle_out; /* gets a handle; NULL: the caller wants none */

    bool names_root;  /* the root's rank in `params` gives the bytes */
    bool is_boundary; /* the all-reduce of a checkpoint (boundary.h) */
    bool is_once;
    trib_op *op;
    bool spread;     /* as in the operation before it is posted */
    trib_op *before; /* the last operation that was started, whose handle the prepared operation gives back */
    void *marker;
} trib_request;

/* Takes all of the operations, in this order, or none. The cores get many at a time, at the cost of one post. */
TRIB_CHECKED trib_status trib_ops_submit(trib_engine *engine, trib_request *requests, size_t count, trib_error *error);
/* Takes the slots of requests before their tensors are declared, so that want of slots leaves no declaration behind.
 * trib_ops_submit uses them, or gives them back; else trib_ops_put_back does. */
TRIB_CHECKED trib_status trib_ops_reserve(trib_engine *engine, trib_request *requests, size_t count, trib_error *error);
void trib_ops_put_back(trib_engine *engine, trib_request *requests, size_t count);
/* The caller holds the mutex: begins an operation that has a slot, takes no round, and completes on core 0 alone. It
 * cannot be cancelled. */
void trib_op_begin_alone(trib_request *request);
/* The caller holds the mutex: the tensor of a request may still be used. */
TRIB_CHECKED trib_status trib_op_check_tensor(const trib_request *request, trib_error *error);

/* ---- op_prepared.c ---- */
TRIB_CHECKED trib_status trib_op_prepare_request(trib_engine *engine, const trib_request *request, trib_op **handle_out,
                                                 trib_error *error);
/* The caller holds the mutex: the request that starts a prepared operation. */
trib_request trib_prepared_request(trib_prepared *prepared, uintptr_t handle, uint32_t step);
/* The operation that was started last, or NULL. */
trib_op *trib_prepared_current(const trib_prepared *prepared);
/* The caller gives back the handle of a prepared operation. */
void trib_prepared_give_back(trib_prepared *prepared);
void trib_prepared_free_all(trib_engine *engine);

#endif

/* check.h - the first check of every call: the handle belongs to a live object that was made in this process. */
#ifndef TRIB_API_CHECK_H
#define TRIB_API_CHECK_H

#include "engine/worker/op_submit.h"

/* Checks a handle of an engine. TRIB_INVALID: it is NULL, was destroyed as far as its memory still tells, or is
 * something else; TRIB_STATE: it is the copy that a fork made (engine/base/fork.h). Nothing else of the engine may be
 * read before this check. *error says nothing after TRIB_OK. */
TRIB_CHECKED trib_status trib_api_check_engine(const trib_engine *engine, trib_error *error);
/* Finds the operation that a handle stands for. The operation's memory stays until its engine is freed, so it may be
 * read if another thread gives the handle back meanwhile. TRIB_INVALID: it is no handle, or was given back. *op_out is
 * NULL for a prepared operation that has never been started; prepared_out may be NULL. */
TRIB_CHECKED trib_status trib_api_find_op(const trib_op *handle, trib_op **op_out, trib_prepared **prepared_out,
                                          trib_error *error);
/* As trib_api_find_op, and takes a reference, which trib_op_unref gives back: until then the slot stays the
 * operation's. TRIB_STATE: it is prepared and was never started, or is just being started or given back. */
TRIB_CHECKED trib_status trib_api_hold_op(const trib_op *handle, trib_op **op_out, trib_error *error);
/* Finds the tensor that a handle stands for; otherwise as trib_api_find_op. */
TRIB_CHECKED trib_status trib_api_find_tensor(const trib_tensor *handle, trib_tensor **tensor_out, trib_error *error);

/* Handles as the caller sees them. */
static inline trib_tensor *trib_api_tensor_handle(uintptr_t handle)
{
    return (trib_tensor *)handle; /* NOLINT(performance-no-int-to-ptr): it is never followed */
}

/* group_api.c: checks a name that a caller gives: 1 to TRIB_TENSOR_NAME_MAX bytes without control bytes, not beginning
 * with "__". `what` says in the error which kind of object the name is for. */
TRIB_CHECKED trib_status trib_api_check_name(const char *what, const char *name, trib_error *error);
/* group_api.c: checks the lengths of the slices that this worker declares. */
TRIB_CHECKED trib_status trib_api_check_lengths(const trib_engine *engine, const trib_tensor_desc *desc,
                                                trib_error *error);
/* operation_api.c: checks and submits one operation. */
TRIB_CHECKED trib_status trib_api_submit(trib_engine *engine, const trib_op_params *params, trib_op_kind kind,
                                         trib_op **op_out, trib_error *error);
/* op_params.c: the first check of every operation: the engine is a worker, and open. */
TRIB_CHECKED trib_status trib_api_check_worker(trib_engine *engine, trib_error *error);
/* op_params.c: the checks of an operation without a tensor of the caller's, which has neither flags nor factors. `name`
 * is the operation's, for texts. */
TRIB_CHECKED trib_status trib_api_check_plain(trib_engine *engine, const trib_op_params *params, const char *name,
                                              trib_error *error);
/* op_params.c: makes a request of parameters; the engine has been checked. */
TRIB_CHECKED trib_status trib_api_read_params(const trib_engine *engine, const trib_op_params *params,
                                              trib_op_kind kind, trib_request *request, trib_error *error);
/* group_api.c: writes the lengths of the slices of a placed tensor, as trib_tensor_counts does. */
TRIB_CHECKED trib_status trib_api_write_counts(const trib_tensor *tensor, const trib_partitioning *cut,
                                               uint64_t *counts, size_t capacity, size_t *count_out, trib_error *error);

/* As trib_api_check_engine, for calls that return no status. */
bool trib_api_is_usable(const trib_engine *engine);

#endif

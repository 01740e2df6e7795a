/* check.h - the first check of every call: the handle belongs to a live object that was made in this process. */
#ifndef TRIB_API_CHECK_H
#define TRIB_API_CHECK_H

#include "engine/worker/op.h"

/* TRIB_OK; TRIB_INVALID: it is NULL, was destroyed as far as its memory still tells, or is something else; TRIB_STATE:
 * it is the copy that a fork made (engine/base/fork.h). Nothing else of the engine may be read before. *error says
 * nothing after TRIB_OK. */
TRIB_CHECKED trib_status trib_api_check_engine(const trib_engine *engine, trib_error *error);
/* Finds the operation that a handle stands for. The operation's memory stays until its engine is freed, so it may be
 * read if another thread gives the handle back meanwhile. TRIB_INVALID: it is no handle, or was given back. *op_out is
 * NULL for a prepared operation that has never been started; prepared_out may be NULL. */
TRIB_CHECKED trib_status trib_api_find_op(const trib_op *handle, trib_op **op_out, trib_prepared **prepared_out,
                                          trib_error *error);
/* The same for a tensor. */
TRIB_CHECKED trib_status trib_api_find_tensor(const trib_tensor *handle, trib_tensor **tensor_out, trib_error *error);

/* Handles as the caller sees them. */
static inline trib_op *trib_api_op_handle(uintptr_t handle)
{
    return (trib_op *)handle; /* NOLINT(performance-no-int-to-ptr): it is never followed */
}

static inline trib_tensor *trib_api_tensor_handle(uintptr_t handle)
{
    return (trib_tensor *)handle; /* NOLINT(performance-no-int-to-ptr): it is never followed */
}

/* group_api.c: a name of a `what` that a caller may give: 1 to TRIB_TENSOR_NAME_MAX bytes without control bytes, not
 * beginning with "__". */
TRIB_CHECKED trib_status trib_api_check_name(const char *what, const char *name, trib_error *error);
/* group_api.c: the lengths of the slices that this worker has. */
TRIB_CHECKED trib_status trib_api_check_lengths(const trib_engine *engine, const trib_tensor_desc *desc,
                                                trib_error *error);
/* operation_api.c: checks and submits one operation. */
TRIB_CHECKED trib_status trib_api_submit(trib_engine *engine, const trib_op_params *params, trib_op_kind kind,
                                         trib_op **op_out, trib_error *error);
/* operation_api.c: the first checks of every operation. */
TRIB_CHECKED trib_status trib_api_check_worker(trib_engine *engine, const trib_op_params *params, trib_error *error);
/* TRIB_INVALID: the group, unless it is NULL, belongs to another engine. */
/* group_api.c: writes the lengths of the slices of a placed tensor, as trib_tensor_counts does. */
TRIB_CHECKED trib_status trib_api_write_counts(const trib_tensor *tensor, const trib_partitioning *cut,
                                               uint64_t *counts, size_t capacity, size_t *count_out, trib_error *error);

/* For calls that return no status. */
bool trib_api_is_usable(const trib_engine *engine);

#endif

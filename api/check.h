/* check.h - the first check of every call: the handle is an engine's that lives, and was made in this process. */
#ifndef TRIB_API_CHECK_H
#define TRIB_API_CHECK_H

#include "engine/worker/op.h"

/* TRIB_OK; TRIB_INVALID: it is NULL, was destroyed as far as its memory still tells, or is something else; TRIB_STATE:
 * it is the copy that a fork made (engine/base/fork.h). Nothing else of the engine may be read before. *error says
 * nothing after TRIB_OK. */
TRIB_CHECKED trib_status trib_api_check_engine(const trib_engine *engine, trib_error *error);
TRIB_CHECKED trib_status trib_api_check_op(const trib_op *op, trib_error *error);

/* TRIB_INVALID: the group, unless it is NULL, belongs to another engine. */
TRIB_CHECKED trib_status trib_api_check_group(const trib_engine *engine, const trib_group *group, trib_error *error);
/* declare_api.c: writes the lengths of the slices of a placed tensor, as trib_tensor_counts does. */
TRIB_CHECKED trib_status trib_api_write_counts(const trib_tensor *tensor, uint64_t *counts, size_t capacity,
                                               size_t *count_out, trib_error *error);

/* For calls that return no status. */
bool trib_api_is_usable(const trib_engine *engine);

#endif

/* check.h - the first check of every call: the handle is an engine's that lives, and was made in this process. */
#ifndef TRIB_API_CHECK_H
#define TRIB_API_CHECK_H

#include "engine/worker/op.h"

/* TRIB_OK; TRIB_INVALID: it is NULL, was destroyed as far as its memory still tells, or is something else; TRIB_STATE:
 * it is the copy that a fork made (engine/base/fork.h). Nothing else of the engine may be read before. *error says
 * nothing after TRIB_OK. */
TRIB_CHECKED trib_status trib_api_check_engine(const trib_engine *engine, trib_error *error);
TRIB_CHECKED trib_status trib_api_check_op(const trib_op *op, trib_error *error);

/* For calls that return no status. */
bool trib_api_is_usable(const trib_engine *engine);

#endif

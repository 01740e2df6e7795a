/* blocking.h - deadlines, and the check whether a thread may wait, for the blocking calls of the API. */
#ifndef TRIB_API_BLOCKING_H
#define TRIB_API_BLOCKING_H

#include <time.h>

#include "engine/job/job.h"

/* The time that is timeout_ns from now, on the clock of engine->changed. */
struct timespec trib_api_deadline_in(int64_t timeout_ns);
/* Time until the deadline; below 0: it has passed. */
int64_t trib_api_left_ns(const struct timespec *deadline);
/* TRIB_OK, or the reason why the engine (check.h) or the calling thread must not wait. */
TRIB_CHECKED trib_status trib_api_check_may_block(const trib_engine *engine, trib_error *error);

#endif

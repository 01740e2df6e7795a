/* blocking.h - what calls that wait have in common. */
#ifndef TRIB_API_BLOCKING_H
#define TRIB_API_BLOCKING_H

#include <time.h>

#include "engine/job/job.h"

/* On the clock of engine->changed. */
struct timespec trib_api_deadline_in(int64_t timeout_ns);
/* Until then; below 0: since then. */
int64_t trib_api_left_ns(const struct timespec *deadline);
/* TRIB_OK, or why the engine (check.h) or the calling thread must not wait. */
TRIB_CHECKED trib_status trib_api_check_may_block(const trib_engine *engine, trib_error *error);

#endif

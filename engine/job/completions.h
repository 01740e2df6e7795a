/*
 * completions.h - the queue that trib_engine_dispatch empties in TRIB_MODE_QUEUE: completed operations and the
 * engine's own callbacks.
 *
 * An entry is a post whose run function makes the callback. In the other modes the same posts run on a reactor. The
 * queue owns an entry until its run function begins.
 */
#ifndef TRIB_ENGINE_COMPLETIONS_H
#define TRIB_ENGINE_COMPLETIONS_H

#include "engine/job/job.h"

/* The caller holds the mutex. Threads that wait on `changed` are not woken. */
void trib_completions_add(trib_engine *engine, trib_post *post);
/* Makes the queue's descriptor readable. Called after trib_completions_add. */
void trib_completions_signal(trib_engine *engine);
/* Runs at most max entries, or all present if max is 0, and returns how many it ran. */
size_t trib_completions_run(trib_engine *engine, size_t max);
/* Returns true if the queue has an entry. */
bool trib_completions_any(trib_engine *engine);

#endif

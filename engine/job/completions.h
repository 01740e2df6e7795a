/*
 * completions.h - what waits for trib_engine_dispatch in TRIB_MODE_QUEUE: completed operations, and the engine's own callbacks.
 *
 * An entry is a post whose run function calls back. In the other modes the same posts run on a reactor. It belongs to the
 * queue from when it is added until its run function begins.
 */
#ifndef TRIB_ENGINE_COMPLETIONS_H
#define TRIB_ENGINE_COMPLETIONS_H

#include "engine/job/job.h"

/* Called with the mutex held. Who waits on `changed` is not woken. */
void trib_completions_add(trib_engine *engine, trib_post *post);
/* After adding: the descriptor is readable from now on. */
void trib_completions_signal(trib_engine *engine);
/* Runs at most max entries, 0: all that are there; answers how many. */
size_t trib_completions_run(trib_engine *engine, size_t max);
/* True if a completion waits. */
bool trib_completions_any(trib_engine *engine);

#endif

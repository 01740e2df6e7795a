/*
 * callback_watch.h - notices a callback that holds a reactor up, on a thread of its own: all reactors of an engine may
 * be in callbacks at once, or there is only one.
 */
#ifndef TRIB_API_CALLBACK_WATCH_H
#define TRIB_API_CALLBACK_WATCH_H

#include "engine/job/job.h"

/* Starts engine->callback_watcher, where callbacks run on reactors' own threads. Without the thread such a callback is
 * named when it has returned, so a failure is only logged. */
void trib_callback_watch_start(trib_engine *engine);

#endif

/*
 * trace_flush.h - writes an engine's trace every few seconds, on a thread of its own.
 *
 * A program that a signal ends, or that hangs and is killed, leaves the trace as it was a moment before: it installs no
 * handler for that, and neither does the engine. The thread exists only while trib_config.trace names a file.
 */
#ifndef TRIB_API_TRACE_FLUSH_H
#define TRIB_API_TRACE_FLUSH_H

#include "engine/job/job.h"

/* Starts engine->trace_flusher. Without the thread the trace is still written at the end, so a failure is only
 * logged. */
void trib_trace_flush_start(trib_engine *engine);

#endif

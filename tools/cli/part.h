/* part.h - functions that are common to the subcommands that take part in a job. */
#ifndef TRIB_TOOLS_CLI_PART_H
#define TRIB_TOOLS_CLI_PART_H

#include "api/tributary.h"

/* The monotonic clock, in nanoseconds. */
int64_t part_now_ns(void);
/* Does nothing if status is TRIB_OK. Otherwise prints the error and the subcommand, destroys the engine (may be
 * NULL), so that peers learn of it and the trace is written, and ends the process with status 1. Must not be
 * called from a callback. */
void part_check(const char *tool, trib_engine *engine, trib_status status, const trib_error *error, const char *what);
/* Allocate memory from the engine's arena, and zeroed memory from the process's heap. Without memory they end the
 * process like part_check. */
void *part_alloc(const char *tool, trib_engine *engine, size_t bytes);
void *part_zalloc(const char *tool, trib_engine *engine, size_t count, size_t size);
/* A tensor of all workers with that many elements. */
trib_tensor *part_declare(const char *tool, trib_engine *engine, const char *name, trib_dtype dtype, uint64_t count);
/* Waits until all workers have called it. */
void part_barrier(const char *tool, trib_engine *engine);
/* Creates the engine of this process from the settings in its environment, and waits until its job has come
 * together. A failure ends the process with status 1. */
trib_engine *part_join(const char *tool, trib_engine_info *info_out);

#endif

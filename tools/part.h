/* part.h - what the subcommands that take part in a job have in common. */
#ifndef TRIB_TOOLS_PART_H
#define TRIB_TOOLS_PART_H

#include "api/tributary.h"

/* Monotonic, nanoseconds. */
int64_t part_now_ns(void);
/* Unless status is TRIB_OK: says what went wrong in which subcommand, closes the engine (NULL: there is none), so that
 * peers are told and its trace is written, and ends the process with status 1. Not from a callback. */
void part_check(const char *tool, trib_engine *engine, trib_status status, const trib_error *error, const char *what);
/* Memory from the engine's arena, and zeroed memory of the process's own; they end the process as above if there is
 * none. */
void *part_alloc(const char *tool, trib_engine *engine, size_t bytes);
void *part_zalloc(const char *tool, trib_engine *engine, size_t count, size_t size);
/* The engine of this process, by the settings in its environment, when its job has come together. Ends the process with
 * status 1 if that fails. */
trib_engine *part_join(const char *tool, trib_engine_info *info_out);

#endif

/* trace_out.h - what `tributary trace` makes of a job's traces: text, JSON, a file for Perfetto, a picture. */
#ifndef TRIB_TOOLS_TRACE_OUT_H
#define TRIB_TOOLS_TRACE_OUT_H

#include <stdio.h>

#include <jansson.h>

#include "tools/study/trace_stats.h"

void trace_print_text(const trace_run *run, const trace_stats *stats, FILE *out);
/* A new reference; NULL: out of memory. */
json_t *trace_make_json(const trace_run *run, const trace_stats *stats);
/* Chrome's Trace Event format, which Perfetto opens too. False: out of memory; whether it could be written is
 * ferror's. */
bool trace_write_chrome(const trace_run *run, FILE *out);
bool trace_write_svg(const trace_run *run, const trace_stats *stats, FILE *out);

#endif

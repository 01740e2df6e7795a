/* trace_out.h - the outputs of `tributary trace`: text, JSON, and a file for Perfetto. */
#ifndef TRIB_TOOLS_TRACE_TRACE_OUT_H
#define TRIB_TOOLS_TRACE_TRACE_OUT_H

#include <stdio.h>

#include <jansson.h>

#include "tools/trace/trace_stats.h"

void trace_print_text(const trace_run *run, const trace_stats *stats, FILE *out);
/* A new reference; NULL: out of memory. */
json_t *trace_make_json(const trace_run *run, const trace_stats *stats);
/* Writes Chrome's Trace Event format, which Perfetto opens too. Returns false when out of memory; write errors are
 * left in ferror. */
bool trace_write_chrome(const trace_run *run, FILE *out);

#endif

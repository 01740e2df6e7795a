/*
 * trace_chunks.h - the events of the servers and relays, grouped by chunk and ordered by time: contributions, the
 * complete sum, and the sending of it. A relay's sum for its machine and its sum for all machines are two chunks.
 */
#ifndef TRIB_TOOLS_TRACE_TRACE_CHUNKS_H
#define TRIB_TOOLS_TRACE_TRACE_CHUNKS_H

#include "tools/trace/trace_run.h"

typedef struct trace_chunks {
    const trace_event **events; /* by (process, tensor, partition, round, chunk, whether for its machine, time) */
    uint64_t count;
} trace_chunks;

/* False: out of memory. */
bool trace_chunks_make(const trace_run *run, trace_chunks *chunks);
void trace_chunks_free(trace_chunks *chunks);
/* Tells whether a relay recorded the event about its machine's partial sum. */
bool trace_chunk_is_near(const trace_event *event);
bool trace_chunk_is_same(const trace_event *a, const trace_event *b);
/* Returns the index of the first event of the chunk on the process's machine, or UINT64_MAX. */
uint64_t trace_chunks_find_near(const trace_chunks *chunks, uint32_t process, const trib_trace_record *record);

#endif

/*
 * trace_chunks.h - what those who sum have recorded, by the chunk that it is about: its contributions, its sum, and
 * where that went, in the order of time. What a relay sums for its machine is another chunk than what it sums for all.
 */
#ifndef TRIB_TOOLS_TRACE_CHUNKS_H
#define TRIB_TOOLS_TRACE_CHUNKS_H

#include "tools/study/trace_run.h"

typedef struct trace_chunks {
    const trace_event **events; /* by (process, tensor, partition, round, chunk, whether for its machine, time) */
    uint64_t count;
} trace_chunks;

/* False: out of memory. */
bool trace_chunks_make(const trace_run *run, trace_chunks *chunks);
void trace_chunks_free(trace_chunks *chunks);
/* Is that recorded by a relay, of its machine's partial sum? */
bool trace_chunk_is_near(const trace_event *event);
bool trace_chunk_is_same(const trace_event *a, const trace_event *b);
/* The first event of that chunk on that process's machine; UINT64_MAX: there is none. */
uint64_t trace_chunks_find_near(const trace_chunks *chunks, uint32_t process, const trib_trace_record *record);

#endif

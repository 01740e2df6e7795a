/*
 * trace_read.h - reads a trace file (docs/trace.md), trusting nothing in it: whatever the bytes are, the answer is what
 * they say or an error that names what is wrong.
 *
 * Looks inside the library: the format is engine/trace/trace_format.h.
 */
#ifndef TRIB_TOOLS_STUDY_TRACE_READ_H
#define TRIB_TOOLS_STUDY_TRACE_READ_H

#include <stdio.h>

#include "engine/wire/clock.h"
#include "engine/cluster/placement.h"
#include "engine/trace/trace_format.h"

/* Times and offsets are at most so far from 0, so that adding a few never overflows. */
#define TRACE_TIME_MAX (INT64_MAX / 8)
#define TRACE_TENSOR_IDS_MAX (1u << 20)

typedef struct trace_member {
    const char *name; /* "rank 3 (host:pid)" */
    uint32_t roles, reactors;
    bool sums;
    uint64_t bandwidth;
    uint32_t machine; /* the first member on its machine; itself, if the file does not tell */
} trace_member;

typedef struct trace_tensor {
    const char *name;
    uint32_t id; /* the job's number; UINT32_MAX: it was not placed */
    trib_dtype dtype;
    int32_t priority;
    uint64_t bytes;
    uint32_t partition_bytes, partition_count;
    const trib_place_owner *owners; /* of its partitions */
} trace_tensor;

typedef struct trace_core {
    uint32_t core;
    uint64_t count, lost;
    const trib_trace_record *records;
} trace_core;

typedef struct trace_file {
    char *path;
    unsigned char *data;
    size_t size;
    uint32_t member, roles, worker_count, server_count, core_count, epoch;
    bool reference;
    uint32_t partition_bytes, chunk_bytes, push_credit, pull_credit, cpu_count;
    uint32_t local_size; /* workers of each machine that sum first; 0: none do */
    bool machines_told;  /* of a version that says who shares a machine */
    trib_sum_order sum_order;
    uint64_t bandwidth;
    double t_opt_factor;
    int64_t began_ns, written_ns;
    const char *job, *place, *transport, *version;
    trib_status status; /* of the job, when the file was written */
    trace_member *members;
    const char **stages;
    trace_tensor *tensors; /* by tag */
    trib_place_owner *owners;
    trib_clock_sample *samples;
    trace_core *cores;
    trib_trace_record *records;
    uint32_t member_count, stage_count, tensor_count, owner_count, sample_count, cores_recorded;
    uint64_t record_count;
} trace_file;

/* TRIB_SYSTEM, TRIB_NO_MEMORY, or TRIB_INVALID with what is wrong with the file. Reads no more than the header of what
 * cannot be a trace, and waits for nobody. */
TRIB_CHECKED trib_status trace_file_load(const char *path, trace_file **file_out, trib_error *error);
/* The same of bytes in memory, which are copied; name is for messages. */
TRIB_CHECKED trib_status trace_file_parse(const void *data, size_t size, const char *name, trace_file **file_out,
                                          trib_error *error);
void trace_file_free(trace_file *file); /* NULL is fine */
/* For trace_file_load: a file that begins like a whole trace, at its beginning. */
TRIB_CHECKED trib_status trace_file_open(const char *path, FILE **from_out, size_t *size_out, trib_error *error);
/* For what is made of traces: makes the file, or empties it. A trace is refused: `--chrome job.*`, without a name for what is
 * made, would take the first recording for one. NULL: *error says why. */
FILE *trace_output_open(const char *path, trib_error *error);

/* "SUBMIT"; NULL for a kind that is not known. */
const char *trace_kind_name(uint8_t kind);

#endif

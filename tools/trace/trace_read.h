/*
 * trace_read.h - reads a trace file (docs/trace.md) without trusting its contents: any bytes lead to a parsed file or
 * to an error that names the fault.
 *
 * Looks inside the library: the format is engine/trace/trace_format.h.
 */
#ifndef TRIB_TOOLS_TRACE_TRACE_READ_H
#define TRIB_TOOLS_TRACE_TRACE_READ_H

#include <stdio.h>

#include "engine/wire/clock.h"
#include "engine/cluster/placement.h"
#include "engine/trace/trace_format.h"

/* Limit of times and offsets, so that adding a few of them never overflows. */
#define TRACE_TIME_MAX (INT64_MAX / 8)
#define TRACE_TENSOR_IDS_MAX (1u << 20)

typedef struct trace_member {
    const char *name; /* "rank 3 (host:pid)" */
    uint32_t roles, reactors;
    bool sums;
    uint64_t bandwidth;
    uint32_t machine; /* the first member on its machine; itself, if the file does not say */
} trace_member;

typedef struct trace_tensor {
    const char *name;
    uint32_t id; /* the id in the job; UINT32_MAX: the tensor was not placed */
    trib_dtype dtype;
    int32_t priority;
    uint64_t bytes;
    uint32_t partition_bytes, partition_count;
    const trib_place_owner *owners; /* owners of its partitions */
    trib_layout layout;
    const uint64_t *ranks, *slices; /* of its group, in its order; and the elements of each slice */
    uint32_t rank_count;            /* 0: all workers share it */
    uint32_t slice_count;           /* 0: it is whole */
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
    bool machines_told;  /* the version of the file records which members share a machine */
    bool shares_told;    /* and who shares a tensor, and its slices */
    trib_sum_order sum_order;
    uint64_t bandwidth;
    double t_opt_factor;
    int64_t began_ns, written_ns;
    const char *job, *place, *transport, *version;
    trib_status status; /* state of the job when the file was written */
    trace_member *members;
    const char **stages;
    const char **choices;  /* the process's choices for the job, and the reasons */
    trace_tensor *tensors; /* by tag */
    trib_place_owner *owners;
    uint64_t *shares;
    trib_clock_sample *samples;
    trace_core *cores;
    trib_trace_record *records;
    uint32_t member_count, stage_count, choice_count, tensor_count, owner_count, share_count, sample_count,
        cores_recorded;
    uint64_t record_count;
} trace_file;

/* Loads a file. Fails with TRIB_SYSTEM, TRIB_NO_MEMORY, or TRIB_INVALID and what is wrong with the file. Of a file
 * that cannot be a trace no more than the header is read, and the call never waits for a writer. */
TRIB_CHECKED trib_status trace_file_load(const char *path, trace_file **file_out, trib_error *error);
/* Parses bytes in memory, which are copied; name is used in messages. */
TRIB_CHECKED trib_status trace_file_parse(const void *data, size_t size, const char *name, trace_file **file_out,
                                          trib_error *error);
/* trace_shares.c: copies the entries of SHARES; file->shares has room for them. */
void trace_shares_take(trace_file *file, const unsigned char *data, uint32_t entry_bytes, uint32_t count);
/* Fills in who shares the tensor, from that entry of SHARES on, counted from 1; 0: there is none.
 * False: it cannot be. */
bool trace_shares_parse(const trace_file *file, trace_tensor *tensor, uint32_t place);
void trace_file_free(trace_file *file); /* NULL is fine */
/* Opens a file whose header is that of a whole trace, for trace_file_load; the position is the beginning. */
TRIB_CHECKED trib_status trace_file_open(const char *path, FILE **from_out, size_t *size_out, trib_error *error);
/* Creates or empties an output file. A trace is rejected: `--chrome job.*` without an output name would overwrite
 * the first recording. NULL: *error says why. */
FILE *trace_output_open(const char *path, trib_error *error);

/* Returns a name such as "SUBMIT"; NULL for an unknown kind. */
const char *trace_kind_name(uint8_t kind);

#endif

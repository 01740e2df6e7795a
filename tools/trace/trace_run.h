/*
 * trace_run.h - the traces of all processes of a job together: one list of events on the coordinator's clock, and the
 * life of every partition.
 *
 * Events are ordered by time; their records name tensors by the job's ids and stages by run->stages. A span is one
 * partition of one worker in one round: its times on the worker, on the server that summed it if that server's trace
 * is there, and, where the workers of a machine sum first, on the machine's relay. An unknown time is TRACE_NEVER.
 */
#ifndef TRIB_TOOLS_TRACE_TRACE_RUN_H
#define TRIB_TOOLS_TRACE_TRACE_RUN_H

#include "tools/trace/trace_read.h"

#define TRACE_NEVER INT64_MIN
#define TRACE_NOBODY UINT32_MAX
#define TRACE_DRIFT 200e-6 /* largest drift between two clocks */
#define TRACE_WANDER 10e-6 /* largest change of a drift within a recording */
#define TRACE_WARNINGS_MAX 32u
#define TRACE_STAGES_MAX 64u
#define TRACE_PLAN_MAX 10u

/* A point of the offset of the coordinator's clock from another clock; between two knots the offset is linear. */
typedef struct trace_knot {
    int64_t at_ns, offset_ns, error_ns;
} trace_knot;

typedef struct trace_clock {
    trace_knot *knots;
    uint32_t count;
    double drift, drift_left; /* the constant drift, and the bound of the rest */
    bool broken;              /* the samples contradict each other: the clocks drift too much, or one jumped */
} trace_clock;

/* False: out of memory. */
bool trace_clock_make(trace_clock *clock, const trib_clock_sample *samples, uint32_t count);
/* Returns the coordinator's time; *error_out (may be NULL) is its largest error, INT64_MAX if it is unknown. */
int64_t trace_clock_map(const trace_clock *clock, int64_t at_ns, int64_t *error_out);

typedef struct trace_event {
    int64_t at_ns; /* time since the first event */
    trib_trace_record record;
    uint16_t process, core;
    uint32_t order;
} trace_event;

typedef struct trace_process {
    trace_file *file;
    char label[48]; /* "rank 2", "server 0", "coordinator" */
    uint32_t member;
    bool is_worker;
    trace_clock clock;
    int64_t clock_error_ns; /* largest error within the recording; INT64_MAX: unknown */
    uint64_t records, lost;
} trace_process;

typedef struct trace_stay {
    uint8_t stage;
    int64_t enter_ns;
} trace_stay;

typedef struct trace_span {
    uint32_t process, owner; /* the worker's process, and the member that sums the partition */
    uint32_t tensor, partition, round, bytes;
    int64_t enter_ns, start_ns, emitted_ns, pushed_ns, landed_ns, done_ns;
    int64_t arrive_first_ns,
        arrive_last_ns; /* of this worker's chunks, or of its machine's partial sum of them, at the server */
    int64_t complete_first_ns, complete_last_ns; /* times when the sums of its chunks were complete */
    uint32_t last_peer;      /* the worker whose contribution arrived last in the chunk that was complete last */
    uint32_t relay;          /* the process that summed it for its machine; TRACE_NOBODY: none, or unknown */
    uint32_t near_last_peer; /* the worker of its machine whose contribution arrived last at the relay */
    int64_t near_first_ns, near_last_ns; /* arrivals of this worker's chunks at the relay */
    int64_t partial_ns;                  /* when the machine's partial sum of its last chunk was complete */
    int64_t back_first_ns, back_ns;      /* when the sums of its first and its last chunk were back at the relay */
    int64_t queue_turn_ns; /* part of the time until start in which other requests went first on its link */
    uint32_t stay_count;
    trace_stay stays[TRACE_PLAN_MAX]; /* stages that it entered */
    bool failed;
} trace_span;

typedef struct trace_run {
    uint32_t process_count, worker_count, server_count;
    uint32_t local_size;         /* workers of each machine that sum first; 0: none do */
    bool one_host;               /* all members share one machine: there is no link */
    const trace_member *members; /* as in the first file; may be NULL */
    uint32_t member_count;
    trace_process *processes;     /* by member id, then a separate coordinator */
    const trace_tensor **tensors; /* by the job's id; NULL: not known */
    uint32_t tensor_count;
    const char *stages[TRACE_STAGES_MAX];
    uint32_t stage_count;
    trace_event *events;
    uint64_t event_count;
    int64_t duration_ns;
    trace_span *spans; /* in the order of enter_ns */
    uint64_t span_count;
    uint64_t early_arrivals; /* contributions that arrived before they were sent, beyond the clocks' errors */
    uint64_t arrivals;       /* arrivals that could be compared */
    char warnings[TRACE_WARNINGS_MAX][240];
    uint32_t warning_count;
} trace_run;

/* Loads all files, checks that they are of one job, and puts them together. *run_out is written on success only. */
TRIB_CHECKED trib_status trace_run_load(char *const *paths, uint32_t count, trace_run **run_out, trib_error *error);
void trace_run_free(trace_run *run);
/* Returns NULL if there is no file of the member. */
const trace_process *trace_run_member(const trace_run *run, uint32_t member);
/* Writes a name such as "rank 2", even if the member's trace is missing. */
void trace_member_label(const trace_run *run, uint32_t member, char *text, size_t size);
/* Returns a name such as "layer1.weight", or "tensor 5" if the name is unknown. The text is valid until the next
 * call with the same buffer. */
const char *trace_tensor_name(const trace_run *run, uint32_t id, char *buffer, size_t size);
/* Returns the first member on the member's machine; the member itself where machines are unknown. */
uint32_t trace_run_machine(const trace_run *run, uint32_t member);
void trace_run_warn(trace_run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* trace_span.c: fills spans; called by trace_run_load. False: out of memory. */
bool trace_spans_make(trace_run *run);
/* Returns an index for trace_span_find, freed with free(). NULL: out of memory. */
const trace_span **trace_spans_by_key(const trace_run *run);
/* Returns the span of a server's record, whose peer is the worker. NULL: there is none. */
const trace_span *trace_span_find(const trace_run *run, const trace_span *const *by_key,
                                  const trib_trace_record *record);

#endif

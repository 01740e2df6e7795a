/*
 * trace_run.h - the traces of all processes of a job together: one list of events on the coordinator's clock, and what
 * became of every partition.
 *
 * Events are in the order of time; their records name tensors by the job's ids and stages by run->stages. A span is one
 * partition of one worker in one round: its times on the worker, on the server that summed it if that one's trace is
 * there, and, where the workers of a machine sum first, on its relay. A time that is not known is TRACE_NEVER.
 */
#ifndef TRIB_TOOLS_STUDY_TRACE_RUN_H
#define TRIB_TOOLS_STUDY_TRACE_RUN_H

#include "tools/study/trace_read.h"

#define TRACE_NEVER INT64_MIN
#define TRACE_NOBODY UINT32_MAX
#define TRACE_DRIFT 200e-6 /* between two clocks, at most */
#define TRACE_WANDER 10e-6 /* by how much a drift changes within a recording */
#define TRACE_WARNINGS_MAX 32u
#define TRACE_STAGES_MAX 64u
#define TRACE_PLAN_MAX 10u

/* Where the coordinator's clock is, seen from another; linear between its knots. */
typedef struct trace_knot {
    int64_t at_ns, offset_ns, error_ns;
} trace_knot;

typedef struct trace_clock {
    trace_knot *knots;
    uint32_t count;
    double drift, drift_left; /* that stays the same, and what the rest may change by */
    bool broken; /* the samples contradict each other: the clocks drift more than they may, or one jumped */
} trace_clock;

/* False: out of memory. */
bool trace_clock_make(trace_clock *clock, const trib_clock_sample *samples, uint32_t count);
/* The coordinator's time; *error_out (may be NULL) is how far off it can be, INT64_MAX if nothing is known. */
int64_t trace_clock_map(const trace_clock *clock, int64_t at_ns, int64_t *error_out);

typedef struct trace_event {
    int64_t at_ns; /* since the first event */
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
    int64_t clock_error_ns; /* the worst within the recording; INT64_MAX: not known */
    uint64_t records, lost;
} trace_process;

typedef struct trace_stay {
    uint8_t stage;
    int64_t enter_ns;
} trace_stay;

typedef struct trace_span {
    uint32_t process, owner; /* the worker's process; the member that sums */
    uint32_t tensor, partition, round, bytes;
    int64_t enter_ns, start_ns, emitted_ns, pushed_ns, landed_ns, done_ns;
    int64_t arrive_first_ns,
        arrive_last_ns; /* of this worker's chunks, or its machine's partial sum of them, at the server */
    int64_t complete_first_ns, complete_last_ns; /* of its chunks' sums */
    uint32_t last_peer;      /* the worker whose contribution came last to the chunk that was complete last */
    uint32_t relay;          /* the process that summed it for its machine; TRACE_NOBODY: none, or it is not known */
    uint32_t near_last_peer; /* the worker of its machine whose contribution came last there */
    int64_t near_first_ns, near_last_ns; /* arrivals of this worker's chunks at the relay */
    int64_t partial_ns;                  /* the machine's partial sum of its last chunk was complete */
    int64_t back_first_ns, back_ns;      /* sums of its chunks were back at the relay: of the first, of the last */
    int64_t queue_turn_ns;               /* of the time until start: others went first on its link */
    uint32_t stay_count;
    trace_stay stays[TRACE_PLAN_MAX]; /* the stages that it entered */
    bool failed;
} trace_span;

typedef struct trace_run {
    uint32_t process_count, worker_count, server_count;
    uint32_t local_size;         /* workers of each machine that sum first; 0: none do */
    bool one_host;               /* all members share one machine: there is no link */
    const trace_member *members; /* as the first file has them; there may be none */
    uint32_t member_count;
    trace_process *processes;     /* by member id, then a coordinator of its own */
    const trace_tensor **tensors; /* by the job's id; NULL: not known */
    uint32_t tensor_count;
    const char *stages[TRACE_STAGES_MAX];
    uint32_t stage_count;
    trace_event *events;
    uint64_t event_count;
    int64_t duration_ns;
    trace_span *spans; /* in the order of enter_ns */
    uint64_t span_count;
    uint64_t
        early_arrivals; /* contributions that were at the server before they were sent, clocks' errors allowed for */
    uint64_t arrivals;  /* that could be compared */
    char warnings[TRACE_WARNINGS_MAX][240];
    uint32_t warning_count;
} trace_run;

/* Loads them all, checks that they are of one job, and puts them together. *run_out is written on success only. */
TRIB_CHECKED trib_status trace_run_load(char *const *paths, uint32_t count, trace_run **run_out, trib_error *error);
void trace_run_free(trace_run *run);
/* NULL: no file of that member is there. */
const trace_process *trace_run_member(const trace_run *run, uint32_t member);
/* "rank 2", also if its trace is not there. */
void trace_member_label(const trace_run *run, uint32_t member, char *text, size_t size);
/* "layer1.weight", "tensor 5" if the name is not known. The text is valid until the next call with the same buffer. */
const char *trace_tensor_name(const trace_run *run, uint32_t id, char *buffer, size_t size);
/* The first member on that one's machine; itself where machines are not told. */
uint32_t trace_run_machine(const trace_run *run, uint32_t member);
void trace_run_warn(trace_run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* trace_span.c: fills spans; called by trace_run_load. False: out of memory. */
bool trace_spans_make(trace_run *run);
/* For trace_span_find; freed with free(). NULL: out of memory. */
const trace_span **trace_spans_by_key(const trace_run *run);
/* The span of a server's record: record->peer is the worker. NULL: it is not there. */
const trace_span *trace_span_find(const trace_run *run, const trace_span *const *by_key,
                                  const trib_trace_record *record);

#endif

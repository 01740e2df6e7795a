/*
 * trace_stats.h - what a job's traces say: how long partitions were where, who waited for whom, what went over the
 * links, the steps of training, and what limits them.
 */
#ifndef TRIB_TOOLS_STUDY_TRACE_STATS_H
#define TRIB_TOOLS_STUDY_TRACE_STATS_H

#include "tools/study/trace_run.h"

/* The time of a partition on its way, cut where one thing it waits for gives way to the next. Where the workers of a
 * machine sum first it goes to a relay; else near, part and hand take no time. */
typedef enum trace_phase {
    TRACE_PHASE_TURN,    /* others of its link go first */
    TRACE_PHASE_CREDIT,  /* it is the first, and too much is with the transport */
    TRACE_PHASE_PUSH,    /* from its first chunk's way out until its last one is at the server, or at the relay */
    TRACE_PHASE_NEAR,    /* contributions of other workers of its machine are missing */
    TRACE_PHASE_PARTIAL, /* from the machine's partial sum of its last chunk until that is at the server */
    TRACE_PHASE_PEERS,   /* other workers' contributions, or other machines' partial sums, are missing */
    TRACE_PHASE_PULL,    /* from the sum of its last chunk until it is here, or at the relay */
    TRACE_PHASE_HAND,    /* from the relay to the worker */
    TRACE_PHASE_COUNT
} trace_phase;

const char *trace_phase_name(trace_phase phase); /* "turn" */
/* "others go first on its link"; "" for a phase that there is none of unless machines sum first. */
const char *trace_phase_text(trace_phase phase, bool sums_first);

typedef struct trace_spread {
    uint64_t count;
    double total_ns, p50_ns, p99_ns, max_ns;
} trace_spread;

/* Of a machine's link: in the entry of its first member; those of the others are empty. */
typedef struct trace_link_use {
    uint64_t out_bytes, in_bytes; /* to and from other members; payload */
    double out_bits, in_bits;     /* rates that are held over a window, bits per second */
    double out_used, in_used;     /* share of what the fastest link would have carried while workers exchanged */
} trace_link_use;

typedef struct trace_patience {
    uint64_t count;   /* partitions whose sum it completed as the last one */
    double waited_ns; /* by the other workers' partitions, together */
} trace_patience;

/* One tensor in the steps of a worker. */
typedef struct trace_step_op {
    uint32_t tensor;
    int32_t priority;
    uint64_t bytes;
    int64_t ready_ns; /* after the step's first one was handed in; median over the steps */
} trace_step_op;

/* The steps of one worker: what it hands in again and again. A step begins with the operation before which it hands in
 * nothing for longest. */
typedef struct trace_steps {
    uint32_t process;
    uint32_t count;     /* whole steps; 0: nothing repeats */
    trace_step_op *ops; /* by ready_ns */
    uint32_t op_count;
    uint64_t bytes;               /* of a step */
    int64_t *begin_ns;            /* count + 1: when each began */
    int64_t step_ns, exchange_ns; /* medians; exchange: from the first one handed in until the last one is back */
    int64_t gap_ns;               /* from then until the next step's first one; overlapped: what forward takes */
    int64_t alone_ns;             /* of exchange, after the last one was handed in */
    bool overlapped;              /* the next step begins before the last sum is back */
} trace_steps;

#define TRACE_LIMIT_MEMORY "shared memory"
#define TRACE_LIMIT_LOOPBACK "processor"

typedef struct trace_stats {
    trace_spread phases[TRACE_PHASE_COUNT], whole;
    trace_spread stages[TRACE_STAGES_MAX];
    uint64_t operations, failed, stalls, refused;
    uint64_t bytes_summed;
    trace_link_use *links;    /* by member */
    trace_patience *patience; /* by rank */
    trace_steps *steps;       /* of each worker whose trace is there */
    uint32_t steps_count;
    double fastest_bits; /* of the busiest links, payload */
    double window_ns;    /* over which rates are taken */
    double exchange_ns;  /* during which some worker exchanged something */
    char limit[200];     /* what the time of an exchange is made of, in words */
    /* A phase's name; "network"; on one machine, where there is none, one of the two above; "none". */
    const char *limit_name;
} trace_stats;

/* False: out of memory. */
bool trace_stats_make(const trace_run *run, trace_stats *stats);
void trace_stats_free(trace_stats *stats);

/* trace_phase of one span, in nanoseconds; false: its trace has gaps. */
bool trace_span_phases(const trace_span *span, int64_t phases[TRACE_PHASE_COUNT]);

/* trace_steps.c. False: out of memory. */
bool trace_steps_make(const trace_run *run, uint32_t process, trace_steps *steps);
void trace_steps_free(trace_steps *steps);

#endif

/*
 * trace_stats.h - the statistics of a job's traces: the time of partitions in each phase, which workers waited for
 * which, the traffic on the links, the steps of training, and what limits them.
 */
#ifndef TRIB_TOOLS_TRACE_TRACE_STATS_H
#define TRIB_TOOLS_TRACE_TRACE_STATS_H

#include "tools/trace/trace_run.h"

/* The phases of a partition, in order. Where the workers of a machine sum first a partition goes to a relay;
 * otherwise the phases near, part and hand take no time. */
typedef enum trace_phase {
    TRACE_PHASE_TURN,   /* other partitions go first on its link */
    TRACE_PHASE_CREDIT, /* it is the first, and the transport already has as much as the credit allows */
    TRACE_PHASE_PUSH,   /* from the sending of its first chunk until its last chunk is at the server, or at the relay */
    TRACE_PHASE_NEAR,   /* contributions of other workers of its machine are missing */
    TRACE_PHASE_PARTIAL, /* from the machine's partial sum of its last chunk until that is at the server */
    TRACE_PHASE_PEERS,   /* other workers' contributions, or other machines' partial sums, are missing */
    TRACE_PHASE_PULL,    /* from the sum of its last chunk until that is back, or at the relay */
    TRACE_PHASE_HAND,    /* from the relay to the worker */
    TRACE_PHASE_COUNT
} trace_phase;

const char *trace_phase_name(trace_phase phase); /* "turn" */
/* Returns a text such as "other partitions go first on its link"; "" for a phase that exists only if machines sum
 * first, if they do not. */
const char *trace_phase_text(trace_phase phase, bool sums_first);

typedef struct trace_spread {
    uint64_t count;
    double total_ns, p50_ns, p99_ns, max_ns;
} trace_spread;

/* The use of a machine's link, in the entry of the machine's first member; the entries of the others are empty. */
typedef struct trace_link_use {
    uint64_t out_bytes, in_bytes; /* to and from other members; payload */
    double out_bits, in_bits;     /* sustained rates over a window, bits per second */
    double out_used, in_used;     /* share of what the fastest link could have carried while workers exchanged */
} trace_link_use;

typedef struct trace_straggler {
    uint64_t count;   /* partitions for which its contribution arrived last */
    double waited_ns; /* total time that the partitions of the other workers waited for it */
} trace_straggler;

/* One tensor in the steps of a worker. */
typedef struct trace_step_op {
    uint32_t tensor;
    int32_t priority;
    trib_op_kind kind;
    uint32_t root; /* of a broadcast or a reduce */
    uint64_t bytes;
    int64_t ready_ns; /* time after the step's first submission; median over the steps */
} trace_step_op;

/* The steps of one worker: operations that it submits again and again. A step begins with the operation after the
 * longest pause. */
typedef struct trace_steps {
    uint32_t process;
    uint32_t count;     /* whole steps; 0: no repetition was found */
    trace_step_op *ops; /* by ready_ns */
    uint32_t op_count;
    uint64_t bytes;               /* bytes of a step */
    int64_t *begin_ns;            /* begin of each step; count + 1 entries */
    int64_t step_ns, exchange_ns; /* medians; exchange: from the first submission until the last sum is back */
    int64_t gap_ns;       /* time from then until the next step's first submission; overlapped: the time of forward */
    int64_t alone_ns;     /* the part of exchange after the last submission */
    bool overlapped;      /* the next step begins before the last sum is back */
    bool is_mixed;        /* some of the operations are no all-reduces */
    uint64_t other_count; /* operations in these steps that cannot be replayed; without steps, in the whole trace */
    uint32_t other;       /* tensor of the last such operation */
} trace_steps;

#define TRACE_LIMIT_MEMORY "shared memory"
#define TRACE_LIMIT_LOOPBACK "processor"

typedef struct trace_stats {
    trace_spread phases[TRACE_PHASE_COUNT], whole;
    trace_spread stages[TRACE_STAGES_MAX];
    uint64_t operations, failed, stalls, refused;
    uint64_t bytes_summed;
    trace_link_use *links;       /* by member */
    trace_straggler *stragglers; /* by rank */
    trace_steps *steps;          /* for each worker whose trace is there */
    uint32_t steps_count;
    double fastest_bits; /* payload of the busiest links */
    double window_ns;    /* length of the windows for rates */
    double exchange_ns;  /* time during which some worker exchanged something */
    char limit[200];     /* the composition of the exchange time, in words */
    /* Name of a phase; or "network", for which on one machine one of the two names above stands; or "none". */
    const char *limit_name;
} trace_stats;

/* False: out of memory. */
bool trace_stats_make(const trace_run *run, trace_stats *stats);
void trace_stats_free(trace_stats *stats);

/* Computes the phases of one span, in nanoseconds; false: its trace has gaps. */
bool trace_span_phases(const trace_span *span, int64_t phases[TRACE_PHASE_COUNT]);

/* trace_steps.c. False: out of memory. */
bool trace_steps_make(const trace_run *run, uint32_t process, trace_steps *steps);
void trace_steps_free(trace_steps *steps);

#endif

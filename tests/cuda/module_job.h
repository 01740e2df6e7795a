/*
 * module_job.h - jobs of the real module over the fake of CUDA (fake_cuda.h). Each rank is a thread with an engine
 * of its own. It submits tensors of all types round by round, on streams of its own, and compares the results. A job
 * that does not end is reported, with what each stream is at, and ends the process.
 */
#ifndef TRIB_TESTS_MODULE_JOB_H
#define TRIB_TESTS_MODULE_JOB_H

#include "api/tributary.h"
#include "tests/cuda/fake_cuda.h"

#define JOB_RANKS_MAX 4
#define JOB_ROUNDS_MAX 8
#define JOB_STREAMS_MAX 12
#define JOB_TENSORS_MAX 16

typedef struct module_job {
    const char *name;
    int machines, gpus; /* machines, and GPUs of each */
    int first, count;   /* ranks that run in this process; count 0: all */
    const char *address;
    unsigned rounds, streams, tensors;
    unsigned queues;        /* 0: 32 */
    bool only_stream_waits; /* streams wait for all sums, and a call behind that for the whole GPU */
    bool no_stream_waits;   /* the calls would wait for the job to form */
    bool may_fail;          /* an error is counted, and ends the rank's part */
    int leaves;             /* the rank before this one leaves after half of the rounds; 0: none */
    int held;               /* from then on the input of the rank before this one is not ready; 0: none */
    int64_t join_ns, op_ns; /* 0: long timeouts */
    unsigned seed;
    /* called by the first rank when half of the rounds are over and the next is submitted; or NULL */
    void (*half)(void);
    void (*failed)(void); /* called by each rank at its first error; or NULL */
} module_job;

typedef struct module_outcome {
    unsigned rights, errors; /* operations that succeeded; all other outcomes */
    int64_t slowest_ns;      /* from the half to a rank's first error, or to the end of its last operation */
    char text[256];          /* of the first error */
    fake_counts counts;      /* after the end */
    bool failed;             /* the call that was to fail has failed */
    bool closed;             /* all streams and communicators have ended */
} module_outcome;

#define MODULE_JOB(...) ((module_job){.seed = module_seed, __VA_ARGS__})

extern unsigned module_seed;
/* Opens the fake, runs the job and closes it; `before` may ask for failures. Fails the test if a result is wrong, or
 * an unexpected error comes. */
module_outcome module_job_run(const module_job *plan, fake_call call, unsigned fails_at);
/* Checks that everything created is gone. That many members that could not be tried in their group may leave a
 * stream and memory each. */
void module_job_expect_nothing_left(const module_outcome *outcome, unsigned untried);

#endif

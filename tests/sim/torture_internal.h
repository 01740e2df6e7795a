/* torture_internal.h - a run of torture.h: torture_run.c (faults, checks at the end), torture_drive.c (what workers do), and
 * torture_judge.c, torture_blame.c, torture_watch.c (what is checked meanwhile). */
#ifndef TRIB_TESTS_SIM_TORTURE_INTERNAL_H
#define TRIB_TESTS_SIM_TORTURE_INTERNAL_H

#include "tests/sim/torture.h"

#define MS INT64_C(1000000)
#define SECOND (1000 * MS)
#define TABLE_MAX (TORTURE_TENSORS_MAX + TORTURE_CROWD_MAX)
#define SLOTS 2u /* rounds of a tensor that a worker has in flight at most */

struct run;

/* One operation. */
typedef struct attempt {
    struct run *run;
    struct driver *driver;
    uint32_t tensor, round;
    unsigned char *input, *output;
    bool busy;
    bool poisoned; /* the output holds what no result is, and shall keep it */
    uint32_t callbacks;
    int64_t submit_clock_ns, timeout_ns;
    int64_t submit_ns, done_ns; /* the world's time */
    trib_op *op;                /* while it is to be cancelled */
    trib_sim_event cancel;
    trib_host_stream *stream; /* that fills the input of a tensor on a device */
    trib_sim_event ready;     /* when it has */
} attempt;

/* What one worker does. */
typedef struct driver {
    struct run *run;
    uint32_t rank;
    uint32_t next_round[TABLE_MAX]; /* counted from 0 */
    attempt attempts[TORTURE_TENSORS_MAX][SLOTS];
    attempt crowd[TORTURE_CROWD_MAX];
    uint32_t in_flight, crowd_in_flight;
    trib_sim_event begin; /* of one that is late */
    trib_sim_event leave; /* looks again whether it can */
    int64_t leaves_at_ns; /* one that does not wait for its last operations; 0: not known yet */
    bool refused;         /* the engine takes nothing any more */
    trib_sim_stream stream;
} driver;

typedef struct running_fault {
    struct run *run;
    const torture_fault *what;
    trib_sim_event begin, end;
} running_fault;

/* Allocations of the member of which one fails, by size. */
typedef struct torture_miss {
    uint64_t left; /* of rare sizes, with the one that fails; 0: none will */
    uint32_t size_count, counts[TORTURE_SITES];
    size_t sizes[TORTURE_SITES];
} torture_miss;

typedef struct run {
    const torture_plan *plan;
    sim_job *job;
    trib_host_world *world; /* of its devices; NULL: none */
    driver drivers[TORTURE_WORKERS_MAX];
    running_fault faults[TORTURE_FAULTS_MAX];
    trib_sim_event absence;
    trib_sim_event restless;
    trib_post restless_post; /* on the coordinator's reactor */
    bool restless_posted;
    trib_sim_stream weights;
    uint64_t deals; /* that were begun */
    bool rests;     /* nothing is dealt any more */
    int64_t grace_extended_ns
        [TORTURE_MEMBERS_MAX]; /* time by which a member's callbacks may be late: it stood still, or jumped */
    uint32_t frozen[TORTURE_MEMBERS_MAX]; /* nested */
    uint64_t alloc_fails_one_in[TORTURE_MEMBERS_MAX];
    torture_miss miss;
    trib_sim_stream alloc_failures;
    trib_sim_stream pace;
    bool lost_one; /* a member was killed after the job had come together */
    bool is_last;  /* every tensor is summed once more, by all, and nothing may fail */
    torture_verdict verdict;
} run;

/* The first thing that did not hold is the verdict. */
void torture_broken(run *self, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Does what is done to the job explain that an operation, or the job itself, ends like that? */
bool torture_may_end_so(const run *self, trib_status status);
bool torture_may_leave_early(const torture_plan *plan);
/* Nothing is done to the job that holds up what is on its way. */
bool torture_is_calm(const torture_plan *plan);
/* torture_watch.c: books that must balance whenever no reactor is in a turn. */
void torture_watch(run *self);
/* Has every member that lives joined, or given up? Before that operations that were given up are still kept. */
bool torture_has_begun(sim_job *job, void *unused);
/* In a job that lives and has nothing to do: no operation is kept that workers have no handle of. */
void torture_watch_rest(run *self);
/* After all engines have been closed: nothing is kept from the pools. */
void torture_watch_closed(run *self);

/* torture_judge.c: an operation may end so, then, and with that result. */
void torture_judge(attempt *what, const trib_result *result);
torture_tensor torture_tensor_of(const torture_plan *plan, uint32_t index);
/* Is that an operation about which the workers disagree? */
bool torture_is_disputed(const torture_plan *plan, uint32_t index, uint32_t round);
/* torture_blame.c: who is named has done it. */
void torture_blame(attempt *what, const trib_result *result);
void torture_blame_lost(run *self, uint32_t member, const char *text);

/* torture_drive.c: workers begin; they go on from their callbacks. */
void torture_drive_open(run *self);
attempt *torture_attempt(driver *self, uint32_t index, uint32_t round);
/* Everybody sums every tensor once more. */
void torture_drive_last(run *self);
/* Of operations that the worker still has handles of. */
uint32_t torture_drive_handles(const driver *self);
/* Nothing may have been written to what was given back. */
void torture_drive_check_outputs(run *self);
void torture_drive_close(run *self);

#endif

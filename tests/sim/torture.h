/*
 * torture.h - a job drawn from a seed, run in virtual time while faults drawn from the same seed happen to it, and
 * checked.
 *
 * What must hold whatever happens:
 * - every callback of an operation that was taken runs exactly once, and no later than its deadline allows;
 * - an operation that succeeded has every worker's contribution in it, and its result is the oracle's, bit for bit;
 * - where nothing happened that may end a job, every operation succeeds; where something did, it fails with a status
 *   that what happened explains;
 * - workers that disagree are told so, all of them, and nobody is the worse for it in the next round;
 * - a buffer is its caller's again when the callback runs: nothing is read from it or written to it any more;
 * - at any time books balance: credits, landings, blocks and rounds are what the links and tasks say (torture_watch.c),
 *   and nothing waits for a credit that is there;
 * - when it is over nothing is left: no operation, message, credit or sum under way; every engine closes in time;
 * - a job that lives can stand idle for long, and then sums every tensor once more;
 * - partitions may get other owners at any time, and nobody's sums are the worse for it;
 * - a worker that leaves when it is done harms nobody; where one leaves before, the others soon learn of it;
 * - when a member of a job that had come together was lost, every other member is told;
 * - where only one can be meant, who is named in an error's text has done it (torture_blame.c).
 */
#ifndef TRIB_TESTS_SIM_TORTURE_H
#define TRIB_TESTS_SIM_TORTURE_H

#include <stdio.h>

#include "tools/study/job.h"

#define TORTURE_WORKERS_MAX 8u
#define TORTURE_SERVERS_MAX 3u
#define TORTURE_MEMBERS_MAX (TORTURE_WORKERS_MAX + TORTURE_SERVERS_MAX)
#define TORTURE_TENSORS_MAX 8u
#define TORTURE_CROWD_MAX 300u
#define TORTURE_NOBODY UINT32_MAX
#define TORTURE_FAULTS_MAX 5u
#define TORTURE_SITES 64u

typedef enum torture_kind {
    TORTURE_FREEZE,        /* a process stands still for a while */
    TORTURE_SLOW,          /* or works slowly from then on */
    TORTURE_PARTITION,     /* a member is cut off for a while */
    TORTURE_RELINK,        /* its link gets another rate */
    TORTURE_JUMP,          /* its clock jumps ahead */
    TORTURE_RESET,         /* a connection is reset */
    TORTURE_KILL,          /* its process dies */
    TORTURE_ALLOC_FAILURE, /* its allocations fail now and then, for a while */
    TORTURE_KINDS,
    TORTURE_DEVICE =
        TORTURE_KINDS, /* what its device does fails, or hangs, from then on; only where there are devices */
    TORTURE_MISS       /* one allocation of its fails: the n-th from then on of those of sizes that are rare */
} torture_kind;

typedef struct torture_fault {
    torture_kind kind;
    uint32_t member;
    int64_t at_ns, for_ns;
    double amount;
} torture_fault;

typedef struct torture_tensor {
    trib_dtype dtype;
    uint32_t count, rounds;
    trib_reduce reduce;
    int32_t root; /* -1: push_pull */
    bool on_device;
    uint32_t stays; /* on a device: a bit for each worker that has the same buffers in all rounds */
    bool inexact;   /* sums are rounded: the bits say along which tree they were made */
} torture_tensor;

/* All that a seed decides. */
typedef struct torture_plan {
    uint64_t seed;
    sim_job_config job;
    trib_sim_weather weather;
    uint32_t tensor_count;
    uint32_t local_size; /* local ranks of a machine that have devices; 0: nobody has */
    int64_t pace_ns;     /* what a device does takes up to so long, on each its own time; 0: no time */
    uint32_t dawdler;    /* whose device takes several times as long, or TORTURE_NOBODY */
    uint32_t window;     /* operations that a worker has in flight at most; 0: all it can, in an order of its own */
    torture_tensor tensors[TORTURE_TENSORS_MAX];
    uint32_t fault_count;
    torture_fault faults[TORTURE_FAULTS_MAX];
    bool may_end;     /* something among the faults may end the job */
    uint32_t cancels; /* one operation in so many is cancelled; 0: none */
    bool leaves;      /* a worker that has done its part closes at once, while others are still at theirs */
    uint32_t hurried; /* one operation in so many has a short deadline; 0: none */
    uint32_t crowd;   /* so many tensors more, of a few elements, summed once and all at the same time */
    uint32_t absent;  /* a member that cannot be reached at first, or TORTURE_NOBODY */
    int64_t absent_ns;
    bool shuffled;                            /* every operation has a priority of its own */
    bool in_place;                            /* input and output are one */
    bool idles;                               /* a job that lives stands idle for longer than the limit of silence */
    int64_t late_ns[TORTURE_WORKERS_MAX];     /* that a worker does nothing at first */
    uint32_t reactors[TORTURE_MEMBERS_MAX];   /* of each member */
    uint64_t bandwidths[TORTURE_MEMBERS_MAX]; /* that it says it has; 0: nothing said */
    uint32_t early_leaver; /* a worker that leaves after so many rounds of each tensor, or TORTURE_NOBODY */
    uint32_t early_leaver_rounds;
    int64_t haste_ns; /* it does not wait for its last ones, but for up to so long; 0: it does */
    uint32_t narrow;  /* a worker that little gets through to, or TORTURE_NOBODY: sums pile up before it */
    uint64_t narrow_bits;
    uint32_t held_rank; /* a worker that begins with one tensor that much later, or TORTURE_NOBODY */
    uint32_t held_tensor;
    int64_t held_ns;
    int64_t hurry_ns;    /* the longest of short deadlines */
    uint32_t odd_rank;   /* a worker that disagrees with the others, or TORTURE_NOBODY */
    uint32_t odd_tensor; /* about that one */
    int32_t odd_round;   /* in that round; -1: about the tensor itself */
    bool odd_exchange;   /* it broadcasts what the others sum, or sums what they broadcast, and agrees otherwise */
    int64_t restless_ns; /* so often, about, all partitions are dealt to other members; 0: never */
} torture_plan;

typedef struct torture_verdict {
    bool held;                  /* all of the above */
    char why[512];              /* if not: the first that did not */
    uint64_t steps;             /* events of the world */
    uint32_t succeeded, failed; /* operations */
    int64_t virtual_ns;
} torture_verdict;

void torture_draw(uint64_t seed, torture_plan *plan);
/* Part of it: some disagree about a tensor on devices. */
void torture_draw_dispute(torture_plan *plan);
/* One line that says what the seed has drawn. */
void torture_describe(const torture_plan *plan, char *text, size_t size);
torture_verdict torture_run(const torture_plan *plan);

/* ---- torture_data.c: the oracle ---- */

/* Element i of what that rank contributes in that round, small enough that sums are exact in every type. */
int torture_value(uint32_t tensor, uint32_t round, uint32_t rank, uint32_t i);
void torture_fill(const torture_tensor *what, uint32_t tensor, uint32_t round, uint32_t rank, void *buffer);
/* UINT32_MAX if the buffer holds the result for that many workers, else the first element that is wrong. */
uint32_t torture_check(const torture_tensor *what, uint32_t tensor, uint32_t round, uint32_t workers,
                       const void *buffer);

#endif

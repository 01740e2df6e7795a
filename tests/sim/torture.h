/*
 * torture.h - draws a job from a seed, runs it in virtual time with faults from the same seed, and checks it.
 *
 * The invariants:
 * - every callback of an accepted operation runs exactly once, and no later than its deadline allows;
 * - a successful operation includes every worker's contribution, and its result is the oracle's, bit for bit;
 * - every operation succeeds if nothing happened that may end a job; otherwise a failure's status is explained by what
 *   happened;
 * - all workers that disagree get an error, and the next round works;
 * - the engine neither reads nor writes a buffer once the callback has run;
 * - counts balance at any time: credits, receives, blocks and rounds match what links and tasks hold (torture_watch.c),
 *   and nothing waits for a credit that is available;
 * - nothing is left at the end: no operation, message, credit or sum; every engine closes in time;
 * - a live job can stay idle for long, and then sums every tensor once more;
 * - tensors and groups that are released and declared again are new ones, and nothing of the old ones stays;
 * - partitions may change owners at any time without changing a sum;
 * - a worker that leaves when it is done disturbs no other; if one leaves earlier, the others soon hear of it;
 * - if a member of a formed job was lost, every other member hears of it;
 * - where an error can have one cause only, its text names that member (torture_blame.c);
 * - bits that flip, frames that are repeated, replayed or of another epoch, and peers without the token change no sum
 *   and get nowhere (torture_attack.c); a member that stands still is noticed.
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
    TORTURE_SLOW,          /* a process is slow from then on */
    TORTURE_PARTITION,     /* a member is cut off for a while */
    TORTURE_RELINK,        /* a member's link gets another rate */
    TORTURE_JUMP,          /* a member's clock jumps ahead */
    TORTURE_RESET,         /* a connection is reset */
    TORTURE_HALF,          /* nothing leaves a member for a while, or nothing reaches it */
    TORTURE_FORGET,        /* a gateway forgets a connection */
    TORTURE_KILL,          /* a member's process dies */
    TORTURE_ALLOC_FAILURE, /* a member's allocations sometimes fail, for a while */
    TORTURE_KINDS,
    TORTURE_DEVICE = TORTURE_KINDS, /* a member's device fails or hangs from then on; only where there are devices */
    /* a server dies in a job that has formed and survives that, or is drained (amount 1) */
    TORTURE_LOSE,
    TORTURE_MISS /* one of a member's allocations fails: the n-th of those with rare sizes */
} torture_kind;

/* An attack beside the faults; at most one of these in a job. */
typedef enum torture_attack {
    TORTURE_NO_ATTACK,
    TORTURE_FLIPS,     /* bits flip between machines */
    TORTURE_FORGERY,   /* data frames are repeated, replayed, or come from another epoch */
    TORTURE_SILENCE,   /* one member stands still, or is cut off, for longer than the peer timeout */
    TORTURE_STRANGERS, /* peers without the token come all the time; nothing may suffer from them */
} torture_attack;

/* The checks that are counted: one that never had anything to check shows at the end of a run of seeds. */
#define TORTURE_CHECK_LIST(X)                                                                                          \
    X(RESULT, "results compared")                                                                                      \
    X(ENCODED, "encoded results compared")                                                                             \
    X(FAILURE, "failures explained")                                                                                   \
    X(BLAME, "losses whose subject is known")                                                                          \
    X(TOLD, "members told of a death")                                                                                 \
    X(LOSE, "servers lost for nothing")                                                                                \
    X(JOIN, "joins told to a worker")                                                                                  \
    X(DRAIN, "servers drained")                                                                                        \
    X(SILENCE, "members that saw another stand still")                                                                 \
    X(FLIP, "damaged payloads found")                                                                                  \
    X(REPEAT, "frames repeated")                                                                                       \
    X(REPLAY, "frames replayed")                                                                                       \
    X(EPOCH, "frames forged, of another epoch")                                                                        \
    X(STRANGER, "strangers turned away")                                                                               \
    X(REST, "jobs at rest")                                                                                            \
    X(CLOSED, "jobs closed")

typedef enum torture_checker {
#define TORTURE_CHECK_ENUM(name, text) TORTURE_CHECK_##name,
    TORTURE_CHECK_LIST(TORTURE_CHECK_ENUM)
#undef TORTURE_CHECK_ENUM
        TORTURE_CHECKS
} torture_checker;

typedef struct torture_fault {
    torture_kind kind;
    uint32_t member;
    int64_t at_ns, for_ns;
    double amount;
} torture_fault;

/* The exchange that is done with a tensor. */
typedef enum torture_exchange {
    TORTURE_WHOLE,   /* all-reduce, or a broadcast if it has a root */
    TORTURE_REDUCE,  /* to the root */
    TORTURE_GATHER,  /* all-gather */
    TORTURE_SCATTER, /* reduce-scatter */
    TORTURE_PAIRS,   /* all-to-all */
    TORTURE_EXCHANGES
} torture_exchange;

typedef struct torture_tensor {
    trib_dtype dtype;
    uint32_t count, rounds;
    trib_reduce reduce;
    double prescale, postscale; /* 0: 1 */
    int32_t root;               /* -1: push_pull; a place in the group */
    torture_exchange exchange;
    uint32_t shape;       /* decides the lengths of slices, together with count */
    uint32_t group;       /* a bit for each of its members; 0: all workers */
    bool backwards;       /* the group counts its members from the highest rank on */
    bool has_mates;       /* it shares its name with the others that have mates: one name, several shapes */
    bool regroups;        /* the group ends with each life of the tensor, and the next one counts the other way round */
    uint32_t other_group; /* of a tensor that regroups: the members of every second group; 0: always the same */
    bool on_device;
    uint32_t stays;  /* on a device: a bit for each worker that has the same buffers in all rounds */
    bool inexact;    /* sums are rounded, so their bits show along which tree they were made */
    uint32_t absent; /* of one round: a bit for each worker that had joined, and brought neutral elements */
} torture_tensor;

/* Everything that a seed decides. */
typedef struct torture_plan {
    uint64_t seed;
    sim_job_config job;
    trib_sim_weather weather;
    uint32_t tensor_count;
    uint32_t local_size; /* local ranks with devices on each machine; 0: no devices */
    int64_t pace_ns;     /* longest time of a device's job, drawn for each device; 0: no time */
    uint32_t dawdler;    /* the member whose device is several times slower, or TORTURE_NOBODY */
    uint32_t window;     /* operations in flight per worker at most; 0: as many as possible, in an order of its own */
    torture_tensor tensors[TORTURE_TENSORS_MAX];
    uint32_t fault_count;
    torture_fault faults[TORTURE_FAULTS_MAX];
    bool may_end;     /* one of the faults may end the job */
    uint32_t cancels; /* one operation in `cancels` is cancelled; 0: none */
    bool leaves;      /* a worker that is done closes at once, while others are still busy */
    uint32_t hurried; /* one operation in `hurried` has a short deadline; 0: none */
    uint32_t crowd;   /* number of additional tiny tensors, summed once and all at the same time */
    uint32_t absent;  /* a member that cannot be reached at first, or TORTURE_NOBODY */
    int64_t absent_ns;
    bool shuffled;                            /* every operation has a priority of its own */
    bool in_place;                            /* input and output are one buffer */
    bool idles;                               /* a live job stays idle for longer than the peer timeout */
    int64_t late_ns[TORTURE_WORKERS_MAX];     /* how long each worker does nothing at first */
    uint32_t reactors[TORTURE_MEMBERS_MAX];   /* by member */
    uint64_t bandwidths[TORTURE_MEMBERS_MAX]; /* the bandwidth that each member configures; 0: none */
    uint32_t early_leaver; /* a worker that leaves after early_leaver_rounds of each tensor, or TORTURE_NOBODY */
    uint32_t early_leaver_rounds;
    bool prompt;      /* workers leave although others are still connecting */
    int64_t haste_ns; /* longest time after which it leaves with operations in flight; 0: it waits for them */
    uint32_t narrow;  /* a worker behind a slow link, or TORTURE_NOBODY: sums for it pile up */
    uint64_t narrow_bits;
    uint32_t held_rank; /* a worker that delays its first operation on one tensor, or TORTURE_NOBODY */
    uint32_t held_tensor;
    int64_t held_ns;
    int64_t hurry_ns;    /* the longest of the short deadlines */
    uint32_t odd_rank;   /* a worker that disagrees with the others, or TORTURE_NOBODY */
    uint32_t odd_tensor; /* the tensor of the dispute */
    int32_t odd_round;   /* the round of the dispute; -1: the tensor itself */
    bool odd_exchange;   /* the odd worker broadcasts where the others sum, or sums where they broadcast */
    uint32_t lives;      /* rounds after which every worker releases a tensor and declares it anew; 0: it stays */
    uint32_t lap;        /* rounds of each tensor after which all workers have joined once more; 0: nobody joins */
    uint32_t stops[TORTURE_WORKERS_MAX]; /* of each lap, the rounds that the worker does before it joins */
    int64_t restless_ns;                 /* mean time between moves of all partitions to other members; 0: no moves */
    torture_attack attack;
    uint64_t flip_one_in;   /* of messages, for FLIPS; once all have joined, if the job may not end for it */
    uint32_t attack_one_in; /* of data frames, for FORGERY */
} torture_plan;

typedef struct torture_verdict {
    bool held;                  /* all invariants held */
    char why[512];              /* otherwise: the first that did not */
    uint64_t steps;             /* events of the world */
    uint32_t succeeded, failed; /* operations */
    int64_t virtual_ns;
    uint64_t checks[TORTURE_CHECKS];
} torture_verdict;

void torture_draw(uint64_t seed, torture_plan *plan);
/* Draws a cut of one member and breaks of connections, which no operation may notice. */
void torture_draw_cuts(torture_plan *plan);
/* torture_stutter.c: draws workers that leave at once after joining, and posts and reports of sends that come late. */
void torture_draw_stutters(torture_plan *plan);
/* Draws one attack for some of the jobs. */
void torture_draw_attack(torture_plan *plan);
/* Returns the size of all sums that a worker of this job gets. */
uint64_t torture_sum_bytes(const torture_plan *plan);
/* torture_codec.c: draws losses, and how the job's sums are encoded. */
void torture_draw_codec(torture_plan *plan);
/* Draws an attack, or servers that die, which no operation may notice. */
void torture_draw_losses(torture_plan *plan);
/* True for the seeds of blocks in which nearly each job has servers and loses some: 5,000 to 6,999 of each 10,000. */
bool torture_is_to_lose(uint64_t seed);
/* torture_join.c: draws all of that, and workers with different amounts of data. And a bit for each worker
 * that has joined before that round. */
void torture_draw_joins(torture_plan *plan);
uint32_t torture_absent(const torture_plan *plan, uint32_t index, uint32_t round);
/* Draws a dispute about a tensor on devices. */
void torture_draw_dispute(torture_plan *plan);
/* torture_exchange.c: draws tensors that are exchanged in other ways, or in a group. */
void torture_draw_exchanges(torture_plan *plan);
/* Draws all of that and joins, and which sums are scaled. */
void torture_draw_scales(torture_plan *plan);
/* Draws all of that, groups that are released, and broadcasts whose roots differ between workers; called last. */
void torture_draw_regroups(torture_plan *plan);
/* Writes one line about everything that the seed has drawn. */
void torture_describe(const torture_plan *plan, char *text, size_t size);
torture_verdict torture_run(const torture_plan *plan);

/* ---- torture_data.c: the oracle ---- */

/* Element i of that rank's contribution in that round, small enough that sums are exact in every type. */
int torture_value(uint32_t tensor, uint32_t round, uint32_t rank, uint32_t i);
/* Fills in so many elements of that rank's contribution. */
void torture_fill(const torture_tensor *what, uint32_t tensor, uint32_t round, uint32_t rank, uint32_t count,
                  void *buffer);
/* Returns UINT32_MAX if the buffer holds the result for that worker of so many, else the first wrong element. */
uint32_t torture_check(const torture_tensor *what, uint32_t tensor, uint32_t round, uint32_t workers, uint32_t rank,
                       const void *buffer);

/* ---- torture_slices.c: who shares a tensor, and the lengths of its slices ---- */

bool torture_is_member(const torture_tensor *what, uint32_t rank);
/* The number of workers that share the tensor; their ranks in its order; and the place of one of them. */
uint32_t torture_members(const torture_tensor *what, uint32_t workers);
uint32_t torture_rank_at(const torture_tensor *what, uint32_t workers, uint32_t place);
uint32_t torture_place_of(const torture_tensor *what, uint32_t workers, uint32_t rank);
/* Elements of the slice of the worker at that place, or for TORTURE_PAIRS of the slice of the first for the second. */
uint32_t torture_slice(const torture_tensor *what, uint32_t giver, uint32_t taker);
/* Elements that a worker hands in, that it gets, and that all slices have together. */
uint32_t torture_given(const torture_tensor *what, uint32_t workers, uint32_t rank);
uint32_t torture_taken(const torture_tensor *what, uint32_t workers, uint32_t rank);
uint32_t torture_total(const torture_tensor *what, uint32_t workers);
/* Elements of the slices before that worker's own. */
uint32_t torture_before(const torture_tensor *what, uint32_t workers, uint32_t rank);

#endif

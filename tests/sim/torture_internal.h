/* torture_internal.h - a run of torture.h: torture_run.c (faults, final checks), torture_drive.c (the workers),
 * torture_buffers.c (what they read and write), and torture_judge.c, torture_blame.c, torture_watch.c (checks during
 * the run). */
#ifndef TRIB_TESTS_SIM_TORTURE_INTERNAL_H
#define TRIB_TESTS_SIM_TORTURE_INTERNAL_H

#include "engine/core/core.h"
#include "tests/sim/torture.h"

#define MS INT64_C(1000000)
#define SECOND (1000 * MS)
#define TABLE_MAX (TORTURE_TENSORS_MAX + TORTURE_CROWD_MAX)
#define SLOTS 2u /* most rounds of a tensor that a worker has in flight */

struct run;

/* One operation. */
typedef struct attempt {
    struct run *run;
    struct driver *driver;
    uint32_t tensor, round;
    unsigned char *input, *output;
    bool busy;
    size_t poisoned; /* so many bytes of the output hold a pattern that nothing may overwrite */
    uint32_t callbacks;
    int64_t submit_clock_ns, timeout_ns;
    int64_t submit_ns, done_ns; /* the world's time */
    trib_op *op;                /* set until the operation is cancelled */
    trib_sim_event cancel;
    trib_host_stream *stream; /* fills the input of a tensor on a device */
    trib_sim_event ready;     /* fires when the input is filled */
} attempt;

/* One worker. */
typedef struct driver {
    struct run *run;
    uint32_t rank;
    uint32_t next_round[TABLE_MAX]; /* counted from 0 */
    attempt attempts[TORTURE_TENSORS_MAX][SLOTS];
    attempt crowd[TORTURE_CROWD_MAX];
    trib_tensor *declared[TORTURE_TENSORS_MAX]; /* what is to be released before it is declared again */
    trib_group *groups[TORTURE_TENSORS_MAX];    /* of these tensors; NULL: all workers share it */
    uint32_t in_flight, crowd_in_flight;
    trib_sim_event begin; /* starts a late worker */
    trib_sim_event leave; /* checks again whether the worker may leave */
    int64_t leaves_at_ns; /* when it leaves with operations in flight; 0: not known yet */
    bool refused;         /* the engine rejects new operations */
    bool joins;           /* it has joined, and not all others have */
    uint32_t lap;         /* how often all have joined */
    int32_t joined_last;
    trib_sim_stream stream;
} driver;

typedef struct running_fault {
    struct run *run;
    const torture_fault *what;
    bool formed; /* the job, when it began */
    trib_sim_event begin, end;
} running_fault;

/* A moment in which a member stands still (torture_stutter.c). */
typedef struct stutter {
    trib_sim_event thaw; /* the first member, so that the event is the stutter */
    struct run *run;
    sim_member *member;
} stutter;

/* Counts a member's allocations by size, to fail one of them. */
typedef struct torture_miss {
    uint64_t left; /* allocations of rare sizes up to the one that fails; 0: none fails */
    uint32_t size_count, counts[TORTURE_SITES];
    size_t sizes[TORTURE_SITES];
} torture_miss;

typedef struct run {
    const torture_plan *plan;
    sim_job *job;
    trib_host_world *world; /* the world of its devices; NULL: none */
    driver drivers[TORTURE_WORKERS_MAX];
    running_fault faults[TORTURE_FAULTS_MAX];
    stutter stutter[TORTURE_MEMBERS_MAX];
    trib_sim_stream stutters;
    trib_sim_event absence;
    trib_sim_event restless;
    trib_post restless_post; /* runs on the coordinator's reactor */
    bool restless_posted;
    trib_sim_stream weights;
    uint64_t deals; /* moves that were begun */
    bool rests;     /* no more moves */
    /* How late each member's callbacks may be, because it stood still or its clock jumped. */
    int64_t grace_extended_ns[TORTURE_MEMBERS_MAX];
    uint32_t frozen[TORTURE_MEMBERS_MAX]; /* a count, because freezes nest */
    bool drained[TORTURE_MEMBERS_MAX];    /* servers that have asked to leave */
    bool flips;                           /* bits flip by now */
    uint64_t alloc_fails_one_in[TORTURE_MEMBERS_MAX];
    torture_miss miss;
    trib_sim_stream alloc_failures;
    trib_sim_stream pace;
    uint32_t laps_over;                /* how often all workers have joined, as the first of them heard of it */
    int32_t joined_last;               /* who was last then */
    bool lost_one;                     /* a member was killed after the job had formed */
    struct torture_attacker *attacker; /* NULL: none */
    bool is_last;                      /* all workers sum every tensor once more, and nothing may fail */
    torture_verdict verdict;
} run;

/* Records the first violation as the verdict; later ones are ignored. */
void torture_broken(run *self, const char *format, ...) __attribute__((format(printf, 2, 3)));

bool torture_may_leave_early(const torture_plan *plan);
/* torture_watch.c: checks the counts that must balance between the turns of the reactors. */
void torture_watch(run *self);
/* Returns true once every live member has joined or given up. Cancelled operations are kept until then. */
bool torture_has_begun(sim_job *job, void *unused);
/* Checks a live, idle job: no operation is kept unless its worker has a handle. */
void torture_watch_rest(run *self);
/* Checks after all engines are closed that nothing is missing from the pools. */
void torture_watch_closed(run *self);

/* torture_attack.c. */
bool torture_attack_open(run *self);
/* Checks, when a member stood still, that the others have heard of it. formed: the job had formed when it began. */
void torture_attack_flip(run *self);
void torture_attack_check_silence(run *self, const torture_fault *fault, bool formed);
/* After the engines are closed, and before the world is freed. */
void torture_attack_close(run *self);

/* torture_judge.c: checks an operation's status, time and result. */
/* Returns true if the drawn faults explain that an operation or the job ends with this status. */
bool torture_may_end_so(const run *self, trib_status status);
/* Returns true if nothing in the plan delays messages. */
bool torture_is_calm(const torture_plan *plan);
void torture_judge(attempt *what, const trib_result *result);
/* The tensor as it is in that round. */
torture_tensor torture_tensor_of(const torture_plan *plan, uint32_t index, uint32_t round);
/* Returns true if the workers disagree about that operation. */
bool torture_is_disputed(const torture_plan *plan, uint32_t index, uint32_t round);
/* torture_blame.c: checks that the error names the member that caused it. */
void torture_blame(attempt *what, const trib_result *result);
void torture_blame_lost(run *self, uint32_t member, const char *text);
/* Returns true if the text names a lost member that was cut off when its own job ended, because another one left. */
bool torture_is_silenced(const run *self, const char *text);

/* torture_exchange.c: describes the worker's slices of a tensor, makes its group, and submits what is done with it.
 * splits has room for all workers. */
void torture_describe_slices(const driver *self, const torture_tensor *what, trib_tensor_desc *desc, uint64_t *splits);
bool torture_make_group(driver *self, uint32_t index, const torture_tensor *what);
trib_status torture_submit_other(trib_engine *engine, const torture_tensor *tensor, size_t room, trib_op_params *params,
                                 trib_op **op_out, trib_error *error);

/* torture_codec.c: the tensor, if its sums are encoded, else NULL; and whether the buffer holds such a sum, as
 * torture_check says it. */
const struct trib_tensor *torture_encoded_tensor(const struct trib_engine *engine, const torture_tensor *what,
                                                 uint32_t index);
uint32_t torture_check_encoded(const struct trib_tensor *tensor, const torture_tensor *what, uint32_t index,
                               uint32_t round, uint32_t workers, const void *buffer);

/* torture_drive.c: starts the workers, which go on from their callbacks. */
void torture_drive_open(run *self);
attempt *torture_attempt(driver *self, uint32_t index, uint32_t round);
/* Returns where the operation reads and writes. In place, a slice lies at its place among all slices. */
unsigned char *torture_input(const attempt *what);
unsigned char *torture_output(const attempt *what);
void torture_name(const torture_tensor *what, uint32_t index, char *name, size_t size);
/* Makes all workers sum every tensor once more. */
void torture_drive_last(run *self);
/* Begins what the worker can begin. */
void torture_submit_more(driver *self);
/* Releases the tensor, if the worker has it, or its group and so both. */
void torture_release_last(driver *self, uint32_t index);
/* Returns how many operations the worker still has handles of. */
uint32_t torture_drive_handles(const driver *self);
void torture_drive_close(run *self);

/* ---- torture_join.c ---- */

/* The worker joins if it has no more data in this lap. */
void torture_join_if_done(driver *self);
/* The round of that tensor before which the worker joins. */
uint32_t torture_lap_ends(const driver *self, uint32_t index);
/* True if the worker has to join once more. */
bool torture_has_laps(const driver *self);

/* ---- torture_buffers.c ---- */

void torture_buffers_open(attempt *what);
void torture_buffers_close(attempt *what);
/* Bytes of all slices of the operation's tensor. */
size_t torture_buffers_size(const attempt *what);
/* Fills the input, or makes a stream that fills it later. The engine must not read it before. */
void torture_buffers_begin(attempt *what);
/* The operation is over: the buffers are the caller's again. */
void torture_buffers_give_back(attempt *what);
/* Frees the operation's stream, if there is one. */
void torture_stream_end(attempt *what);
/* Checks that no output was written after it had been given back. */
void torture_buffers_check(run *self);

/* ---- torture_losses.c ---- */
/* The server of that fault goes. */
void torture_lose(run *self, const torture_fault *what);
/* Every server that was drained is let go soon. */
void torture_await_drained(run *self);

/* ---- torture_stutter.c ---- */

/* Called after each event: now and then a member stands still for a moment, where the plan says so. */
void torture_stutter(run *self);
/* True if a worker that leaves as soon as it has joined is still there. */
bool torture_will_leave(const run *self, uint32_t rank);
/* At rest, where messages are reported as sent late: waits until all of the core's are. A sign of life may be under
 * way at any moment. */
void torture_await_reports(const run *self, trib_core *core);

#endif

/*
 * pipeline.h - moves a partition along the stages of its plan.
 *
 * A plan is a const table (stages/plans.c). A stage's start answers DONE, PENDING (trib_pipeline_resume follows exactly once),
 * QUEUE or FAILED. A completion that comes while start is still running is noted and taken when it returns, so nothing is lost and
 * nothing recurses. A task settles once in a round: after the last stage, or, given up, with its last hold.
 *
 * A stage may have a credit: so many bytes of its tasks are under way at a time on a core. A task whose stage answers QUEUE waits
 * for some, by priority and then by age, and its stage is `run` when there is; the credit comes back when the task leaves the
 * stage, or settles. What a stage asks credit for must end on this machine alone, or it would hold up what another waits for.
 */
#ifndef TRIB_ENGINE_PIPELINE_H
#define TRIB_ENGINE_PIPELINE_H

#include "engine/base/counter.h"
#include "engine/trace/stage_list.h"
#include "engine/worker/op.h"

typedef enum trib_verdict {
    TRIB_VERDICT_DONE,
    TRIB_VERDICT_PENDING,
    TRIB_VERDICT_QUEUE, /* the stage needs credit */
    TRIB_VERDICT_FAILED
} trib_verdict;

typedef struct trib_stage_credit {
    uint64_t bytes;       /* of all cores together; each has its part of them */
    uint32_t tasks_least; /* so many of each core's tasks have credit in any case */
} trib_stage_credit;

typedef struct trib_stage {
    trib_stage_id id;
    trib_verdict (*start)(trib_core *core, trib_task *task, trib_error *error);
    /* The task has got credit; answers as start does, but not QUEUE. NULL: start never says QUEUE. */
    trib_verdict (*run)(trib_core *core, trib_task *task, trib_error *error);
    trib_stage_credit credit;
    /* The task is given up in this stage, which is PENDING: no resume follows. What is under way holds the task. NULL: there is
     * nothing to do. */
    void (*cancel)(trib_core *core, trib_task *task);
    /* The task is given up, or its round is, before it came to this stage. NULL: that concerns nobody. */
    void (*skip)(trib_core *core, trib_task *task);
} trib_stage;

#define TRIB_STAGE_BUCKETS 40u
/* How often something took so long: bucket 0 no time, bucket i from 2^(i-1) ns to less than 2^i, the last one all above. */
typedef struct trib_stage_times {
    trib_counter buckets[TRIB_STAGE_BUCKETS];
} trib_stage_times;

/* What the dispatcher keeps for a stage on one core. */
typedef struct trib_stage_state {
    trib_task *head, *tail; /* those that wait for credit, by priority, then by age */
    uint64_t bytes;         /* of those that have credit */
    uint32_t tasks;         /* that have it */
    bool is_admitting;
    trib_stage_times stayed; /* in the stage, of those that left it; no time if start said DONE */
    trib_stage_times waited; /* of that for credit, of those that got some */
} trib_stage_state;

struct trib_codec;

#define TRIB_PLAN_STAGES_MAX 12u
typedef struct trib_plan {
    const char *name;
    const struct trib_codec *codec;
    bool is_local;                                  /* no stage exchanges anything with a server */
    const trib_stage *stages[TRIB_PLAN_STAGES_MAX]; /* NULL-terminated */
} trib_plan;

/* A round is about to begin; all tasks of it are prepared before the first one begins. */
void trib_pipeline_prepare(trib_core *core, trib_task *task, trib_op_core *op_core);
/* A round that has failed never begins: each stage of the plan learns of it. */
void trib_pipeline_skip(trib_core *core, trib_task *task, trib_op_core *op_core);
/* From the first stage on. */
void trib_pipeline_begin(trib_core *core, trib_task *task);
/* The stage that was PENDING is done. */
void trib_pipeline_resume(trib_core *core, trib_task *task);
/* Gives up what is open; the operation has failed. The task settles when nothing of the caller's is in use any more. */
void trib_pipeline_fail(trib_core *core, trib_task *task);
/* Any thread: the stage's counts on that core now. */
void trib_pipeline_read_times(const trib_core *core, trib_stage_id id, uint64_t stayed[TRIB_STAGE_BUCKETS],
                              uint64_t waited[TRIB_STAGE_BUCKETS]);
/* The stage the task is in: "PUSH". */
const char *trib_pipeline_stage_name(const trib_task *task);
/* The stage itself; NULL when the plan is over. */
const trib_stage *trib_pipeline_stage(const trib_task *task);
/* Is that stage under way? */
bool trib_pipeline_waits_in(const trib_task *task, trib_stage_id id);

/* worker.c: the task needs nothing more. */
void trib_worker_task_settled(trib_core *core, trib_task *task);

#endif

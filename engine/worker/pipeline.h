/*
 * pipeline.h - moves a partition along the stages of its plan.
 *
 * A plan is a const table (stages/plans.c). A stage's start answers DONE, PENDING (trib_pipeline_resume follows exactly once)
 * or FAILED. A completion that comes while start is still running is noted and taken when it returns, so nothing is lost and
 * nothing recurses. A task settles once in a round: after the last stage, or, given up, with its last hold.
 */
#ifndef TRIB_ENGINE_PIPELINE_H
#define TRIB_ENGINE_PIPELINE_H

#include "engine/trace/stage_list.h"
#include "engine/worker/op.h"

typedef enum trib_verdict { TRIB_VERDICT_DONE, TRIB_VERDICT_PENDING, TRIB_VERDICT_FAILED } trib_verdict;

typedef struct trib_stage {
    trib_stage_id id;
    trib_verdict (*start)(trib_core *core, trib_task *task, trib_error *error);
    /* The task is given up in this stage, which is PENDING: no resume follows. What is under way holds the task. NULL: there is
     * nothing to do. */
    void (*cancel)(trib_core *core, trib_task *task);
    /* The task is given up, or its round is, before it came to this stage. NULL: that concerns nobody. */
    void (*skip)(trib_core *core, trib_task *task);
} trib_stage;

#define TRIB_PLAN_STAGES_MAX 10u
typedef struct trib_plan {
    const char *name;
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
/* The stage the task is in: "PUSH". */
const char *trib_pipeline_stage_name(const trib_task *task);
/* The stage itself; NULL when the plan is over. */
const trib_stage *trib_pipeline_stage(const trib_task *task);
/* Is that stage under way? */
bool trib_pipeline_waits_in(const trib_task *task, trib_stage_id id);

/* worker.c: the task needs nothing more. */
void trib_worker_task_settled(trib_core *core, trib_task *task);

#endif

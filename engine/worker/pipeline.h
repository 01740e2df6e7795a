/*
 * pipeline.h - moves a partition along the stages of its plan.
 *
 * A plan is a const table (stages/plans.c). A stage's start answers DONE, PENDING (trib_pipeline_resume follows
 * exactly once) or FAILED. Only trib_pipeline_run changes task->stage. A completion that comes while start is still
 * running is noted and taken when it returns, so nothing is lost and nothing recurses.
 */
#ifndef TRIB_ENGINE_PIPELINE_H
#define TRIB_ENGINE_PIPELINE_H

#include "engine/trace/stage_list.h"
#include "engine/worker/op.h"

typedef enum trib_verdict { TRIB_VERDICT_DONE, TRIB_VERDICT_PENDING, TRIB_VERDICT_FAILED } trib_verdict;

typedef struct trib_stage {
    trib_stage_id id;
    trib_verdict (*start)(trib_core *core, trib_task *task, trib_error *error);
    void (*cancel)(trib_core *core, trib_task *task); /* while PENDING: give back what waits; no resume follows */
} trib_stage;

#define TRIB_PLAN_STAGES_MAX 10u
typedef struct trib_plan {
    const char *name;
    const trib_stage *stages[TRIB_PLAN_STAGES_MAX]; /* NULL-terminated */
} trib_plan;

/* From the first stage on. */
void trib_pipeline_begin(trib_core *core, trib_task *task);
/* The stage that was PENDING is done. */
void trib_pipeline_resume(trib_core *core, trib_task *task);
/* Gives up: cancels the stage; the task settles when nothing of the caller's is in use any more. */
void trib_pipeline_fail(trib_core *core, trib_task *task);
/* Settles a failed task if its buffers are free now. */
void trib_pipeline_try_settle(trib_core *core, trib_task *task);
/* The stage the task is in: "PUSH". */
const char *trib_pipeline_stage_name(const trib_task *task);
/* The stage itself; NULL when the plan is over. */
const trib_stage *trib_pipeline_stage(const trib_task *task);

/* worker.c: the task needs nothing more. */
void trib_worker_task_settled(trib_core *core, trib_task *task);

#endif

/*
 * pipeline.h - moves a partition along the stages of its plan.
 *
 * A plan is a constant table (stages/plans.c). A stage's start returns DONE, PENDING (exactly one
 * trib_pipeline_resume follows), QUEUE or FAILED. A completion that arrives while start still runs is noted and
 * handled when start returns. Nothing is lost and nothing recurses. A task settles once in a round: after the last
 * stage or, if it was given up, with its last hold.
 *
 * A stage may have a credit, which bounds the bytes of its tasks in flight on a core. A task whose start returns
 * QUEUE waits for credit, by priority and then by age; then the stage's `run` is called. The credit returns when the
 * task leaves the stage or settles. A stage with credit must complete without other machines; otherwise a task could
 * block another that its peer waits for.
 */
#ifndef TRIB_ENGINE_PIPELINE_H
#define TRIB_ENGINE_PIPELINE_H

#include "engine/trace/stage_list.h"
#include "engine/worker/op.h"

typedef enum trib_verdict {
    TRIB_VERDICT_DONE,
    TRIB_VERDICT_PENDING,
    TRIB_VERDICT_QUEUE, /* the stage needs credit */
    TRIB_VERDICT_FAILED
} trib_verdict;

typedef struct trib_stage_credit {
    uint64_t bytes;       /* total of all cores, divided equally among them */
    uint32_t tasks_least; /* tasks of each core that get credit regardless of bytes */
} trib_stage_credit;

typedef struct trib_stage {
    trib_stage_id id;
    trib_verdict (*start)(trib_core *core, trib_task *task, trib_error *error);
    /* The task has credit. Returns as start does, but never QUEUE. NULL: start never returns QUEUE. */
    trib_verdict (*run)(trib_core *core, trib_task *task, trib_error *error);
    trib_stage_credit credit;
    /* The task is given up while this stage is PENDING; no resume follows. Work in flight holds the task. NULL:
     * nothing to do. */
    void (*cancel)(trib_core *core, trib_task *task);
    /* The task or its round is given up before this stage. NULL: the stage need not know. */
    void (*skip)(trib_core *core, trib_task *task);
} trib_stage;

/* The state of a stage on one core. */
typedef struct trib_stage_state {
    trib_task *head, *tail; /* tasks that wait for credit, by priority, then by age */
    uint64_t bytes;         /* bytes of the tasks with credit */
    uint32_t tasks;         /* number of tasks with credit */
    bool is_admitting;
} trib_stage_state;

#define TRIB_PLAN_STAGES_MAX 12u
typedef struct trib_plan {
    const char *name;
    bool is_local;                                  /* true if no stage exchanges data with a server */
    const trib_stage *stages[TRIB_PLAN_STAGES_MAX]; /* NULL-terminated */
} trib_plan;

/* Prepares a task for a round. All tasks of the round are prepared before the first one begins. */
void trib_pipeline_prepare(trib_core *core, trib_task *task, trib_op_core *op_core);
/* Ends a task of a round that failed before it began: each stage of the plan is told. */
void trib_pipeline_skip(trib_core *core, trib_task *task, trib_op_core *op_core);
/* Starts the task at the first stage. */
void trib_pipeline_begin(trib_core *core, trib_task *task);
/* Continues a task whose PENDING stage is done. */
void trib_pipeline_resume(trib_core *core, trib_task *task);
/* Takes a task that waits in that stage, or in a later one, back to its beginning. */
void trib_pipeline_restart(trib_core *core, trib_task *task, trib_stage_id id);
/* Gives the task up if it is open; the operation has already failed. The task settles when no one uses the
 * caller's buffers any more. */
void trib_pipeline_fail(trib_core *core, trib_task *task);
/* Returns the name of the task's stage, such as "PUSH". */
const char *trib_pipeline_stage_name(const trib_task *task);
/* Returns the task's stage; NULL after the last one. */
const trib_stage *trib_pipeline_stage(const trib_task *task);
/* Returns true if the task waits in that stage. */
bool trib_pipeline_waits_in(const trib_task *task, trib_stage_id id);

/* Returns true if the task is in that stage of its plan, or in a later one. */
bool trib_pipeline_has_come_to(const trib_task *task, trib_stage_id id);

/* worker.c: the task has settled. */
void trib_worker_task_settled(trib_core *core, trib_task *task);

#endif

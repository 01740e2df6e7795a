/* pipeline.c - the one place where a partition goes from stage to stage. */
#include "engine/worker/pipeline.h"

#include "engine/base/assert.h"
#include "engine/worker/task_trace.h"
#include "engine/worker/worker.h"

static const trib_plan *plan_of(const trib_task *task)
{
    return &task->tensor->engine->env.plans[task->op_core->op->collective];
}

const char *trib_pipeline_stage_name(const trib_task *task)
{
    return trib_stage_name(plan_of(task)->stages[task->stage]->id);
}

const trib_stage *trib_pipeline_stage(const trib_task *task)
{
    return plan_of(task)->stages[task->stage];
}

bool trib_pipeline_waits_in(const trib_task *task, trib_stage_id id)
{
    return task->state == TRIB_TASK_WAITING && trib_pipeline_stage(task)->id == id;
}

/* ---- States ---- */

#define FROM(state) (1u << TRIB_TASK_##state)

/* From which states a task comes to each. */
static const uint32_t predecessors[TRIB_TASK_STATES] = {
    [TRIB_TASK_IDLE] = FROM(IDLE) | FROM(SETTLED),
    [TRIB_TASK_RUNNING] = FROM(IDLE) | FROM(RUNNING) | FROM(RESUMED) | FROM(WAITING),
    [TRIB_TASK_RESUMED] = FROM(RUNNING),
    [TRIB_TASK_WAITING] = FROM(RUNNING),
    [TRIB_TASK_FAILING] = FROM(IDLE) | FROM(RUNNING) | FROM(RESUMED) | FROM(WAITING),
    [TRIB_TASK_SETTLED] = FROM(RUNNING) | FROM(RESUMED) | FROM(WAITING) | FROM(FAILING),
};

static void set_state(trib_core *core, trib_task *task, trib_task_state state)
{
    const trib_task_state before = task->state;
    trib_assert((predecessors[state] >> before & 1) != 0);
    task->state = state;
    if (state == TRIB_TASK_RUNNING) {
        trib_trace_enter(core, task);
    } else if (state == TRIB_TASK_FAILING) {
        trib_trace_task(core, TRIB_TRACE_FAILED, task, (uint32_t)atomic_load(&task->op_core->op->claim));
    } else if (state == TRIB_TASK_SETTLED && before != TRIB_TASK_FAILING) {
        trib_trace_task(core, TRIB_TRACE_DONE, task, task->size);
    }
}

static void settle(trib_core *core, trib_task *task)
{
    trib_assert(task->holds == 0);
    set_state(core, task, TRIB_TASK_SETTLED);
    trib_worker_task_settled(core, task);
}

static void settle_if_free(trib_core *core, trib_task *task)
{
    if (task->state == TRIB_TASK_FAILING && task->holds == 0) {
        settle(core, task);
    }
}

void trib_task_hold(trib_task *task, trib_hold reason)
{
    trib_assert(task->state != TRIB_TASK_SETTLED);
    task->holds++;
    task->held[reason]++;
}

void trib_task_release(trib_core *core, trib_task *task, trib_hold reason)
{
    trib_assert(task->holds > 0 && task->held[reason] > 0);
    task->holds--;
    task->held[reason]--;
    settle_if_free(core, task);
}

/* ---- Stages ---- */

/* The operation has failed by this worker alone: what its other partitions wait for, on this core and on others, may come at
 * its deadline only, or never. By a post, as those of this core may not have begun yet. Once the job is over every core gives up
 * all by itself. */
static void give_up_soon(trib_core *core, trib_op *op)
{
    if (!core->ended) {
        trib_op_give_up(op);
    }
}

static void skip_from(trib_core *core, trib_task *task, uint32_t stage)
{
    for (const trib_stage *const *at = &plan_of(task)->stages[stage]; *at != NULL; at++) {
        if ((*at)->skip != NULL) {
            (*at)->skip(core, task);
        }
    }
}

static void fail_by_itself(trib_core *core, trib_task *task, const trib_error *error)
{
    trib_op *op = task->op_core->op;
    trib_op_fail(op, error->status, "tensor \"%s\": %s", task->tensor->name, error->text);
    task->gave_up = true;
    set_state(core, task, TRIB_TASK_FAILING);
    skip_from(core, task, task->stage + 1);
    give_up_soon(core, op);
    settle_if_free(core, task);
}

/* Runs stages until one waits, fails, or the plan ends; bounded by the length of the plan. */
static void run_stages(trib_core *core, trib_task *task)
{
    const trib_plan *plan = plan_of(task);
    while (plan->stages[task->stage] != NULL) {
        trib_error error;
        trib_error_clear(&error);
        task->since_ns = trib_now_fast(core->reactor);
        set_state(core, task, TRIB_TASK_RUNNING);
        const trib_verdict verdict = plan->stages[task->stage]->start(core, task, &error);
        if (!trib_task_is_open(task)) {
            return; /* what start did has made somebody give it up */
        }
        if (verdict == TRIB_VERDICT_FAILED) {
            fail_by_itself(core, task, &error);
            return;
        }
        if (verdict == TRIB_VERDICT_PENDING && task->state == TRIB_TASK_RUNNING) {
            set_state(core, task, TRIB_TASK_WAITING);
            return;
        }
        task->stage++;
    }
    settle(core, task);
}

void trib_pipeline_prepare(trib_core *core, trib_task *task, trib_op_core *op_core)
{
    trib_assert(op_core != NULL && task->holds == 0);
    task->op_core = op_core;
    task->stage = 0;
    task->refused = false;
    set_state(core, task, TRIB_TASK_IDLE);
}

void trib_pipeline_skip(trib_core *core, trib_task *task, trib_op_core *op_core)
{
    trib_pipeline_prepare(core, task, op_core);
    task->gave_up = true;
    skip_from(core, task, 0);
}

void trib_pipeline_begin(trib_core *core, trib_task *task)
{
    if (task->state == TRIB_TASK_IDLE) { /* else it has been given up since it was prepared */
        run_stages(core, task);
    }
}

void trib_pipeline_resume(trib_core *core, trib_task *task)
{
    if (task->state == TRIB_TASK_RUNNING) {
        set_state(core, task, TRIB_TASK_RESUMED);
        return;
    }
    trib_assert(task->state == TRIB_TASK_WAITING);
    task->stage++;
    run_stages(core, task);
}

void trib_pipeline_fail(trib_core *core, trib_task *task)
{
    if (!trib_task_is_open(task)) {
        return;
    }
    const trib_stage *stage = trib_pipeline_stage(task);
    const bool has_begun = task->state != TRIB_TASK_IDLE;
    trib_task_hold(task, TRIB_HOLD_DRIVER); /* else it could settle in the middle of this */
    task->gave_up = true;
    set_state(core, task, TRIB_TASK_FAILING);
    if (has_begun && stage->cancel != NULL) {
        stage->cancel(core, task);
    }
    skip_from(core, task, task->stage + (has_begun ? 1 : 0));
    trib_task_release(core, task, TRIB_HOLD_DRIVER);
}

/* pipeline.c - the one place where a partition goes from stage to stage. */
#include "engine/worker/pipeline.h"

#include "engine/base/assert.h"
#include "engine/link/link_self.h"
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

static void settle(trib_core *core, trib_task *task)
{
    trib_assert(!task->settled);
    trib_assert(task->sends_in_flight == 0);
    trib_assert(task->self_held == NULL);
    trib_assert(task->receives_in_progress == 0);
    trib_assert(task->device_holds == 0);
    task->settled = true;
    trib_worker_task_settled(core, task);
}

/* The operation has failed by this worker alone: what its other partitions wait for, on this core and on others, may come at
 * its deadline only, or never. By a post, as those of this core may not have begun yet. Once the job is over every core gives up
 * all by itself. */
static void give_up_soon(trib_core *core, trib_op *op)
{
    if (!core->ended) {
        trib_op_give_up(op);
    }
}

/* Runs stages until one waits, fails, or the plan ends; bounded by the length of the plan. */
static void pipeline_run(trib_core *core, trib_task *task)
{
    const trib_plan *plan = plan_of(task);
    while (plan->stages[task->stage] != NULL) {
        trib_error error;
        trib_error_clear(&error);
        task->since_ns = trib_now_fast(core->reactor);
        trib_trace_enter(core, task);
        task->running = true;
        task->resumed = false;
        trib_verdict verdict = plan->stages[task->stage]->start(core, task, &error);
        task->running = false;
        if (verdict == TRIB_VERDICT_FAILED) {
            trib_op_fail(task->op_core->op, error.status, "%s", error.text);
            task->failed = true;
            trib_trace_task(core, TRIB_TRACE_FAILED, task, (uint32_t)atomic_load(&task->op_core->op->claim));
            give_up_soon(core, task->op_core->op);
            trib_pipeline_try_settle(core, task);
            return;
        }
        if (verdict == TRIB_VERDICT_PENDING && !task->resumed) {
            return;
        }
        task->stage++;
    }
    trib_trace_task(core, TRIB_TRACE_DONE, task, task->size);
    settle(core, task);
}

void trib_pipeline_begin(trib_core *core, trib_task *task)
{
    trib_assert(task->op_core != NULL);
    task->stage = 0;
    task->failed = false;
    task->settled = false;
    pipeline_run(core, task);
}

void trib_pipeline_resume(trib_core *core, trib_task *task)
{
    trib_assert(!task->settled);
    if (task->failed) {
        trib_pipeline_try_settle(core, task);
        return;
    }
    task->resumed = true;
    if (!task->running) {
        task->stage++;
        pipeline_run(core, task);
    }
}

void trib_pipeline_fail(trib_core *core, trib_task *task)
{
    if (task->settled || task->failed) {
        return;
    }
    plan_of(task)->stages[task->stage]->cancel(core, task);
    task->failed = true;
    trib_worker_keep_round(task);
    trib_trace_task(core, TRIB_TRACE_FAILED, task, (uint32_t)atomic_load(&task->op_core->op->claim));
    trib_pipeline_try_settle(core, task);
}

void trib_pipeline_try_settle(trib_core *core, trib_task *task)
{
    trib_assert(task->failed);
    if (!task->settled && task->sends_in_flight == 0 && task->receives_in_progress == 0 && task->device_holds == 0) {
        trib_self_leases_recall(&task->self_held);
        settle(core, task);
    }
}

/* pipeline.c - the only file that moves a partition from stage to stage. */
#include "engine/worker/pipeline.h"

#include "engine/base/assert.h"
#include "engine/worker/task_trace.h"
#include "engine/worker/worker.h"

static const trib_plan *plan_of(const trib_task *task)
{
    return task->tensor->plan;
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

bool trib_pipeline_has_come_to(const trib_task *task, trib_stage_id id)
{
    uint32_t stage = task->stage;
    while (stage > 0 && plan_of(task)->stages[stage]->id != id) {
        stage--;
    }
    return plan_of(task)->stages[stage]->id == id;
}

/* ---- States ---- */

#define FROM(state) (1u << TRIB_TASK_##state)

/* The states from which a task may enter each state. */
static const uint32_t predecessors[TRIB_TASK_STATES] = {
    [TRIB_TASK_IDLE] = FROM(IDLE) | FROM(SETTLED),
    [TRIB_TASK_QUEUED] = FROM(RUNNING),
    [TRIB_TASK_RUNNING] = FROM(IDLE) | FROM(QUEUED) | FROM(RUNNING) | FROM(RESUMED) | FROM(WAITING),
    [TRIB_TASK_RESUMED] = FROM(RUNNING),
    [TRIB_TASK_WAITING] = FROM(RUNNING),
    [TRIB_TASK_FAILING] = FROM(IDLE) | FROM(QUEUED) | FROM(RUNNING) | FROM(RESUMED) | FROM(WAITING),
    [TRIB_TASK_SETTLED] = FROM(RUNNING) | FROM(RESUMED) | FROM(WAITING) | FROM(FAILING),
};

/* Inlined because the state is a constant at every call. */
static inline __attribute__((always_inline)) void set_state(trib_core *core, trib_task *task, trib_task_state state)
{
    const trib_task_state before = task->state;
    trib_assert((predecessors[state] >> before & 1) != 0);
    trib_assert(before != TRIB_TASK_QUEUED || (task->queue_next == NULL && task->queue_previous == NULL));
    task->state = state;
    if (state == TRIB_TASK_RUNNING && before != TRIB_TASK_QUEUED) {
        trib_trace_enter(core, task);
    } else if (state == TRIB_TASK_FAILING) {
        trib_trace_task(core, TRIB_TRACE_FAILED, task, (uint32_t)atomic_load(&task->op_core->op->claim));
    } else if (state == TRIB_TASK_SETTLED && before != TRIB_TASK_FAILING) {
        trib_trace_task(core, TRIB_TRACE_DONE, task, task->size);
    }
}

/* ---- Credit ---- */

static void enqueue(trib_stage_state *state, trib_task *task)
{
    trib_assert(task->state == TRIB_TASK_QUEUED && !task->has_credit);
    trib_assert(task->queue_next == NULL && task->queue_previous == NULL && state->head != task);
    trib_task *before = state->tail;
    while (before != NULL && before->op_core->op->priority < task->op_core->op->priority) {
        before = before->queue_previous;
    }
    task->queue_previous = before;
    task->queue_next = before == NULL ? state->head : before->queue_next;
    *(before == NULL ? &state->head : &before->queue_next) = task;
    *(task->queue_next == NULL ? &state->tail : &task->queue_next->queue_previous) = task;
}

static void dequeue(trib_stage_state *state, trib_task *task)
{
    trib_assert(task->state == TRIB_TASK_QUEUED && state->head != NULL && state->tail != NULL);
    trib_assert(task->queue_previous == NULL ? state->head == task : task->queue_previous->queue_next == task);
    trib_assert(task->queue_next == NULL ? state->tail == task : task->queue_next->queue_previous == task);
    *(task->queue_previous == NULL ? &state->head : &task->queue_previous->queue_next) = task->queue_next;
    *(task->queue_next == NULL ? &state->tail : &task->queue_next->queue_previous) = task->queue_previous;
    task->queue_next = task->queue_previous = NULL;
}

static bool has_credit(const trib_core *core, const trib_stage *stage, const trib_stage_state *state)
{
    return state->tasks < stage->credit.tasks_least || state->bytes < stage->credit.bytes / core->engine->core_count;
}

static void take_credit(trib_stage_state *state, trib_task *task)
{
    trib_assert(!task->has_credit);
    task->has_credit = true;
    state->bytes += task->size;
    state->tasks++;
    trib_assert(state->tasks > 0 && state->bytes >= task->size);
}

static void give_credit_back(trib_stage_state *state, trib_task *task)
{
    trib_assert(task->has_credit && state->tasks > 0 && state->bytes >= task->size);
    task->has_credit = false;
    state->bytes -= task->size;
    state->tasks--;
    trib_assert(state->tasks > 0 || state->bytes == 0);
}

/* ---- Holds ---- */

/* Settling a task gives credit back, which starts others, which may fail and settle. is_admitting ends that: each stage
 * admits at most once on a stack.
 * NOLINTBEGIN(misc-no-recursion) */
static void admit_queued(trib_core *core, const trib_stage *stage);

static void settle(trib_core *core, trib_task *task)
{
    /* A task that settles with credit has failed in that stage. */
    const trib_stage *stage = task->has_credit ? trib_pipeline_stage(task) : NULL;
    trib_assert(task->holds == 0);
    set_state(core, task, TRIB_TASK_SETTLED);
    trib_assert(task->queue_next == NULL && task->queue_previous == NULL);
    if (stage != NULL) {
        give_credit_back(&core->stages[stage->id], task);
    }
    trib_worker_task_settled(core, task);
    if (stage != NULL) {
        admit_queued(core, stage);
    }
}

static inline void settle_if_free(trib_core *core, trib_task *task)
{
    if (task->state == TRIB_TASK_FAILING && task->holds == 0) {
        settle(core, task);
    }
}

void trib_task_release(trib_core *core, trib_task *task, trib_hold reason)
{
    trib_assert(task->holds > 0 && task->held[reason] > 0);
    trib_assert(reason < TRIB_HOLD_COUNT && task->state != TRIB_TASK_SETTLED);
    task->holds--;
    task->held[reason]--;
    settle_if_free(core, task);
}

/* ---- Stages ---- */

/* The operation failed on this worker alone. Its other partitions, here and on other cores, might wait until the
 * deadline or for ever. A post is used because tasks of this core may not have begun yet. After the job's end
 * every core gives up by itself. */
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
    trib_op_fail(op, error->status, "%s", error->text);
    task->gave_up = true;
    set_state(core, task, TRIB_TASK_FAILING);
    skip_from(core, task, task->stage + 1);
    give_up_soon(core, op);
    settle_if_free(core, task);
}

/* Acts on the stage's verdict. Returns true if the stage is done. */
static bool take_verdict(trib_core *core, trib_task *task, trib_verdict verdict, const trib_error *error)
{
    if (!trib_task_is_open(task)) {
        return false; /* the task was given up inside its stage function */
    }
    if (verdict == TRIB_VERDICT_FAILED) {
        fail_by_itself(core, task, error);
        return false;
    }
    if (verdict == TRIB_VERDICT_QUEUE) {
        trib_assert(trib_pipeline_stage(task)->run != NULL); /* only such a stage may answer QUEUE */
        const trib_stage *stage = trib_pipeline_stage(task);
        set_state(core, task, TRIB_TASK_QUEUED);
        enqueue(&core->stages[stage->id], task);
        admit_queued(core, stage);
        return false;
    }
    if (verdict == TRIB_VERDICT_PENDING && task->state == TRIB_TASK_RUNNING) {
        set_state(core, task, TRIB_TASK_WAITING);
        return false;
    }
    return true;
}

static void leave_stage(trib_core *core, trib_task *task)
{
    trib_stage_state *state = &core->stages[trib_pipeline_stage(task)->id];
    if (task->has_credit) {
        give_credit_back(state, task);
    }
    task->since_ns = trib_now_fast(core->reactor);
    task->stage++;
    trib_assert(!task->has_credit && task->stage < TRIB_PLAN_STAGES_MAX);
}

/* Starts stages until one waits or fails, or the plan ends. The plan's length bounds the loop. */
static void run_stages(trib_core *core, trib_task *task)
{
    trib_error error;
    trib_error_clear(&error);
    for (const trib_stage *stage; (stage = trib_pipeline_stage(task)) != NULL;) {
        trib_assert(task->stage < TRIB_PLAN_STAGES_MAX - 1 && stage->id < TRIB_STAGE_COUNT);
        set_state(core, task, TRIB_TASK_RUNNING);
        const trib_verdict verdict = stage->start(core, task, &error);
        if (verdict == TRIB_VERDICT_DONE && task->state == TRIB_TASK_RUNNING) {
            task->stage++; /* without waiting, so the clock is not read */
        } else if (take_verdict(core, task, verdict, &error)) {
            leave_stage(core, task);
        } else {
            return;
        }
    }
    settle(core, task);
}

/* Starts queued tasks of the stage while there is credit. */
static void admit_queued(trib_core *core, const trib_stage *stage)
{
    trib_stage_state *state = &core->stages[stage->id];
    if (state->is_admitting) {
        return; /* an outer call on the stack continues the loop */
    }
    state->is_admitting = true;
    while (state->head != NULL && has_credit(core, stage, state)) {
        trib_task *task = state->head;
        trib_error error;
        trib_error_clear(&error);
        dequeue(state, task);
        take_credit(state, task);
        set_state(core, task, TRIB_TASK_RUNNING);
        if (take_verdict(core, task, stage->run(core, task, &error), &error)) {
            leave_stage(core, task);
            run_stages(core, task);
        }
    }
    state->is_admitting = false;
}
/* NOLINTEND(misc-no-recursion) */

void trib_pipeline_prepare(trib_core *core, trib_task *task, trib_op_core *op_core)
{
    trib_assert(op_core != NULL && task->holds == 0);
    trib_assert(task->op_core == NULL && !task->has_credit); /* the last round has settled */
    trib_assert(!trib_send_request_waits(&task->request));
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
    task->op_core = NULL; /* the operation may be freed now */
}

void trib_pipeline_begin(trib_core *core, trib_task *task)
{
    if (task->state == TRIB_TASK_IDLE) { /* otherwise the task was given up after it was prepared */
        task->since_ns = trib_now_fast(core->reactor);
        run_stages(core, task);
    }
}

void trib_pipeline_resume(trib_core *core, trib_task *task)
{
    if (task->state == TRIB_TASK_RUNNING) {
        set_state(core, task, TRIB_TASK_RESUMED);
        return;
    }
    trib_assert(task->op_core != NULL);
    trib_assert(task->state == TRIB_TASK_WAITING);
    const trib_stage *stage = trib_pipeline_stage(task);
    const bool had_credit = task->has_credit;
    leave_stage(core, task);
    run_stages(core, task);
    if (had_credit) {
        admit_queued(core, stage);
    }
}

void trib_pipeline_restart(trib_core *core, trib_task *task, trib_stage_id id)
{
    trib_assert(task->state == TRIB_TASK_WAITING && !task->has_credit);
    while (trib_pipeline_stage(task)->id != id) {
        trib_assert(task->stage > 0);
        task->stage--;
    }
    run_stages(core, task);
}

void trib_pipeline_fail(trib_core *core, trib_task *task)
{
    if (!trib_task_is_open(task)) {
        return;
    }
    const trib_stage *stage = trib_pipeline_stage(task);
    const bool has_begun = task->state != TRIB_TASK_IDLE, is_queued = task->state == TRIB_TASK_QUEUED;
    trib_task_hold(task, TRIB_HOLD_DRIVER); /* keeps the task from settling inside this function */
    task->gave_up = true;
    if (is_queued) {
        dequeue(&core->stages[stage->id], task);
    }
    set_state(core, task, TRIB_TASK_FAILING);
    if (has_begun && !is_queued && stage->cancel != NULL) {
        stage->cancel(core, task);
    }
    skip_from(core, task, task->stage + (has_begun ? 1 : 0));
    trib_task_release(core, task, TRIB_HOLD_DRIVER);
}

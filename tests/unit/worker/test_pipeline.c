/* test_pipeline.c - the contract between the dispatcher and its stages. Stages answer at once, later, in the middle of
 * start, after waiting for credit, or fail; tasks are given up at any time. A seed decides the order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/worker/pipeline.h"
#include "engine/worker/worker.h"
#include "stages/plans.h"

enum { TASKS = 12, ROUNDS = 4, STAGES = 5, SEEDS = 400, EVENTS_MAX = TASKS * 8, SIZE = 100 };

/* The way in which a stage handles a task in this round. */
typedef enum behaviour { AT_ONCE, DURING_START, PENDING, WITH_HOLDS, FAILS, BEHAVIOURS } behaviour;

/* A coming event: the end of a hold, or of a stage that has no hold. */
typedef struct event {
    uint32_t task;
    trib_hold reason;
    bool is_hold;
} event;

static struct {
    trib_engine engine;
    trib_core core;
    trib_reactor reactor;
    trib_tensor tensor;
    trib_op ops[2]; /* of different priorities */
    trib_op_core op_cores[2];
    trib_task tasks[TASKS];
    uint32_t left[TASKS];      /* ends that the stage waits for */
    uint32_t begun[TASKS];     /* stages of the round */
    uint32_t skipped[TASKS];   /* stages of the round that the task did not come to */
    uint32_t cancelled[TASKS]; /* how often */
    uint32_t settled[TASKS];   /* how often */
    bool fails[TASKS];         /* it was given up, or a stage failed */
    event events[EVENTS_MAX];
    uint32_t event_count;
    uint64_t random, log;
    int64_t now;
} the;

static uint32_t draw(uint32_t limit)
{
    the.random ^= the.random << 13;
    the.random ^= the.random >> 7;
    the.random ^= the.random << 17;
    return (uint32_t)(the.random >> 33) % limit;
}

static void note(uint32_t what, const trib_task *task)
{
    the.log = (the.log ^ (what << 16 | (uint32_t)(task - the.tasks) << 8 | task->stage)) * UINT64_C(1099511628211);
}

static int64_t tell_time(trib_reactor *reactor)
{
    (void)reactor;
    return the.now;
}

static const trib_reactor_ops fake_reactor = {.name = "fake", .now_ns = tell_time, .now_fast_ns = tell_time};

/* ---- Stages ---- */

static void add_event(const trib_task *task, bool is_hold, trib_hold reason)
{
    assert_in_range(the.event_count, 0, EVENTS_MAX - 1);
    the.events[the.event_count++] = (event){(uint32_t)(task - the.tasks), reason, is_hold};
    the.left[task - the.tasks]++;
}

static void take_holds(trib_task *task)
{
    for (uint32_t i = 0, count = 1 + draw(3); i < count; i++) {
        const trib_hold reason = (trib_hold)draw(TRIB_HOLD_DRIVER);
        trib_task_hold(task, reason);
        add_event(task, true, reason);
    }
}

static trib_verdict begin_stage(trib_core *core, trib_task *task, trib_error *error)
{
    const uint32_t index = (uint32_t)(task - the.tasks);
    assert_int_equal(the.begun[index], task->stage);
    assert_int_equal(task->state, TRIB_TASK_RUNNING);
    assert_int_equal(the.left[index], 0);
    the.begun[index]++;
    note(1, task);
    switch ((behaviour)draw(draw(8) == 0 ? BEHAVIOURS : FAILS)) {
    case AT_ONCE:
        return TRIB_VERDICT_DONE;
    case DURING_START:
        trib_pipeline_resume(core, task);
        return TRIB_VERDICT_PENDING;
    case WITH_HOLDS:
        take_holds(task);
        return TRIB_VERDICT_PENDING;
    case FAILS:
        trib_error_set(error, TRIB_SYSTEM, "a stage failed");
        the.fails[index] = true;
        return TRIB_VERDICT_FAILED;
    default:
        add_event(task, false, TRIB_HOLD_SEND);
        return TRIB_VERDICT_PENDING;
    }
}

static trib_verdict queue_stage(trib_core *core, trib_task *task, trib_error *error)
{
    if (draw(4) == 0) {
        return begin_stage(core, task, error); /* it needs no credit this time */
    }
    the.begun[task - the.tasks]++;
    note(2, task);
    return TRIB_VERDICT_QUEUE;
}

/* The task has got credit: no other that waits has a right to go first. */
static trib_verdict run_stage(trib_core *core, trib_task *task, trib_error *error)
{
    (void)error;
    const trib_stage *stage = trib_pipeline_stage(task);
    const trib_stage_state *state = &core->stages[stage->id];
    for (const trib_task *at = state->head; at != NULL; at = at->queue_next) {
        assert_int_equal(at->state, TRIB_TASK_QUEUED);
        assert_true(at->op_core->op->priority <= task->op_core->op->priority);
    }
    assert_true(task->has_credit);
    assert_true(state->tasks <= stage->credit.tasks_least || state->bytes < stage->credit.bytes + SIZE);
    note(3, task);
    if (draw(6) == 0) {
        return TRIB_VERDICT_DONE;
    }
    take_holds(task);
    return TRIB_VERDICT_PENDING;
}

static void cancel_stage(trib_core *core, trib_task *task)
{
    (void)core;
    const uint32_t index = (uint32_t)(task - the.tasks);
    assert_int_equal(task->state, TRIB_TASK_FAILING);
    the.cancelled[index]++;
    note(4, task);
    for (uint32_t i = 0; i < the.event_count; i++) {
        if (the.events[i].task == index && !the.events[i].is_hold) { /* no resume follows; holds stay until they end */
            the.events[i--] = the.events[--the.event_count];
            the.left[index]--;
        }
    }
}

static void skip_stage(trib_core *core, trib_task *task)
{
    (void)core;
    the.skipped[task - the.tasks]++;
}

static const trib_stage plain[STAGES] = {
    {.id = TRIB_STAGE_INPUT, .start = begin_stage, .cancel = cancel_stage, .skip = skip_stage},
    {.id = TRIB_STAGE_COPY_D2H,
     .start = queue_stage,
     .run = run_stage,
     .credit = {.bytes = 2 * SIZE + 1, .tasks_least = 2},
     .cancel = cancel_stage,
     .skip = skip_stage},
    {.id = TRIB_STAGE_PUSH, .start = begin_stage, .cancel = cancel_stage, .skip = skip_stage},
    {.id = TRIB_STAGE_PULL,
     .start = queue_stage,
     .run = run_stage,
     .credit = {.tasks_least = 1},
     .cancel = cancel_stage,
     .skip = skip_stage},
    {.id = TRIB_STAGE_COPY_H2D, .start = begin_stage, .cancel = cancel_stage, .skip = skip_stage},
};

static const trib_plan plan = {.name = "synthetic",
                               .stages = {&plain[0], &plain[1], &plain[2], &plain[3], &plain[4], NULL}};

/* ---- A round ---- */

__typeof__(trib_worker_task_settled) __wrap_trib_worker_task_settled;
void __wrap_trib_worker_task_settled(trib_core *core, trib_task *task)
{
    (void)core;
    const uint32_t index = (uint32_t)(task - the.tasks);
    assert_int_equal(task->state, TRIB_TASK_SETTLED);
    assert_int_equal(task->holds, 0);
    assert_false(task->has_credit);
    assert_int_equal(the.left[index], 0);
    assert_int_equal(the.begun[index] + the.skipped[index], STAGES);
    assert_int_equal(task->gave_up, the.fails[index]);
    the.settled[index]++;
    note(5, task);
    task->op_core = NULL; /* as the worker does: the operation may be freed */
}

static void end_event(uint32_t at)
{
    const event one = the.events[at];
    trib_task *task = &the.tasks[one.task];
    the.events[at] = the.events[--the.event_count];
    the.left[one.task]--;
    if (one.is_hold) {
        trib_task_release(&the.core, task, one.reason);
    }
    if (the.left[one.task] == 0 && trib_task_is_open(task)) {
        trib_pipeline_resume(&the.core, task);
    }
}

static void give_up(trib_task *task)
{
    if (task->op_core != NULL) { /* otherwise it has settled, and giving it up does nothing */
        trib_op_fail(task->op_core->op, TRIB_CANCELLED, "given up");
    }
    the.fails[task - the.tasks] = the.fails[task - the.tasks] || trib_task_is_open(task);
    trib_pipeline_fail(&the.core, task);
}

static bool is_queued(void)
{
    for (uint32_t i = 0; i < STAGES; i++) {
        if (the.core.stages[plain[i].id].head != NULL) {
            return true;
        }
    }
    return false;
}

static void run_round(bool with_failures)
{
    for (uint32_t i = 0; i < TASKS; i++) {
        the.begun[i] = the.skipped[i] = the.cancelled[i] = the.settled[i] = 0;
        the.fails[i] = the.tasks[i].gave_up = false;
        trib_pipeline_prepare(&the.core, &the.tasks[i], &the.op_cores[i % 2]);
    }
    for (uint32_t i = 0; i < TASKS; i++) {
        if (with_failures && draw(20) == 0) {
            give_up(&the.tasks[draw(TASKS)]); /* the task may belong to a round that has not begun */
        }
        trib_pipeline_begin(&the.core, &the.tasks[i]);
    }
    while (the.event_count > 0) {
        the.now += draw(1000);
        if (with_failures && draw(30) == 0) {
            give_up(&the.tasks[draw(TASKS)]);
        } else {
            end_event(draw(the.event_count));
        }
    }
    assert_false(is_queued());
    for (uint32_t i = 0; i < TASKS; i++) {
        assert_int_equal(the.settled[i], 1);
        assert_in_range(the.cancelled[i], 0, the.fails[i]);
        assert_true(the.fails[i] || the.begun[i] == STAGES);
    }
    for (uint32_t i = 0; i < STAGES; i++) {
        assert_int_equal(the.core.stages[plain[i].id].tasks, 0);
        assert_int_equal(the.core.stages[plain[i].id].bytes, 0);
    }
}

static void skip_round(void)
{
    for (uint32_t i = 0; i < TASKS; i++) {
        the.skipped[i] = 0;
        trib_pipeline_skip(&the.core, &the.tasks[i], &the.op_cores[0]);
        assert_int_equal(the.skipped[i], STAGES);
        assert_true(the.tasks[i].gave_up);
    }
}

static uint64_t run_seed(uint64_t seed)
{
    memset(&the, 0, sizeof the);
    the.random = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    the.reactor.ops = &fake_reactor;
    the.engine.core_count = 1;
    the.core.engine = &the.engine;
    the.core.reactor = &the.reactor;
    the.core.ended = true; /* a failure need not be told to other cores */
    the.core.stages = calloc(TRIB_STAGE_COUNT, sizeof *the.core.stages);
    assert_non_null(the.core.stages);
    the.tensor = (trib_tensor){.engine = &the.engine, .plan = &plan, .name = "t"};
    for (uint32_t i = 0; i < 2; i++) {
        the.ops[i].engine = &the.engine;
        the.ops[i].tensor = &the.tensor;
        the.ops[i].priority = (int32_t)i;
        the.op_cores[i].op = &the.ops[i];
    }
    for (uint32_t i = 0; i < TASKS; i++) {
        the.tasks[i] = (trib_task){.tensor = &the.tensor, .size = SIZE};
    }
    for (uint32_t round = 0; round < ROUNDS; round++) {
        run_round(seed % 4 != 0);
        if (draw(2) == 0) {
            skip_round();
        }
    }
    free(the.core.stages);
    return the.log;
}

static void tasks_settle_once_whatever_happens(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        const uint64_t first = run_seed(seed), again = run_seed(seed);
        assert_true(first == again);
    }
}

/* A plan has stages that speak with servers exactly if it says so, and it has codec stages then. */
static void plans_say_whether_they_are_local(void **state)
{
    (void)state;
    const int32_t local_sizes[] = {0, 1, 2, 4}; /* 0: in host memory */
    for (size_t i = 0; i < sizeof local_sizes / sizeof local_sizes[0]; i++) {
        trib_engine engine = {.config.worker_count = 4, .config.local_size = local_sizes[i]};
        const trib_tensor tensor = {.engine = &engine, .on_device = local_sizes[i] > 0};
        const trib_plan *chosen = trib_plan_choose(&tensor);
        uint32_t count = 0, pushes = 0;
        while (chosen->stages[count] != NULL) {
            pushes += chosen->stages[count]->id == TRIB_STAGE_PUSH;
            assert_true((chosen->stages[count]->run != NULL) == (chosen->stages[count]->credit.tasks_least > 0));
            count++;
        }
        assert_in_range(count, 1, TRIB_PLAN_STAGES_MAX - 1);
        assert_int_equal(pushes, !chosen->is_local);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tasks_settle_once_whatever_happens),
        cmocka_unit_test(plans_say_whether_they_are_local),
    };
    return cmocka_run_group_tests_name("stages and their dispatcher", tests, NULL, NULL);
}

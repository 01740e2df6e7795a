/*
 * worker.c - the worker's side of one core: operations arrive, their rounds run one after the other, their tasks settle.
 *
 * Invariant: cores touch a caller's buffer only between the arrival of an operation and the settling of its last task. How a
 * round is given up is in worker_abort.c, what comes from the servers in worker_link.c.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/worker/device_hooks.h"
#include "engine/worker/pipeline.h"
#include "engine/worker/task_trace.h"
#include "engine/worker/worker.h"

/* ---- Operations on a core ---- */

static void link_op_core(trib_core *core, trib_op_core *op_core)
{
    op_core->core = core;
    op_core->previous = NULL;
    op_core->next = core->op_cores;
    if (core->op_cores != NULL) {
        core->op_cores->previous = op_core;
    }
    core->op_cores = op_core;
    core->reactor->awaited++;
}

static void finish_op_core(trib_core *core, trib_op_core *op_core)
{
    trib_timer_stop(core->reactor, &op_core->deadline);
    trib_timer_stop(core->reactor, &op_core->grace);
    if (op_core->previous != NULL) {
        op_core->previous->next = op_core->next;
    } else {
        core->op_cores = op_core->next;
    }
    if (op_core->next != NULL) {
        op_core->next->previous = op_core->previous;
    }
    op_core->core = NULL;
    trib_assert(core->reactor->awaited > 0);
    core->reactor->awaited--;
    trib_op *op = op_core->op;
    if (!op_core->released) {
        op_core->released = true;
        trib_op_core_done(op, core);
    }
    trib_op_unbook_cores(op, 1);
}

/* It has failed and waits for its turn, or for the placement: its buffers are not in use and will not be, so the caller
 * need not wait for that too. The op_core stays, to spend its round. */
void trib_worker_release(trib_core *core, trib_op_core *op_core)
{
    trib_op *op = op_core->op;
    trib_assert(atomic_load(&op->claim) != 0);
    if (op_core->released) {
        return;
    }
    op_core->released = true;
    if (!op->spread) {
        for (uint32_t i = 1; i < core->engine->core_count; i++) {
            op->cores[i].released = true;
        }
        atomic_fetch_sub(&op->cores_left, core->engine->core_count - 1);
    }
    trib_op_core_done(op, core);
}

/* Core 0: an operation that was submitted before its tensor was placed goes to the other cores that have tasks now. */
static void spread(trib_core *core, trib_op *op)
{
    if (op->spread) {
        return;
    }
    trib_assert(core->reactor->index == 0);
    op->spread = true;
    for (uint32_t i = 1; i < core->engine->core_count; i++) {
        if (trib_tensor_is_used(op->tensor, i)) {
            trib_reactor_post(core->engine->cores[i].reactor, &op->cores[i].submit_post);
        } else { /* core 0's own share keeps both counts above 0 */
            atomic_fetch_sub(&op->cores_left, op->cores[i].released ? 0 : 1);
            atomic_fetch_sub(&op->cores_booked, 1);
        }
    }
}

/* Ends an op_core that never started; if the operation never reached the other cores, theirs too. */
static void drop_op_core(trib_core *core, trib_op_core *op_core)
{
    const uint32_t others = core->engine->core_count - 1;
    if (!op_core->op->spread && others > 0) {
        op_core->op->spread = true;
        if (!op_core->released) {
            atomic_fetch_sub(&op_core->op->cores_left, others);
        }
        trib_op_unbook_cores(op_core->op, others);
    }
    finish_op_core(core, op_core);
}

/* A round that never started: says so to the servers, so that the others do not wait for it. */
static void skip_round(trib_core *core, trib_op_core *op_core)
{
    trib_tensor_core *mine = trib_tensor_core_of(core, op_core->op->tensor);
    for (uint32_t i = 0; i < mine->task_count; i++) {
        trib_worker_withdraw(core, op_core, &mine->tasks[i]);
    }
    if (op_core->op->tensor->on_device) {
        core->engine->device_hooks->failed(op_core->op);
    }
    mine->round_next++;
    finish_op_core(core, op_core);
}

static void submit_arrived(trib_reactor *reactor, trib_post *post)
{
    trib_op_core *op_core = (trib_op_core *)((char *)post - offsetof(trib_op_core, submit_post));
    trib_worker_arrived(reactor->owner, op_core);
}

void trib_worker_prepare_op_core(trib_op_core *op_core)
{
    op_core->submit_post.run = submit_arrived;
    op_core->cancel_post.run = trib_worker_cancel_arrived;
    op_core->core = NULL;
    op_core->queue_next = NULL;
    op_core->abort = false;
    op_core->released = false;
}

/* There may be as many as ops_max, so nobody walks past all of them. Those that were submitted before the placement come by core 0,
 * in order, and here perhaps after later ones: each belongs right behind the one before. All others belong at the end. */
static void enqueue_by_round(trib_tensor_core *mine, trib_op_core *op_core)
{
    const uint32_t round = op_core->op->round;
    trib_op_core **at = &mine->pending;
    if (mine->pending != NULL && mine->pending_last->op->round < round) {
        at = &mine->pending_last->queue_next;
    } else if (mine->pending_late != NULL && mine->pending_late->op->round < round) {
        at = &mine->pending_late->queue_next;
    }
    while (*at != NULL && (*at)->op->round < round) {
        at = &(*at)->queue_next;
    }
    op_core->queue_next = *at;
    *at = op_core;
    *(op_core->queue_next == NULL ? &mine->pending_last : &mine->pending_late) = op_core;
}

static trib_op_core *dequeue_first(trib_tensor_core *mine)
{
    trib_op_core *op_core = mine->pending;
    mine->pending = op_core->queue_next;
    mine->pending_late = mine->pending_late == op_core ? NULL : mine->pending_late;
    op_core->queue_next = NULL;
    return op_core;
}

void trib_worker_arrived(trib_core *core, trib_op_core *op_core)
{
    trib_op *op = op_core->op;
    trib_tensor *tensor = op->tensor;
    if (op_core->core == NULL) {
        link_op_core(core, op_core);
        if (core->reactor->index == 0) {
            trib_trace_op(core, TRIB_TRACE_SUBMIT, op, op->submit_ns);
        }
        if (op->deadline_ns > 0) {
            op_core->deadline.fired = trib_worker_deadline_passed;
            op_core->deadline.user = op_core;
            trib_timer_arm(core->reactor, &op_core->deadline, op->deadline_ns);
        }
    }
    if (core->ended) {
        trib_op_fail(op, core->ended_status, "%s", core->ended_text);
        drop_op_core(core, op_core);
    } else if (atomic_load(&tensor->placed)) {
        spread(core, op);
        enqueue_by_round(trib_tensor_core_of(core, tensor), op_core);
        trib_worker_start_next(core, tensor);
    } else if (atomic_load(&tensor->bad)) {
        trib_op_fail(op, TRIB_MISMATCH, "%s", tensor->bad_text);
        drop_op_core(core, op_core);
    } else {
        trib_assert(core->reactor->index == 0);
        if (tensor->waiting_tail != NULL) {
            tensor->waiting_tail->queue_next = op_core;
        } else {
            tensor->waiting_head = op_core;
        }
        tensor->waiting_tail = op_core;
    }
}

bool trib_worker_know_tensor(trib_core *core, trib_tensor *tensor)
{
    trib_assert(tensor->id < TRIB_TENSORS_MAX);
    if (tensor->id >= core->tensors_capacity) {
        uint32_t capacity = core->tensors_capacity == 0 ? 256 : core->tensors_capacity;
        while (capacity <= tensor->id) {
            capacity *= 2;
        }
        trib_tensor **tensors = trib_core_zalloc(core, capacity * sizeof(trib_tensor *));
        if (tensors == NULL) {
            return false;
        }
        if (core->tensors_capacity > 0) {
            memcpy(tensors, core->tensors, core->tensors_capacity * sizeof(trib_tensor *));
        }
        free(core->tensors);
        core->tensors = tensors;
        core->tensors_capacity = capacity;
    }
    core->tensors[tensor->id] = tensor;
    return true;
}

static void continue_tensor(trib_reactor *reactor, trib_post *post)
{
    trib_op_core *op_core = (trib_op_core *)((char *)post - offsetof(trib_op_core, submit_post));
    trib_core *core = reactor->owner;
    trib_tensor *tensor = op_core->op->tensor;
    trib_tensor_core_of(core, tensor)->active = NULL;
    finish_op_core(core, op_core);
    trib_worker_start_next(core, tensor);
}

/* The next round starts from the loop, not from inside the last one's completion. */
static void finish_round(trib_core *core, trib_op_core *op_core)
{
    op_core->submit_post.run = continue_tensor;
    trib_reactor_defer(core->reactor, &op_core->submit_post);
}

static void begin_round(trib_core *core, trib_tensor *tensor, trib_op_core *op_core)
{
    trib_tensor_core *mine = trib_tensor_core_of(core, tensor);
    mine->active = op_core;
    mine->round_next = op_core->op->round + 1;
    op_core->tasks_left = mine->task_count;
    for (uint32_t i = 0; i < mine->task_count; i++) {
        trib_task *task = &mine->tasks[i];
        task->op_core = op_core;
        task->link = trib_worker_owner_link(core, task);
        task->in_order = task->failed || task->withdrawn;
        task->withdrawn = false;
        task->settled = false;
        task->failed = false;
        task->chunks_sent = task->chunks_received = 0;
        task->sends_in_flight = task->receives_in_progress = 0;
        trib_assert(task->device_holds == 0);
        task->missing_rank = TRIB_NO_MEMBER;
        memset(task->received, 0, (task->chunk_count + 63) / 64 * sizeof(uint64_t));
    }
    if (mine->task_count == 0) {
        finish_round(core, op_core);
    }
    for (uint32_t i = 0; i < mine->task_count; i++) {
        trib_pipeline_begin(core, &mine->tasks[i]);
    }
}

/* Starts the next round of a tensor if the one before has settled; ends rounds that were given up while they waited. */
void trib_worker_start_next(trib_core *core, trib_tensor *tensor)
{
    trib_tensor_core *mine = trib_tensor_core_of(core, tensor);
    while (core->joined && trib_tensor_move_apply(tensor, mine) && mine->active == NULL && mine->pending != NULL &&
           mine->pending->op->round == mine->round_next && trib_tensor_move_may_begin(tensor, mine, mine->round_next) &&
           trib_tensor_copy_allows(tensor, mine->round_next)) {
        trib_op_core *op_core = dequeue_first(mine);
        if (atomic_load(&op_core->op->cancelled)) {
            trib_op_fail(op_core->op, TRIB_CANCELLED, "cancelled");
        }
        if (atomic_load(&tensor->bad)) {
            trib_op_fail(op_core->op, TRIB_MISMATCH, "%s", tensor->bad_text);
        }
        if (atomic_load(&op_core->op->claim) != 0) {
            skip_round(core, op_core);
        } else if (!trib_worker_know_tensor(core, tensor)) {
            trib_op_fail(op_core->op, TRIB_NO_MEMORY, "out of memory");
            skip_round(core, op_core);
        } else {
            begin_round(core, tensor, op_core);
        }
    }
}

void trib_worker_task_settled(trib_core *core, trib_task *task)
{
    trib_op_core *op_core = task->op_core;
    trib_assert(op_core->tasks_left > 0);
    task->link = NULL;
    if (--op_core->tasks_left == 0) {
        finish_round(core, op_core);
    }
}

void trib_worker_joined(trib_core *core)
{
    trib_engine *engine = core->engine;
    core->joined = true;
    trib_trace_link(&core->host, TRIB_TRACE_JOINED, NULL, 0);
    if (core->relay != NULL) {
        trib_server_resume(core);
    }
    trib_engine_core_joined(engine);
    for (uint32_t tag = 0;; tag++) {
        pthread_mutex_lock(&engine->mutex);
        trib_tensor *tensor = tag < engine->tensor_count ? engine->tensors[tag] : NULL;
        pthread_mutex_unlock(&engine->mutex);
        if (tensor == NULL) {
            break;
        }
        if (atomic_load(&tensor->placed)) {
            trib_worker_start_next(core, tensor);
        }
    }
}

/* ---- Life ---- */

trib_status trib_worker_open(trib_core *core, trib_error *error)
{
    core->discard = trib_core_zalloc(core, TRIB_PAYLOAD_MAX);
    return core->discard != NULL ? TRIB_OK : trib_error_set(error, TRIB_NO_MEMORY, "out of memory");
}

void trib_worker_close(trib_core *core)
{
    trib_assert(core->op_cores == NULL);
    free(core->discard);
    free(core->tensors);
    free(core->owner_links);
}

void trib_worker_fail_all(trib_core *core, trib_status status, const char *text)
{
    trib_op_core *next;
    for (trib_op_core *op_core = core->op_cores; op_core != NULL; op_core = next) {
        next = op_core->next;
        trib_op *op = op_core->op;
        trib_tensor *tensor = op->tensor;
        char waiting[256];
        if (core->engine->roster == NULL) {
            trib_op_fail(op, status, "%s", text); /* which says what there is to say */
        } else {
            trib_op_fail(op, status, "%s (%s)", text, trib_worker_waiting_text(core, op_core, waiting, sizeof waiting));
        }
        trib_tensor_core *mine = atomic_load(&tensor->placed) ? trib_tensor_core_of(core, tensor) : NULL;
        if (mine != NULL && mine->active == op_core) {
            trib_worker_abort_active(core, op_core);
        } else {
            drop_op_core(core, op_core);
        }
        if (mine != NULL) {
            mine->pending = mine->pending_late = NULL;
        } else {
            tensor->waiting_head = tensor->waiting_tail = NULL;
        }
    }
}

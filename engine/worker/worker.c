/*
 * worker.c - the worker's side of one core: operations arrive, their rounds run in order, their tasks settle.
 *
 * Invariant: cores touch a caller's buffer only between the arrival of an operation and the settling of its last
 * task. See worker_abort.c for giving up a round, worker_link.c for frames from the servers.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/worker/boundary.h"
#include "engine/worker/device_hooks.h"
#include "engine/worker/op_carry.h"
#include "engine/worker/op_join.h"
#include "engine/worker/pipeline.h"
#include "engine/worker/task_trace.h"
#include "engine/worker/task_codec.h"
#include "engine/worker/worker.h"
#include "engine/worker/worker_orphan.h"

/* ---- Operations on a core ---- */

static void link_op_core(trib_core *core, trib_op_core *op_core)
{
    trib_assert(op_core->core == NULL && op_core->op->engine == core->engine);
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
    trib_assert(op_core->core == core);
    trib_timer_stop(core->reactor, &op_core->deadline);
    trib_timer_stop(core->reactor, &op_core->grace);
    if (op_core->previous != NULL) {
        op_core->previous->next = op_core->next;
    } else {
        trib_assert(core->op_cores == op_core);
        core->op_cores = op_core->next;
    }
    if (op_core->next != NULL) {
        op_core->next->previous = op_core->previous;
    }
    op_core->core = NULL;
    free(op_core->missing);
    op_core->missing = NULL;
    trib_assert(core->reactor->awaited > 0);
    core->reactor->awaited--;
    trib_op *op = op_core->op;
    if (!op_core->released) {
        op_core->released = true;
        trib_op_core_done(op, core);
    }
    trib_op_unbook_cores(op, 1);
    trib_op_join_continue(core);
}

/* The end of an epoch cuts the operation short before its turn: other cores may have begun with it. */
static bool keep_if_spread(trib_core *core, trib_op_core *op_core)
{
    const bool is_spread = op_core->op->spread && atomic_load(&op_core->op->tensor->placed);
    if (is_spread) {
        trib_carry_keep(core, op_core);
    }
    return is_spread;
}

/* The operation has failed before its turn or the placement. Its buffers will not be used after this, so the caller
 * need not wait for the turn. The op_core stays linked to use up its round. */
void trib_worker_release(trib_core *core, trib_op_core *op_core)
{
    trib_op *op = op_core->op;
    trib_assert(atomic_load(&op->claim) != 0);
    if (op_core->released) {
        return;
    }
    trib_tensor_core *mine = keep_if_spread(core, op_core) ? trib_tensor_core_of(core, op->tensor) : NULL;
    for (uint32_t i = 0; mine != NULL && i < mine->task_count; i++) {
        trib_task_codec_skipped(&mine->tasks[i], op);
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

/* Core 0: an operation that was submitted before the placement gets its buffers' lengths, and is posted to the other
 * cores with tasks. */
static void fit_and_spread(trib_core *core, trib_op *op)
{
    if (op->spread) {
        return;
    }
    trib_assert(core->reactor->index == 0);
    pthread_mutex_lock(&core->engine->mutex);
    trib_op_fit(op);
    pthread_mutex_unlock(&core->engine->mutex);
    op->spread = true;
    op->round += op->tensor->round_base; /* the number was not known when it was submitted */
    for (uint32_t i = 1; i < core->engine->core_count; i++) {
        if (trib_tensor_is_used(op->tensor, i)) {
            trib_reactor_post(core->engine->cores[i].reactor, &op->cores[i].submit_post);
        } else { /* core 0's own share keeps both counts above 0 */
            atomic_fetch_sub(&op->cores_left, op->cores[i].released ? 0 : 1);
            atomic_fetch_sub(&op->cores_booked, 1);
        }
    }
}

/* Ends an op_core that never started. If the operation never reached the other cores, their op_cores end too. */
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

/* Skips a round that never started. The servers are told, so that the other workers do not wait. */
static void skip_round(trib_core *core, trib_op_core *op_core)
{
    trib_tensor_core *mine = trib_tensor_core_of(core, op_core->op->tensor);
    for (uint32_t i = 0; i < mine->task_count; i++) {
        if (!op_core->released) {
            trib_task_codec_skipped(&mine->tasks[i], op_core->op);
        }
        trib_pipeline_skip(core, &mine->tasks[i], op_core);
    }
    if (op_core->op->tensor->on_device) {
        core->engine->device_hooks->failed(op_core->op);
    }
    trib_carry_keep(core, op_core);
    mine->round_next++;
    finish_op_core(core, op_core);
}

static void submit_arrived(trib_reactor *reactor, trib_post *post)
{
    trib_op_core *op_core = trib_container_of(post, trib_op_core, submit_post);
    trib_worker_arrived(reactor->owner, op_core);
}

void trib_worker_prepare_op_core(trib_op_core *op_core)
{
    op_core->submit_post.run = submit_arrived;
    op_core->cancel_post.run = trib_worker_cancel_arrived;
    op_core->core = NULL;
    op_core->queue_next = NULL;
    op_core->abort = false;
    op_core->is_kept = false;
    op_core->released = false;
}

void trib_worker_prepare_again(trib_op_core *op_core, bool is_over)
{
    trib_assert(op_core->core == NULL);
    op_core->submit_post.run = submit_arrived;
    op_core->queue_next = NULL;
    op_core->abort = false;
    op_core->released = is_over;
}

/* Up to ops_max rounds may be pending, so a full search is avoided. Rounds submitted before the placement arrive
 * through core 0, in order, but perhaps after later rounds: each belongs behind the one before. All other rounds
 * belong at the end. */
static void enqueue_by_round(trib_tensor_core *mine, trib_op_core *op_core)
{
    const uint32_t round = op_core->op->round;
    trib_assert(round >= mine->round_next && op_core->queue_next == NULL); /* its turn has not passed */
    trib_op_core **at = &mine->pending;
    if (mine->pending != NULL && mine->pending_last->op->round < round) {
        at = &mine->pending_last->queue_next;
    } else if (mine->pending_late != NULL && mine->pending_late->op->round < round) {
        at = &mine->pending_late->queue_next;
    }
    while (*at != NULL && (*at)->op->round < round) {
        at = &(*at)->queue_next;
    }
    trib_assert(*at == NULL || (*at)->op->round > round); /* each round is submitted once */
    op_core->queue_next = *at;
    *at = op_core;
    *(op_core->queue_next == NULL ? &mine->pending_last : &mine->pending_late) = op_core;
}

static trib_op_core *dequeue_first(trib_tensor_core *mine)
{
    trib_op_core *op_core = mine->pending;
    trib_assert(mine->pending_last != NULL && (op_core->queue_next != NULL || mine->pending_last == op_core));
    mine->pending = op_core->queue_next;
    mine->pending_late = mine->pending_late == op_core ? NULL : mine->pending_late;
    op_core->queue_next = NULL;
    return op_core;
}

void trib_worker_arrived(trib_core *core, trib_op_core *op_core)
{
    trib_op *op = op_core->op;
    trib_tensor *tensor = op->tensor;
    trib_assert(trib_core_is_here(core) && op_core == &op->cores[core->reactor->index]);
    trib_assert(op_core->core == NULL || op_core->core == core);
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
        (void)keep_if_spread(core, op_core);
        drop_op_core(core, op_core);
    } else if (op->is_boundary && !op->spread && trib_boundary_waits(core, op_core)) {
        return;
    } else if (atomic_load(&tensor->placed)) {
        fit_and_spread(core, op);
        enqueue_by_round(trib_tensor_core_of(core, tensor), op_core);
        trib_worker_start_next(core, tensor);
    } else if (atomic_load(&tensor->bad)) {
        trib_op_fail(op, tensor->bad_status, "%s", tensor->bad_text);
        drop_op_core(core, op_core);
    } else {
        trib_assert(core->reactor->index == 0);
        if (tensor->waiting_tail != NULL) {
            tensor->waiting_tail->queue_next = op_core;
        } else {
            tensor->waiting_head = op_core;
        }
        tensor->waiting_tail = op_core;
        trib_tensor_use(core, tensor);
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
        uint32_t *rounds_over = trib_core_zalloc(core, capacity * sizeof *rounds_over);
        if (tensors == NULL || rounds_over == NULL) {
            free(tensors);
            free(rounds_over);
            return false;
        }
        if (core->tensors_capacity > 0) {
            memcpy(tensors, core->tensors, core->tensors_capacity * sizeof(trib_tensor *));
            memcpy(rounds_over, core->rounds_over, core->tensors_capacity * sizeof *rounds_over);
        }
        free(core->tensors);
        free(core->rounds_over);
        core->tensors = tensors;
        core->rounds_over = rounds_over;
        core->tensors_capacity = capacity;
    }
    core->tensors[tensor->id] = tensor;
    core->rounds_over[tensor->id] = tensor->round_base;
    return true;
}

void trib_worker_forget_tensor(trib_core *core, const trib_tensor *tensor)
{
    if (tensor->id < core->tensors_capacity) { /* else no round has begun here, and no frame comes */
        core->tensors[tensor->id] = NULL;
        core->rounds_over[tensor->id] = trib_tensor_core_of(core, tensor)->round_next - 1;
    }
}

static void continue_tensor(trib_reactor *reactor, trib_post *post)
{
    trib_op_core *op_core = trib_container_of(post, trib_op_core, submit_post);
    trib_core *core = reactor->owner;
    trib_tensor *tensor = op_core->op->tensor;
    trib_assert(trib_tensor_core_of(core, tensor)->active == op_core && op_core->tasks_left == 0);
    trib_tensor_core_of(core, tensor)->active = NULL;
    finish_op_core(core, op_core);
    trib_worker_start_next(core, tensor);
}

/* The next round starts from the event loop, not inside the last round's completion. */
static void finish_round(trib_core *core, trib_op_core *op_core)
{
    trib_assert(op_core->tasks_left == 0 && op_core->core == core);
    op_core->submit_post.run = continue_tensor;
    trib_reactor_defer(core->reactor, &op_core->submit_post);
}

/* Points the task's views at the caller's buffers. */
static void set_views(trib_task *task)
{
    const trib_op *op = task->op_core->op;
    const trib_view view = {.bytes = task->size, .chunk_bytes = task->tensor->chunk_bytes};
    trib_task_io *io = &task->io;
    io->source = io->encoded = io->received = io->destination = view;
    const bool gathers = task->tensor->layout == TRIB_SLICES && op->collective == TRIB_COLLECTIVE_BROADCAST;
    if (op->input != NULL && (task->tensor->layout == TRIB_WHOLE || trib_task_sends(task))) {
        io->source.data = (unsigned char *)(uintptr_t)op->input + (gathers ? task->offset_own : task->offset);
    }
    const bool whole = task->tensor->layout == TRIB_WHOLE || gathers;
    if (op->output != NULL && (whole || trib_task_receives(task) || trib_task_is_own(task))) {
        io->destination.data = op->output + (whole ? task->offset : task->offset_own);
    }
}

void trib_worker_part_settled(trib_core *core, trib_op_core *op_core)
{
    trib_assert(op_core->tasks_left > 0);
    if (--op_core->tasks_left == 0) {
        finish_round(core, op_core);
    }
}

static void begin_round(trib_core *core, trib_tensor *tensor, trib_op_core *op_core)
{
    trib_tensor_core *mine = trib_tensor_core_of(core, tensor);
    trib_assert(mine->active == NULL && mine->orphans == 0 && op_core->op->round == mine->round_next);
    mine->active = op_core;
    mine->round_next = op_core->op->round + 1;
    op_core->tasks_left = mine->task_count + 1; /* the last one is this beginning */
    for (uint32_t i = 0; i < mine->task_count; i++) {
        trib_task *task = &mine->tasks[i];
        trib_pipeline_prepare(core, task, op_core);
        set_views(task);
        task->link = tensor->plan->is_local ? NULL : trib_worker_owner_link(core, task);
        task->in_order = task->gave_up || task->next_in_order;
        task->gave_up = task->next_in_order = false;
        task->chunks_sent = task->chunks_received = 0;
        task->missing_rank = task->giver = TRIB_NO_MEMBER;
        memset(task->received, 0, (task->chunk_count + 63) / 64 * sizeof(uint64_t));
    }
    trib_carry_keep(core, op_core);
    if (tensor->on_device) {
        core->engine->device_hooks->round_began(core, op_core->op);
    }
    trib_worker_part_settled(core, op_core);
    for (uint32_t i = 0; i < mine->task_count; i++) {
        trib_pipeline_begin(core, &mine->tasks[i]);
    }
}

/* Starts the next round of a tensor if the previous one has settled, and skips rounds that were given up while
 * pending. */
void trib_worker_start_next(trib_core *core, trib_tensor *tensor)
{
    trib_tensor_core *mine = trib_tensor_core_of(core, tensor);
    while (core->joined && mine->orphans == 0 && trib_tensor_move_apply(tensor, mine) && mine->active == NULL &&
           mine->pending != NULL && mine->pending->op->round == mine->round_next &&
           trib_tensor_move_may_begin(tensor, mine, mine->round_next) &&
           trib_tensor_copy_allows(tensor, mine->round_next)) {
        trib_op_core *op_core = dequeue_first(mine);
        if (atomic_load(&op_core->op->cancelled)) {
            trib_op_fail(op_core->op, TRIB_CANCELLED, "cancelled");
        }
        if (atomic_load(&tensor->bad)) {
            trib_op_fail(op_core->op, tensor->bad_status, "%s", tensor->bad_text);
        }
        if (atomic_load(&op_core->op->claim) != 0) {
            skip_round(core, op_core);
        } else if (!trib_worker_know_tensor(core, tensor)) {
            trib_op_fail(op_core->op, TRIB_NO_MEMORY, "out of memory for the table of tensors");
            skip_round(core, op_core);
        } else {
            begin_round(core, tensor, op_core);
        }
    }
}

void trib_worker_task_settled(trib_core *core, trib_task *task)
{
    trib_op_core *op_core = task->op_core;
    trib_assert(op_core->core == core && task->state == TRIB_TASK_SETTLED);
    trib_task_codec_settled(task);
    trib_assert(task->self_held == NULL && !trib_send_request_waits(&task->request) && !task->held_back);
    task->link = NULL;
    task->op_core = NULL; /* the operation may be freed with its last task */
    trib_worker_part_settled(core, op_core);
}

void trib_worker_joined(trib_core *core)
{
    trib_engine *engine = core->engine;
    trib_assert(!core->joined && core->links_missing == 0 && trib_core_is_here(core));
    core->joined = true;
    trib_trace_link(&core->host, TRIB_TRACE_JOINED, NULL, 0);
    if (core->relay != NULL) {
        trib_server_resume(core);
    }
    trib_engine_core_joined(engine);
    trib_op_join_continue(core);
    if (atomic_load(&engine->losses.count) > 0 && (engine->config.roles & TRIB_ROLE_WORKER) != 0) {
        trib_worker_post_losses(engine); /* a server has asked to go meanwhile */
    }
    trib_tensor *tensor;
    for (uint32_t tag = 0; (tensor = trib_tensor_at(engine, tag)) != NULL; tag++) {
        if (atomic_load(&tensor->placed)) {
            trib_worker_start_next(core, tensor);
        }
    }
}

/* ---- Life ---- */

trib_status trib_worker_open(trib_core *core, trib_error *error)
{
    core->held_last = &core->held;
    core->discard = trib_core_zalloc(core, TRIB_PAYLOAD_MAX);
    core->stages = trib_core_zalloc(core, TRIB_STAGE_COUNT * sizeof *core->stages);
    return core->discard != NULL && core->stages != NULL
               ? TRIB_OK
               : trib_error_set(error, TRIB_NO_MEMORY, "out of memory for the stages of a reactor");
}

void trib_worker_close(trib_core *core)
{
    trib_assert(core->op_cores == NULL);
    for (uint32_t i = 0; core->stages != NULL && i < TRIB_STAGE_COUNT; i++) {
        trib_assert(core->stages[i].head == NULL && core->stages[i].tasks == 0 && core->stages[i].bytes == 0);
    }
    free(core->stages);
    free(core->discard);
    free(core->tensors);
    free(core->rounds_over);
    free(core->owner_links);
    free(core->left_owners);
    trib_worker_free_orphans(core);
}

void trib_worker_fail_all(trib_core *core, trib_status status, const char *text)
{
    if (core->reactor->index == 0) {
        trib_op_join_fail(core, status, text);
        trib_boundary_drop_all(core);
    }
    trib_op_core *next;
    for (trib_op_core *op_core = core->op_cores; op_core != NULL; op_core = next) {
        next = op_core->next;
        trib_op *op = op_core->op;
        trib_tensor *tensor = op->tensor;
        char waiting[TRIB_ERROR_TEXT_SIZE];
        if (core->engine->roster == NULL) {
            trib_op_fail(op, status, "%s", text); /* before the roster there is nothing to add to the text */
        } else {
            trib_op_fail(op, status, "%s (%s)", text, trib_worker_waiting_text(core, op_core, waiting, sizeof waiting));
        }
        trib_tensor_core *mine = atomic_load(&tensor->placed) ? trib_tensor_core_of(core, tensor) : NULL;
        if (mine != NULL && mine->active == op_core) {
            trib_worker_abort_active(core, op_core);
        } else {
            (void)keep_if_spread(core, op_core);
            drop_op_core(core, op_core);
        }
        if (mine != NULL) {
            mine->pending = mine->pending_late = NULL;
        } else {
            tensor->waiting_head = tensor->waiting_tail = NULL;
        }
    }
}

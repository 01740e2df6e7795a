/*
 * worker_abort.c - giving up: deadlines, cancellation, and the withdraws sent to servers.
 *
 * Invariant: a task that fails while a link holds its bytes settles when they come back. If they do not come back
 * within GRACE_NS, the link goes on with copies of them.
 */
#include <stdio.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/core/wireup.h"
#include "engine/link/link_cause.h"
#include "engine/link/link_priority.h"
#include "engine/link/link_self.h"
#include "engine/server/server_sum.h"
#include "engine/worker/device_hooks.h"
#include "engine/worker/pipeline.h"
#include "engine/worker/worker.h"
#include "engine/worker/worker_orphan.h"

#define GRACE_NS (2 * INT64_C(1000000000))
#define GRACE_PARTS 8 /* while the process stands still, one part of it passes at most */
#define GRACE_PART_NS (GRACE_NS / GRACE_PARTS)
#define AGAIN_NS (10 * INT64_C(1000000)) /* until a connection that broke for it has given buffers back */

/* Returns the reason for the loss of a peer, worded for the other workers. */
static const char *loss_reason(const trib_op *op, char text[TRIB_ERROR_TEXT_SIZE])
{
    const trib_engine *engine = op->engine;
    if (atomic_load(&engine->phase) != TRIB_PHASE_ENDED || trib_status_is_orderly(engine->cause.status)) {
        return trib_op_reason(op);
    }
    trib_job_render_for_others(engine, &engine->cause, text);
    return text;
}

/* Builds the cause of a WITHDRAW frame. The frame may be the other workers' only explanation of a mismatch. The
 * reason for a lost peer comes first in the text. */
static trib_cause withdraw_cause(const trib_op *op, trib_status status)
{
    const uint32_t me = op->engine->member_id;
    const char *name = trib_roster_name(op->engine->roster, me);
    const bool has_text = atomic_load(&op->has_text);
    char text[TRIB_ERROR_TEXT_SIZE], detail[TRIB_ERROR_TEXT_SIZE + 64];
    if ((status == TRIB_PEER_LOST || status == TRIB_PEER_LEFT) && has_text) {
        snprintf(detail, sizeof detail, "%.280s; %s withdrew from round %u", loss_reason(op, text), name, op->round);
    } else if (atomic_load(&op->is_second_hand)) {
        snprintf(detail, sizeof detail, "%s", trib_op_reason(op));
    } else {
        snprintf(detail, sizeof detail, "%s withdrew from round %u (%s)", name, op->round,
                 (status == TRIB_MISMATCH || status == TRIB_INVALID) && has_text ? trib_op_reason(op)
                                                                                 : trib_status_text(status));
    }
    return trib_cause_about(trib_frame_withdraw_reason(status), TRIB_CAUSE_NOTE, TRIB_SUBJECT_MEMBER, me, me, detail);
}

static void note_given_up(trib_tensor *tensor, uint32_t round)
{
    unsigned before = atomic_load(&tensor->gave_up_round);
    while (before < round && !atomic_compare_exchange_weak(&tensor->gave_up_round, &before, round)) {}
}

void trib_worker_withdraw(trib_core *core, trib_task *task)
{
    const trib_op *op = task->op_core->op;
    note_given_up(op->tensor, op->round);
    trib_status status = (trib_status)atomic_load(&op->claim);
    trib_link *link = trib_worker_owner_link(core, task);
    task->gave_up_as = trib_frame_withdraw_reason(status);
    if (task->orphan != NULL) { /* the next owner is told when it knows the round */
        trib_orphan_withdraw(task);
        return;
    }
    if (link == NULL || core->ended || task->refused) { /* a slice for oneself has no link */
        return;
    }
    const trib_cause cause = withdraw_cause(op, status);
    trib_frame frame = trib_task_frame(task, TRIB_FRAME_WITHDRAW);
    frame.size = trib_worker_owner_code(core, task);
    trib_link *connection = trib_link_connection_or_main(link, task->connection);
    /* The next round follows on the same connection, so that it cannot overtake the withdraw. The owner may have
     * changed since the last round. */
    task->connection = trib_link_connection_index(connection);
    trib_link_send_cause(connection, frame, &cause);
}

void trib_worker_give_up_exchange(trib_core *core, trib_task *task)
{
    trib_worker_withdraw(core, task);
    trib_worker_keep_round(task);
    trib_self_leases_recall(&task->self_held); /* when the last send is complete those that begin later, too */
}

static void grace_passed(trib_reactor *reactor, trib_timer *timer)
{
    trib_core *core = reactor->owner;
    trib_op_core *op_core = timer->user;
    trib_tensor_core *tensor = trib_tensor_core_of(core, op_core->op->tensor);
    uint32_t open = 0;
    bool held = false, waits = false;
    if (++op_core->grace_parts < GRACE_PARTS) {
        trib_timer_arm(reactor, timer, trib_now(reactor) + GRACE_PART_NS);
        return;
    }
    for (uint32_t i = 0; i < tensor->task_count; i++) {
        trib_task *task = &tensor->tasks[i];
        if (task->link != NULL && task->held[TRIB_HOLD_SEND] + task->held[TRIB_HOLD_RECEIVE] > 0) {
            trib_session_give_back(task->link, task);
        }
        if (tensor->active != op_core) {
            return; /* that was the last open task */
        }
        waits = waits || task->held[TRIB_HOLD_SEND] + task->held[TRIB_HOLD_RECEIVE] > 0;
        held = held || task->held[TRIB_HOLD_DEVICE] > 0;
        open += task->state != TRIB_TASK_SETTLED;
    }
    held = held || op_core->tasks_left > open; /* the copy of the whole input (op_carry.h) */
    if (waits) {
        op_core->grace_parts--; /* no part of it has passed when the timer fires */
        trib_timer_arm(reactor, timer, trib_now(reactor) + AGAIN_NS);
        return;
    }
    const int64_t more_ns = (op_core->grace_parts - GRACE_PARTS) * GRACE_PART_NS;
    if (held && more_ns < core->engine->config.peer_timeout_ns) {
        /* A stopped local rank delays collectives and counts as lost only after the peer timeout. */
        trib_timer_arm(reactor, timer, trib_now(reactor) + GRACE_PART_NS);
    } else if (held) {
        char text[TRIB_ERROR_TEXT_SIZE];
        snprintf(text, sizeof text,
                 "tensor \"%s\": the device did not give its buffers back after the operation failed",
                 op_core->op->tensor->name);
        trib_job_fail(core->engine, TRIB_SYSTEM, text);
    }
}

void trib_worker_abort_active(trib_core *core, trib_op_core *op_core)
{
    trib_tensor *tensor = op_core->op->tensor;
    trib_tensor_core *mine = trib_tensor_core_of(core, tensor);
    trib_assert(mine->active == op_core);
    trib_assert(op_core->core == core && atomic_load(&op_core->op->claim) != 0); /* the operation has failed already */
    if (op_core->abort) {
        return;
    }
    op_core->abort = true;
    op_core->grace_parts = 0;
    op_core->grace.fired = grace_passed;
    op_core->grace.user = op_core;
    trib_timer_arm(core->reactor, &op_core->grace, trib_now(core->reactor) + GRACE_PART_NS);
    uint32_t count = mine->task_count;
    for (uint32_t i = 0; i < count && mine->active == op_core; i++) {
        trib_pipeline_fail(core, &mine->tasks[i]);
    }
    if (tensor->on_device) {
        core->engine->device_hooks->given_up(core, op_core->op);
    }
}

static void abort_op_core(trib_core *core, trib_op_core *op_core)
{
    trib_tensor *tensor = op_core->op->tensor;
    if (atomic_load(&tensor->placed) && trib_tensor_core_of(core, tensor)->active == op_core) {
        trib_worker_abort_active(core, op_core);
    } else {
        trib_worker_release(core, op_core);
    }
}

/* Returns true if the owner has all chunks of this worker and has had no time yet to name a missing contribution. */
static bool may_wait_for_others(const trib_core *core, const trib_task *task)
{
    return task->chunk_count > 0 && task->chunks_sent == task->chunk_count && task->held[TRIB_HOLD_SEND] == 0 &&
           trib_now(core->reactor) - task->since_ns < 2 * TRIB_STALL_NOTICE_NS;
}

/* The tensor has no place yet, so core 0 alone has operations on it. */
static void unplaced_text(const trib_core *core, const trib_op *op, char *text, size_t size)
{
    char awaited[TRIB_AWAITED_SIZE];
    trib_stall_answer answer;
    const trib_tensor *tensor = op->tensor;
    if (trib_worker_stall_answer(core, op, &answer)) {
        snprintf(text, size, "%s has not declared the tensor%s%s", trib_roster_name(core->engine->roster, answer.rank),
                 answer.what[0] == '\0' ? "" : ", and waits for ", answer.what);
    } else if (core->engine->roster == NULL) {
        snprintf(text, size, "the job has not come together yet: %s",
                 core->engine->hooks->awaited(core->engine, awaited, sizeof awaited));
    } else {
        snprintf(text, size, "it was still waiting for the coordinator%s",
                 tensor->layout == TRIB_WHOLE ? "" : ", or for a worker that has not declared the tensor");
    }
}

/* The operation has not begun on the core. */
static void before_turn_text(trib_core *core, const trib_op *op, const trib_tensor_core *mine, char *text, size_t size)
{
    if (!core->joined) {
        snprintf(text, size, "the connection to %s had not been made yet", trib_wireup_missing_name(core));
    } else if (mine->active != NULL || mine->round_next < op->round) {
        snprintf(text, size, "an earlier operation on the tensor was still going");
    } else {
        snprintf(text, size, "its turn had come, and it had not begun");
    }
}

/* Writes the ranks that the partition lacks besides the one that texts name first. */
static void missing_text(const trib_core *core, const trib_task *task, char *text, size_t size)
{
    const trib_op_core *op_core = task->op_core;
    const trib_roster *roster = core->engine->roster;
    const uint32_t workers = roster->worker_count;
    if (op_core->missing == NULL || op_core->missing_partition != task->partition) {
        return;
    }
    trib_rank_bits_put(op_core->missing, task->missing_rank, true);
    const uint32_t count = trib_rank_bits_count(op_core->missing, workers);
    if (count > 1) {
        char list[TRIB_RANK_BITS_TEXT_SIZE];
        if (roster->members[workers - 1].rank == workers - 1) {
            trib_rank_bits_describe(op_core->missing, workers, task->missing_rank, list);
        } else { /* workers were lost, and the ids of those that are left are not their ranks */
            snprintf(list, sizeof list, "%u more", count - 1);
        }
        snprintf(text, size, " and of %s (%u of %u)", list, count,
                 trib_rank_group_count(core->engine, task->tensor->group));
    }
}

static void task_text(const trib_core *core, const trib_op *op, const trib_task *task, char *text, size_t size)
{
    const trib_roster *roster = core->engine->roster;
    const trib_tensor *tensor = op->tensor;
    if (task->held_back) {
        trib_worker_held_text(core, task, text, size);
        return;
    }
    if (tensor->plan->is_local || trib_pipeline_waits_in(task, TRIB_STAGE_INPUT)) {
        snprintf(text, size, "it was in %s, waiting for %s", trib_pipeline_stage_name(task),
                 op->engine->device_hooks->awaited(op));
        return;
    }
    const uint32_t server = task->partition < tensor->partition_count ? task->owner.member : TRIB_NO_MEMBER;
    if (task->missing_rank != TRIB_NO_MEMBER) {
        char others[TRIB_RANK_BITS_TEXT_SIZE + 32] = "";
        trib_stall_answer answer;
        const bool is_known =
            trib_worker_stall_answer(core, op, &answer) && answer.rank == task->missing_rank && answer.what[0] != '\0';
        missing_text(core, task, others, sizeof others);
        snprintf(text, size, "partition %u in %s at %s still lacked the contribution of %s%s%s%s", task->partition,
                 trib_pipeline_stage_name(task), trib_roster_name(roster, server),
                 trib_roster_name(roster, task->missing_rank), others, is_known ? ", which waits for " : "",
                 is_known ? answer.what : "");
        return;
    }
    snprintf(text, size, "partition %u was in %s, waiting for %s%s", task->partition, trib_pipeline_stage_name(task),
             trib_roster_name(roster, server),
             may_wait_for_others(core, task)
                 ? ", or for a worker whose contribution it lacked: it says whose after half a second"
                 : "");
}

const char *trib_worker_waiting_text(trib_core *core, trib_op_core *op_core, char *text, size_t size)
{
    const trib_op *op = op_core->op;
    const uint32_t before = op->is_boundary && !op->spread ? atomic_load(&core->engine->boundaries.left) : 0;
    if (before > 0) {
        snprintf(text, size, "%u operations that this worker has submitted before were still under way", before);
        return text;
    }
    if (!atomic_load(&op->tensor->placed)) {
        unplaced_text(core, op, text, size);
        return text;
    }
    const trib_tensor_core *mine = trib_tensor_core_of(core, op->tensor);
    if (mine->active != op_core) {
        before_turn_text(core, op, mine, text, size);
        return text;
    }
    for (uint32_t i = 0; i < mine->task_count; i++) {
        if (mine->tasks[i].state != TRIB_TASK_SETTLED) {
            task_text(core, op, &mine->tasks[i], text, size);
            return text;
        }
    }
    if (op_core->tasks_left > 0) {
        snprintf(text, size, "it was waiting for %s", op->engine->device_hooks->awaited(op));
    } else {
        snprintf(text, size, "it was about to complete");
    }
    return text;
}

void trib_worker_deadline_passed(trib_reactor *reactor, trib_timer *timer)
{
    trib_core *core = reactor->owner;
    trib_op_core *op_core = timer->user;
    char waiting[TRIB_ERROR_TEXT_SIZE];
    trib_op_fail(op_core->op, TRIB_TIMEOUT, "not complete by its deadline of %.3f s: %s",
                 (double)(op_core->op->deadline_ns - op_core->op->submit_ns) / 1e9,
                 trib_worker_waiting_text(core, op_core, waiting, sizeof waiting));
    abort_op_core(core, op_core);
}

void trib_worker_cancel_arrived(trib_reactor *reactor, trib_post *post)
{
    trib_core *core = reactor->owner;
    trib_op_core *op_core = trib_container_of(post, trib_op_core, cancel_post);
    if (op_core->core == core) {
        trib_op_fail(op_core->op, TRIB_CANCELLED, "cancelled");
        abort_op_core(core, op_core);
    }
    trib_op_unref(op_core->op);
}

void trib_worker_tensor_bad(trib_reactor *reactor, trib_post *post)
{
    trib_core *core = reactor->owner;
    trib_tensor_core *mine = trib_container_of(post, trib_tensor_core, bad_post);
    if (mine->active != NULL) {
        trib_op_fail(mine->active->op, mine->tensor->bad_status, "%s", mine->tensor->bad_text);
        trib_worker_abort_active(core, mine->active);
    }
    /* Pending operations fail at their turn (worker.c). */
}

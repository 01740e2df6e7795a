/*
 * worker_link.c - a worker's links to the servers, and the frames that arrive on them.
 *
 * A frame is checked against the running round before any byte of it is stored. A frame about a finished round is
 * accepted and ignored, because the peer cannot know yet.
 */
#include <stdio.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/scale.h"
#include "engine/link/link_cause.h"
#include "engine/core/wireup.h"
#include "engine/link/link_subflow.h"
#include "engine/worker/pipeline.h"
#include "engine/server/relay.h"
#include "engine/server/server_sum.h"
#include "engine/worker/task_codec.h"
#include "engine/worker/task_trace.h"
#include "engine/worker/worker.h"
#include "engine/worker/worker_orphan.h"

uint32_t trib_worker_owner(const trib_core *core, const trib_task *task)
{
    if (task->partition >= task->tensor->partition_count) {
        return TRIB_NO_MEMBER; /* an absent share has no owner */
    }
    if (trib_task_is_own(task)) {
        return TRIB_NO_MEMBER;
    }
    const trib_roster *roster = core->engine->roster;
    if (trib_task_is_relayed(core, task)) {
        return trib_relay_rank(roster, core->engine->member_id, task->owner.member, task->partition);
    }
    return task->owner.member;
}

trib_link *trib_worker_owner_link(const trib_core *core, const trib_task *task)
{
    const uint32_t owner = trib_worker_owner(core, task);
    if (owner == TRIB_NO_MEMBER) {
        return NULL;
    }
    const bool relayed = trib_task_is_relayed(core, task);
    return core->owner_links[trib_relay_owner(owner, relayed ? core->reactor->index : task->owner.reactor)];
}

trib_frame trib_task_frame(const trib_task *task, trib_frame_type type)
{
    const trib_op *op = task->op_core->op;
    const bool is_of_group = op->tensor->group != NULL && op->tensor->layout != TRIB_PAIRS;
    return (trib_frame){
        .type = type,
        .group = is_of_group ? op->tensor->group->id : 0,
        .tensor = op->tensor->id,
        .partition = task->partition,
        .round = op->round,
        .chunk_count = task->chunk_count,
        .collective = trib_op_wire_collective(op),
        .dtype = (uint8_t)op->tensor->dtype,
        .reduce = (uint8_t)op->reduce,
        .root = op->tensor->is_sharded ? op->root : trib_task_root(task),
        .step = op->step,
        .scale = op->scale,
        .prescale = trib_prescale_pack(op->prescale),
        .joins = (uint8_t)atomic_load(&op->engine->join.joins_over),
    };
}

trib_link *trib_worker_egress_link(const trib_core *core, const trib_task *task)
{
    const bool relays = trib_task_is_relayed(core, task) && trib_worker_owner(core, task) == core->engine->member_id;
    return relays ? core->owner_links[trib_relay_owner(task->owner.member, task->owner.reactor)]
                  : trib_worker_owner_link(core, task);
}

uint32_t trib_worker_owner_code(const trib_core *core, const trib_task *task)
{
    if (task->tensor->layout == TRIB_PAIRS) {
        const trib_group *group = task->tensor->group;
        return trib_pair_code(trib_rank_group_rank(group, trib_task_sender(task)),
                              trib_rank_group_rank(group, trib_task_receiver(task)));
    }
    if (!trib_task_is_relayed(core, task)) {
        return 0;
    }
    return trib_relay_owner(task->owner.member, task->owner.reactor);
}

static void worker_ready(trib_link *link)
{
    trib_core *core = link->core;
    core->owner_links[link->peer * TRIB_REACTORS_MAX + link->peer_reactor] = link;
    trib_link_subflows_connect(link);
    trib_counter_add(&core->stats.connections, 1);
    trib_assert(core->links_missing > 0);
    trib_assert(link->peer < core->engine->roster->member_count && link->peer_reactor < TRIB_REACTORS_MAX);
    if (--core->links_missing == 0) {
        trib_worker_joined(core);
    }
}

/* The operation has failed: its other partitions might wait until the deadline or for ever. */
static void give_up_everywhere(trib_core *core, trib_op_core *op_core)
{
    if (core->engine->core_count > 1) {
        trib_op_give_up(op_core->op);
    }
    trib_worker_abort_active(core, op_core);
}

/* A server that left in good order fails only the operations that still need it; see also trib_stage_push. */
static void detach_tasks(trib_core *core, trib_link *link, trib_status status, bool goes_on, const char *text)
{
    const bool has_left = link->bye || status == TRIB_PEER_LEFT;
    trib_op_core *next;
    for (trib_op_core *op_core = core->op_cores; op_core != NULL; op_core = next) {
        next = op_core->next;
        trib_tensor *tensor = op_core->op->tensor;
        trib_tensor_core *mine = atomic_load(&tensor->placed) ? trib_tensor_core_of(core, tensor) : NULL;
        bool gives_up = false;
        for (uint32_t i = 0; mine != NULL && mine->active == op_core && i < mine->task_count; i++) {
            trib_task *task = &mine->tasks[i];
            if (task->link != link || task->state == TRIB_TASK_SETTLED) {
                continue;
            }
            task->link = NULL;
            if (goes_on) {
                continue; /* the partition will have another owner (worker_orphan.h) */
            }
            if (link->bye && task->device != NULL && task->chunks_received == task->chunk_count) {
                continue; /* the sum is complete and on its way to the device */
            }
            trib_op_fail(op_core->op, has_left ? TRIB_PEER_LEFT : TRIB_PEER_LOST, "%s", text);
            gives_up =
                link->bye && has_left && !core->ended; /* else the job has ended, and every core learns of that */
            trib_pipeline_fail(core, task);
        }
        if (gives_up && mine->active == op_core) {
            give_up_everywhere(core, op_core);
        }
    }
}

static void worker_link_closed(trib_link *link, trib_status status, const char *reason)
{
    (void)reason;
    trib_core *core = link->core;
    trib_link **slot = &core->owner_links[link->peer * TRIB_REACTORS_MAX + link->peer_reactor];
    if (*slot == link) {
        *slot = NULL;
        trib_counter_take_one(&core->stats.connections);
    }
    trib_cause cause;
    char text[TRIB_ERROR_TEXT_SIZE];
    bool goes_on = link->bye && !core->ended && trib_worker_leave_ends_epoch(core, link->peer);
    trib_link_end_cause(link, &cause);
    /* The job ends before any operation fails, so a callback that submits another operation learns of the loss at
     * once. */
    if (!link->proved && link->bye) {
        trib_wireup_drop_link(core);
    } else if (trib_wireup_is_doubtful(link, status)) {
        trib_wireup_defer_failure(core, link->peer, &cause);
    } else if (!link->bye && !core->ended) {
        /* Where the job goes on without a worker, the coordinator decides which operations fail. */
        goes_on = trib_job_survives(core->engine, &cause) || atomic_load(&core->engine->shrinks);
        trib_job_member_lost(core->engine, &cause);
    }
    trib_job_render_loss(core->engine, &cause, text);
    trib_relay_detach(link, text);
    detach_tasks(core, link, status, goes_on, text);
    if (core->left_owners != NULL) {
        core->left_owners[link->peer] = core->left_owners[link->peer] || (link->bye && !goes_on);
        trib_worker_take_losses(core);
    }
}

/* Finds the task of a SUM, REFUSED or STALL frame. NULL without an error: no open task waits for the frame. Frames
 * are accepted only from the member that the task is pushed to. */
static trib_status find_task(const trib_link *link, const trib_frame *frame, trib_task **task_out, trib_error *error)
{
    trib_core *core = link->core;
    *task_out = NULL;
    if (trib_worker_is_about_ended(core, frame)) {
        return TRIB_OK;
    }
    trib_tensor *tensor = frame->tensor < core->tensors_capacity ? core->tensors[frame->tensor] : NULL;
    if (tensor == NULL || frame->partition >= tensor->partition_count) {
        return trib_error_set(error, TRIB_PROTOCOL, "%s for unknown tensor %u, partition %u",
                              trib_frame_name(frame->type), frame->tensor, frame->partition);
    }
    trib_tensor_core *mine = trib_tensor_core_of(core, tensor);
    const uint32_t index = tensor->task_index[frame->partition];
    if (index != UINT32_MAX && (index >= mine->task_count || mine->tasks[index].partition != frame->partition)) {
        return trib_error_set(error, TRIB_PROTOCOL, "%s for a partition of another reactor",
                              trib_frame_name(frame->type));
    }
    if (index == UINT32_MAX) {
        return trib_error_set(error, TRIB_PROTOCOL, "%s for the share of another local rank",
                              trib_frame_name(frame->type));
    }
    if (mine->active == NULL || mine->active->op->round != frame->round) {
        return frame->round < mine->round_next
                   ? TRIB_OK
                   : trib_error_set(error, TRIB_PROTOCOL, "%s for round %u of tensor \"%s\" which has not begun",
                                    trib_frame_name(frame->type), frame->round, tensor->name);
    }
    trib_task *task = &mine->tasks[index];
    /* The check follows the round check, because a finished round may have had another owner. */
    if (trib_worker_owner_link(core, task) != trib_link_main(link)) {
        return trib_error_set(error, TRIB_PROTOCOL, "%s for partition %u of tensor \"%s\", which is not pushed to it",
                              trib_frame_name(frame->type), frame->partition, tensor->name);
    }
    if (trib_task_is_open(task)) {
        *task_out = task;
    }
    return TRIB_OK;
}

static bool is_received(const trib_task *task, uint32_t chunk)
{
    return (task->received[chunk / 64] >> (chunk % 64) & 1) != 0;
}

/* A chunk of a sum comes, and the partition's keeper has the whole sum or not. Returns false if the owner contradicts
 * itself. */
static bool choose_place(trib_task *task, bool is_kept)
{
    if (is_kept == task->is_kept) {
        return true;
    }
    if (task->has_landed || !task->lands_in_copy || task->keeps) {
        return false;
    }
    task->is_kept = true;
    task->lands_in_copy = false;
    task->io.received.data = task->io.destination.data;
    return true;
}

static trib_status check_sum(trib_link *link, trib_task *task, const trib_frame *frame, trib_error *error)
{
    const uint32_t expected = frame->chunk < task->chunk_count && trib_task_receives(task)
                                  ? trib_view_chunk_size(&task->io.received, frame->chunk)
                                  : 0;
    uint32_t room;
    /* A sum comes as it is, too, where a program's codec has failed on the server. */
    if (frame->codec != 0 && frame->chunk < task->chunk_count && trib_task_awaits_encoded(task, frame->chunk, &room)) {
        if (frame->codec != task->tensor->codec.codec->id || frame->payload_size > room) {
            return trib_error_set(error, TRIB_PROTOCOL,
                                  "sum of tensor \"%s\" chunk %u has %u bytes of codec %u, expected at most %u of %u",
                                  task->tensor->name, frame->chunk, frame->payload_size, frame->codec, room,
                                  task->tensor->codec.codec->id);
        }
    } else if (frame->chunk >= task->chunk_count || frame->payload_size != expected || frame->codec != 0) {
        return trib_error_set(error, TRIB_PROTOCOL, "sum of tensor \"%s\" chunk %u has %u bytes, expected %u",
                              task->tensor->name, frame->chunk, frame->payload_size, expected);
    }
    if (frame->chunk >= task->chunks_sent) {
        return trib_error_set(error, TRIB_PROTOCOL, "sum of tensor \"%s\" chunk %u, which was not asked for",
                              task->tensor->name, frame->chunk);
    }
    if (frame->payload_size > 0 && !choose_place(task, frame->aux == TRIB_SUM_IS_KEPT)) {
        return trib_error_set(error, TRIB_PROTOCOL, "sum of tensor \"%s\" chunk %u contradicts others about its keeper",
                              task->tensor->name, frame->chunk);
    }
    /* All sums of a task arrive on one link, over any of its connections. */
    trib_link *main = link->main != NULL ? link->main : link;
    bool is_receiving = false;
    for (uint32_t i = 0; i < trib_link_connections(main); i++) {
        const trib_link *connection = trib_link_connection(main, i);
        is_receiving = is_receiving || (connection != NULL && trib_link_is_receiving(connection, task, frame->chunk));
    }
    if (is_receiving || is_received(task, frame->chunk)) {
        return trib_error_set(error, TRIB_PROTOCOL, "sum of tensor \"%s\" chunk %u came twice", task->tensor->name,
                              frame->chunk);
    }
    return TRIB_OK;
}

/* The link ended while it received: the receive target is invalid from here. The task settles when the job's end
 * reaches this core. */
static void sum_abandoned(trib_link *link, const trib_recv_claim *recv_claim)
{
    trib_task_release(link->core, recv_claim->what, TRIB_HOLD_RECEIVE);
}

static trib_status check_header(trib_link *link, const trib_frame *frame, trib_recv_target *target, trib_error *error)
{
    trib_core *core = link->core;
    if (trib_frame_is_partial(frame)) {
        return trib_relay_header(link, frame, target, error);
    }
    if (frame->type == TRIB_FRAME_REFUSED || frame->type == TRIB_FRAME_STALL || frame->type == TRIB_FRAME_RESUME ||
        frame->type == TRIB_FRAME_ASK_REPORT || frame->type == TRIB_FRAME_QUORUM_SET) {
        return TRIB_OK; /* the payload of a refusal goes to the link's own memory */
    }
    if (frame->type != TRIB_FRAME_SUM) {
        return trib_error_set(error, TRIB_PROTOCOL, "unexpected %s frame from a server", trib_frame_name(frame->type));
    }
    target->buffer = core->discard;
    target->in_place = true; /* discarded bytes may land anywhere */
    trib_task *task;
    trib_status status = find_task(link, frame, &task, error);
    if (status != TRIB_OK || task == NULL) {
        return status;
    }
    status = check_sum(link, task, frame, error);
    if (status == TRIB_OK && frame->payload_size > 0) {
        target->buffer = trib_task_sum_place(task, frame->chunk, frame->codec != 0);
        trib_copy_begin(task);
        link->recv_claim = (trib_recv_claim){.abandon = sum_abandoned, .what = task};
        trib_task_hold(task, TRIB_HOLD_RECEIVE);
    }
    return status;
}

/* Copies the root's own output, if it has one. Submit is too early for this: earlier operations may still use the
 * output buffer. */
static void copy_given(const trib_core *core, const trib_task *task, uint32_t chunk)
{
    const trib_view *source = &task->io.source, *destination = &task->io.destination;
    if (task->tensor->is_sharded || !trib_task_contributes(task) || destination->data == NULL ||
        destination->data == source->data) {
        return;
    }
    const size_t size = trib_view_chunk_size(source, chunk);
    if (size > 0) {
        core->engine->env.kernels->copy(trib_view_chunk(destination, chunk), trib_view_chunk(source, chunk), size);
        trib_charge(core->reactor, TRIB_COST_COPY, size);
    }
}

static void take_sum(trib_link *link, trib_task *task, const trib_frame *frame)
{
    trib_core *core = link->core;
    if (!trib_task_is_open(task)) {
        trib_worker_take_kept_answer(link, frame);
        return;
    }
    trib_assert(task->chunks_received < task->chunk_count && !is_received(task, frame->chunk)); /* check_sum */
    trib_assert(frame->chunk < task->chunks_sent); /* a sum answers a contribution */
    copy_given(core, task, frame->chunk);
    trib_task_note_answer(task, frame->chunk, frame->codec != 0 ? frame->payload_size : 0);
    trib_counter_add(&core->stats.bytes_pulled, frame->payload_size);
    task->received[frame->chunk / 64] |= UINT64_C(1) << (frame->chunk % 64);
    task->missing_rank = TRIB_NO_MEMBER; /* it has come since, or the server says so again */
    trib_copy_take(core, task, frame->chunk);
    if (task->chunks_received++ == 0 && task->chunk_count > 1) { /* a task of one chunk is complete now */
        trib_trace_task(core, TRIB_TRACE_LANDED, task, frame->payload_size);
    }
    if (task->chunks_received == task->chunk_count && trib_pipeline_waits_in(task, TRIB_STAGE_PULL)) {
        trib_pipeline_resume(core, task);
    }
}

/* Copies the sum into the task's buffer, unless it was received there. */
static trib_status store_sum(trib_link *link, trib_task *task, const trib_frame *frame, const void *payload,
                             trib_error *error)
{
    const trib_core *core = link->core;
    trib_status status = TRIB_OK;
    unsigned char *at = trib_task_sum_place(task, frame->chunk, frame->codec != 0);
    trib_copy_begin(task);
    if (payload != at) {
        /* Copies bypass the caches for data that a device reads, or that exceeds the caches before anyone reads
         * it. */
        const trib_kernels *kernels = core->engine->env.kernels;
        const bool is_nontemporal =
            !task->lands_in_copy && (task->device != NULL || task->tensor->bytes >= TRIB_NONTEMPORAL_BYTES);
        status = trib_link_copy(link, is_nontemporal ? kernels->copy_nontemporal : kernels->copy, at, payload,
                                frame->payload_size, error);
    }
    return status;
}

static trib_status receive_sum(trib_link *link, const trib_frame *frame, const void *payload, bool in_place,
                               trib_error *error)
{
    trib_task *task = link->recv_claim.what;
    if (!in_place && task == NULL && frame->payload_size > 0) {
        trib_worker_take_kept_answer(link, frame);
        return TRIB_OK; /* no open task waited for this sum when it arrived */
    }
    if (task == NULL) {
        trib_status status = find_task(link, frame, &task, error);
        if (status == TRIB_OK && task != NULL) {
            status = check_sum(link, task, frame, error);
        }
        if (status == TRIB_OK && task == NULL) {
            trib_worker_take_kept_answer(link, frame);
        }
        if (status != TRIB_OK || task == NULL) {
            return status;
        }
    } else {
        trib_task_release(link->core, task, TRIB_HOLD_RECEIVE);
    }
    if (frame->payload_size > 0 && trib_task_is_open(task)) {
        trib_status status = store_sum(link, task, frame, payload, error);
        if (status != TRIB_OK) {
            return status;
        }
    }
    take_sum(link, task, frame);
    return TRIB_OK;
}

static void take_stall(trib_core *core, trib_task *task, const trib_frame *frame, const void *payload)
{
    trib_worker_note_missing(core, task, frame, payload);
    trib_trace_task(core, TRIB_TRACE_STALL, task, 0);
    if (frame->chunk == TRIB_STALL_FOR_GOOD) {
        trib_op_fail(task->op_core->op, TRIB_PEER_LEFT, "%s left the job without contributing to round %u",
                     trib_roster_name(core->engine->roster, frame->aux), frame->round);
        give_up_everywhere(core, task->op_core);
    }
}

static trib_status take_refusal(trib_link *link, trib_task *task, const trib_frame *frame, const void *payload,
                                trib_error *error)
{
    trib_core *core = link->core;
    trib_cause cause;
    const trib_status status = trib_cause_decode(frame, payload, &cause, error);
    if (status != TRIB_OK) {
        return status;
    }
    char text[TRIB_ERROR_TEXT_SIZE];
    trib_job_render_loss(core->engine, &cause, text);
    task->refused = true;
    trib_op *op = task->op_core->op;
    trib_op_fail(op, cause.status, "%s", text);
    if (atomic_load(&op->has_text) && strcmp(trib_op_reason(op), text) == 0) {
        atomic_store(&op->is_second_hand, true); /* this worker's own withdraws repeat it */
    }
    if (cause.status == TRIB_MISMATCH) {
        trib_pipeline_fail(core, task); /* the owners report the mismatch of the other partitions */
    } else {
        give_up_everywhere(core, task->op_core);
    }
    trib_worker_take_kept_answer(link, frame); /* the owner keeps the round's other partitions, not this one */
    return TRIB_OK;
}

trib_status trib_worker_received(trib_link *link, const trib_frame *frame, const void *payload, bool in_place,
                                 trib_error *error)
{
    trib_task *task = NULL;
    if (trib_frame_is_partial(frame)) {
        return trib_relay_received(link, frame, payload, in_place, error);
    }
    if (frame->type == TRIB_FRAME_SUM) {
        return receive_sum(link, frame, payload, in_place, error);
    }
    if (frame->type == TRIB_FRAME_RESUME) {
        return trib_orphan_resume(link, frame, error);
    }
    if (frame->type == TRIB_FRAME_ASK_REPORT) {
        return trib_orphan_answer(link, frame, error);
    }
    trib_status status = find_task(link, frame, &task, error);
    if (status == TRIB_OK && frame->type == TRIB_FRAME_STALL) {
        status = trib_server_check_stall(link->core, frame, error);
    }
    if (status != TRIB_OK) {
        return status;
    }
    if (frame->type == TRIB_FRAME_QUORUM_SET) {
        return trib_worker_take_set(link, task, frame, payload, error);
    }
    if (task == NULL) {
        trib_worker_take_kept_answer(link, frame);
    } else if (frame->type == TRIB_FRAME_STALL) {
        take_stall(link->core, task, frame, payload);
    } else {
        return take_refusal(link, task, frame, payload, error);
    }
    return TRIB_OK;
}

const trib_link_upcalls trib_worker_upcalls = {
    .ready = worker_ready,
    .header = check_header,
    .received = trib_worker_received,
    .closed = worker_link_closed,
};

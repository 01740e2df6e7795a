/*
 * push.c - the PUSH stage: sends a partition to its server, chunk by chunk, as its priority and the link's credit
 * allow.
 *
 * The stage is done when the transport has sent the last chunk. A chunk also requests its sum (PULL). In a broadcast
 * the receivers send chunks without payload, which only request.
 */
#include "engine/base/assert.h"
#include "engine/link/link_priority.h"
#include "engine/link/link_self.h"
#include "engine/worker/task_codec.h"
#include "engine/worker/task_trace.h"
#include "engine/worker/worker.h"
#include "engine/worker/worker_orphan.h"
#include "stages/plans.h"

static void chunk_sent(trib_send_record *out, trib_status status)
{
    trib_task *task = out->context;
    trib_core *core = out->link->core;
    trib_assert(task->held[TRIB_HOLD_SEND] > 0 && task->held[TRIB_HOLD_SEND] <= task->chunks_sent);
    if (!trib_task_is_open(task)) {
        if (task->held[TRIB_HOLD_SEND] == 1) { /* the last send: this process's server gets no further chunk */
            trib_self_leases_recall(&task->self_held);
        }
        trib_task_release(core, task, TRIB_HOLD_SEND);
        return;
    }
    trib_task_release(core, task, TRIB_HOLD_SEND);
    /* A failed send is followed by the link's end, which fails the task. If the sum is complete, the chunks did
     * arrive; the server may have left since. */
    const bool arrived = status == TRIB_OK || task->chunks_received == task->chunk_count;
    if (arrived && task->held[TRIB_HOLD_SEND] == 0 && task->chunks_sent == task->chunk_count) {
        trib_pipeline_resume(core, task);
    }
}

static bool push_send_chunk(trib_link *link, trib_send_request *request)
{
    trib_task *task = (trib_task *)request;
    const trib_op *op = task->op_core->op;
    uint32_t chunk = task->chunks_sent;
    trib_assert(trib_task_is_open(task) && chunk < task->chunk_count);
    trib_assert(trib_link_main(link) == task->link);
    trib_frame frame = trib_task_frame(task, TRIB_FRAME_PUSH);
    frame.payload_size = trib_task_sends(task) ? trib_view_chunk_size(&task->io.source, chunk) : 0;
    frame.codec = trib_task_push_codec(task, chunk, &frame.payload_size);
    frame.chunk = chunk;
    frame.size = trib_view_chunk_size(&task->io.source, chunk);
    frame.priority = op->priority;
    frame.aux = task->keeps ? TRIB_PUSH_KEEPS : trib_worker_owner_code(link->core, task);
    if (task->giver != TRIB_NO_MEMBER) { /* another worker gives the sum away, and this one asks for it */
        frame.collective = TRIB_COLLECTIVE_BROADCAST;
        frame.root = task->giver;
        frame.payload_size = 0;
    }
    const void *payload = frame.payload_size > 0 ? trib_view_chunk(&task->io.encoded, chunk) : NULL;
    if (chunk == 0) {
        /* Recorded before the send, because a peer on this machine may receive the chunk at once. */
        trib_trace_task(link->core, TRIB_TRACE_START, task, task->size);
    }
    if (trib_link_send_held(link, &frame, payload, chunk_sent, task, &task->self_held) != TRIB_OK) {
        trib_link_close(link, false, TRIB_NO_MEMORY, "out of memory for a chunk");
        return false;
    }
    if (chunk > 0 && chunk + 1 == task->chunk_count) {
        trib_trace_task(link->core, TRIB_TRACE_EMITTED, task, task->size);
    }
    trib_counter_add(&link->core->stats.bytes_pushed, frame.payload_size);
    task->connection = trib_link_connection_index(link);
    task->chunks_sent++;
    trib_task_hold(task, TRIB_HOLD_SEND);
    trib_assert(task->chunks_sent <= task->chunk_count && task->held[TRIB_HOLD_SEND] <= task->chunk_count);
    return task->chunks_sent < task->chunk_count;
}

/* Sets the error for a missing link to the server. A lost link has ended the job, but this core may learn of that
 * after its queued operations; they fail with the reason of the loss. Only a server that said farewell has left
 * the job. */
static void notify_missing(trib_core *core, const trib_task *task, trib_status status, trib_error *error)
{
    const trib_link *link = task->link;
    const char *name = trib_roster_name(core->engine->roster, trib_worker_owner(core, task));
    if (status == TRIB_NO_MEMORY) {
        trib_error_set(error, status, "out of memory");
    } else if (trib_engine_check_open(core->engine, error) != TRIB_OK) {
        return;
    } else if (link != NULL && !link->bye) {
        char why[TRIB_ERROR_TEXT_SIZE];
        trib_job_render(core->engine, &link->end, why);
        trib_error_set(error, TRIB_PEER_LOST, "the connection to %s, which sums partition %u, ends: %.200s", name,
                       task->partition, why);
    } else {
        trib_error_set(error, TRIB_PEER_LEFT, "%s, which sums partition %u, has left the job", name, task->partition);
    }
}

/* Copies a worker's slice for itself from its input to its output. */
static void copy_own(trib_core *core, trib_task *task)
{
    trib_assert(task->link == NULL && task->io.destination.bytes == task->io.source.bytes);
    if (task->io.destination.data != task->io.source.data) { /* else it has been copied from a device, and goes back */
        core->engine->env.kernels->copy(task->io.destination.data, task->io.source.data, task->size);
        trib_charge(core->reactor, TRIB_COST_COPY, task->size);
    }
    task->chunks_received = task->chunk_count;
}

static trib_verdict push_start(trib_core *core, trib_task *task, trib_error *error)
{
    trib_assert(!trib_send_request_waits(&task->request) && task->held[TRIB_HOLD_SEND] == 0);
    trib_assert(!task->held_back && task->io.encoded.bytes <= UINT32_MAX - TRIB_CHUNK_BYTES_MAX);
    task->chunks_sent = 0;
    if (task->chunk_count == 0) {
        return TRIB_VERDICT_DONE;
    }
    if (trib_task_is_own(task)) {
        copy_own(core, task);
        return TRIB_VERDICT_DONE;
    }
    if (!task->has_weight) {
        task->has_weight = true;
        trib_egress_move(NULL, trib_worker_egress_link(core, task), task->size);
    }
    trib_copy_prepare(core, task);
    task->request.priority = task->op_core->op->priority;
    task->request.age = trib_scheduler_take_age(&core->host.scheduler);
    task->request.send_chunk = push_send_chunk;
    if (task->in_order) {
        task->request.route = TRIB_ROUTE_PINNED;
        task->request.connection = task->connection;
    } else {
        const bool small = task->chunk_count == 1 && trib_link_priority_fits(task->size);
        task->request.route = small ? TRIB_ROUTE_ANY : TRIB_ROUTE_MAIN;
    }
    if (trib_orphan_awaits_owner(core, task)) {
        return TRIB_VERDICT_PENDING;
    }
    if (task->link != NULL && task->link->state != TRIB_LINK_CLOSING && trib_worker_hold_back(task)) {
        return TRIB_VERDICT_PENDING;
    }
    trib_status status =
        task->link == NULL ? TRIB_PEER_LEFT : trib_scheduler_submit(task->link, &task->request, task->size);
    if (status == TRIB_NO_MEMORY) {
        /* The server would wait for this round and reject the next one. */
        trib_link_close(task->link, false, TRIB_NO_MEMORY, "out of memory for what waits to be pushed");
    }
    if (status != TRIB_OK) {
        notify_missing(core, task, status, error);
        return TRIB_VERDICT_FAILED;
    }
    return TRIB_VERDICT_PENDING;
}

static void push_cancel(trib_core *core, trib_task *task)
{
    trib_worker_give_up_exchange(core, task);
    task->held_back = false;
    if (task->link != NULL) {
        trib_scheduler_withdraw(task->link, &task->request);
    }
    trib_assert(!trib_send_request_waits(&task->request)); /* no chunk is sent for a task that was given up */
}

const trib_stage trib_stage_push = {
    .id = TRIB_STAGE_PUSH, .start = push_start, .cancel = push_cancel, .skip = trib_worker_withdraw};

/*
 * worker.c - the worker's side of one core: operations arrive, their partitions run, sums land.
 *
 * Invariant: a caller's buffer is touched only between the arrival of a node and the settling of its last task. A
 * task that fails while bytes of it are with the transport settles when they come back; if they do not within
 * GRACE_NS the link that holds them is ended, which gives them back.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/assert.h"
#include "engine/pipeline.h"

#define GRACE_NS (2 * INT64_C(1000000000))

static void start_next(trib_core *core, trib_tensor *tensor);

static trib_tensor_core *tensor_core(trib_core *core, trib_tensor *tensor)
{
    return &tensor->cores[core->reactor->index];
}

/* ---- Nodes ---- */

static void node_link_in(trib_core *core, trib_op_node *node)
{
    node->core = core;
    node->previous = NULL;
    node->next = core->nodes;
    if (core->nodes != NULL) {
        core->nodes->previous = node;
    }
    core->nodes = node;
}

static void node_done(trib_core *core, trib_op_node *node)
{
    trib_timer_stop(core->reactor, &node->deadline);
    trib_timer_stop(core->reactor, &node->grace);
    if (node->previous != NULL) {
        node->previous->next = node->next;
    } else {
        core->nodes = node->next;
    }
    if (node->next != NULL) {
        node->next->previous = node->previous;
    }
    node->core = NULL;
    trib_op_core_done(node->op, core);
}

/* Core 0: an operation that was submitted before its tensor was placed goes to the other cores now. */
static void spread(trib_core *core, trib_op *op)
{
    if (op->spread) {
        return;
    }
    trib_assert(core->reactor->index == 0);
    op->spread = true;
    for (uint32_t i = 1; i < core->engine->core_count; i++) {
        trib_reactor_post(core->engine->cores[i].reactor, &op->nodes[i].submit_post);
    }
}

/* Ends a node that never started; if the operation never reached the other cores, theirs too. */
static void node_drop(trib_core *core, trib_op_node *node)
{
    if (!node->op->spread) {
        node->op->spread = true;
        atomic_fetch_sub(&node->op->cores_left, core->engine->core_count - 1);
    }
    node_done(core, node);
}

static trib_link *owner_link(const trib_core *core, const trib_task *task)
{
    trib_place_owner owner = task->tensor->owners[task->partition];
    return core->owner_links[owner.member * TRIB_REACTORS_MAX + owner.reactor];
}

/* Tells the servers that this worker's contribution to what has not settled will not come. */
static void withdraw(trib_core *core, trib_op_node *node, trib_task *task)
{
    const trib_op *op = node->op;
    trib_status status = (trib_status)atomic_load(&op->claim);
    trib_link *link = owner_link(core, task);
    if (link == NULL || core->ended) {
        return;
    }
    char text[TRIB_ERROR_TEXT_SIZE];
    snprintf(text, sizeof text, "%s withdrew from round %u (%s)",
             trib_roster_name(core->engine->roster, core->engine->member_id), op->round, trib_status_text(status));
    trib_frame frame = {
        .type = TRIB_FRAME_WITHDRAW,
        .tensor = op->tensor->id,
        .partition = task->partition,
        .round = op->round,
        .chunk_count = task->chunk_count,
        .exchange = (uint8_t)op->exchange,
        .dtype = (uint8_t)op->tensor->dtype,
        .reduce = (uint8_t)op->reduce,
        .root = op->root,
        .aux = (uint32_t)(status == TRIB_TIMEOUT ? TRIB_TIMEOUT : TRIB_CANCELLED),
    };
    trib_link_send_copy(link, frame, text, strlen(text));
}

static void grace_passed(trib_reactor *reactor, trib_timer *timer)
{
    trib_core *core = reactor->owner;
    trib_op_node *node = timer->user;
    trib_tensor_core *tensor = tensor_core(core, node->op->tensor);
    for (uint32_t i = 0; i < tensor->task_count; i++) {
        trib_task *task = &tensor->tasks[i];
        if (!task->settled && task->link != NULL) {
            trib_link_close(task->link, false, TRIB_PEER_LOST, "took no data for too long after a deadline had passed");
        }
    }
}

/* Fails what has not settled of the round that runs. The reason is in the operation already. */
static void abort_active(trib_core *core, trib_op_node *node)
{
    trib_tensor *tensor = node->op->tensor;
    trib_tensor_core *mine = tensor_core(core, tensor);
    trib_assert(mine->active == node);
    if (node->abort) {
        return;
    }
    node->abort = true;
    node->grace.fired = grace_passed;
    node->grace.user = node;
    trib_timer_arm(core->reactor, &node->grace, trib_now(core->reactor) + GRACE_NS);
    uint32_t count = mine->task_count;
    for (uint32_t i = 0; i < count && mine->active == node; i++) {
        trib_task *task = &mine->tasks[i];
        if (!task->settled && !task->failed) {
            withdraw(core, node, task);
            trib_pipeline_fail(core, task);
        }
    }
}

/* A round that never started: says so to the servers, so that the others do not wait for it. */
static void skip_round(trib_core *core, trib_op_node *node)
{
    trib_tensor_core *mine = tensor_core(core, node->op->tensor);
    for (uint32_t i = 0; i < mine->task_count; i++) {
        withdraw(core, node, &mine->tasks[i]);
    }
    mine->round_next++;
    node_done(core, node);
}

static void abort_node(trib_core *core, trib_op_node *node)
{
    trib_tensor *tensor = node->op->tensor;
    if (atomic_load(&tensor->placed) && tensor_core(core, tensor)->active == node) {
        abort_active(core, node);
    }
    /* Otherwise it waits for its round or for the placement: it ends when its turn comes, see start_next. */
}

static const char *waiting_text(trib_core *core, trib_op_node *node, char *text, size_t size)
{
    trib_tensor *tensor = node->op->tensor;
    const trib_roster *roster = core->engine->roster;
    if (!atomic_load(&tensor->placed)) {
        snprintf(text, size, "it was still waiting for the coordinator");
        return text;
    }
    trib_tensor_core *mine = tensor_core(core, tensor);
    if (mine->active != node) {
        snprintf(text, size, "an earlier operation on the tensor was still going");
        return text;
    }
    for (uint32_t i = 0; i < mine->task_count; i++) {
        const trib_task *task = &mine->tasks[i];
        if (task->settled) {
            continue;
        }
        uint32_t server = tensor->owners[task->partition].member;
        if (task->missing_rank != TRIB_NO_MEMBER) {
            snprintf(text, size, "partition %u in %s at %s still lacked the contribution of %s", task->partition,
                     trib_pipeline_stage_name(task), trib_roster_name(roster, server),
                     trib_roster_name(roster, task->missing_rank));
        } else {
            snprintf(text, size, "partition %u was in %s, waiting for %s", task->partition,
                     trib_pipeline_stage_name(task), trib_roster_name(roster, server));
        }
        return text;
    }
    snprintf(text, size, "it was about to complete");
    return text;
}

static void deadline_passed(trib_reactor *reactor, trib_timer *timer)
{
    trib_core *core = reactor->owner;
    trib_op_node *node = timer->user;
    char waiting[256];
    trib_op_fail(node->op, TRIB_TIMEOUT, "tensor \"%s\": not complete by its deadline of %.3f s: %s",
                 node->op->tensor->name, (double)(node->op->deadline_ns - node->op->submit_ns) / 1e9,
                 waiting_text(core, node, waiting, sizeof waiting));
    abort_node(core, node);
}

static void cancel_arrived(trib_reactor *reactor, trib_post *post)
{
    trib_core *core = reactor->owner;
    trib_op_node *node = (trib_op_node *)((char *)post - offsetof(trib_op_node, cancel_post));
    if (node->core == core) {
        trib_op_fail(node->op, TRIB_CANCELLED, "tensor \"%s\": cancelled", node->op->tensor->name);
        abort_node(core, node);
    }
    trib_op_unref(node->op);
}

static void submit_arrived(trib_reactor *reactor, trib_post *post)
{
    trib_op_node *node = (trib_op_node *)((char *)post - offsetof(trib_op_node, submit_post));
    trib_worker_arrived(reactor->owner, node);
}

void trib_worker_prepare_node(trib_op_node *node)
{
    node->submit_post.run = submit_arrived;
    node->cancel_post.run = cancel_arrived;
    node->core = NULL;
    node->queue_next = NULL;
    node->abort = false;
}

static void enqueue_by_round(trib_tensor_core *mine, trib_op_node *node)
{
    trib_op_node **at = &mine->pending;
    while (*at != NULL && (*at)->op->round < node->op->round) {
        at = &(*at)->queue_next;
    }
    node->queue_next = *at;
    *at = node;
}

void trib_worker_arrived(trib_core *core, trib_op_node *node)
{
    trib_op *op = node->op;
    trib_tensor *tensor = op->tensor;
    if (node->core == NULL) {
        node_link_in(core, node);
        if (op->deadline_ns > 0) {
            node->deadline.fired = deadline_passed;
            node->deadline.user = node;
            trib_timer_arm(core->reactor, &node->deadline, op->deadline_ns);
        }
    }
    if (core->ended) {
        trib_op_fail(op, core->ended_status, "tensor \"%s\": %s", tensor->name, core->ended_text);
        node_drop(core, node);
    } else if (atomic_load(&tensor->placed)) {
        spread(core, op);
        enqueue_by_round(tensor_core(core, tensor), node);
        start_next(core, tensor);
    } else if (atomic_load(&tensor->bad)) {
        trib_op_fail(op, TRIB_MISMATCH, "%s", tensor->bad_text);
        node_drop(core, node);
    } else {
        trib_assert(core->reactor->index == 0);
        if (tensor->waiting_tail != NULL) {
            tensor->waiting_tail->queue_next = node;
        } else {
            tensor->waiting_head = node;
        }
        tensor->waiting_tail = node;
    }
}

static bool know_tensor(trib_core *core, trib_tensor *tensor)
{
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
    trib_op_node *node = (trib_op_node *)((char *)post - offsetof(trib_op_node, submit_post));
    trib_core *core = reactor->owner;
    trib_tensor *tensor = node->op->tensor;
    tensor_core(core, tensor)->active = NULL;
    node_done(core, node);
    start_next(core, tensor);
}

/* The next round starts from the loop, not from inside the last one's completion. */
static void finish_round(trib_core *core, trib_op_node *node)
{
    node->submit_post.run = continue_tensor;
    trib_reactor_defer(core->reactor, &node->submit_post);
}

static void begin_round(trib_core *core, trib_tensor *tensor, trib_op_node *node)
{
    trib_tensor_core *mine = tensor_core(core, tensor);
    mine->active = node;
    mine->round_next = node->op->round + 1;
    node->tasks_left = mine->task_count;
    for (uint32_t i = 0; i < mine->task_count; i++) {
        trib_task *task = &mine->tasks[i];
        task->node = node;
        task->link = owner_link(core, task);
        task->settled = false;
        task->failed = false;
        task->chunks_emitted = task->chunks_received = 0;
        task->sends_in_flight = task->landings = 0;
        task->missing_rank = TRIB_NO_MEMBER;
        memset(task->received, 0, (task->chunk_count + 63) / 64 * sizeof(uint64_t));
    }
    if (mine->task_count == 0) {
        finish_round(core, node);
    }
    for (uint32_t i = 0; i < mine->task_count; i++) {
        trib_pipeline_begin(core, &mine->tasks[i]);
    }
}

/* Starts the next round of a tensor if the one before has settled; ends rounds that were given up while they waited. */
static void start_next(trib_core *core, trib_tensor *tensor)
{
    trib_tensor_core *mine = tensor_core(core, tensor);
    while (core->joined && mine->active == NULL && mine->pending != NULL &&
           mine->pending->op->round == mine->round_next) {
        trib_op_node *node = mine->pending;
        mine->pending = node->queue_next;
        node->queue_next = NULL;
        if (atomic_load(&node->op->cancelled)) {
            trib_op_fail(node->op, TRIB_CANCELLED, "tensor \"%s\": cancelled", tensor->name);
        }
        if (atomic_load(&tensor->bad)) {
            trib_op_fail(node->op, TRIB_MISMATCH, "%s", tensor->bad_text);
        }
        if (atomic_load(&node->op->claim) != 0) {
            skip_round(core, node);
        } else if (!know_tensor(core, tensor)) {
            trib_op_fail(node->op, TRIB_NO_MEMORY, "tensor \"%s\": out of memory", tensor->name);
            skip_round(core, node);
        } else {
            begin_round(core, tensor, node);
        }
    }
}

void trib_worker_task_settled(trib_core *core, trib_task *task)
{
    trib_op_node *node = task->node;
    trib_assert(node->tasks_left > 0);
    task->link = NULL;
    if (--node->tasks_left == 0) {
        finish_round(core, node);
    }
}

/* ---- Links to servers ---- */

void trib_worker_joined(trib_core *core)
{
    trib_engine *engine = core->engine;
    core->joined = true;
    trib_engine_core_joined(engine);
    for (uint32_t tag = 0;; tag++) {
        pthread_mutex_lock(&engine->mutex);
        trib_tensor *tensor = tag < engine->tensor_count ? engine->tensors[tag] : NULL;
        pthread_mutex_unlock(&engine->mutex);
        if (tensor == NULL) {
            break;
        }
        if (atomic_load(&tensor->placed)) {
            start_next(core, tensor);
        }
    }
}

static void worker_ready(trib_link *link)
{
    trib_core *core = link->core;
    core->owner_links[link->peer * TRIB_REACTORS_MAX + link->peer_reactor] = link;
    core->stats.connections++;
    trib_assert(core->links_missing > 0);
    if (--core->links_missing == 0) {
        trib_worker_joined(core);
    }
}

/* A server that left in good order ends the operations that still need it, no others; see also trib_stage_push. */
static void detach_tasks(trib_core *core, trib_link *link, const char *text)
{
    trib_op_node *next;
    for (trib_op_node *node = core->nodes; node != NULL; node = next) {
        next = node->next;
        trib_tensor *tensor = node->op->tensor;
        trib_tensor_core *mine = atomic_load(&tensor->placed) ? tensor_core(core, tensor) : NULL;
        for (uint32_t i = 0; mine != NULL && mine->active == node && i < mine->task_count; i++) {
            trib_task *task = &mine->tasks[i];
            if (task->link != link || task->settled) {
                continue;
            }
            task->link = NULL;
            trib_op_fail(node->op, link->bye ? TRIB_PEER_LEFT : TRIB_PEER_LOST, "tensor \"%s\": %s", tensor->name,
                         text);
            if (task->failed) {
                trib_pipeline_try_settle(core, task);
            } else {
                trib_pipeline_fail(core, task);
            }
        }
    }
}

static void worker_link_closed(trib_link *link, trib_status status, const char *reason)
{
    trib_core *core = link->core;
    trib_link **slot = &core->owner_links[link->peer * TRIB_REACTORS_MAX + link->peer_reactor];
    if (*slot == link) {
        *slot = NULL;
        core->stats.connections--;
    }
    /* Tasks on it settle when the job's end reaches this core; their landings are void from here. */
    if (link->landed != NULL) {
        trib_task *task = link->landed;
        task->landings--;
    }
    char text[TRIB_ERROR_TEXT_SIZE];
    snprintf(text, sizeof text, "lost the connection to %s: %.200s", trib_roster_name(core->engine->roster, link->peer),
             reason);
    detach_tasks(core, link, text);
    if (!link->bye && !core->ended) {
        trib_engine_end(core->engine, status == TRIB_CLOSED || status == TRIB_OK ? TRIB_PEER_LOST : status, text);
    }
}

/* The task a SUM or REFUSED frame is about; NULL without error: nobody waits for it any more. */
static trib_status find_task(trib_core *core, const trib_frame *frame, trib_task **task_out, trib_error *error)
{
    *task_out = NULL;
    trib_tensor *tensor = frame->tensor < core->tensors_capacity ? core->tensors[frame->tensor] : NULL;
    if (tensor == NULL || frame->partition >= tensor->partition_count) {
        return trib_error_set(error, TRIB_PROTOCOL, "%s for unknown tensor %u, partition %u",
                              trib_frame_name(frame->type), frame->tensor, frame->partition);
    }
    trib_place_owner owner = tensor->owners[frame->partition];
    if (owner.reactor % core->engine->core_count != core->reactor->index) {
        return trib_error_set(error, TRIB_PROTOCOL, "%s for a partition of another reactor",
                              trib_frame_name(frame->type));
    }
    trib_tensor_core *mine = tensor_core(core, tensor);
    if (mine->active == NULL || mine->active->op->round != frame->round) {
        return frame->round < mine->round_next
                   ? TRIB_OK
                   : trib_error_set(error, TRIB_PROTOCOL, "%s for round %u of tensor \"%s\" which has not begun",
                                    trib_frame_name(frame->type), frame->round, tensor->name);
    }
    trib_task *task = &mine->tasks[tensor->task_index[frame->partition]];
    if (!task->settled && !task->failed) {
        *task_out = task;
    }
    return TRIB_OK;
}

static trib_status check_sum(trib_core *core, const trib_task *task, const trib_frame *frame, trib_error *error)
{
    const trib_op *op = task->node->op;
    bool is_root = op->exchange == TRIB_EXCHANGE_BROADCAST && op->root == core->engine->member_id;
    uint32_t chunk_bytes = task->tensor->chunk_bytes;
    uint32_t expected = 0;
    if (frame->chunk < task->chunk_count && !is_root) {
        uint64_t begin = (uint64_t)frame->chunk * chunk_bytes;
        expected = task->size - begin < chunk_bytes ? (uint32_t)(task->size - begin) : chunk_bytes;
    }
    if (frame->chunk >= task->chunk_count || frame->payload_size != expected) {
        return trib_error_set(error, TRIB_PROTOCOL, "sum of tensor \"%s\" chunk %u has %u bytes, expected %u",
                              task->tensor->name, frame->chunk, frame->payload_size, expected);
    }
    if (task->received[frame->chunk / 64] >> (frame->chunk % 64) & 1) {
        return trib_error_set(error, TRIB_PROTOCOL, "sum of tensor \"%s\" chunk %u came twice", task->tensor->name,
                              frame->chunk);
    }
    return TRIB_OK;
}

trib_status trib_worker_header(trib_link *link, const trib_frame *frame, trib_landing *landing, trib_error *error)
{
    trib_core *core = link->core;
    landing->buffer = core->discard;
    if (frame->type == TRIB_FRAME_REFUSED || frame->type == TRIB_FRAME_STALL) {
        return TRIB_OK;
    }
    if (frame->type != TRIB_FRAME_SUM) {
        return trib_error_set(error, TRIB_PROTOCOL, "unexpected %s frame from a server", trib_frame_name(frame->type));
    }
    trib_task *task;
    trib_status status = find_task(core, frame, &task, error);
    if (status != TRIB_OK || task == NULL) {
        return status;
    }
    status = check_sum(core, task, frame, error);
    if (status == TRIB_OK && frame->payload_size > 0) {
        landing->buffer = task->node->op->output + task->offset + (uint64_t)frame->chunk * task->tensor->chunk_bytes;
        link->landed = task;
        task->landings++;
    }
    return status;
}

static void take_sum(trib_core *core, trib_task *task, const trib_frame *frame)
{
    if (task->failed) {
        trib_pipeline_try_settle(core, task);
        return;
    }
    core->stats.bytes_pulled += frame->payload_size;
    task->received[frame->chunk / 64] |= UINT64_C(1) << (frame->chunk % 64);
    task->chunks_received++;
    const char *stage = trib_pipeline_stage_name(task);
    if (task->chunks_received == task->chunk_count && strcmp(stage, "PULL") == 0) {
        trib_pipeline_resume(core, task);
    }
}

static trib_status receive_sum(trib_link *link, const trib_frame *frame, const void *payload, bool lent,
                               trib_error *error)
{
    trib_core *core = link->core;
    trib_task *task = link->landed;
    if (lent || task == NULL) {
        trib_status status = find_task(core, frame, &task, error);
        if (status == TRIB_OK && task != NULL) {
            status = check_sum(core, task, frame, error);
        }
        if (status != TRIB_OK || task == NULL) {
            return status;
        }
        if (frame->payload_size > 0) {
            memcpy(task->node->op->output + task->offset + (uint64_t)frame->chunk * task->tensor->chunk_bytes, payload,
                   frame->payload_size);
            trib_charge(core->reactor, TRIB_COST_COPY, frame->payload_size);
        }
    } else {
        task->landings--;
        link->landed = NULL;
    }
    take_sum(core, task, frame);
    return TRIB_OK;
}

trib_status trib_worker_received(trib_link *link, const trib_frame *frame, const void *payload, bool lent,
                                 trib_error *error)
{
    trib_core *core = link->core;
    trib_task *task = NULL;
    if (frame->type == TRIB_FRAME_SUM) {
        return receive_sum(link, frame, payload, lent, error);
    }
    trib_status status = find_task(core, frame, &task, error);
    if (status != TRIB_OK || task == NULL) {
        return status;
    }
    if (frame->type == TRIB_FRAME_STALL) {
        task->missing_rank = frame->aux;
        if (trib_member_has_left(core->engine, frame->aux)) {
            trib_op_fail(task->node->op, TRIB_PEER_LEFT,
                         "tensor \"%s\": %s left the job without contributing to round %u", task->tensor->name,
                         trib_roster_name(core->engine->roster, frame->aux), frame->round);
            abort_active(core, task->node);
        }
        return TRIB_OK;
    }
    trib_op_fail(task->node->op, (trib_status)(int32_t)frame->aux, "tensor \"%s\": %.*s", task->tensor->name,
                 (int)frame->payload_size, payload == NULL ? "" : (const char *)payload);
    trib_pipeline_fail(core, task);
    return TRIB_OK;
}

/* ---- Life ---- */

trib_status trib_worker_open(trib_core *core, trib_error *error)
{
    core->discard = trib_core_zalloc(core, TRIB_PAYLOAD_MAX);
    return core->discard != NULL ? TRIB_OK : trib_error_set(error, TRIB_NO_MEMORY, "out of memory");
}

void trib_worker_close(trib_core *core)
{
    trib_assert(core->nodes == NULL);
    free(core->discard);
    free(core->tensors);
    free(core->owner_links);
}

void trib_worker_fail_all(trib_core *core, trib_status status, const char *text)
{
    trib_op_node *next;
    for (trib_op_node *node = core->nodes; node != NULL; node = next) {
        next = node->next;
        trib_op *op = node->op;
        trib_tensor *tensor = op->tensor;
        char waiting[256];
        trib_op_fail(op, status, "tensor \"%s\": %s (%s)", tensor->name, text,
                     waiting_text(core, node, waiting, sizeof waiting));
        trib_tensor_core *mine = atomic_load(&tensor->placed) ? tensor_core(core, tensor) : NULL;
        if (mine != NULL && mine->active == node) {
            abort_active(core, node);
        } else {
            node_drop(core, node);
        }
        if (mine != NULL) {
            mine->pending = NULL;
        } else {
            tensor->waiting_head = tensor->waiting_tail = NULL;
        }
    }
}

void trib_worker_tensor_bad(trib_reactor *reactor, trib_post *post)
{
    trib_core *core = reactor->owner;
    trib_tensor_core *mine = (trib_tensor_core *)((char *)post - offsetof(trib_tensor_core, bad_post));
    if (mine->active != NULL) {
        trib_op_fail(mine->active->op, TRIB_MISMATCH, "%s", mine->tensor->bad_text);
        abort_active(core, mine->active);
    }
    /* Those that wait fail when their turn comes, see start_next. */
}

const trib_link_upcalls trib_worker_upcalls = {
    .ready = worker_ready,
    .header = trib_worker_header,
    .received = trib_worker_received,
    .closed = worker_link_closed,
};

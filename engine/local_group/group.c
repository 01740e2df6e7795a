/*
 * group.c - a local rank's side of the group: its announcements, and the orders that it carries out. The leader's
 * decisions are in group_leader.c, connections and the group's life in group_link.c.
 *
 * Core 0 submits a collective to the device when its order arrives, so the device sees collectives in the order of one
 * connection. A post tells the task's core after the submission.
 */
#include "engine/local_group/group_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/worker/worker.h"

const char *trib_group_name_of(const trib_local_group *group, uint32_t local_rank)
{
    return trib_roster_name(group->core->engine->roster, group->machine * group->local_size + local_rank);
}

void trib_group_end_job(trib_local_group *group, trib_status status, const char *detail)
{
    if (!group->ended) {
        trib_job_fail(group->core->engine, status, detail);
    }
}

/* ---- Announced collectives ---- */

static void add_to_announced(trib_local_group *group, trib_device_task *device)
{
    trib_assert(group->announced != device && !group->ended);
    device->previous = NULL;
    device->next = group->announced;
    if (group->announced != NULL) {
        group->announced->previous = device;
    }
    group->announced = device;
}

void trib_group_forget(trib_local_group *group, trib_device_task *device)
{
    trib_assert(device->previous == NULL ? group->announced == device : device->previous->next == device);
    *(device->previous == NULL ? &group->announced : &device->previous->next) = device->next;
    if (device->next != NULL) {
        device->next->previous = device->previous;
    }
}

void trib_group_answer(trib_device_task *device, trib_status status)
{
    trib_assert(device->announced_job != NULL && status != TRIB_PENDING);
    device->order_status = status;
    trib_reactor_post(trib_device_task_core(device)->reactor, &device->order_post);
}

static trib_announcement_kind kind_of(const trib_device_job *job)
{
    return job->kind == TRIB_DEVICE_ALL_GATHER ? TRIB_ANNOUNCE_GATHER : TRIB_ANNOUNCE_REDUCE;
}

static bool is_about(const trib_device_task *device, uint32_t tensor, uint32_t round)
{
    const trib_op *op = device->task->op_core->op;
    return op->tensor->id == tensor && op->round == round;
}

bool trib_group_call_off(trib_local_group *group, uint32_t tensor, uint32_t round, trib_status status, const char *text)
{
    bool has_announced = false;
    trib_device_task *next;
    for (trib_device_task *at = group->announced; at != NULL; at = next) {
        next = at->next;
        if (is_about(at, tensor, round)) {
            has_announced = true;
            trib_op *op = at->task->op_core->op;
            trib_group_forget(group, at);
            trib_op_fail(op, status, "%s", text);
            trib_op_give_up(op); /* reaches the tasks that have announced nothing */
            trib_group_answer(at, status);
        }
    }
    return has_announced;
}

/* Fails an operation that is here and may have announced nothing yet. */
static bool call_off_early(const trib_local_group *group, uint32_t tensor, uint32_t round, trib_status status,
                           const char *text)
{
    for (trib_op_core *at = group->core->op_cores; at != NULL; at = at->next) {
        const bool has_id = atomic_load(&at->op->tensor->placed);
        if (has_id && at->op->tensor->id == tensor && at->op->round == round) {
            trib_op_fail(at->op, status, "%s", text);
            trib_op_give_up(at->op);
            return true;
        }
    }
    return false;
}

/* ---- The leader's word on rounds to come ---- */

enum { FAILURES_MAX = 256 };

static const trib_group_failure *find_failure(const trib_local_group *group, uint32_t tensor, uint32_t round)
{
    const trib_group_failure *at = group->failures;
    while (at != NULL && (at->tensor != tensor || at->round != round)) {
        at = at->next;
    }
    return at;
}

/* Drops what is said of rounds of the tensor that are longer ago than the leader keeps a reason, and the oldest of too
 * many: tensors whose numbers are on their way are few. */
static void drop_old_failures(trib_local_group *group, uint32_t tensor, uint32_t round)
{
    uint32_t kept = 1; /* the one that comes */
    for (trib_group_failure **at = &group->failures; *at != NULL;) {
        trib_group_failure *failure = *at;
        const bool is_past = failure->tensor == tensor && failure->round + TRIB_LEADER_KEPT < round;
        if (is_past || kept == FAILURES_MAX) {
            *at = failure->next;
            free(failure);
        } else {
            at = &failure->next;
            kept++;
        }
    }
}

bool trib_group_take_failure(trib_local_group *group, uint32_t tensor, uint32_t round, trib_status status,
                             const char *text)
{
    const bool has_announced = trib_group_call_off(group, tensor, round, status, text);
    if (call_off_early(group, tensor, round, status, text) || has_announced ||
        find_failure(group, tensor, round) != NULL) {
        return true;
    }
    /* The coordinator's answer to the tensor's declaration, with its number, may still be on its way. */
    trib_group_failure *failure = trib_core_zalloc(group->core, sizeof *failure);
    if (failure == NULL) {
        return false;
    }
    drop_old_failures(group, tensor, round);
    *failure = (trib_group_failure){.tensor = tensor, .round = round, .status = status, .next = group->failures};
    snprintf(failure->text, sizeof failure->text, "%s", text);
    group->failures = failure;
    return true;
}

void trib_group_drop_failures(trib_local_group *group)
{
    while (group->failures != NULL) {
        trib_group_failure *failure = group->failures;
        group->failures = failure->next;
        free(failure);
    }
}

/* ---- Orders ---- */

/* Ends the job, because a collective failed here and other ranks' devices wait for it. */
static void end_for_failure(trib_local_group *group, const trib_tensor *tensor, const trib_device_job *job)
{
    char text[TRIB_ERROR_TEXT_SIZE];
    snprintf(text, sizeof text, "tensor \"%.80s\": a collective of the machine's GPUs failed: %s", tensor->name,
             job->text);
    trib_group_end_job(group, job->status, text);
}

static void take_collective_back(trib_reactor *reactor, trib_post *post)
{
    trib_core *core = reactor->owner;
    trib_local_group *group = core->engine->group;
    trib_device_job *job = (trib_device_job *)((char *)post - offsetof(trib_device_job, post));
    trib_device_task *device = job->owner;
    group->back++;
    trib_assert((int32_t)(group->begun - group->back) >= 0);
    trib_assert(trib_core_is_here(core) && job->slot == NULL);
    group->carried_out += job->status == TRIB_OK;
    if (group->leader != NULL && kind_of(job) == TRIB_ANNOUNCE_REDUCE) {
        trib_leader_reduced(group->leader, (uint32_t)job->bytes);
        trib_reactor_defer(reactor, &group->pump_post);
    }
    if (job->status != TRIB_OK && job->status != TRIB_CLOSED) {
        end_for_failure(group, device->task->tensor, job);
    }
    job->post.run = trib_device_collective_done;
    trib_reactor_post(trib_device_task_core(device)->reactor, &job->post);
}

trib_status trib_group_take_order(trib_local_group *group, const trib_announcement *what, trib_error *error)
{
    trib_tensor *tensor = what->tensor < group->tensors_capacity ? group->tensors[what->tensor] : NULL;
    trib_device_task *device =
        tensor == NULL || what->slice >= tensor->device->slice_count ? NULL : &tensor->device->tasks[what->slice];
    if (device == NULL || device->announced_job == NULL || device->order_status != TRIB_PENDING ||
        kind_of(device->announced_job) != what->kind || !is_about(device, what->tensor, what->round)) {
        return trib_error_set(error, TRIB_PROTOCOL, "was told to do a collective that it had not announced");
    }
    trib_device_job *job = device->announced_job;
    trib_group_forget(group, device);
    job->owner = device;
    job->reactor = group->core->reactor;
    job->post.run = take_collective_back;
    group->begun++;
    /* The job is submitted before the answer, because the task's next job may name this one as its `after`. */
    group->core->engine->env.device->submit(group->core->engine->device, job);
    trib_group_answer(device, TRIB_OK);
    trib_group_check_departed(group->core);
    return TRIB_OK;
}

static void send_to_rank(trib_local_group *group, uint32_t local_rank, trib_frame frame, const char *text)
{
    if (group->links[local_rank] != NULL && trib_link_is_up(group->links[local_rank])) {
        trib_link_send_copy(group->links[local_rank], frame, text, text == NULL ? 0 : strlen(text));
    }
}

void trib_group_order(void *user, const trib_announcement *what)
{
    trib_local_group *group = user;
    trib_assert(group->leader != NULL && !group->ended);
    trib_frame frame = {.type = TRIB_FRAME_GROUP_ORDER,
                        .tensor = what->tensor,
                        .partition = what->slice,
                        .round = what->round,
                        .chunk = (uint32_t)what->kind};
    for (uint32_t i = 1; i < group->local_size; i++) {
        send_to_rank(group, i, frame, NULL);
    }
    trib_error error;
    trib_status status = trib_group_take_order(group, what, &error);
    trib_assert(status == TRIB_OK); /* all ranks, this one included, have announced it */
}

void trib_group_called_off(void *user, uint32_t rank, uint32_t tensor, uint32_t round, trib_status status,
                           const char *text)
{
    trib_local_group *group = user;
    if (rank == 0) {
        trib_group_call_off(group, tensor, round, status, text);
        return;
    }
    trib_frame frame = {.type = TRIB_FRAME_GROUP_FAIL, .tensor = tensor, .round = round, .aux = (uint32_t)status};
    send_to_rank(group, rank, frame, text);
}

void trib_group_pump(trib_reactor *reactor, trib_post *post)
{
    (void)post;
    trib_core *core = reactor->owner;
    trib_local_group *group = core->engine->group;
    if (!group->ended) { /* else all announcements have been answered */
        trib_leader_pump(group->leader);
    }
}

/* ---- Announcing ---- */

static bool note_tensor(trib_local_group *group, trib_tensor *tensor)
{
    if (tensor->id >= group->tensors_capacity) {
        uint32_t capacity = group->tensors_capacity == 0 ? 256 : group->tensors_capacity;
        while (capacity <= tensor->id) {
            capacity *= 2;
        }
        trib_tensor **tensors = realloc(group->tensors, capacity * sizeof(trib_tensor *));
        if (tensors == NULL) {
            return false;
        }
        memset(tensors + group->tensors_capacity, 0, (capacity - group->tensors_capacity) * sizeof(trib_tensor *));
        group->tensors = tensors;
        group->tensors_capacity = capacity;
    }
    trib_assert(tensor->id < TRIB_TENSORS_MAX);
    group->tensors[tensor->id] = tensor;
    return true;
}

trib_status trib_group_leader_takes_ready(trib_local_group *group, uint32_t local_rank, const trib_announcement *what)
{
    trib_status status = trib_leader_ready(group->leader, local_rank, what);
    if (status == TRIB_OK && group->links_left > 0) {
        /* The rank that has left will never announce it. */
        char text[TRIB_ERROR_TEXT_SIZE];
        snprintf(text, sizeof text, "%s has left the job", trib_group_name_of(group, group->last_left));
        status = trib_leader_fail(group->leader, local_rank, what->tensor, what->round, TRIB_PEER_LEFT, text);
        trib_group_call_off(group, what->tensor, what->round, TRIB_PEER_LEFT, text);
    }
    trib_reactor_defer(group->core->reactor, &group->pump_post);
    return status;
}

/* Returns a number for the operation's reduction or root, which is the same on all ranks. */
static uint32_t variant_of(const trib_op *op)
{
    const uint32_t root = op->device->root;
    return root != TRIB_NO_MEMBER ? TRIB_REDUCE_COUNT + root : (uint32_t)op->reduce;
}

static trib_announcement announcement_of(const trib_device_task *device)
{
    const trib_op *op = device->task->op_core->op;
    return (trib_announcement){.tensor = op->tensor->id,
                               .slice = device->slice,
                               .round = op->round,
                               .kind = kind_of(device->announced_job),
                               .priority = op->priority,
                               .bytes = device->slice_bytes,
                               .variant = variant_of(op),
                               .step = op->step};
}

static void send_ready(trib_local_group *group, const trib_announcement *what)
{
    trib_frame frame = {.type = TRIB_FRAME_GROUP_READY,
                        .tensor = what->tensor,
                        .partition = what->slice,
                        .round = what->round,
                        .chunk = (uint32_t)what->kind,
                        .size = what->bytes,
                        .aux = what->variant,
                        .step = what->step,
                        .priority = what->priority};
    send_to_rank(group, 0, frame, NULL);
}

static void announce_to_leader(trib_local_group *group, const trib_device_task *device)
{
    const trib_announcement what = announcement_of(device);
    if (group->leader != NULL) {
        if (trib_group_leader_takes_ready(group, 0, &what) != TRIB_OK) {
            trib_group_end_job(group, TRIB_NO_MEMORY, "out of memory for the order of collectives");
        }
        return;
    }
    const trib_group_failure *failure = find_failure(group, what.tensor, what.round);
    if (failure != NULL) {
        trib_group_call_off(group, what.tensor, what.round, failure->status, failure->text);
    } else if (group->links[0] == NULL) {
        char text[TRIB_ERROR_TEXT_SIZE];
        snprintf(text, sizeof text, "%s has left the job", trib_group_name_of(group, 0));
        trib_group_call_off(group, what.tensor, what.round, TRIB_PEER_LEFT, text);
    } else {
        send_ready(group, &what); /* not sent before the link is READY; trib_group_reached_leader sends it then */
    }
}

static void take_announcement(trib_reactor *reactor, trib_post *post)
{
    trib_core *core = reactor->owner;
    trib_local_group *group = core->engine->group;
    trib_device_task *device = (trib_device_task *)((char *)post - offsetof(trib_device_task, announce_post));
    if (group->ended || !note_tensor(group, device->task->tensor)) {
        trib_group_answer(device, group->ended ? TRIB_CLOSED : TRIB_NO_MEMORY);
        return;
    }
    trib_assert(device->order_status != TRIB_PENDING); /* a task has one collective announced at a time */
    device->order_status = TRIB_PENDING;
    add_to_announced(group, device);
    announce_to_leader(group, device);
}

void trib_group_announce(trib_core *core, trib_device_task *device, trib_device_job *job)
{
    trib_assert(device->order_status != TRIB_PENDING && job->slot == NULL);
    trib_task_hold(device->task, TRIB_HOLD_DEVICE);
    device->announced_job = job;
    device->announce_post.run = take_announcement;
    trib_reactor_post(core->engine->cores[0].reactor, &device->announce_post);
}

/* Drops the reference that trib_group_op_failed took. */
static void send_failure(trib_local_group *group, trib_op *op)
{
    trib_frame frame = {.type = TRIB_FRAME_GROUP_FAIL,
                        .tensor = op->tensor->id,
                        .round = op->round,
                        .aux = (uint32_t)atomic_load(&op->claim)};
    send_to_rank(group, 0, frame, trib_op_reason(op));
    trib_op_unref(op);
}

static void take_failure(trib_reactor *reactor, trib_post *post)
{
    trib_core *core = reactor->owner;
    trib_local_group *group = core->engine->group;
    trib_device_op *device = (trib_device_op *)((char *)post - offsetof(trib_device_op, failed_post));
    trib_op *op = device->op;
    trib_status status = (trib_status)atomic_load(&op->claim);
    if (group->ended) {
        trib_op_unref(op);
        return;
    }
    /* Announcements of this rank stay: the leader orders them or calls them off. */
    if (group->leader != NULL) {
        if (trib_leader_fail(group->leader, 0, op->tensor->id, op->round, status, trib_op_reason(op)) != TRIB_OK) {
            trib_group_end_job(group, TRIB_NO_MEMORY, "out of memory for a failed operation");
        }
        trib_op_unref(op);
    } else if (group->links[0] == NULL || trib_link_is_up(group->links[0])) {
        send_failure(group, op);
    } else {
        device->next = group->unnotified;
        group->unnotified = device;
    }
}

void trib_group_reached_leader(trib_local_group *group)
{
    trib_assert(group->leader == NULL && group->links[0] != NULL);
    for (const trib_device_task *at = group->announced; at != NULL; at = at->next) {
        const trib_announcement what = announcement_of(at);
        send_ready(group, &what);
    }
    while (group->unnotified != NULL) {
        trib_device_op *device = group->unnotified;
        group->unnotified = device->next;
        send_failure(group, device->op);
    }
}

void trib_group_drop_unnotified(trib_local_group *group)
{
    while (group->unnotified != NULL) {
        trib_device_op *device = group->unnotified;
        group->unnotified = device->next;
        trib_op_unref(device->op);
    }
}

void trib_group_op_failed(trib_op *op)
{
    trib_engine *engine = op->engine;
    if (!atomic_load(&op->has_text)) {
        return; /* the thread that writes the text calls again after that */
    }
    if (op->device->ahead_bytes > 0) {
        trib_device_ahead_failed(op);
        return;
    }
    if (engine->group == NULL || !op->tensor->is_sharded || !atomic_load(&op->tensor->placed) ||
        atomic_exchange(&op->device->notified, true)) {
        return;
    }
    atomic_fetch_add(&op->references, 1);
    op->device->failed_post.run = take_failure;
    trib_reactor_post(engine->cores[0].reactor, &op->device->failed_post);
}

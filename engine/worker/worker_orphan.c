/* worker_orphan.c - see worker_orphan.h. */
#include "engine/worker/worker_orphan.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/cluster/succession.h"
#include "engine/link/link_cause.h"
#include "engine/worker/pipeline.h"

typedef struct trib_orphan {
    trib_send_request request; /* sends the copy that is given away */
    trib_post post;            /* runs when all of the copy has been sent */
    trib_core *core;
    trib_task *task;
    trib_frame report;
    unsigned char payload[TRIB_REPORT_BYTES]; /* of the report */
    trib_cause cause;                         /* the reason, if the round was given up meanwhile */
    bool is_reported;                         /* the report has been sent to the present owner */
    bool was_open;                            /* the report said that the round is open here */
    bool is_resumed;                          /* RESUME has come */
    bool is_over;                             /* the task goes on; the orphan waits for its last sends */
    uint32_t final;                           /* the round whose copy is given away; 0: none */
    uint32_t giver; /* the worker that gives the sum of this worker's round away, or TRIB_NO_MEMBER */
    uint32_t chunks_sent, sends;
    struct trib_orphan *next, *prev; /* neighbours in the core's list (utlist.h) */
} trib_orphan;

/* ---- The loss ---- */

bool trib_orphan_awaits_owner(const trib_core *core, const trib_task *task)
{
    const trib_link *link = task->link;
    const bool goes_on = trib_copy_is_made(core, task) || atomic_load(&core->engine->shrinks);
    const uint32_t owner = goes_on ? trib_worker_owner(core, task) : TRIB_NO_MEMBER;
    const bool is_gone = link == NULL || (link->state == TRIB_LINK_CLOSING &&
                                          (!link->bye || trib_worker_leave_ends_epoch(core, link->peer)));
    return task->orphan != NULL || (!core->ended && owner != TRIB_NO_MEMBER && !core->left_owners[owner] && is_gone);
}

typedef struct successors {
    const trib_engine *engine;
    uint32_t lost; /* is not among the engine's losses yet */
} successors;

static bool is_gone(const void *user, uint32_t member)
{
    const successors *of = user;
    int64_t since_ns;
    return member == of->lost || trib_losses_has(&of->engine->losses, member) ||
           trib_departed_has(&of->engine->departed, member, &since_ns);
}

/* Writes for the partition's next owner how much the worker has of it. */
static void make_report(trib_core *core, trib_orphan *orphan)
{
    const trib_task *task = orphan->task;
    const trib_tensor *tensor = task->tensor;
    trib_writer writer = {.data = orphan->payload, .capacity = sizeof orphan->payload};
    if (orphan->was_open) {
        orphan->report = trib_task_frame(task, TRIB_FRAME_REPORT);
    } else {
        orphan->report = (trib_frame){.type = TRIB_FRAME_REPORT,
                                      .tensor = tensor->id,
                                      .partition = task->partition,
                                      .round = trib_tensor_core_of(core, tensor)->round_next - 1,
                                      .chunk_count = task->chunk_count,
                                      .dtype = (uint8_t)tensor->dtype};
    }
    orphan->report.size = task->size;
    trib_put_u32(&writer, orphan->was_open ? TRIB_REPORT_OPEN : 0);
    trib_put_u32(&writer, core->losses_taken);
    trib_put_u32(&writer, tensor->chunk_bytes);
    trib_put_u32(&writer, task->copy_round);
    trib_put_u32(&writer, task->copy_step);
    trib_put_u32(&writer, task->copy_reduce);
    trib_put_u32(&writer, (uint32_t)task->gave_up_as);
    trib_assert(writer.size == sizeof orphan->payload && !writer.overflow);
}

/* Without a link that owner is lost, too, or has left, which the coordinator will say; or it asks (ASK_REPORT). */
static void send_report(trib_core *core, trib_orphan *orphan)
{
    trib_link *link = trib_worker_owner_link(core, orphan->task);
    orphan->is_reported = link != NULL;
    if (link != NULL) {
        trib_link_send_copy(link, orphan->report, orphan->payload, sizeof orphan->payload);
    }
}

/* NULL: no task of that partition is known here. */
static trib_task *find_task(const trib_core *core, const trib_frame *frame)
{
    const trib_tensor *tensor = frame->tensor < core->tensors_capacity ? core->tensors[frame->tensor] : NULL;
    trib_tensor_core *mine = tensor == NULL ? NULL : trib_tensor_core_of(core, tensor);
    const uint32_t index = tensor == NULL || frame->partition >= tensor->partition_count
                               ? UINT32_MAX
                               : tensor->task_index[frame->partition];
    return mine == NULL || index >= mine->task_count || mine->tasks[index].partition != frame->partition
               ? NULL
               : &mine->tasks[index];
}

trib_status trib_orphan_answer(trib_link *link, const trib_frame *frame, trib_error *error)
{
    trib_core *core = link->core;
    unsigned char payload[TRIB_REPORT_BYTES];
    trib_writer writer = {.data = payload, .capacity = sizeof payload};
    const trib_task *task = find_task(core, frame);
    (void)error;
    if (core->losses_taken < frame->aux) {
        return TRIB_OK; /* the report will be sent */
    }
    if (task != NULL && task->orphan != NULL) {
        if (!task->orphan->is_reported && trib_worker_owner_link(core, task) == trib_link_main(link)) {
            send_report(core, task->orphan);
        }
        return TRIB_OK;
    }
    const trib_frame report = {.type = TRIB_FRAME_REPORT,
                               .tensor = frame->tensor,
                               .partition = frame->partition,
                               .round = frame->tensor < core->tensors_capacity ? core->rounds_over[frame->tensor] : 0,
                               .chunk_count = 1,
                               .dtype = TRIB_UINT8};
    trib_put_u32(&writer, TRIB_REPORT_WAITS_FOR_NOTHING);
    trib_put_u32(&writer, core->losses_taken);
    for (uint32_t i = 0; i < 5; i++) {
        trib_put_u32(&writer, 0);
    }
    trib_link_send_copy(link, report, payload, writer.size);
    return TRIB_OK;
}

static void free_orphan(trib_orphan *orphan)
{
    trib_assert(orphan->sends == 0 && !trib_send_request_waits(&orphan->request));
    trib_assert(orphan->task->orphan != orphan); /* the task goes on without it */
    DL_DELETE(orphan->core->orphans, orphan);
    trib_tensor_unref(orphan->task->tensor);
    free(orphan);
}

static trib_orphan *take_orphan(trib_core *core, trib_task *task)
{
    trib_orphan *orphan = task->orphan;
    if (orphan == NULL) {
        orphan = trib_core_zalloc(core, sizeof *orphan);
        if (orphan == NULL) {
            return NULL;
        }
        DL_APPEND(core->orphans, orphan);
        atomic_fetch_add(&task->tensor->references, 1);
        trib_tensor_core_of(core, task->tensor)->orphans++;
        task->orphan = orphan;
    }
    orphan->core = core;
    orphan->task = task;
    orphan->is_resumed = false;
    orphan->final = orphan->chunks_sent = 0;
    return orphan;
}

static void make_orphan(trib_core *core, trib_task *task)
{
    trib_tensor_core *mine = trib_tensor_core_of(core, task->tensor);
    trib_orphan *orphan = take_orphan(core, task);
    if (orphan == NULL) {
        trib_job_fail(core->engine, TRIB_NO_MEMORY, "out of memory for the partitions of a lost server");
        return;
    }
    trib_assert(orphan->sends == 0 && !trib_send_request_waits(&orphan->request));
    pthread_mutex_lock(&core->engine->mutex); /* core 0 may be at the next loss */
    task->owner = task->tensor->owners[task->partition];
    pthread_mutex_unlock(&core->engine->mutex);
    /* Core 0 had written the owner before it told of the loss (trib_server_loss_take). */
    trib_assert(!trib_losses_has_among(&core->engine->losses, core->losses_taken, task->owner.member));
    task->held_back = false;
    /* A task is open also while a device has yet to copy a complete sum, for which nobody else is needed. */
    orphan->was_open = mine->active != NULL && trib_task_is_open(task) && task->chunks_received < task->chunk_count;
    if (mine->active != NULL && task->op_core != NULL) {
        task->link = trib_worker_owner_link(core, task);
    }
    if (orphan->was_open) {
        task->chunks_sent = task->chunks_received = 0;
        task->refused = false;
        memset(task->received, 0, (task->chunk_count + 63) / 64 * sizeof(uint64_t));
    }
    if (task->has_weight) {
        trib_egress_move(NULL, trib_worker_egress_link(core, task), task->size);
    }
    make_report(core, orphan);
    send_report(core, orphan);
}

static void orphan_tasks(trib_core *core, uint32_t member)
{
    trib_engine *engine = core->engine;
    trib_tensor *tensor;
    for (uint32_t tag = 0; (tensor = trib_tensor_at(engine, tag)) != NULL; tag++) {
        if (!trib_tensor_ref_placed(tensor)) {
            continue;
        }
        trib_tensor_core *mine = trib_tensor_core_of(core, tensor);
        const bool is_known = trib_worker_know_tensor(core, tensor);
        for (uint32_t i = 0; is_known && i < mine->task_count; i++) {
            if (mine->tasks[i].owner.member == member) {
                make_orphan(core, &mine->tasks[i]);
            }
        }
        trib_tensor_unref(tensor);
        if (!is_known) {
            trib_job_fail(engine, TRIB_NO_MEMORY, "out of memory for the partitions of a lost server");
            return;
        }
    }
}

/* Returns false while a link to the server is still there. Its end continues from here. */
static bool close_links_to(trib_core *core, uint32_t member)
{
    bool closed = true;
    for (uint32_t i = 0; i < TRIB_REACTORS_MAX; i++) {
        trib_link *link = core->owner_links[member * TRIB_REACTORS_MAX + i];
        if (link != NULL) {
            closed = false;
            trib_link_close(link, false, TRIB_PEER_LOST, "the coordinator has said that it is lost");
        }
    }
    return closed;
}

void trib_worker_take_losses(trib_core *core)
{
    trib_losses *losses = &core->engine->losses;
    /* A server that asks to go may do so while this process still makes its connections, which it then does first. */
    while (!core->ended && atomic_load(&core->engine->phase) == TRIB_PHASE_READY &&
           core->losses_taken < atomic_load(&losses->count)) {
        const uint32_t member = losses->order[core->losses_taken];
        if (!close_links_to(core, member)) {
            return;
        }
        core->losses_taken++; /* the workers' reports say so */
        orphan_tasks(core, member);
        trib_losses_take(losses, core->losses_taken - 1);
        core->engine->hooks->losses_taken(core->engine);
    }
}

static void server_lost(trib_reactor *reactor, trib_post *post)
{
    (void)post;
    trib_core *core = reactor->owner;
    atomic_store(&core->lost_posted, false);
    trib_worker_take_losses(core);
}

void trib_worker_post_losses(trib_engine *engine)
{
    for (uint32_t i = 0; i < engine->core_count; i++) {
        trib_core *core = &engine->cores[i];
        if (!atomic_exchange(&core->lost_posted, true)) {
            core->lost_post.run = server_lost;
            trib_reactor_post(core->reactor, &core->lost_post);
        }
    }
}

bool trib_worker_replace_owners(trib_engine *engine, uint32_t member)
{
    const successors of = {.engine = engine, .lost = member};
    bool found = true;
    trib_assert(trib_core_is_here(&engine->cores[0]) && !trib_losses_has(&engine->losses, member));
    pthread_mutex_lock(&engine->mutex); /* other cores and the trace writer read the owners */
    for (uint32_t tag = 0; tag < engine->tensor_count; tag++) {
        const trib_tensor *tensor = engine->tensors[tag];
        for (uint32_t i = 0; atomic_load(&tensor->placed) && i < tensor->partition_count; i++) {
            if (tensor->owners[i].member == member) {
                found = trib_succession_find(engine->roster, is_gone, &of, tensor->id, i, &tensor->owners[i]) && found;
            }
        }
    }
    pthread_mutex_unlock(&engine->mutex);
    return found;
}

/* ---- Going on ---- */

void trib_orphan_withdraw(trib_task *task)
{
    const trib_op *op = task->op_core->op;
    const trib_status status = trib_frame_withdraw_reason((trib_status)atomic_load(&op->claim));
    const uint32_t me = op->engine->member_id;
    task->orphan->cause = trib_cause_about(status, TRIB_CAUSE_NOTE, TRIB_SUBJECT_MEMBER, me, me,
                                           atomic_load(&op->has_text) ? trib_op_reason(op) : "withdrew from the round");
}

static void withdraw_round(trib_core *core, const trib_orphan *orphan, uint32_t round)
{
    trib_frame frame = orphan->report;
    const uint32_t me = core->engine->member_id;
    const trib_cause unknown =
        trib_cause_about(trib_frame_withdraw_reason(orphan->task->gave_up_as), TRIB_CAUSE_NOTE, TRIB_SUBJECT_MEMBER, me,
                         me, "gave the round up before its server was lost");
    const trib_cause *cause = orphan->cause.status == TRIB_OK ? &unknown : &orphan->cause;
    frame.type = TRIB_FRAME_WITHDRAW;
    frame.round = round;
    frame.size = 0;
    trib_link_send_cause(trib_worker_owner_link(core, orphan->task), frame, cause);
}

/* The owner knows all rounds before the worker's own one now. */
static void go_on(trib_orphan *orphan)
{
    trib_core *core = orphan->core;
    trib_task *task = orphan->task;
    trib_tensor *tensor = task->tensor;
    const uint32_t last = orphan->report.round;
    for (uint32_t i = orphan->final + 1; orphan->final > 0 && i <= last; i++) {
        if (i < last || !orphan->was_open) {
            withdraw_round(core, orphan, i);
        }
    }
    const bool is_open = orphan->was_open && trib_task_is_open(task);
    if (orphan->was_open && !is_open) {
        withdraw_round(core, orphan, last);
    }
    task->orphan = NULL;
    task->giver = is_open ? orphan->giver : task->giver;
    orphan->is_over = true;
    trib_tensor_core_of(core, tensor)->orphans--;
    if (orphan->sends == 0) {
        free_orphan(orphan);
    }
    task->connection = 0; /* later frames overtake neither the withdraws nor the copy */
    task->in_order = task->next_in_order = true;
    if (is_open) {
        task->link = trib_worker_owner_link(core, task); /* it may have been missing when the orphan was made */
    }
    if (is_open && trib_pipeline_has_come_to(task, TRIB_STAGE_PUSH)) { /* else its bytes come from a device first */
        trib_pipeline_restart(core, task, TRIB_STAGE_PUSH);
    }
    trib_worker_start_next(core, tensor);
}

static void given_away(trib_reactor *reactor, trib_post *post)
{
    (void)reactor;
    trib_orphan *orphan = trib_container_of(post, trib_orphan, post);
    /* The owner may have been lost meanwhile: then the next one is asked. */
    if (!orphan->core->ended && orphan->is_resumed && trib_worker_owner_link(orphan->core, orphan->task) != NULL) {
        go_on(orphan);
    }
}

static void copy_sent(trib_send_record *out, trib_status status)
{
    (void)status;
    trib_orphan *orphan = out->context;
    trib_assert(orphan->sends > 0);
    if (--orphan->sends == 0 && orphan->is_over) {
        free_orphan(orphan);
    }
}

static bool send_copy_chunk(trib_link *link, trib_send_request *request)
{
    trib_orphan *orphan = trib_container_of(request, trib_orphan, request);
    const trib_task *task = orphan->task;
    const trib_view copy = {.data = task->copy, .bytes = task->size, .chunk_bytes = task->tensor->chunk_bytes};
    const uint32_t chunk = orphan->chunks_sent, size = trib_view_chunk_size(&copy, chunk);
    trib_assert(task->copy_round == orphan->final);
    const trib_frame frame = {.type = TRIB_FRAME_PUSH,
                              .payload_size = size,
                              .tensor = orphan->report.tensor,
                              .partition = task->partition,
                              .round = orphan->final,
                              .chunk = chunk,
                              .chunk_count = task->chunk_count,
                              .size = size,
                              .priority = request->priority,
                              .collective = TRIB_COLLECTIVE_BROADCAST,
                              .dtype = (uint8_t)task->tensor->dtype,
                              .reduce = task->copy_reduce,
                              .root = link->core->engine->member_id,
                              .step = task->copy_step};
    if (trib_link_send(link, &frame, size > 0 ? trib_view_chunk(&copy, chunk) : NULL, copy_sent, orphan) != TRIB_OK) {
        trib_link_close(link, false, TRIB_NO_MEMORY, "out of memory for a chunk");
        return false;
    }
    orphan->sends++;
    if (++orphan->chunks_sent < task->chunk_count) {
        return true;
    }
    orphan->post.run = given_away;
    trib_reactor_defer(link->core->reactor, &orphan->post);
    return false;
}

static void give_away(trib_core *core, trib_orphan *orphan)
{
    trib_link *link = trib_worker_owner_link(core, orphan->task);
    orphan->request = (trib_send_request){.priority = orphan->task->tensor->priority,
                                          .route = TRIB_ROUTE_PINNED,
                                          .age = trib_scheduler_take_age(&core->host.scheduler),
                                          .send_chunk = send_copy_chunk};
    if (trib_scheduler_submit(link, &orphan->request, orphan->task->size) == TRIB_NO_MEMORY) {
        trib_link_close(link, false, TRIB_NO_MEMORY, "out of memory for what waits to be pushed");
    }
}

trib_status trib_orphan_resume(trib_link *link, const trib_frame *frame, trib_error *error)
{
    trib_core *core = link->core;
    const trib_task *task = find_task(core, frame);
    trib_orphan *orphan = task == NULL ? NULL : task->orphan;
    if (orphan == NULL || orphan->is_resumed || trib_worker_owner_link(core, task) != trib_link_main(link) ||
        (frame->round > 0 && frame->round != task->copy_round)) {
        return trib_error_set(error, TRIB_PROTOCOL, "RESUME of partition %u of tensor %u, which does not wait for it",
                              frame->partition, frame->tensor);
    }
    orphan->is_resumed = true;
    orphan->final = frame->round;
    orphan->giver = frame->aux;
    if (orphan->final > 0) {
        give_away(core, orphan);
    } else {
        go_on(orphan);
    }
    return TRIB_OK;
}

void trib_worker_free_orphans(trib_core *core)
{
    while (core->orphans != NULL) {
        trib_orphan *orphan = core->orphans;
        DL_DELETE(core->orphans, orphan);
        free(orphan);
    }
}

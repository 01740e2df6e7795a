/*
 * worker_stall.c - says what a stalled job waits for: in the log, and to the coordinator.
 *
 * A worker that stops contributing without failing stops all others, which then show no sign of trouble. So each worker
 * says once which contribution its oldest operation lacks, and again whenever the operation is twice as old.
 *
 * It tells the coordinator sooner (WAITING), which knows what the missing worker waits for itself (membership/waits.h):
 * workers that wait for each other in different operations would do so until a deadline. The answer (WAITED_FOR) goes
 * into texts, and nothing else depends on it.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/worker/worker.h"

#define NAME_MAX_SHOWN 120 /* bytes of a tensor's name, so that what is missing fits into the line */

/* Returns the rank whose contribution the core's part of the operation lacks; TRIB_NO_MEMBER: none is known. */
static uint32_t lacked_rank(const trib_core *core, const trib_op_core *op_core)
{
    const trib_tensor *tensor = op_core->op->tensor;
    if (!atomic_load(&tensor->placed) || trib_tensor_core_of(core, tensor)->active != op_core) {
        return TRIB_NO_MEMBER;
    }
    const trib_tensor_core *mine = trib_tensor_core_of(core, tensor);
    for (uint32_t i = 0; i < mine->task_count; i++) {
        if (mine->tasks[i].state != TRIB_TASK_SETTLED && mine->tasks[i].missing_rank != TRIB_NO_MEMBER) {
            return mine->tasks[i].missing_rank;
        }
    }
    return TRIB_NO_MEMBER;
}

/* ---- A server says who is missing ---- */

/* A nonzero root means that any worker of that machine may be missing. A worker of the same machine named before
 * is kept. */
static void note_rank(const trib_core *core, trib_task *task, const trib_frame *frame)
{
    const uint32_t local_size = core->engine->roster->local_size;
    if (frame->root == 0 || local_size == 0 || task->missing_rank == TRIB_NO_MEMBER ||
        task->missing_rank / local_size != frame->aux / local_size) {
        task->missing_rank = frame->aux;
    }
}

/* A list of machines (root 1) and one of a machine's relay (root 0) complete each other. The first says which machines
 * lack nothing any more, and the second who is missing on the machine of `aux`. */
static void note_machine(unsigned char *bits, const unsigned char *list, const trib_frame *frame, uint32_t first,
                         uint32_t local_size)
{
    bool is_listed = frame->aux / local_size == first / local_size, is_known = false;
    for (uint32_t rank = first; rank < first + local_size; rank++) {
        is_listed = is_listed || (frame->root > 0 && trib_rank_bits_has(list, rank));
        is_known = is_known || trib_rank_bits_has(bits, rank);
    }
    for (uint32_t rank = first; rank < first + local_size; rank++) {
        if (frame->root > 0 && !(is_listed && is_known)) {
            trib_rank_bits_put(bits, rank, is_listed);
        } else if (frame->root == 0 && is_listed) {
            trib_rank_bits_put(bits, rank, trib_rank_bits_has(list, rank));
        }
    }
}

/* All missing ranks are kept for texts about the first open partition that lacks some. There is no list without
 * memory. */
static void note_list(const trib_core *core, const trib_task *task, const trib_frame *frame, const void *payload)
{
    const trib_roster *roster = core->engine->roster;
    trib_op_core *op_core = task->op_core;
    const trib_tensor *tensor = task->tensor;
    if (op_core->missing == NULL && frame->payload_size == 0) {
        return;
    }
    const uint32_t bytes = trib_rank_bits_bytes(roster->worker_count);
    if (op_core->missing == NULL) {
        op_core->missing = malloc(bytes);
        op_core->missing_partition = UINT32_MAX;
    }
    if (op_core->missing == NULL) {
        return;
    }
    const uint32_t partition = op_core->missing_partition;
    const trib_tensor_core *mine = trib_tensor_core_of(core, tensor);
    const bool is_over =
        partition == UINT32_MAX || mine->tasks[tensor->task_index[partition]].state == TRIB_TASK_SETTLED;
    if (is_over || task->partition < partition) {
        op_core->missing_partition = task->partition;
        memset(op_core->missing, 0, bytes);
    }
    if (op_core->missing_partition != task->partition) {
        return;
    }
    unsigned char ranks[TRIB_RANK_BITS_BYTES] = {0};
    trib_rank_bits_put(ranks, frame->aux, true);
    const unsigned char *list = frame->payload_size > 0 ? payload : ranks;
    const uint32_t local_size = trib_task_is_relayed(core, task) ? roster->local_size : 0;
    for (uint32_t first = 0; local_size > 0 && first < roster->worker_count; first += local_size) {
        note_machine(op_core->missing, list, frame, first, local_size);
    }
    if (local_size == 0) {
        memcpy(op_core->missing, list, bytes);
    }
}

void trib_worker_note_missing(const trib_core *core, trib_task *task, const trib_frame *frame, const void *payload)
{
    note_rank(core, task, frame);
    note_list(core, task, frame, payload);
}

/* ---- The coordinator is told ---- */

static bool has_name(const trib_tensor *other, const trib_tensor *tensor)
{
    return other->state == TRIB_TENSOR_DECLARED && other->group == tensor->group &&
           strncmp(other->name + other->name_begin, tensor->name + tensor->name_begin, tensor->name_length) == 0;
}

/* Returns which use of its name the operation is, counted over the name's tensors; 0: it cannot be told. The count is
 * that of the last use, so it tells nothing of an operation behind which another one was begun. A numbered operation
 * says which one it is, but for one of an earlier epoch, as the program may number anew. */
static uint32_t count_uses(const trib_op *op)
{
    trib_engine *engine = op->engine;
    const trib_tensor *tensor = op->tensor;
    uint32_t uses = tensor->is_numbered ? op->step + 1 : 0;
    pthread_mutex_lock(&engine->mutex);
    const bool has_count = tensor->name_length > 0 && !*trib_rank_group_gap(engine, tensor->group);
    bool counts = (tensor->is_numbered ? !op->is_again : has_count) && !engine->join.is_active;
    for (uint32_t tag = 0; counts && !tensor->is_numbered && tag < engine->tensor_count; tag++) {
        const trib_tensor *other = engine->tensors[tag];
        if (!has_name(other, tensor)) {
            continue;
        }
        if (other->name_length == tensor->name_length) {
            uses += other->submitted;
            counts = other->last_number <= op->number && !atomic_load(&other->bad);
        } else { /* the name itself was declared first by who knows no other tensors of it */
            counts = other->name[other->name_begin + tensor->name_length] != '\0';
        }
    }
    pthread_mutex_unlock(&engine->mutex);
    return counts ? uses : 0;
}

/* Core 0: runs the operation's stall_post. */
static void tell_coordinator(trib_reactor *reactor, trib_post *post)
{
    const trib_core *core = reactor->owner;
    trib_engine *engine = core->engine;
    trib_stalls *self = &engine->stalls;
    trib_op *op = trib_container_of(post, trib_op, stall_post);
    const int64_t now_ns = trib_now(reactor);
    atomic_store(&op->stall_posted, false);
    if (!core->ended && now_ns >= self->next_ns && op->tensor->is_declared && !atomic_load(&op->is_complete)) {
        self->tag = op->tensor->tag;
        self->round = op->round;
        self->number = op->number;
        self->next_ns = now_ns + trib_stall_period_ns(engine->roster->worker_count);
        const trib_frame frame = {.type = TRIB_FRAME_WAITING,
                                  .tensor = self->tag,
                                  .round = self->round,
                                  .step = count_uses(op),
                                  .chunk = op->tensor->name_begin,
                                  .size = op->tensor->name_length,
                                  .collective = (uint8_t)op->collective,
                                  .aux = atomic_load(&op->lacked)};
        engine->hooks->tell_coordinator(engine, &frame, NULL, 0);
    }
    trib_op_unref(op);
}

/* Any core that has a part of the operation. */
static void post_stall(const trib_core *core, trib_op *op, uint32_t lacked)
{
    if (trib_now(core->reactor) - op->submit_ns >= TRIB_STALL_TELL_NS && !atomic_exchange(&op->stall_posted, true)) {
        atomic_fetch_add(&op->references, 1);
        atomic_store(&op->lacked, lacked);
        op->stall_post.run = tell_coordinator;
        trib_reactor_post(core->engine->reactors[0].reactor, &op->stall_post);
    }
}

trib_status trib_worker_take_waited_for(trib_engine *engine, const trib_frame *frame, const void *payload,
                                        trib_error *error)
{
    trib_stalls *self = &engine->stalls;
    if (frame->aux >= engine->roster->worker_count || frame->root > 1) {
        return trib_error_set(error, TRIB_PROTOCOL, "WAITED_FOR of rank %u, which there is not", frame->aux);
    }
    if (frame->tensor == self->tag && frame->round == self->round) {
        pthread_mutex_lock(&self->mutex);
        self->answer_number = self->number;
        self->answer_ns = trib_now(engine->cores[0].reactor);
        self->answer_rank = frame->aux;
        self->is_crossed = frame->root != 0;
        trib_frame_take_text(frame, payload, self->answer, sizeof self->answer);
        pthread_mutex_unlock(&self->mutex);
    }
    return TRIB_OK;
}

bool trib_worker_stall_answer(const trib_core *core, const trib_op *op, trib_stall_answer *answer_out)
{
    trib_stalls *self = &core->engine->stalls;
    const trib_roster *roster = core->engine->roster;
    const int64_t period_ns = roster == NULL ? 0 : trib_stall_period_ns(roster->worker_count);
    pthread_mutex_lock(&self->mutex);
    const bool is_there = self->answer_number == op->number && roster != NULL &&
                          self->answer_rank < roster->worker_count &&
                          trib_now(core->reactor) - self->answer_ns <= 3 * period_ns;
    if (is_there) {
        answer_out->rank = self->answer_rank;
        answer_out->is_crossed = self->is_crossed;
        memcpy(answer_out->what, self->answer, sizeof answer_out->what);
    }
    pthread_mutex_unlock(&self->mutex);
    return is_there;
}

/* ---- The log ---- */

/* Returns the age from which the log mentions the operation. An operation of which the log has said nothing yet is
 * mentioned earlier if the worker that it waits for waits for this one. */
static int64_t due_age(const trib_core *core, const trib_op *op, int64_t due_ns)
{
    trib_stall_answer answer;
    return due_ns == TRIB_STALL_WARNING_NS && trib_worker_stall_answer(core, op, &answer) && answer.is_crossed
               ? TRIB_STALL_CROSSED_NS
               : due_ns;
}

void trib_worker_check_stall(trib_core *core)
{
    trib_op_core *oldest = NULL; /* the core's list is newest first */
    for (trib_op_core *op_core = core->op_cores; op_core != NULL; op_core = op_core->next) {
        oldest = !op_core->released ? op_core : oldest;
    }
    if (oldest == NULL) {
        return;
    }
    trib_op *op = oldest->op;
    const uint32_t lacked = lacked_rank(core, oldest);
    /* The placement of slices waits for all workers to declare the tensor. */
    if (lacked != TRIB_NO_MEMBER || (!atomic_load(&op->tensor->placed) && op->tensor->layout != TRIB_WHOLE)) {
        post_stall(core, op, lacked);
    }
    trib_stall_answer answer;
    const int64_t age_ns = trib_now(core->reactor) - op->submit_ns;
    int64_t due_ns = atomic_load(&op->stall_ns);
    const bool is_undeclared = !atomic_load(&op->tensor->placed) && trib_worker_stall_answer(core, op, &answer);
    /* Several cores may have the operation: one of them speaks. */
    if ((lacked == TRIB_NO_MEMBER && !is_undeclared) || age_ns < due_age(core, op, due_ns) ||
        !atomic_compare_exchange_strong(&op->stall_ns, &due_ns, 2 * age_ns)) {
        return;
    }
    char waiting[TRIB_ERROR_TEXT_SIZE];
    trib_log(core->reactor->logger, TRIB_LOG_WARN, "stalled for %.0f s: round %u of tensor \"%.*s\": %s",
             (double)age_ns / 1e9, op->round, NAME_MAX_SHOWN, op->tensor->name,
             trib_worker_waiting_text(core, oldest, waiting, sizeof waiting));
}

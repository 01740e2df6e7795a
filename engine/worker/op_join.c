/* op_join.c - see op_join.h. */
#include "engine/worker/op_join.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/worker/boundary.h"
#include "engine/worker/rank_group.h"

#define NOT_IF_IT_SURVIVES "trib_join does not go together with TRIB_SURVIVE"

/* ---- What the coordinator is told ---- */

typedef struct outgoing {
    trib_engine *engine;
    trib_writer writer;
} outgoing;

static void flush_entries(outgoing *out, uint32_t aux)
{
    const trib_frame frame = {.type = TRIB_FRAME_JOIN_DONE, .aux = aux};
    out->engine->hooks->tell_coordinator(out->engine, &frame, out->writer.data, out->writer.size);
    out->writer.size = 0;
}

static void put_entry(outgoing *out, trib_join_entry kind, uint32_t number, uint32_t count)
{
    if (out->writer.capacity - out->writer.size < TRIB_JOIN_ENTRY_BYTES) {
        flush_entries(out, 0);
    }
    trib_put_u32(&out->writer, (uint32_t)kind);
    trib_put_u32(&out->writer, number);
    trib_put_u32(&out->writer, count);
}

/* Core 0: no operation of this worker is under way. */
static void send_join(trib_engine *engine)
{
    unsigned char payload[1024 * TRIB_JOIN_ENTRY_BYTES];
    outgoing out = {.engine = engine, .writer = {.data = payload, .capacity = sizeof payload}};
    pthread_mutex_lock(&engine->mutex);
    put_entry(&out, TRIB_JOIN_ONCE, 0, (uint32_t)engine->once_count);
    put_entry(&out, TRIB_JOIN_BYTES, 0, engine->bytes_calls);
    for (const trib_group *group = engine->groups; group != NULL; group = group->next) {
        if (group->state == TRIB_GROUP_MADE) {
            put_entry(&out, TRIB_JOIN_BYTES, group->id, group->bytes_calls);
        }
    }
    for (uint32_t tag = 0; tag < engine->tensor_count; tag++) {
        const trib_tensor *tensor = engine->tensors[tag];
        if (tensor->state != TRIB_TENSOR_UNUSED && tensor->state != TRIB_TENSOR_ENDING &&
            tensor->state != TRIB_TENSOR_ENDED && atomic_load(&tensor->placed)) {
            put_entry(&out, TRIB_JOIN_TENSOR, tag, tensor->rounds);
            const uint32_t gave_up = atomic_load(&tensor->gave_up_round);
            if (gave_up > 0) {
                put_entry(&out, TRIB_JOIN_GIVEN_UP, tag, gave_up);
            }
        }
    }
    pthread_mutex_unlock(&engine->mutex);
    engine->join.is_told = true;
    flush_entries(&out, TRIB_JOIN_LAST);
}

/* ---- The way through the cores ---- */

static void post_to(trib_uneven_inputs *join, trib_core *core, void (*run)(trib_reactor *reactor, trib_post *post))
{
    join->post.run = run;
    trib_reactor_post(core->reactor, &join->post);
}

/* Each target has a reference to its tensor. */
static void drop_targets(trib_uneven_inputs *join)
{
    while (join->target_count > 0) {
        trib_tensor_unref(join->targets[--join->target_count].tensor);
    }
    free(join->targets);
    join->targets = NULL;
    join->target_capacity = 0;
}

static void complete_join(trib_engine *engine)
{
    trib_uneven_inputs *join = &engine->join;
    trib_op *op = join->op;
    const bool is_over = join->is_over;
    join->op = NULL;
    join->is_over = join->is_told = false;
    drop_targets(join);
    pthread_mutex_lock(&engine->mutex);
    trib_boundaries_reset(engine);     /* the others have submitted more */
    join->is_active = join->left != 0; /* nobody knows how far the others were: this worker's rounds would be others' */
    pthread_mutex_unlock(&engine->mutex);
    if (join->left != 0) {
        trib_op_fail(op, TRIB_PEER_LEFT, "%s left the job without joining",
                     trib_roster_name(engine->roster, join->left - 1));
    } else if (is_over && op->output != NULL) {
        memcpy(op->output, &join->last, sizeof join->last);
    }
    trib_op_core_done(op, &engine->cores[0]);
    trib_op_unbook_cores(op, 1);
}

static void join_on_core(trib_reactor *reactor, trib_post *post);

/* The rounds of a tensor can be told when it has its numbers. Slices may wait for others that will never declare. */
static bool lacks_numbers(const trib_tensor *tensor)
{
    return tensor->state == TRIB_TENSOR_DECLARED && tensor->layout == TRIB_WHOLE && tensor->rounds > 0 &&
           !atomic_load(&tensor->placed) && !atomic_load(&tensor->bad);
}

static bool has_unsettled_tensor(trib_engine *engine)
{
    bool has = false;
    pthread_mutex_lock(&engine->mutex);
    for (uint32_t tag = 0; tag < engine->tensor_count && !has; tag++) {
        has = engine->tensors[tag]->state == TRIB_TENSOR_ENDING || lacks_numbers(engine->tensors[tag]);
    }
    pthread_mutex_unlock(&engine->mutex);
    return has;
}

/* The coordinator hears of tensors that were released before it hears that this worker has joined. Otherwise they would
 * seem to be there still when all have joined, and the next tensor of their name would be taken for them. What makes
 * the cores forget a tensor is on its way when it is ENDING, so one more way through the cores comes behind it. */
static void settled_everywhere(trib_reactor *reactor, trib_post *post)
{
    (void)post;
    trib_core *core = reactor->owner;
    trib_engine *engine = core->engine;
    if (core->ended || engine->join.op == NULL) {
        return; /* the end of the job has failed the operation, or will */
    }
    if (engine->join.is_over) {
        complete_join(engine);
    } else if (engine->roster->survives || engine->roster->shrinks) { /* the job's setting was not known before */
        trib_op_fail(engine->join.op, TRIB_UNSUPPORTED, "%s", NOT_IF_IT_SURVIVES);
        complete_join(engine);
    } else if (has_unsettled_tensor(engine)) {
        post_to(&engine->join, core, join_on_core);
    } else {
        send_join(engine);
    }
}

/* The rounds that the others have gone ahead count as this worker's, too. */
static void take_targets(const trib_core *core, const trib_uneven_inputs *join)
{
    for (uint32_t i = 0; i < join->target_count; i++) {
        trib_tensor_core *mine = trib_tensor_core_of(core, join->targets[i].tensor);
        trib_assert(mine->active == NULL && mine->pending == NULL);
        if (mine->round_next <= join->targets[i].round) {
            mine->round_next = join->targets[i].round + 1;
        }
        for (uint32_t k = 0; k < mine->task_count; k++) {
            trib_worker_forget_kept(&mine->tasks[k], join->targets[i].round);
        }
    }
}

static void join_on_core(trib_reactor *reactor, trib_post *post)
{
    trib_core *core = reactor->owner;
    trib_engine *engine = core->engine;
    trib_uneven_inputs *join = trib_container_of(post, trib_uneven_inputs, post);
    if (core->ended) {
        return;
    }
    if (join->is_over) {
        take_targets(core, join);
    } else if (core->op_cores != NULL || !core->joined) {
        core->join_waits = true;
        return;
    }
    const uint32_t next = core->reactor->index + 1;
    if (next < engine->core_count) {
        post_to(join, &engine->cores[next], join_on_core);
    } else {
        post_to(join, &engine->cores[0], settled_everywhere);
    }
}

void trib_op_join_continue(trib_core *core)
{
    if (core->join_waits && core->op_cores == NULL && core->joined) {
        core->join_waits = false;
        post_to(&core->engine->join, core, join_on_core);
    }
}

/* Rejects a join beside tensors on devices, whose collectives need every local rank, and in a membership that changes,
 * which needs to know what each worker has done. The caller holds the mutex. */
static trib_status check_kind(const trib_engine *engine, trib_error *error)
{
    const trib_roster *roster = engine->roster;
    if (roster != NULL ? roster->survives || roster->shrinks : engine->config.survive != TRIB_SURVIVE_NOTHING) {
        return trib_error_set(error, TRIB_UNSUPPORTED, "%s", NOT_IF_IT_SURVIVES);
    }
    for (uint32_t tag = 0; tag < engine->tensor_count; tag++) {
        const trib_tensor_state state = engine->tensors[tag]->state;
        const bool is_there = state == TRIB_TENSOR_DECLARED || state == TRIB_TENSOR_RELEASED;
        if (is_there && engine->tensors[tag]->on_device) {
            return trib_error_set(error, TRIB_UNSUPPORTED,
                                  "tensor \"%s\" is on a device: a worker with such tensors cannot join (trib_join)",
                                  engine->tensors[tag]->name);
        }
        if (is_there && engine->tensors[tag]->quorum > 0) {
            return trib_error_set(error, TRIB_UNSUPPORTED,
                                  "tensor \"%s\" has a quorum (TRIB_QUORUM): a worker with such tensors cannot join "
                                  "(trib_join)",
                                  engine->tensors[tag]->name);
        }
    }
    return TRIB_OK;
}

trib_status trib_op_join_check(const trib_engine *engine, trib_error *error)
{
    const trib_uneven_inputs *join = &engine->join;
    if (!join->is_active) {
        return TRIB_OK;
    }
    if (join->op == NULL && join->left != 0) {
        return trib_error_set(error, TRIB_PEER_LEFT,
                              "%s left the job while this worker had joined (trib_join): it submits nothing any more",
                              trib_roster_name(engine->roster, join->left - 1));
    }
    return trib_error_set(error, TRIB_STATE,
                          "this worker has joined (trib_join): it submits nothing until all workers have joined, when "
                          "that operation ends");
}

/* Operations whose number is taken under once_mutex are there before, or are refused. */
trib_status trib_op_join(trib_engine *engine, trib_request *request, trib_error *error)
{
    trib_uneven_inputs *join = &engine->join;
    pthread_mutex_lock(&engine->once_mutex);
    pthread_mutex_lock(&engine->mutex);
    trib_status status = trib_engine_check_open_locked(engine, error);
    status = status == TRIB_OK ? check_kind(engine, error) : status;
    status = status == TRIB_OK ? trib_op_join_check(engine, error) : status;
    if (status == TRIB_OK) {
        status = trib_op_take(engine, 0, &request->op, error);
    }
    if (status == TRIB_OK) {
        trib_op_begin_alone(request);
        join->is_active = true;
        join->op = request->op;
        post_to(join, &engine->cores[0], join_on_core);
    }
    pthread_mutex_unlock(&engine->mutex);
    pthread_mutex_unlock(&engine->once_mutex);
    return status;
}

/* ---- The coordinator's answer ---- */

static trib_status add_target(trib_uneven_inputs *join, trib_tensor *tensor, uint32_t round)
{
    if (join->target_count == join->target_capacity) {
        const uint32_t capacity = join->target_capacity == 0 ? 64 : 2 * join->target_capacity;
        trib_join_target *targets = realloc(join->targets, capacity * sizeof *targets);
        if (targets == NULL) {
            return TRIB_NO_MEMORY;
        }
        join->targets = targets;
        join->target_capacity = capacity;
    }
    join->targets[join->target_count++] = (trib_join_target){.tensor = tensor, .round = round};
    return TRIB_OK;
}

static void raise_count(uint32_t *count, uint32_t to)
{
    *count = *count < to ? to : *count;
}

/* The caller holds the mutex. */
static trib_status take_entry(trib_engine *engine, trib_join_entry kind, uint32_t number, uint32_t count)
{
    if (kind == TRIB_JOIN_ONCE) {
        engine->once_count = engine->once_count < count ? count : engine->once_count;
    } else if (kind == TRIB_JOIN_BYTES && number == 0) {
        raise_count(&engine->bytes_calls, count);
    } else if (kind == TRIB_JOIN_BYTES) {
        for (trib_group *group = engine->groups; group != NULL; group = group->next) {
            if (group->state == TRIB_GROUP_MADE && group->id == number) {
                raise_count(&group->bytes_calls, count);
            }
        }
    } else if (kind == TRIB_JOIN_TENSOR && count <= TRIB_ROUNDS_MAX) {
        trib_tensor *tensor = number < engine->tensor_count ? engine->tensors[number] : NULL;
        if (tensor == NULL || !trib_tensor_ref_placed(tensor)) {
            return TRIB_OK; /* the tensor has ended here */
        }
        raise_count(&tensor->rounds, count);
        const trib_status status = add_target(&engine->join, tensor, count);
        if (status != TRIB_OK) {
            trib_tensor_unref(tensor);
        }
        return status;
    } else {
        return TRIB_PROTOCOL;
    }
    return TRIB_OK;
}

trib_status trib_op_join_take_over(trib_engine *engine, const trib_frame *frame, const void *payload, trib_error *error)
{
    trib_uneven_inputs *join = &engine->join;
    trib_reader reader = {.data = payload, .left = frame->payload_size};
    if (!join->is_told || join->op == NULL || join->is_over || frame->payload_size % TRIB_JOIN_ENTRY_BYTES != 0 ||
        frame->aux >= engine->roster->worker_count || frame->root > engine->roster->worker_count) {
        return trib_error_set(error, TRIB_PROTOCOL, "malformed JOIN_OVER, or nobody waits for it");
    }
    trib_status status = TRIB_OK;
    pthread_mutex_lock(&engine->mutex);
    while (reader.left > 0 && status == TRIB_OK) {
        const uint32_t kind = trib_get_u32(&reader), number = trib_get_u32(&reader), count = trib_get_u32(&reader);
        status = take_entry(engine, (trib_join_entry)kind, number, count);
    }
    pthread_mutex_unlock(&engine->mutex);
    if (status != TRIB_OK) {
        return trib_error_set(error, status, "JOIN_OVER: %s",
                              status == TRIB_PROTOCOL ? "malformed" : "out of memory for the rounds of the others");
    }
    if (frame->chunk == TRIB_JOIN_LAST) {
        join->last = (int32_t)frame->aux;
        join->left = frame->root;
        join->is_over = true;
        post_to(join, &engine->cores[0], join_on_core);
    }
    return TRIB_OK;
}

void trib_op_join_fail(trib_core *core, trib_status status, const char *text)
{
    trib_uneven_inputs *join = &core->engine->join;
    pthread_mutex_lock(&core->engine->mutex); /* the operation may just be under way to this core */
    trib_op *op = join->op;
    join->op = NULL;
    pthread_mutex_unlock(&core->engine->mutex);
    if (op != NULL) {
        trib_op_fail(op, status, "%s", text);
        trib_op_core_done(op, core);
        trib_op_unbook_cores(op, 1);
    }
}

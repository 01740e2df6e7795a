/* op_carry.c - see op_carry.h. */
#include "engine/worker/op_carry.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "engine/base/assert.h"
#include "engine/worker/worker.h"

/* ---- Copies of inputs ---- */

/* A buffer that waits for the next operation on its tensor. */
struct trib_kept_input {
    struct trib_kept_input *next;
    bool is_pinned; /* as trib_op.is_pinned */
};

static uint64_t kept_size(const trib_tensor *tensor)
{
    return tensor->bytes > sizeof(struct trib_kept_input) ? tensor->bytes : sizeof(struct trib_kept_input);
}

/* True if what the operation writes may be what it reads. */
static bool overwrites_input(const trib_op_params *params, trib_collective collective, const trib_tensor *tensor)
{
    const uintptr_t in = (uintptr_t)params->input, out = (uintptr_t)params->output;
    if (in == 0 || out == 0 || tensor->bytes == 0) {
        return false;
    }
    return tensor->layout == TRIB_WHOLE ? in == out && trib_collective_is_sum(collective)
                                        : tensor->layout == TRIB_SLICES && collective == TRIB_COLLECTIVE_BROADCAST;
}

/* A device copies to memory that it knows. Before the roster most jobs only seem to need a copy, so pages that nobody
 * touches have to do where this process's own setting is another one. */
static bool needs_pinned(const trib_engine *engine, const trib_tensor *tensor)
{
    return tensor->on_device && (engine->roster != NULL || engine->config.survive == TRIB_SURVIVE_CONTINUE);
}

/* Taking pinned memory may last, so the mutex is released meanwhile. */
static void *take_memory(trib_engine *engine, uint64_t size, bool is_pinned)
{
    if (!is_pinned) {
        return malloc(size);
    }
    pthread_mutex_unlock(&engine->mutex);
    void *memory = engine->env.memory_alloc_blocking(engine->env.memory, size);
    pthread_mutex_lock(&engine->mutex);
    return memory;
}

static void free_memory(trib_engine *engine, void *memory, bool is_pinned)
{
    if (is_pinned) {
        engine->env.memory_free(engine->env.memory, memory);
    } else {
        free(memory);
    }
}

void trib_carry_free(trib_op *op)
{
    if (op->kept != NULL) {
        free_memory(op->engine, op->kept, op->is_pinned);
        op->kept = NULL;
    }
}

trib_status trib_carry_reserve(trib_op *op, const trib_op_params *params, trib_collective collective,
                               const trib_tensor *tensor, trib_error *error)
{
    trib_engine *engine = op->engine;
    /* The setting is the coordinator's, which the roster brings. */
    const bool may_continue = engine->roster == NULL || atomic_load(&engine->continues);
    op->kept = NULL;
    if (!may_continue || !overwrites_input(params, collective, tensor)) {
        return TRIB_OK;
    }
    trib_tensor *owner = (trib_tensor *)(uintptr_t)tensor;
    if (owner->kept_spare != NULL) {
        op->kept = (unsigned char *)owner->kept_spare;
        op->is_pinned = owner->kept_spare->is_pinned;
        owner->kept_spare = owner->kept_spare->next;
        return TRIB_OK;
    }
    op->is_pinned = needs_pinned(engine, tensor);
    op->kept = take_memory(engine, kept_size(tensor), op->is_pinned);
    return op->kept != NULL
               ? TRIB_OK
               : trib_error_set(error, TRIB_NO_MEMORY,
                                "tensor \"%s\": out of memory for a copy of its input of %llu bytes, which "
                                "an operation in place needs with TRIB_SURVIVE=continue",
                                tensor->name, (unsigned long long)tensor->bytes);
}

void trib_carry_release(trib_op *op)
{
    if (!atomic_load(&op->engine->continues)) { /* no other operation will need it */
        trib_carry_free(op);
    }
    if (op->kept != NULL) {
        struct trib_kept_input *spare = (struct trib_kept_input *)op->kept;
        op->kept = NULL;
        pthread_mutex_lock(&op->engine->mutex);
        *spare = (struct trib_kept_input){.next = op->tensor->kept_spare, .is_pinned = op->is_pinned};
        op->tensor->kept_spare = spare;
        pthread_mutex_unlock(&op->engine->mutex);
    }
}

void trib_carry_free_spare(trib_tensor *tensor)
{
    while (tensor->kept_spare != NULL) {
        struct trib_kept_input *spare = tensor->kept_spare;
        tensor->kept_spare = spare->next;
        free_memory(tensor->engine, spare, spare->is_pinned);
    }
}

/* Where the task's part of the input begins, from its first byte on. Returns false if the task reads none. */
static bool find_input(const trib_op *op, const trib_task *task, uint64_t *offset_out)
{
    const bool is_whole = op->tensor->layout == TRIB_WHOLE;
    *offset_out = is_whole ? task->offset : task->offset_own;
    return is_whole || task->slice == op->tensor->group_place;
}

void trib_carry_keep(trib_core *core, trib_op_core *op_core)
{
    trib_op *op = op_core->op;
    if (op->tensor->on_device || op->kept == NULL || op->input == op->kept || op_core->is_kept || op_core->released ||
        !atomic_load(&core->engine->continues)) {
        return;
    }
    op_core->is_kept = true;
    const trib_tensor_core *mine = trib_tensor_core_of(core, op->tensor);
    for (uint32_t i = 0; i < mine->task_count; i++) {
        const trib_task *task = &mine->tasks[i];
        uint64_t offset;
        if (find_input(op, task, &offset) && task->size > 0) {
            core->engine->env.kernels->copy(op->kept + offset, op->input + offset, task->size);
            trib_charge(core->reactor, TRIB_COST_COPY, task->size);
        }
    }
}

/* A core that keeps its part has begun, or has seen the operation fail. All cores with tasks have done so then. On a
 * device core 0 keeps all of the input before any core reads it (device_op.c). */
static bool has_kept(const trib_op *op)
{
    bool has = false;
    for (uint32_t i = 0; i < op->engine->core_count; i++) {
        has = has || op->cores[i].is_kept;
    }
    return has;
}

/* ---- Between two epochs ---- */

bool trib_carry_is_cut(const trib_op *op)
{
    const int claim = atomic_load(&op->claim);
    return claim == TRIB_EPOCH_CHANGED || claim == TRIB_PEER_LOST;
}

bool trib_carry_take(trib_core *core, trib_op *op)
{
    trib_engine *engine = core->engine;
    trib_formation *formation = &engine->formation;
    const bool is_cut = op->is_held && (atomic_load(&op->claim) == 0 || trib_carry_is_cut(op));
    trib_assert(trib_core_is_here(core) && atomic_load(&op->cores_left) == 0);
    if (!atomic_load(&formation->continues) || (!op->is_held && atomic_load(&op->tensor->bad)) ||
        (op->is_held && !is_cut)) {
        return false;
    }
    op->is_spent = !op->is_held;
    if (op->is_held) {
        op->is_held = false;
        atomic_fetch_sub(&engine->ops_held, 1);
    }
    op->next = formation->carried;
    formation->carried = op;
    return true;
}

void trib_carry_park(trib_op *op)
{
    trib_formation *formation = &op->engine->formation;
    op->next = NULL;
    *formation->parked_last = op;
    formation->parked_last = &op->next;
}

/* The operation is as if it had just been submitted. */
static void make_fresh(trib_op *op)
{
    atomic_store(&op->claim, 0);
    atomic_store(&op->has_text, false);
    atomic_store(&op->is_second_hand, false);
    atomic_store(&op->cancelled, false);
    if (atomic_load(&op->is_cancelled)) { /* looked at last, as the caller may cancel it now */
        atomic_store(&op->cancelled, true);
    }
    op->text[0] = '\0';
    op->is_again = true;
    op->input_bytes = op->input_given;
    op->output_bytes = op->output_given;
    if (op->allocated != NULL) {
        op->engine->env.memory_free(op->engine->env.memory, op->allocated);
        op->allocated = NULL;
        op->output = NULL;
    }
    if (op->kept != NULL && has_kept(op)) {
        op->input = op->kept;
    } else if (op->kept != NULL && op->input != op->kept && op->tensor->layout == TRIB_SLICES &&
               !op->tensor->on_device) {
        /* Its place in the output is another one among fewer workers. On a device it is kept before anything lands. */
        memcpy(op->kept, op->input, op->tensor->bytes);
        op->input = op->kept;
    }
    atomic_store(&op->cores_left, op->engine->core_count);
}

/* A reduce-scatter whose slice lands in its input: no copy is kept of that. */
static bool may_have_lost_input(const trib_op *op)
{
    const uintptr_t in = (uintptr_t)op->input, out = (uintptr_t)op->output;
    return op->spread && op->collective == TRIB_COLLECTIVE_REDUCE && op->tensor->layout == TRIB_SLICES && out >= in &&
           out - in < op->input_bytes;
}

/* The caller holds the mutex. */
static void submit(trib_op *op)
{
    trib_engine *engine = op->engine;
    if (!op->is_spent) {
        const bool is_lost = may_have_lost_input(op);
        make_fresh(op);
        if (is_lost) {
            trib_op_fail(op, TRIB_PEER_LEFT,
                         "a member is lost, and this reduce-scatter may have overwritten its input: begin it anew, or "
                         "give it an output of its own");
        }
    }
    op->spread = false;
    op->round = ++op->tensor->rounds;
    atomic_store(&op->cores_booked, engine->core_count);
    for (uint32_t i = 0; i < engine->core_count; i++) {
        trib_worker_prepare_again(&op->cores[i], op->is_spent);
    }
    trib_reactor_post(engine->cores[0].reactor, &op->cores[0].submit_post);
}

static int by_number(const trib_op *a, const trib_op *b)
{
    return a->number < b->number ? -1 : a->number > b->number;
}

/* Returns all that was carried over, and then what was parked. The caller holds the mutex. */
static trib_op *take_all(trib_formation *formation)
{
    trib_op *all = formation->carried;
    LL_SORT(all, by_number);
    trib_op **last = &all;
    while (*last != NULL) {
        last = &(*last)->next;
    }
    *last = formation->parked;
    formation->carried = formation->parked = NULL;
    formation->parked_last = &formation->parked;
    return all;
}

void trib_carry_submit(trib_engine *engine)
{
    pthread_mutex_lock(&engine->mutex);
    trib_op *next;
    for (trib_op *op = take_all(&engine->formation); op != NULL; op = next) {
        next = op->next;
        submit(op);
    }
    engine->formation.parks = false;
    pthread_mutex_unlock(&engine->mutex);
}

bool trib_carry_abandon(trib_core *core)
{
    trib_engine *engine = core->engine;
    pthread_mutex_lock(&engine->mutex);
    trib_op *all = take_all(&engine->formation), *next;
    engine->formation.parks = false;
    const trib_error fate = engine->fate;
    pthread_mutex_unlock(&engine->mutex);
    for (trib_op *op = all; op != NULL; op = next) {
        next = op->next;
        if (!op->is_spent) {
            atomic_store(&op->claim, 0);
            trib_op_fail(op, fate.status == TRIB_OK ? TRIB_CLOSED : fate.status, "%s", fate.text);
            atomic_store(&op->cores_left, 0);
            trib_op_complete(op, core);
        }
        trib_op_unref(op);
    }
    return all != NULL;
}

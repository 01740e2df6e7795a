/*
 * tensor_end.c - the end of a tensor: callers, cores, the coordinator and the owners of its partitions forget it, in
 * this order.
 *
 * A tensor ends when its last operation is over. An operation that was given up before its turn is over for its caller,
 * but has its round to spend, so the tensor may be RELEASED for a while. When the cores have forgotten it, its parts
 * are freed, and core 0 tells the coordinator how many rounds it has had. The coordinator's answer is the last frame
 * with the tensor's tag, which is free from then on (membership/tensor_registry.c).
 *
 * A name is free for the next tensor at once. Tensors of one name are told apart by their order: the n-th that this
 * worker declares is the n-th of every other worker.
 */
#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/base/handle.h"
#include "engine/worker/worker.h"

void trib_tensor_set_state(trib_tensor *tensor, trib_tensor_state state)
{
    trib_assert(state < TRIB_TENSOR_STATES);
    trib_assert(state == (tensor->state == TRIB_TENSOR_ENDED ? TRIB_TENSOR_UNUSED : tensor->state + 1));
    tensor->state = state;
}

/* ---- Cores forget the tensor ---- */

/* Core 0: all cores have forgotten it. */
static void end_tensor(trib_reactor *reactor, trib_post *post)
{
    (void)reactor;
    trib_tensor *tensor = trib_container_of(post, trib_tensor, end_post);
    trib_assert(atomic_load(&tensor->references) == 0 && atomic_load(&tensor->in_flight) == 0);
    pthread_mutex_lock(&tensor->engine->mutex); /* the trace writer reads the parts */
    atomic_store(&tensor->placed, false);
    trib_tensor_free_parts(tensor);
    trib_tensor_set_state(tensor, TRIB_TENSOR_ENDED);
    pthread_mutex_unlock(&tensor->engine->mutex);
    tensor->engine->hooks->tensor_ended(tensor);
}

static void forget_on_core(trib_reactor *reactor, trib_post *post)
{
    trib_tensor_core *mine = trib_container_of(post, trib_tensor_core, end_post);
    trib_tensor *tensor = mine->tensor;
    trib_assert(mine->active == NULL && mine->pending == NULL);
    trib_assert(!mine->is_over && trib_core_is_here(reactor->owner));
    trib_tensor_move_forget(mine);
    trib_worker_forget_tensor(reactor->owner, tensor);
    trib_assert(mine->orphans == 0);
    mine->is_over = true;
    if (atomic_fetch_sub(&tensor->end_cores_left, 1) == 1) {
        tensor->end_post.run = end_tensor;
        trib_reactor_post(tensor->engine->reactors[0].reactor, &tensor->end_post);
    }
}

/* Core 0: the last operation on the tensor is over. What was posted to the cores before arrives there first. */
static void begin_end(trib_reactor *reactor, trib_post *post)
{
    trib_tensor *tensor = trib_container_of(post, trib_tensor, end_post);
    trib_engine *engine = tensor->engine;
    pthread_mutex_lock(&engine->mutex);
    trib_tensor_set_state(tensor, TRIB_TENSOR_ENDING);
    pthread_mutex_unlock(&engine->mutex);
    if (!atomic_load(&tensor->placed)) {
        end_tensor(reactor, post);
        return;
    }
    atomic_store(&tensor->end_cores_left, engine->core_count);
    for (uint32_t i = 0; i < engine->core_count; i++) {
        tensor->cores[i].end_post.run = forget_on_core;
        trib_reactor_post(engine->reactors[i].reactor, &tensor->cores[i].end_post);
    }
}

/* ---- Callers forget it ---- */

bool trib_tensor_ref_placed(trib_tensor *tensor)
{
    uint32_t references = atomic_load(&tensor->references);
    while (references > 0 && !atomic_compare_exchange_weak(&tensor->references, &references, references + 1)) {}
    if (references > 0 && !atomic_load(&tensor->placed)) {
        trib_tensor_unref(tensor);
        return false;
    }
    return references > 0;
}

void trib_tensor_unref(trib_tensor *tensor)
{
    const uint32_t before = atomic_fetch_sub(&tensor->references, 1);
    trib_assert(before > 0);
    if (before == 1) { /* the declaration's went when the tensor was released */
        tensor->end_post.run = begin_end;
        atomic_fetch_add(&tensor->engine->tensors_ending, 1);
        trib_reactor_post(tensor->engine->reactors[0].reactor, &tensor->end_post);
    }
}

void trib_tensor_release_idle(trib_tensor *tensor)
{
    trib_assert(atomic_load(&tensor->in_flight) == 0 && tensor->prepared == 0);
    if (tensor->handle != 0) {
        (void)trib_handle_close(tensor->handle);
        tensor->handle = 0;
    }
    trib_tensor_release_once(tensor);
}

void trib_tensor_release_once(trib_tensor *tensor)
{
    HASH_DEL(tensor->engine->tensors_by_name, tensor);
    if (tensor->name_length > 0 && tensor->submitted > 0) {
        *trib_rank_group_gap(tensor->engine, tensor->group) = true;
    }
    trib_tensor_set_state(tensor, TRIB_TENSOR_RELEASED);
    trib_tensor_unref(tensor);
}

trib_status trib_tensor_release_handle(trib_engine *engine, uintptr_t handle, trib_error *error)
{
    trib_status status = TRIB_OK;
    pthread_mutex_lock(&engine->mutex);
    trib_tensor *tensor = trib_handle_find(handle, TRIB_HANDLE_TENSOR);
    if (tensor == NULL || tensor->engine != engine) {
        status = trib_error_set(error, TRIB_INVALID, "tensor is not a handle of a tensor, or was released before");
    } else if (atomic_load(&tensor->in_flight) > 0) {
        status = trib_error_set(error, TRIB_STATE,
                                "tensor \"%s\": %u operations on it are in flight: release it when they are complete",
                                tensor->name, atomic_load(&tensor->in_flight));
    } else if (tensor->prepared > 0) {
        status = trib_error_set(error, TRIB_STATE,
                                "tensor \"%s\": %u operations are prepared on it: give them to trib_op_release first",
                                tensor->name, tensor->prepared);
    } else {
        trib_tensor_release_idle(tensor);
    }
    pthread_mutex_unlock(&engine->mutex);
    return status;
}

/* ---- The coordinator has forgotten it ---- */

void trib_tensor_forgotten_locked(trib_tensor *tensor)
{
    trib_engine *engine = tensor->engine;
    trib_group *group = tensor->group;
    trib_tensor_set_state(tensor, TRIB_TENSOR_UNUSED);
    trib_tensor fresh = {.engine = engine,
                         .tag = tensor->tag,
                         .place = tensor->place,
                         .cores = tensor->cores,
                         .declare_post = {.run = engine->hooks->declare},
                         .next_free = engine->free_tensors};
    free(tensor->splits);
    memset(tensor->cores, 0, engine->core_count * sizeof *tensor->cores);
    /* `engine` stays as it is: a thread with a handle of the past may be reading it. */
    _Static_assert(offsetof(trib_tensor, engine) == 0, "all else comes behind it");
    memcpy((unsigned char *)tensor + sizeof tensor->engine, (const unsigned char *)&fresh + sizeof fresh.engine,
           sizeof fresh - sizeof fresh.engine);
    engine->free_tensors = tensor;
    if (group != NULL) {
        trib_rank_group_unref_locked(group);
    }
    const uint32_t before = atomic_fetch_sub(&engine->tensors_ending, 1);
    trib_assert(before > 0);
    if (before == TRIB_TENSORS_ENDING_MAX / 2 || before == TRIB_TENSORS_ENDING_MAX) {
        pthread_cond_broadcast(&engine->changed); /* declarations that wait go on */
    }
}

void trib_tensor_forgotten(trib_tensor *tensor)
{
    trib_engine *engine = tensor->engine;
    pthread_mutex_lock(&engine->mutex);
    trib_tensor_forgotten_locked(tensor);
    pthread_mutex_unlock(&engine->mutex);
}

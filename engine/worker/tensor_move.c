/*
 * tensor_move.c - the worker's side of a move: a tensor's partitions get other owners, from a round that is the same
 * for all workers.
 *
 * The coordinator proposes owners. The worker answers with the first round that its caller has not submitted yet.
 * Earlier rounds continue; later rounds wait for the decision, which is the largest answer. The decision takes one
 * round trip, and a worker is rarely idle before it arrives.
 *
 * Core 0 talks to the coordinator and posts the decision to each core. A core's tasks take their new owners before
 * the round begins there. The next proposal is answered with "not now" until all cores have done so. A partition
 * stays on its core and has no state at its owner between rounds, so nothing else has to move.
 *
 * A given-up round is the exception: messages about it to the old owner may still be in flight. If the tensor moved
 * back, a later round could overtake them on another connection. No event marks their arrival, so such a tensor
 * never moves again.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/link/link_priority.h"
#include "engine/worker/worker.h"

void trib_tensor_move_propose(trib_tensor *tensor, trib_place_owner *owners_owned, uint32_t *round_out)
{
    trib_engine *engine = tensor->engine;
    if (tensor->owners_next != NULL || atomic_load(&tensor->move_cores_left) > 0 ||
        atomic_load(&tensor->left_unacknowledged)) {
        free(owners_owned);
        *round_out = 0;
        return;
    }
    tensor->owners_next = owners_owned;
    /* Later rounds are submitted under the mutex after this, so a core that checks one of them sees these numbers. */
    pthread_mutex_lock(&engine->mutex);
    *round_out = tensor->rounds + 1;
    atomic_store(&tensor->move_round, *round_out);
    atomic_fetch_add(&tensor->move_number, 1);
    pthread_mutex_unlock(&engine->mutex);
}

bool trib_tensor_move_may_begin(const trib_tensor *tensor, const trib_tensor_core *mine, uint32_t round)
{
    return mine->move_known == atomic_load(&tensor->move_number) || round < atomic_load(&tensor->move_round);
}

static void core_done(trib_tensor *tensor)
{
    const unsigned left = atomic_fetch_sub(&tensor->move_cores_left, 1);
    trib_assert(left > 0);
    if (left == 1) {
        atomic_fetch_sub(&tensor->engine->moves_unsettled, 1);
    }
}

bool trib_tensor_move_apply(trib_tensor *tensor, trib_tensor_core *mine)
{
    if (mine->moved_from == 0 || mine->active != NULL || mine->round_next < mine->moved_from) {
        return true;
    }
    mine->moved_from = 0;
    const trib_core *core = &tensor->engine->cores[mine - tensor->cores];
    trib_assert(mine->tensor == tensor && trib_core_is_here(core));
    for (uint32_t i = 0; i < mine->task_count; i++) {
        trib_task *task = &mine->tasks[i];
        const trib_place_owner owner = tensor->owners[task->partition];
        trib_link *link = trib_worker_owner_link(core, task);
        if (task->gave_up && memcmp(&owner, &task->owner, sizeof owner) != 0 && link != NULL &&
            (trib_link_priority_is_possible(link) || link->forks)) {
            atomic_store(&tensor->left_unacknowledged, true);
        }
        trib_link *before = trib_worker_egress_link(core, task);
        task->owner = owner;
        if (task->has_weight) {
            trib_egress_move(before, trib_worker_egress_link(core, task), task->size);
        }
    }
    core_done(tensor);
    return true;
}

void trib_tensor_move_forget(trib_tensor_core *mine)
{
    if (mine->moved_from != 0) {
        mine->moved_from = 0;
        core_done(mine->tensor);
    }
}

static void decided(trib_reactor *reactor, trib_post *post)
{
    trib_tensor_core *mine = trib_container_of(post, trib_tensor_core, move_post);
    trib_tensor *tensor = mine->tensor;
    mine->move_known = atomic_load(&tensor->move_number);
    trib_assert(mine->moved_from == 0);
    if (tensor->moved_from != 0) {
        mine->moved_from = tensor->moved_from;
    } else {
        core_done(tensor);
    }
    trib_worker_start_next(reactor->owner, tensor);
}

void trib_tensor_move_decide(trib_tensor *tensor, uint32_t round)
{
    trib_assert(tensor->owners_next != NULL && atomic_load(&tensor->move_cores_left) == 0);
    if (round > 0) {
        pthread_mutex_lock(&tensor->engine->mutex); /* the trace writer reads the owners */
        memcpy(tensor->owners, tensor->owners_next, tensor->partition_count * sizeof *tensor->owners);
        pthread_mutex_unlock(&tensor->engine->mutex);
    }
    free(tensor->owners_next);
    tensor->owners_next = NULL;
    tensor->moved_from = round;
    atomic_fetch_add(&tensor->engine->moves_unsettled, 1);
    atomic_store(&tensor->move_cores_left, tensor->cores_used);
    for (uint32_t i = 0; i < tensor->engine->core_count; i++) {
        if (trib_tensor_is_used(tensor, i)) {
            tensor->cores[i].move_post.run = decided;
            trib_reactor_post(tensor->engine->cores[i].reactor, &tensor->cores[i].move_post);
        }
    }
}

/*
 * tensor_epoch.c - tensors between two epochs (job/formation.h): the caller's stay declared, and nobody else knows
 * them.
 *
 * The first operation in the new epoch declares them there. At the epoch's beginning that would be too early: programs
 * release tensors at different times around a change, and one that has released a tensor before would have to be told
 * apart from one that releases it after.
 *
 * A tensor of a group is bad from then on, as the group is over. One that the caller has released is not declared to
 * the next coordinator, unless operations on it go on (op_carry.h), on all workers alike. It ends here alone, as the
 * caller may keep the handle of an operation that is over for as long as it likes.
 */
#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/worker/op.h"
#include "engine/worker/task_codec.h"

static void reset(trib_tensor *tensor)
{
    trib_assert(atomic_load(&tensor->ahead_round) == 0); /* a shard's alone, which a job that goes on has none of */
    atomic_store(&tensor->placed, false);
    trib_tensor_free_parts(tensor);
    memset(tensor->cores, 0, tensor->engine->core_count * sizeof *tensor->cores);
    /* Where operations go on, workers may have failed different numbers of them on a tensor that is bad. */
    const bool stays_bad = atomic_load(&tensor->bad) && atomic_load(&tensor->engine->formation.continues);
    atomic_store(&tensor->bad, tensor->is_stale || stays_bad);
    atomic_store(&tensor->move_number, 0);
    atomic_store(&tensor->move_round, 0);
    atomic_store(&tensor->move_cores_left, 0);
    atomic_store(&tensor->left_unacknowledged, false);
    trib_assert(tensor->waiting_head == NULL);
    tensor->waiting_tail = NULL;
    tensor->rounds = tensor->number_base = tensor->round_base = tensor->cores_used = tensor->moved_from = 0;
    tensor->partition_count = tensor->partition_bytes = tensor->chunk_bytes = tensor->id = 0;
    tensor->plan = NULL;
    trib_codec_reset(tensor);
    tensor->is_declared = tensor->is_covered = tensor->waits_for_group = false;
    atomic_store(&tensor->waits_for_use, true);
    tensor->group_next = NULL;
}

static bool is_used_by(const trib_tensor *tensor, const trib_op *ops)
{
    while (ops != NULL && ops->tensor != tensor) {
        ops = ops->next;
    }
    return ops != NULL;
}

void trib_tensor_use(trib_core *core, trib_tensor *tensor)
{
    if (atomic_exchange(&tensor->waits_for_use, false)) {
        tensor->declare_post.run(core->reactor, &tensor->declare_post);
    }
}

static void use_wanted(trib_reactor *reactor, trib_post *post)
{
    trib_tensor *tensor = trib_container_of(post, trib_tensor, use_post);
    atomic_store(&tensor->use_posted, false);
    trib_tensor_use(reactor->owner, tensor);
}

void trib_tensor_want(trib_tensor *tensor)
{
    if (atomic_load(&tensor->waits_for_use) && !atomic_exchange(&tensor->use_posted, true)) {
        tensor->use_post.run = use_wanted;
        trib_reactor_post(tensor->engine->reactors[0].reactor, &tensor->use_post);
    }
}

void trib_tensors_reset(trib_engine *engine)
{
    const bool continues = atomic_load(&engine->formation.continues);
    for (uint32_t i = 0; i < engine->tensor_count; i++) {
        trib_tensor *tensor = engine->tensors[i];
        const trib_tensor_state state = tensor->state;
        switch (state) {
        case TRIB_TENSOR_DECLARED:
            reset(tensor);
            if (!continues && trib_tensor_is_reserved(tensor) && tensor != engine->barrier_tensor) {
                tensor->is_stale = true; /* for an operation that was not taken: their numbers begin anew */
                trib_tensor_release_once(tensor);
            } else if (tensor->group != NULL && !tensor->is_stale) {
                tensor->is_stale = true;
                trib_tensor_bad(tensor, TRIB_EPOCH_CHANGED,
                                "its group has ended with its epoch: create the group anew, and declare it there");
            }
            break;
        case TRIB_TENSOR_RELEASED:
            reset(tensor);
            tensor->is_stale = tensor->is_stale || !(is_used_by(tensor, engine->formation.carried) ||
                                                     is_used_by(tensor, engine->formation.parked));
            break;
        case TRIB_TENSOR_ENDING:
            tensor->is_stale = true; /* the cores' posts are on their way */
            break;
        case TRIB_TENSOR_ENDED:
            trib_tensor_forgotten_locked(tensor);
            break;
        case TRIB_TENSOR_UNUSED:
            break;
        case TRIB_TENSOR_STATES:
        default:
            trib_unreachable();
        }
    }
}

void trib_tensors_renumber(trib_engine *engine)
{
    for (uint32_t i = 0; i < engine->tensor_count; i++) {
        trib_tensor *tensor = engine->tensors[i];
        if (tensor->state != TRIB_TENSOR_UNUSED && tensor->group == NULL) {
            const uint32_t before = tensor->members;
            tensor->group_place = trib_rank_group_place(engine, NULL);
            tensor->members = trib_rank_group_count(engine, NULL);
            if (tensor->layout == TRIB_PAIRS && tensor->members != before && !tensor->is_stale) {
                tensor->is_stale = true;
                trib_tensor_bad(tensor, TRIB_STATE,
                                "its splits are for another number of workers: release it, and declare it anew");
            }
        }
    }
}

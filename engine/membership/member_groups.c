/* member_groups.c - asks the coordinator for groups, takes its answers, and tells it of the end of groups. */
#include <stdlib.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/membership/member.h"
#include "engine/server/server_sum.h"
#include "engine/worker/op.h"

static void ask_group(const trib_engine *engine, trib_group *group)
{
    if (group->is_asked || atomic_load(&group->is_over) || trib_member_link(engine->member) == NULL) {
        return; /* the roster's arrival asks for the groups that were made before it */
    }
    group->is_asked = true;
    const size_t size = sizeof group->name + 16 + group->count * sizeof(uint32_t);
    unsigned char *payload = malloc(size);
    if (payload == NULL) {
        trib_job_fail(group->engine, TRIB_NO_MEMORY, "out of memory for a group");
        return;
    }
    trib_writer writer = {.data = payload, .capacity = size};
    trib_put_text(&writer, group->name);
    trib_put_u32(&writer, group->count);
    for (uint32_t i = 0; i < group->count; i++) {
        trib_put_u32(&writer, group->ranks[i]);
    }
    trib_assert(!writer.overflow);
    const trib_frame frame = {.type = TRIB_FRAME_GROUP_CREATE, .tensor = group->tag};
    trib_member_send(engine->member, &frame, payload, writer.size);
    free(payload);
}

void trib_member_create_group(trib_reactor *reactor, trib_post *post)
{
    const trib_core *core = reactor->owner;
    ask_group(core->engine, trib_container_of(post, trib_group, create_post));
}

static trib_group *group_by_tag(trib_engine *engine, uint32_t tag)
{
    pthread_mutex_lock(&engine->mutex);
    trib_group *group = engine->groups;
    while (group != NULL && group->tag != tag) {
        group = group->next;
    }
    pthread_mutex_unlock(&engine->mutex);
    return group;
}

/* Returns the group that was made first of those that the coordinator has not been asked for, or NULL. */
static trib_group *oldest_unasked(trib_engine *engine)
{
    trib_group *oldest = NULL;
    pthread_mutex_lock(&engine->mutex);
    for (trib_group *group = engine->groups; group != NULL; group = group->next) {
        oldest = group->is_asked || atomic_load(&group->is_over) ? oldest : group;
    }
    pthread_mutex_unlock(&engine->mutex);
    return oldest;
}

/* In the order in which they were made: some may have one name, as their predecessors were released. */
void trib_member_ask_groups(trib_engine *engine)
{
    trib_group *group = oldest_unasked(engine);
    while (group != NULL) {
        ask_group(engine, group);
        group = group->is_asked ? oldest_unasked(engine) : NULL; /* else there is no link to the coordinator */
    }
}

trib_status trib_member_take_group_ranks(trib_engine *engine, const trib_frame *frame, const void *payload,
                                         trib_error *error)
{
    trib_reader reader = {.data = payload, .left = frame->payload_size};
    const uint32_t count = trib_get_u32(&reader);
    const uint32_t workers = engine->roster->worker_count;
    if (reader.failed || count > workers || reader.left != (size_t)count * sizeof(uint32_t) || frame->group == 0 ||
        frame->group >= TRIB_GROUPS_MAX || trib_engine_rank_set(engine, frame->group) != NULL) {
        return trib_error_set(error, TRIB_PROTOCOL, "malformed GROUP_RANKS");
    }
    uint32_t *ranks = malloc((count > 0 ? count : 1) * sizeof *ranks);
    bool is_valid = true;
    for (uint32_t i = 0; ranks != NULL && i < count; i++) {
        ranks[i] = trib_get_u32(&reader);
    }
    trib_rank_set *set = ranks == NULL ? NULL : trib_rank_set_create(frame->group, ranks, count, workers, &is_valid);
    free(ranks);
    if (set == NULL) {
        return is_valid ? trib_error_set(error, TRIB_NO_MEMORY, "out of memory for a group")
                        : trib_error_set(error, TRIB_PROTOCOL, "GROUP_RANKS with ranks that cannot be");
    }
    atomic_store_explicit(&engine->rank_sets[frame->group], set, memory_order_release);
    const trib_frame known = {.type = TRIB_FRAME_GROUP_KNOWN, .group = frame->group};
    trib_member_send(engine->member, &known, NULL, 0);
    return TRIB_OK;
}

/* The list keeps the order in which the tensors were declared. */
static void release_waiting(trib_engine *engine, trib_group *group)
{
    trib_tensor *tensor = group->waiting;
    trib_assert(group->state != TRIB_GROUP_ASKED);
    group->waiting = NULL;
    while (tensor != NULL) {
        trib_tensor *next = tensor->group_next;
        trib_assert(tensor->waits_for_group && tensor->group == group);
        tensor->group_next = NULL;
        tensor->waits_for_group = false;
        if (group->state == TRIB_GROUP_BAD) {
            trib_tensor_bad(tensor, group->bad_status, group->bad_text);
        } else {
            trib_member_send_declare(engine, tensor);
        }
        if (tensor->state == TRIB_TENSOR_ENDED) { /* released while it waited for the group */
            trib_member_tensor_ended(tensor);
        }
        tensor = next;
    }
}

/* Its tensors are forgotten, so the coordinator knows that this worker needs them no more. */
static void end_if_released(const trib_engine *engine, trib_group *group)
{
    const bool is_over = atomic_load(&group->is_over);
    if (!group->ends || (!is_over && group->state == TRIB_GROUP_ASKED)) {
        return;
    }
    if (!is_over) {
        const trib_frame frame = {.type = TRIB_FRAME_GROUP_RELEASE, .tensor = group->tag};
        trib_member_send(engine->member, &frame, NULL, 0);
    }
    trib_rank_group_forgotten(group);
}

void trib_member_group_ended(trib_reactor *reactor, trib_post *post)
{
    const trib_core *core = reactor->owner;
    trib_group *group = trib_container_of(post, trib_group, end_post);
    trib_assert(trib_core_is_here(core) && !group->ends);
    group->ends = true;
    end_if_released(core->engine, group);
}

trib_status trib_member_take_group_made(trib_engine *engine, const trib_frame *frame, trib_error *error)
{
    trib_group *group = group_by_tag(engine, frame->tensor);
    if (group == NULL || group->state != TRIB_GROUP_ASKED || trib_engine_rank_set(engine, frame->group) == NULL) {
        return trib_error_set(error, TRIB_PROTOCOL, "GROUP_MADE for what was not asked, or is not known");
    }
    group->id = frame->group;
    group->state = TRIB_GROUP_MADE;
    release_waiting(engine, group);
    end_if_released(engine, group);
    return TRIB_OK;
}

/* The tensors of the group fail, also those that are placed. */
trib_status trib_member_take_group_bad(trib_engine *engine, const trib_frame *frame, const void *payload,
                                       trib_error *error)
{
    trib_group *group = group_by_tag(engine, frame->tensor);
    trib_cause cause;
    const trib_status status = trib_cause_decode(frame, payload, &cause, error);
    if (status != TRIB_OK || group == NULL) {
        return status;
    }
    trib_job_render(engine, &cause, group->bad_text);
    group->bad_status = cause.status;
    group->state = TRIB_GROUP_BAD;
    release_waiting(engine, group);
    for (uint32_t tag = 0;; tag++) {
        pthread_mutex_lock(&engine->mutex);
        trib_tensor *tensor = tag < engine->tensor_count ? engine->tensors[tag] : NULL;
        /* A tensor that ends has no operations, and its cores' posts may not be posted any more. */
        const bool is_told = tensor != NULL && tensor->group == group && tensor->state < TRIB_TENSOR_ENDING;
        pthread_mutex_unlock(&engine->mutex);
        if (tensor == NULL) {
            break;
        }
        if (is_told) {
            trib_tensor_bad(tensor, group->bad_status, group->bad_text);
        }
    }
    end_if_released(engine, group);
    return TRIB_OK;
}

static void send_group_forgotten(trib_engine *engine, uint32_t group)
{
    const trib_frame answer = {.type = TRIB_FRAME_GROUP_FORGOTTEN, .group = group};
    trib_assert(trib_core_is_here(&engine->cores[0]));
    trib_member_send(engine->member, &answer, NULL, 0);
}

trib_status trib_member_take_group_forget(trib_engine *engine, const trib_frame *frame, trib_error *error)
{
    trib_rank_set *ranks = (trib_rank_set *)(uintptr_t)trib_engine_rank_set(engine, frame->group);
    if (ranks == NULL || ranks->is_ending) {
        return trib_error_set(error, TRIB_PROTOCOL, "GROUP_FORGET for group %u, which is not there", frame->group);
    }
    ranks->is_ending = true;
    return trib_server_forget_group(engine, ranks, send_group_forgotten) == TRIB_OK
               ? TRIB_OK
               : trib_error_set(error, TRIB_NO_MEMORY, "out of memory for the end of a group");
}

void trib_member_declare_in_group(const trib_engine *engine, trib_tensor *tensor)
{
    trib_group *group = tensor->group;
    if (group == NULL || group->state == TRIB_GROUP_MADE) {
        trib_member_send_declare(engine, tensor);
    } else if (group->state == TRIB_GROUP_BAD) {
        trib_tensor_bad(tensor, group->bad_status, group->bad_text);
    } else {
        trib_assert(!tensor->waits_for_group && tensor->group_next == NULL);
        trib_tensor **at = &group->waiting;
        while (*at != NULL) {
            at = &(*at)->group_next;
        }
        *at = tensor;
        tensor->waits_for_group = true;
    }
}

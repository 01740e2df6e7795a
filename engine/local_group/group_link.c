/*
 * group_link.c - the connections between a machine's local ranks, and the life of their group.
 */
#include "engine/local_group/group_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/cluster/gpus.h"
#include "engine/core/wireup.h"
#include "engine/link/link_cause.h"
#include "engine/membership/member.h"

#define REDUCE_CREDIT_BYTES (UINT64_C(64) << 20)
/* slices are larger on one machine, and this is enough for two of them */
#define ALONE_CREDIT_BYTES (UINT64_C(512) << 20)

static trib_status group_header(trib_link *link, const trib_frame *frame, trib_recv_target *target, trib_error *error)
{
    trib_local_group *group = link->core->engine->group;
    if (group == NULL) {
        return TRIB_AGAIN; /* this process has no roster yet; trib_group_open resumes the link */
    }
    const bool known = group->leader != NULL
                           ? frame->type == TRIB_FRAME_GROUP_READY || frame->type == TRIB_FRAME_GROUP_FAIL
                           : frame->type == TRIB_FRAME_GROUP_ORDER || frame->type == TRIB_FRAME_GROUP_FAIL ||
                                 (frame->type == TRIB_FRAME_GROUP_ID && frame->payload_size == TRIB_DEVICE_ID_SIZE);
    if (!known) {
        return trib_error_set(error, TRIB_PROTOCOL, "unexpected %s frame from a local rank",
                              trib_frame_name(frame->type));
    }
    (void)target; /* the payload stays in the link's memory */
    return TRIB_OK;
}

static void join_named_group(trib_local_group *group)
{
    trib_engine *engine = group->core->engine;
    trib_assert(!group->id_known && engine->device != NULL);
    group->id_known = true;
    atomic_fetch_add(&engine->device_jobs, 1);
    group->join_job.kind = TRIB_DEVICE_JOIN;
    group->join_job.source = group->id;
    engine->env.device->submit(engine->device, &group->join_job);
}

bool trib_group_read(const trib_frame *frame, trib_announcement *what_out)
{
    *what_out = (trib_announcement){.tensor = frame->tensor,
                                    .slice = frame->partition,
                                    .round = frame->round,
                                    .kind = (trib_announcement_kind)frame->chunk,
                                    .priority = frame->priority,
                                    .bytes = frame->size,
                                    .variant = frame->aux,
                                    .step = frame->step};
    return frame->chunk <= TRIB_ANNOUNCE_GATHER && frame->tensor != UINT32_MAX;
}

static trib_status group_received(trib_link *link, const trib_frame *frame, const void *payload, bool in_place,
                                  trib_error *error)
{
    (void)in_place;
    trib_local_group *group = link->core->engine->group;
    trib_announcement what;
    char text[TRIB_ERROR_TEXT_SIZE];
    if (group->ended) {
        return TRIB_OK;
    }
    if (!trib_group_read(frame, &what)) {
        return trib_error_set(error, TRIB_PROTOCOL, "malformed %s frame", trib_frame_name(frame->type));
    }
    switch (frame->type) {
    case TRIB_FRAME_GROUP_READY:
        return trib_group_leader_takes_ready(group, link->peer % group->local_size, &what) == TRIB_OK
                   ? TRIB_OK
                   : trib_error_set(error, TRIB_PROTOCOL, "announced a collective twice, or out of memory");
    case TRIB_FRAME_GROUP_ORDER:
        return trib_group_take_order(group, &what, error);
    case TRIB_FRAME_GROUP_ID:
        if (group->id_known) {
            return trib_error_set(error, TRIB_PROTOCOL, "a second GROUP_ID");
        }
        memcpy(group->id, payload, TRIB_DEVICE_ID_SIZE);
        join_named_group(group);
        return TRIB_OK;
    default: {
        trib_status status = TRIB_OK;
        const trib_status checked = trib_frame_take_error(frame, &status, error);
        if (checked != TRIB_OK) {
            return checked;
        }
        trib_frame_take_text(frame, payload, text, sizeof text);
        if (group->leader == NULL) {
            return trib_group_take_failure(group, frame->tensor, frame->round, status, text)
                       ? TRIB_OK
                       : trib_error_set(error, TRIB_NO_MEMORY, "out of memory for a failed operation");
        }
        return trib_leader_fail(group->leader, link->peer % group->local_size, frame->tensor, frame->round, status,
                                text);
    }
    }
}

uint32_t trib_group_carried_out(const trib_core *core)
{
    const trib_local_group *group = core->engine->group;
    return group == NULL ? 0 : group->carried_out;
}

bool trib_group_is_through(const trib_core *core)
{
    const trib_local_group *group = core->engine->group;
    return group == NULL ||
           ((int32_t)(group->begun - group->back) <= 0 && atomic_load(&core->engine->device_jobs) == 0);
}

/* Ends the job if the leader has left before this rank knew the id of the devices' group, which never forms then. */
static void check_leader(const trib_local_group *group)
{
    const uint32_t leader = group->machine * group->local_size;
    int64_t since_ns;
    if (!group->ended && group->local_rank != 0 && !group->id_known && group->links[0] == NULL &&
        trib_departed_has(&group->core->engine->departed, leader, &since_ns)) {
        const trib_cause cause = trib_cause_about(TRIB_PEER_LEFT, TRIB_CAUSE_LEFT, TRIB_SUBJECT_MEMBER, leader, leader,
                                                  "has left the job before the devices of its machine met");
        trib_job_end(group->core->engine, &cause);
    }
}

/* A collective that a rank left before its own part was done never ends. A collective that the rank has carried out may
 * still end later here. */
void trib_group_check_departed(trib_core *core)
{
    const trib_engine *engine = core->engine;
    trib_local_group *group = engine->group;
    if (group == NULL || !trib_departed_any(&engine->departed)) {
        return;
    }
    check_leader(group);
    if ((int32_t)(group->begun - group->back) <= 0) {
        return;
    }
    for (uint32_t local_rank = 0; local_rank < group->local_size; local_rank++) {
        uint32_t carried_out;
        if (trib_departed_carried_out(&engine->departed, group->machine * group->local_size + local_rank,
                                      &carried_out) &&
            (int32_t)(group->begun - carried_out) > 0) {
            const uint32_t rank = group->machine * group->local_size + local_rank;
            const trib_cause cause = trib_cause_about(
                TRIB_PEER_LEFT, TRIB_CAUSE_LEFT, TRIB_SUBJECT_MEMBER, rank, rank,
                "has left the job without its part of a collective that others on its machine have begun");
            trib_job_end(core->engine, &cause);
            return;
        }
    }
}

static void group_closed(trib_link *link, trib_status status, const char *reason)
{
    (void)reason;
    trib_local_group *group = link->core->engine->group;
    if (group == NULL) {
        return;
    }
    const uint32_t local_rank = group->leader != NULL ? link->peer % group->local_size : 0;
    group->links[local_rank] = NULL;
    if (group->ended) {
        return;
    }
    char text[TRIB_ERROR_TEXT_SIZE];
    if (!link->bye) {
        trib_cause cause;
        trib_link_end_cause(link, &cause);
        if (trib_wireup_is_doubtful(link, status)) {
            trib_wireup_defer_failure(group->core, link->peer, &cause);
            check_leader(group);
        } else {
            trib_job_member_lost(group->core->engine, &cause);
        }
        return;
    }
    group->links_left++;
    group->last_left = local_rank;
    snprintf(text, sizeof text, "%s has left the job", trib_group_name_of(group, local_rank));
    if (group->leader != NULL && trib_leader_fail_all(group->leader, local_rank, TRIB_PEER_LEFT, text) != TRIB_OK) {
        trib_group_end_job(group, TRIB_NO_MEMORY, "out of memory for the operations of a local rank that has left");
    }
    while (group->announced != NULL) {
        const trib_op *op = group->announced->task->op_core->op;
        trib_group_call_off(group, op->tensor->id, op->round, TRIB_PEER_LEFT, text);
    }
    check_leader(group);
}

static void note_link_ready(trib_core *core)
{
    trib_assert(core->links_missing > 0);
    if (--core->links_missing == 0) {
        trib_worker_joined(core);
    }
}

static void member_ready(trib_link *link)
{
    trib_group_reached_leader(link->core->engine->group);
    note_link_ready(link->core);
}

static void leader_ready(trib_link *link)
{
    (void)link; /* the accepting side has called trib_group_adopt already */
}

static const trib_link_upcalls leader_upcalls = {
    .ready = leader_ready, .header = group_header, .received = group_received, .closed = group_closed};

const trib_link_upcalls trib_group_member_upcalls = {
    .ready = member_ready, .header = group_header, .received = group_received, .closed = group_closed};

static void send_group_id(trib_local_group *group, trib_link *link)
{
    if (group->id_known) {
        trib_link_send_copy(link, (trib_frame){.type = TRIB_FRAME_GROUP_ID}, group->id, sizeof group->id);
    }
}

/* The leader leaves. The rank would hear only that, of rounds that have failed, too. */
static void tell_failed(const trib_local_group *group, uint32_t local_rank)
{
    if (trib_status_is_orderly(group->core->ended_status)) {
        trib_leader_tell_failed(group->leader, local_rank);
    }
}

void trib_group_adopt(trib_link *link)
{
    trib_local_group *group = link->core->engine->group;
    link->upcalls = &leader_upcalls;
    if (group == NULL) {
        return; /* trib_group_open finds the link in the host's list */
    }
    const uint32_t local_rank = link->peer % group->local_size;
    if (group->leader == NULL || link->peer / group->local_size != group->machine || local_rank == 0 ||
        group->links[local_rank] != NULL) {
        trib_link_close(link, false, TRIB_PROTOCOL,
                        "not a local rank of this machine: local_size must be the same on all, and the ranks of a "
                        "machine consecutive");
        return;
    }
    group->links[local_rank] = link;
    group->awaited &= ~(UINT64_C(1) << local_rank);
    send_group_id(group, link);
    if (group->ended) {
        tell_failed(group, local_rank);
        trib_link_close_for(link, true, &link->core->engine->cause);
    }
}

bool trib_group_awaits_ranks(const trib_core *core)
{
    const trib_engine *engine = core->engine;
    const trib_local_group *group = core->reactor->index == 0 ? engine->group : NULL;
    bool awaits = false;
    for (uint32_t i = 0; group != NULL && i < group->local_size; i++) {
        int64_t since_ns;
        awaits = awaits || ((group->awaited >> i & 1) != 0 &&
                            !trib_departed_has(&engine->departed, group->machine * group->local_size + i, &since_ns));
    }
    return awaits;
}

/* ---- Life ---- */

static void take_join_back(trib_reactor *reactor, trib_post *post)
{
    trib_core *core = reactor->owner;
    trib_device_job *job = (trib_device_job *)((char *)post - offsetof(trib_device_job, post));
    trib_local_group *group = job->owner;
    const unsigned jobs = atomic_fetch_sub(&core->engine->device_jobs, 1);
    trib_assert(jobs > 0 && trib_core_is_here(core));
    if (job->status != TRIB_OK) {
        char text[TRIB_ERROR_TEXT_SIZE];
        snprintf(text, sizeof text, "the GPUs of its machine could not form a group: %s", job->text);
        trib_group_end_job(group, job->status, text);
    } else if (job->kind == TRIB_DEVICE_MAKE_ID && !group->ended) {
        join_named_group(group);
        for (uint32_t i = 1; i < group->local_size; i++) {
            if (group->links[i] != NULL) {
                send_group_id(group, group->links[i]);
            }
        }
    } else if (job->kind == TRIB_DEVICE_JOIN && !group->ended) {
        note_link_ready(core);
    }
}

static trib_status open_leader(trib_local_group *group, trib_error *error)
{
    trib_core *core = group->core;
    const trib_leader_upcalls upcalls = {.order = trib_group_order, .called_off = trib_group_called_off, .user = group};
    group->leader = trib_leader_create(
        group->local_size, trib_engine_is_one_machine(core->engine) ? ALONE_CREDIT_BYTES : REDUCE_CREDIT_BYTES,
        &upcalls);
    if (group->leader == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for the group of this machine's GPUs");
    }
    for (uint32_t i = 1; i < group->local_size; i++) {
        group->awaited |= UINT64_C(1) << i;
    }
    atomic_fetch_add(&core->engine->device_jobs, 1);
    group->id_job.kind = TRIB_DEVICE_MAKE_ID;
    group->id_job.target = group->id;
    core->engine->env.device->submit(core->engine->device, &group->id_job);
    trib_link *next;
    for (trib_link *link = core->host.links; link != NULL; link = next) {
        next = link->next;
        if (link->upcalls == &leader_upcalls && trib_link_is_up(link)) {
            trib_group_adopt(link);
            trib_link_resume(link);
        }
    }
    return TRIB_OK;
}

/* NCCL would fail on all ranks, with a text that names neither. */
static trib_status check_gpus(const trib_engine *engine, uint32_t local_size, trib_error *error)
{
    const trib_roster *roster = engine->roster;
    uint32_t pair[2];
    char gpu[TRIB_GPU_TEXT_SIZE];
    if (!trib_gpu_is_shared(roster, engine->member_id / local_size * local_size, local_size, pair)) {
        return TRIB_OK;
    }
    trib_gpu_text(roster->members[pair[0]].gpu, gpu);
    return trib_error_set(error, TRIB_INVALID,
                          "%s and %s have the same GPU, %s, and NCCL sums between different ones only: give each "
                          "process its own (trib_config.device_index, cudaSetDevice, CUDA_VISIBLE_DEVICES), or set "
                          "TRIB_DEVICE_COUNT=1 TRIB_DEVICE_RANK=0 for all, so that processors sum",
                          trib_roster_name(roster, pair[0]), trib_roster_name(roster, pair[1]), gpu);
}

trib_status trib_group_open(trib_core *core, trib_error *error)
{
    trib_engine *engine = core->engine;
    const uint32_t local_size = trib_engine_local_size(engine);
    if (engine->device == NULL || local_size == 1 || trib_engine_stages_devices(engine)) {
        return TRIB_OK;
    }
    trib_assert(engine->group == NULL && core->reactor->index == 0);
    const trib_status checked = check_gpus(engine, local_size, error);
    if (checked != TRIB_OK) {
        return checked;
    }
    trib_local_group *group = trib_core_zalloc(core, sizeof *group);
    if (group == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for the group of this machine's GPUs");
    }
    group->core = core;
    group->local_size = local_size;
    group->local_rank = engine->member_id % local_size;
    group->machine = engine->member_id / local_size;
    group->pump_post.run = trib_group_pump;
    group->id_job.post.run = group->join_job.post.run = take_join_back;
    group->id_job.reactor = group->join_job.reactor = core->reactor;
    group->id_job.owner = group->join_job.owner = group;
    engine->group = group;
    /* The job is not ready before the devices have joined. Otherwise joining could wait for a caller's stream that
     * waits for an operation. */
    core->links_missing++;
    if (group->local_rank == 0) {
        return open_leader(group, error);
    }
    const uint32_t leader = group->machine * local_size;
    core->links_missing++;
    return trib_link_connect(&core->host, &engine->roster->members[leader].addresses[0], TRIB_PURPOSE_GROUP, leader, 0,
                             &trib_group_member_upcalls, NULL, &group->links[0]);
}

static void refuse_announced(trib_device_task *device, trib_status status, const char *text)
{
    trib_op_fail(device->task->op_core->op, status, "%s", text);
    trib_group_answer(device, status == TRIB_OK ? TRIB_CLOSED : status);
}

void trib_group_end(trib_core *core, trib_status status, const char *text)
{
    trib_local_group *group = core->engine->group;
    if (group == NULL) {
        return;
    }
    group->ended = true;
    for (uint32_t i = 1; group->leader != NULL && i < group->local_size; i++) {
        if (group->links[i] != NULL) {
            tell_failed(group, i);
        }
    }
    trib_group_drop_unnotified(group);
    while (group->announced != NULL) {
        trib_device_task *device = group->announced;
        trib_group_forget(group, device);
        refuse_announced(device, status, text);
    }
    /* The links end at once, although others may stay for a while: a rank that announces a collective must not wait for
     * an answer. */
    for (uint32_t i = 0; i < group->local_size; i++) {
        if (group->links[i] != NULL) {
            trib_link_close_for(group->links[i], true, &core->engine->cause);
        }
    }
}

void trib_group_close(trib_local_group *group)
{
    if (group != NULL) {
        trib_assert(group->announced == NULL && group->unnotified == NULL);
        trib_leader_free(group->leader);
        trib_group_drop_failures(group);
        free(group->tensors);
        free(group);
    }
}

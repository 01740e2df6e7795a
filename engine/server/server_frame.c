/* server_frame.c - turns a worker's frame into a contribution, and checks its form. The aggregator checks it against
 * the round. */
#include "engine/aggregate/sum_scale.h"
#include "engine/aggregate/summation.h"
#include "engine/codec/encoding.h"
#include "engine/server/relay.h"
#include "engine/server/server_sum.h"
#include "engine/server/server_tensor.h"

/* A member that sums hears of the end of a join before any worker goes on, so a sender is never ahead of it. */
static uint32_t joins_since(const trib_link *link, const trib_frame *frame)
{
    return (uint8_t)(atomic_load(&link->core->engine->join.joins_over) - frame->joins);
}

trib_contribution trib_server_contribution(const trib_server_sum *sum, const trib_link *link, const trib_frame *frame)
{
    /* The aggregator sums a shard of a device tensor like any other tensor. Its root is a machine. */
    const bool is_shard = sum->level == TRIB_SUM_SHARD, is_pair = sum->level == TRIB_SUM_PAIR;
    return (trib_contribution){
        .tensor = frame->tensor,
        .partition = frame->partition,
        .round = frame->round,
        .chunk = frame->chunk,
        .chunk_count = frame->chunk_count,
        .size = frame->type == TRIB_FRAME_PUSH ? frame->size : 0,
        .contributor = trib_server_sum_contributor(sum, link->peer, frame),
        .priority = frame->priority,
        .collective = is_pair || frame->collective == TRIB_COLLECTIVE_DEVICE_BROADCAST ? TRIB_COLLECTIVE_BROADCAST
                      : is_shard                                                       ? TRIB_COLLECTIVE_ALL_REDUCE
                                 : (trib_collective)(frame->collective & ~TRIB_COLLECTIVE_PARTIAL),
        .dtype = (trib_dtype)frame->dtype,
        .reduce = (trib_reduce)frame->reduce,
        .root = is_shard ? trib_device_root_machine(frame->root) : frame->root,
        .step = frame->step,
        .scale = frame->scale,
        .prescale = frame->prescale,
        .round_base = trib_server_rounds_over(sum->core, frame->tensor),
        .joins = atomic_load(&sum->core->engine->join.joins_over) - joins_since(link, frame),
        .is_eager = is_pair || !trib_server_is_whole(sum->core, frame->tensor),
        .is_late = joins_since(link, frame) > 0,
        .owner = is_pair || trib_server_sum_is_near(sum) ? trib_relay_frame_owner(frame) : 0,
    };
}

/* Both ranks exist, and one of them sent the frame. A worker that gives to itself needs no server. */
static bool is_pair_known(const trib_link *link, const trib_frame *frame)
{
    const uint32_t code = trib_relay_frame_owner(frame), sender = trib_pair_sender(code),
                   receiver = trib_pair_receiver(code);
    const uint32_t workers = link->core->engine->roster->worker_count;
    return sender < workers && receiver < workers && sender != receiver &&
           (link->peer == sender || link->peer == receiver) && frame->root == 0 && frame->group == 0;
}

static bool is_of_group(const trib_link *link, const trib_frame *frame)
{
    const trib_rank_set *ranks = trib_engine_rank_set(link->core->engine, frame->group);
    return ranks != NULL && trib_rank_set_index(ranks, link->peer) != TRIB_RANK_ABSENT && frame->root < ranks->count &&
           (frame->collective == TRIB_COLLECTIVE_BROADCAST || trib_collective_is_sum(frame->collective));
}

static bool is_root_known(const trib_roster *roster, const trib_frame *frame)
{
    const uint32_t local_size = trib_device_root_local_size(frame->root),
                   machine = trib_device_root_machine(frame->root);
    return !trib_collective_is_sharded(frame->collective)
               ? frame->root < roster->worker_count
               : local_size > 0 && machine < (roster->worker_count + local_size - 1) / local_size &&
                     (machine == 0 || frame->collective == TRIB_COLLECTIVE_DEVICE_BROADCAST);
}

/* Bytes of payload that a PUSH must carry. The frame's other fields have been checked. */
static uint32_t expected_payload(const trib_link *link, const trib_frame *frame)
{
    if (frame->collective == TRIB_COLLECTIVE_PAIR) {
        return trib_pair_sender(frame->aux) == link->peer ? frame->size : 0;
    }
    if (frame->group > 0 && frame->collective == TRIB_COLLECTIVE_BROADCAST) {
        const trib_rank_set *ranks = trib_engine_rank_set(link->core->engine, frame->group);
        return trib_rank_set_index(ranks, link->peer) == frame->root ? frame->size : 0;
    }
    if (frame->collective == TRIB_COLLECTIVE_DEVICE_BROADCAST) {
        return trib_device_root_machine(frame->root) == link->peer / trib_device_root_local_size(frame->root)
                   ? frame->size
                   : 0;
    }
    const bool is_partial = trib_frame_is_partial(frame);
    const uint32_t step = is_partial ? link->core->engine->roster->local_size : 1;
    const trib_contribution what = {.size = frame->size,
                                    .collective = (trib_collective)(frame->collective & ~TRIB_COLLECTIVE_PARTIAL),
                                    .dtype = (trib_dtype)frame->dtype,
                                    .reduce = (trib_reduce)frame->reduce};
    if (what.collective == TRIB_COLLECTIVE_BROADCAST) {
        return frame->root / step == link->peer / step ? frame->size : 0;
    }
    return is_partial ? trib_sum_partial_bytes(&what) : frame->size;
}

/* True for a collective that a frame of that kind may be about, with ranks and a root that are there. */
static bool is_collective_known(const trib_link *link, const trib_frame *frame)
{
    const trib_roster *roster = link->core->engine->roster;
    const uint32_t plain = frame->collective & ~TRIB_COLLECTIVE_PARTIAL;
    if (frame->group > 0) {
        return is_of_group(link, frame);
    }
    if (frame->collective == TRIB_COLLECTIVE_PAIR) {
        return is_pair_known(link, frame);
    }
    const bool may_be_partial = plain == TRIB_COLLECTIVE_BROADCAST || trib_collective_is_sum(plain);
    const bool is_partial = trib_frame_is_partial(frame);
    return (is_partial ? may_be_partial && roster->local_size > 0
                       : may_be_partial || trib_collective_is_sharded(plain)) &&
           is_root_known(roster, frame);
}

trib_status trib_server_check_operation(const trib_link *link, const trib_frame *frame, trib_error *error)
{
    const trib_roster *roster = link->core->engine->roster;
    const bool may_scale = trib_scale_suits((trib_dtype)frame->dtype, (trib_reduce)frame->reduce);
    if (!trib_reduce_suits((trib_dtype)frame->dtype, (trib_reduce)frame->reduce) || !is_collective_known(link, frame) ||
        (frame->scale != 0 && !may_scale) ||
        (frame->prescale != 0 && (!may_scale || trib_dtype_is_float((trib_dtype)frame->dtype)))) {
        return trib_error_set(error, TRIB_PROTOCOL, "malformed %s from %s", trib_frame_name(frame->type),
                              trib_roster_name(roster, link->peer));
    }
    return TRIB_OK;
}

/* Only an all-reduce that adds is encoded, and no relay sums encoded chunks. Shards of devices pass no relay. */
static trib_status check_encoded(const trib_link *link, const trib_frame *frame, trib_error *error)
{
    const trib_roster *roster = link->core->engine->roster;
    const bool is_sharded = frame->collective == TRIB_COLLECTIVE_DEVICE_ALL_REDUCE;
    const bool is_added = frame->reduce == TRIB_SUM || frame->reduce == TRIB_AVG;
    if (!is_added || (!is_sharded && (frame->collective != TRIB_COLLECTIVE_ALL_REDUCE || roster->local_size > 0)) ||
        frame->size == 0 || frame->payload_size > roster->chunk_bytes + TRIB_ENCODING_MARGIN) {
        return trib_error_set(error, TRIB_PROTOCOL, "encoded PUSH from %s, which cannot be: %u bytes for %u",
                              trib_roster_name(roster, link->peer), frame->payload_size, frame->size);
    }
    return TRIB_OK;
}

trib_status trib_server_check_push(const trib_link *link, const trib_frame *frame, trib_error *error)
{
    const trib_roster *roster = link->core->engine->roster;
    const trib_status status = trib_server_check_operation(link, frame, error);
    if (status != TRIB_OK) {
        return status;
    }
    if (frame->size > roster->chunk_bytes || frame->size % trib_dtype_size((trib_dtype)frame->dtype) != 0) {
        return trib_error_set(error, TRIB_PROTOCOL, "malformed PUSH from %s", trib_roster_name(roster, link->peer));
    }
    if (frame->codec != 0) {
        return check_encoded(link, frame, error);
    }
    uint32_t expected = expected_payload(link, frame);
    if (frame->payload_size != expected) {
        return trib_error_set(error, TRIB_PROTOCOL, "PUSH from %s carries %u bytes, expected %u",
                              trib_roster_name(roster, link->peer), frame->payload_size, expected);
    }
    return TRIB_OK;
}

trib_status trib_relay_check(const trib_link *link, const trib_frame *frame, trib_error *error)
{
    const trib_core *core = link->core;
    const trib_roster *roster = core->engine->roster;
    const uint32_t owner = trib_relay_frame_owner(frame), me = core->engine->member_id;
    const uint32_t member = owner / TRIB_REACTORS_MAX, reactor = owner % TRIB_REACTORS_MAX;
    if (core->relay == NULL || link->peer / roster->local_size != me / roster->local_size ||
        member >= roster->member_count || !roster->members[member].sums ||
        reactor >= roster->members[member].reactors || reactor % core->engine->core_count != core->reactor->index ||
        trib_relay_rank(roster, me, member, frame->partition) != me) {
        return trib_error_set(error, TRIB_PROTOCOL,
                              "%s from %s, which this member does not relay: partition %u for member %u, reactor %u",
                              trib_frame_name(frame->type), trib_roster_name(roster, link->peer), frame->partition,
                              member, reactor);
    }
    return TRIB_OK;
}

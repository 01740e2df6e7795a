/* server_frame.c - turns a worker's frame into a contribution, and checks its form. The aggregator checks it against
 * the round. */
#include "engine/aggregate/summation.h"
#include "engine/server/relay.h"
#include "engine/server/server_sum.h"

trib_contribution trib_server_contribution(const trib_server_sum *sum, const trib_link *link, const trib_frame *frame)
{
    /* The aggregator sums a shard of a device tensor like any other tensor. Its root is a machine. */
    const bool is_shard = sum->level == TRIB_SUM_SHARD;
    return (trib_contribution){
        .tensor = frame->tensor,
        .partition = frame->partition,
        .round = frame->round,
        .chunk = frame->chunk,
        .chunk_count = frame->chunk_count,
        .size = frame->type == TRIB_FRAME_PUSH ? frame->size : 0,
        .contributor = (link->peer - sum->rank_first) / sum->rank_step,
        .priority = frame->priority,
        .collective = frame->collective == TRIB_COLLECTIVE_DEVICE_BROADCAST ? TRIB_COLLECTIVE_BROADCAST
                      : is_shard                                            ? TRIB_COLLECTIVE_ALL_REDUCE
                                 : (trib_collective)(frame->collective & ~TRIB_COLLECTIVE_PARTIAL),
        .dtype = (trib_dtype)frame->dtype,
        .reduce = (trib_reduce)frame->reduce,
        .root = is_shard ? trib_device_root_machine(frame->root) : frame->root,
        .step = frame->step,
        .round_base = trib_server_rounds_over(sum->core, frame->tensor),
        .owner = trib_server_sum_is_near(sum) ? trib_relay_frame_owner(frame) : 0,
    };
}

static bool is_root_known(const trib_roster *roster, const trib_frame *frame)
{
    const uint32_t local_size = trib_device_root_local_size(frame->root),
                   machine = trib_device_root_machine(frame->root);
    return frame->collective < TRIB_COLLECTIVE_DEVICE_ALL_REDUCE || trib_frame_is_partial(frame)
               ? frame->root < roster->worker_count
               : local_size > 0 && machine < (roster->worker_count + local_size - 1) / local_size &&
                     (machine == 0 || frame->collective == TRIB_COLLECTIVE_DEVICE_BROADCAST);
}

/* Bytes of payload that a PUSH must carry. The frame's other fields have been checked. */
static uint32_t expected_payload(const trib_link *link, const trib_frame *frame)
{
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

trib_status trib_server_check_operation(const trib_link *link, const trib_frame *frame, trib_error *error)
{
    const trib_roster *roster = link->core->engine->roster;
    const unsigned collective_max = trib_frame_is_partial(frame) ? TRIB_COLLECTIVE_PARTIAL | TRIB_COLLECTIVE_BROADCAST
                                                                 : TRIB_COLLECTIVE_DEVICE_BROADCAST;
    if (frame->collective > collective_max || frame->collective == TRIB_COLLECTIVE_DEVICE_ALONE ||
        (trib_frame_is_partial(frame) && roster->local_size == 0) || trib_dtype_size((trib_dtype)frame->dtype) == 0 ||
        frame->reduce >= TRIB_REDUCE_COUNT || !is_root_known(roster, frame)) {
        return trib_error_set(error, TRIB_PROTOCOL, "malformed %s from %s", trib_frame_name(frame->type),
                              trib_roster_name(roster, link->peer));
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
    uint32_t expected = expected_payload(link, frame);
    if (frame->payload_size != expected) {
        return trib_error_set(error, TRIB_PROTOCOL, "PUSH from %s carries %u bytes, expected %u",
                              trib_roster_name(roster, link->peer), frame->payload_size, expected);
    }
    return TRIB_OK;
}

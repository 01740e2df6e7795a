/* server_frame.c - what a worker's frame says, and whether it may. What it means is checked by summation.c. */
#include "engine/server/relay.h"
#include "engine/server/server_lane.h"

trib_contribution trib_server_contribution(const trib_link *link, const trib_frame *frame)
{
    /* A share of a device tensor is summed as any other tensor; who contributes to it are the machines. */
    const bool shared = trib_exchange_is_shared(frame->exchange);
    const trib_core *core = link->core;
    const bool is_part = trib_frame_is_part(frame), is_near = !shared && !is_part && core->relay != NULL;
    const uint32_t step = shared    ? trib_device_root_lanes(frame->root)
                          : is_part ? core->engine->roster->local_ranks
                                    : 1;
    return (trib_contribution){
        .tensor = frame->tensor,
        .partition = frame->partition,
        .round = frame->round,
        .chunk = frame->chunk,
        .chunk_count = frame->chunk_count,
        .size = frame->type == TRIB_FRAME_PUSH ? frame->size : 0,
        .contributor = (is_near ? link->peer - core->first_rank : link->peer) / step,
        .priority = frame->priority,
        .exchange = frame->exchange == TRIB_EXCHANGE_DEVICE_BROADCAST ? TRIB_EXCHANGE_BROADCAST
                    : shared                                          ? TRIB_EXCHANGE_PUSH_PULL
                             : (trib_exchange)(frame->exchange & ~TRIB_EXCHANGE_MACHINES),
        .dtype = (trib_dtype)frame->dtype,
        .reduce = (trib_reduce)frame->reduce,
        .root = shared ? trib_device_root_machine(frame->root) : frame->root,
        .owner = is_near ? trib_relay_frame_owner(frame) : 0,
    };
}

static bool is_root_known(const trib_roster *roster, const trib_frame *frame)
{
    const uint32_t lanes = trib_device_root_lanes(frame->root), machine = trib_device_root_machine(frame->root);
    return frame->exchange < TRIB_EXCHANGE_DEVICE || trib_frame_is_part(frame)
               ? frame->root < roster->worker_count
               : lanes > 0 && machine < (roster->worker_count + lanes - 1) / lanes &&
                     (machine == 0 || frame->exchange == TRIB_EXCHANGE_DEVICE_BROADCAST);
}

/* What a PUSH should bring; the frame is otherwise sound. */
static uint32_t expected_payload(const trib_link *link, const trib_frame *frame)
{
    if (frame->exchange == TRIB_EXCHANGE_DEVICE_BROADCAST) {
        return trib_device_root_machine(frame->root) == link->peer / trib_device_root_lanes(frame->root) ? frame->size
                                                                                                         : 0;
    }
    const bool is_part = trib_frame_is_part(frame);
    const uint32_t step = is_part ? link->core->engine->roster->local_ranks : 1;
    const trib_contribution what = {.size = frame->size,
                                    .exchange = (trib_exchange)(frame->exchange & ~TRIB_EXCHANGE_MACHINES),
                                    .dtype = (trib_dtype)frame->dtype,
                                    .reduce = (trib_reduce)frame->reduce};
    if (what.exchange == TRIB_EXCHANGE_BROADCAST) {
        return frame->root / step == link->peer / step ? frame->size : 0;
    }
    return is_part ? trib_sum_part_bytes(&what) : frame->size;
}

trib_status trib_server_check_push(const trib_link *link, const trib_frame *frame, trib_error *error)
{
    const trib_roster *roster = link->core->engine->roster;
    size_t element = trib_dtype_size((trib_dtype)frame->dtype);
    const unsigned exchange_max =
        trib_frame_is_part(frame) ? TRIB_EXCHANGE_MACHINES | TRIB_EXCHANGE_BROADCAST : TRIB_EXCHANGE_DEVICE_BROADCAST;
    if (frame->exchange > exchange_max || frame->exchange == TRIB_EXCHANGE_DEVICE_ALONE ||
        (trib_frame_is_part(frame) && roster->local_ranks == 0) || element == 0 || frame->reduce >= TRIB_REDUCE_COUNT ||
        !is_root_known(roster, frame) || frame->size > roster->chunk_bytes || frame->size % element != 0) {
        return trib_error_set(error, TRIB_PROTOCOL, "malformed PUSH from %s", trib_roster_name(roster, link->peer));
    }
    uint32_t expected = expected_payload(link, frame);
    if (frame->payload_size != expected) {
        return trib_error_set(error, TRIB_PROTOCOL, "PUSH from %s carries %u bytes, expected %u",
                              trib_roster_name(roster, link->peer), frame->payload_size, expected);
    }
    return TRIB_OK;
}

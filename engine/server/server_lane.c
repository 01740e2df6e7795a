/* server_lane.c - see server_lane.h. */
#include "engine/server/server_lane.h"

#include <stdlib.h>

#include "engine/device/device.h"
#include "engine/server/relay.h"
#include "engine/server/server_machine.h"
#include "engine/core/core_trace.h"

static uint32_t rank_of(const trib_server_lane *lane, uint32_t machine)
{
    return machine * lane->core->lane_count + lane->lane;
}

static void lane_sum_ready(void *user, uint32_t machine, const trib_contribution *what, trib_sum_buffer *sum)
{
    const trib_server_lane *lane = user;
    trib_server_hand_out(lane->core, lane->summation, rank_of(lane, machine), what, sum);
}

static void lane_refused(void *user, uint32_t machine, const trib_contribution *what, trib_status status,
                         const char *text)
{
    const trib_server_lane *lane = user;
    trib_trace_sum(lane->core, TRIB_TRACE_SUM_REFUSED, what, rank_of(lane, machine), (uint32_t)status);
    const trib_frame extra = {.type = TRIB_FRAME_REFUSED, .aux = (uint32_t)status};
    trib_server_notice(lane->core, &extra, rank_of(lane, machine), what, text);
}

static void lane_stalled(void *user, uint32_t machine, const trib_contribution *what, uint32_t missing,
                         uint32_t missing_count)
{
    (void)missing_count;
    const trib_server_lane *lane = user;
    const uint32_t rank = rank_of(lane, missing);
    const trib_frame extra = {
        .type = TRIB_FRAME_STALL, .aux = rank, .chunk = trib_server_stall_chunk(lane->core, rank)};
    trib_server_notice(lane->core, &extra, rank_of(lane, machine), what, NULL);
}

static bool lane_is_gone(void *user, const trib_contribution *what, char *text, size_t size)
{
    const trib_server_lane *lane = user;
    return trib_server_is_gone(lane->core, rank_of(lane, what->contributor), what->round, text, size);
}

static void *lane_buffer_alloc(void *user, size_t size)
{
    const trib_server_lane *lane = user;
    return trib_server_buffer_alloc(lane->core, size);
}

static void lane_buffer_free(void *user, void *buffer, size_t size)
{
    const trib_server_lane *lane = user;
    trib_server_buffer_free(lane->core, buffer, size);
}

static trib_status open_lane(trib_server_lane *lane)
{
    const trib_roster *roster = lane->core->engine->roster;
    const trib_summation_config config = {
        .reactor = lane->core->reactor,
        .kernels = lane->core->engine->env.kernels,
        .order = roster->sum_order,
        .contributor_count = roster->worker_count / lane->core->lane_count,
        .weight = lane->core->lane_count,
        .chunk_bytes = roster->chunk_bytes,
        .buffer_alloc = lane_buffer_alloc,
        .buffer_free = lane_buffer_free,
        .sum_ready = lane_sum_ready,
        .refused = lane_refused,
        .user = lane,
    };
    return trib_summation_create(&config, &lane->summation);
}

trib_status trib_server_find_summation(trib_link *link, const trib_frame *frame, trib_summation **out,
                                       trib_error *error)
{
    trib_core *core = link->core;
    if ((frame->exchange & TRIB_EXCHANGE_MACHINES) != 0) {
        *out = core->machines;
        return trib_machines_check(link, frame, error);
    }
    *out = core->summation;
    if (!trib_exchange_is_shared(frame->exchange)) {
        return core->engine->roster->local_ranks > 0 ? trib_relay_check(link, frame, error) : TRIB_OK;
    }
    const trib_roster *roster = core->engine->roster;
    const uint32_t lanes = trib_device_root_lanes(frame->root);
    if (lanes == 0 || lanes > TRIB_LOCAL_SIZE_MAX || roster->worker_count % lanes != 0 ||
        (core->lanes != NULL && core->lane_count != lanes)) {
        return trib_error_set(error, TRIB_PROTOCOL,
                              "%s says that machines have %u local ranks each, others say %u: local_size must be the "
                              "same everywhere and divide worker_count (%u)",
                              trib_roster_name(roster, link->peer), lanes, core->lane_count, roster->worker_count);
    }
    if (core->lanes == NULL) {
        core->lanes = trib_core_zalloc(core, lanes * sizeof *core->lanes);
        if (core->lanes == NULL) {
            return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for the server");
        }
        core->lane_count = lanes;
    }
    trib_server_lane *lane = &core->lanes[link->peer % lanes];
    lane->core = core;
    lane->lane = link->peer % lanes;
    trib_status status = lane->summation != NULL ? TRIB_OK : open_lane(lane);
    *out = lane->summation;
    return status == TRIB_OK ? TRIB_OK : trib_error_set(error, status, "out of memory for the server");
}

bool trib_server_lanes_owe(const trib_core *core)
{
    for (uint32_t i = 0; i < core->lane_count; i++) {
        const trib_summation *summation = core->lanes[i].summation;
        if (summation != NULL &&
            trib_summation_owes(summation, core->engine->member_id / core->lane_count, lane_is_gone)) {
            return true;
        }
    }
    return false;
}

void trib_server_lanes_tick(trib_core *core)
{
    for (uint32_t i = 0; i < core->lane_count; i++) {
        if (core->lanes[i].summation != NULL) {
            trib_server_look_at(core, core->lanes[i].summation, lane_is_gone, lane_stalled);
        }
    }
}

void trib_server_lanes_close(trib_core *core)
{
    for (uint32_t i = 0; i < core->lane_count; i++) {
        trib_summation_destroy(core->lanes[i].summation);
    }
    free(core->lanes);
    core->lanes = NULL;
    core->lane_count = 0;
}

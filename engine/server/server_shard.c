/* server_shard.c - see server_shard.h. */
#include "engine/server/server_shard.h"

#include <stdlib.h>

#include "engine/server/relay.h"
#include "engine/server/host_sum.h"
#include "engine/core/core_trace.h"

static uint32_t rank_of(const trib_server_shard *shard, uint32_t machine)
{
    return machine * shard->core->shard_count + shard->local_rank;
}

static void shard_sum_ready(void *user, uint32_t machine, const trib_contribution *what, trib_sum_buffer *sum)
{
    const trib_server_shard *shard = user;
    trib_server_hand_out(shard->core, shard->summation, rank_of(shard, machine), what, sum);
}

static void shard_refused(void *user, uint32_t machine, const trib_contribution *what, trib_status status,
                          const char *text)
{
    const trib_server_shard *shard = user;
    trib_trace_sum(shard->core, TRIB_TRACE_SUM_REFUSED, what, rank_of(shard, machine), (uint32_t)status);
    const trib_frame extra = {.type = TRIB_FRAME_REFUSED, .aux = (uint32_t)status};
    trib_server_notice(shard->core, &extra, rank_of(shard, machine), what, text);
}

static void shard_stalled(void *user, uint32_t machine, const trib_contribution *what, uint32_t missing,
                          uint32_t missing_count)
{
    (void)missing_count;
    const trib_server_shard *shard = user;
    const uint32_t rank = rank_of(shard, missing);
    const trib_frame extra = {
        .type = TRIB_FRAME_STALL, .aux = rank, .chunk = trib_server_stall_chunk(shard->core, rank)};
    trib_server_notice(shard->core, &extra, rank_of(shard, machine), what, NULL);
}

static bool shard_is_gone(void *user, const trib_contribution *what, char *text, size_t size)
{
    const trib_server_shard *shard = user;
    return trib_server_is_gone(shard->core, rank_of(shard, what->contributor), what->round, text, size);
}

static void *shard_buffer_alloc(void *user, size_t size)
{
    const trib_server_shard *shard = user;
    return trib_server_buffer_alloc(shard->core, size);
}

static void shard_buffer_free(void *user, void *buffer, size_t size)
{
    const trib_server_shard *shard = user;
    trib_server_buffer_free(shard->core, buffer, size);
}

static trib_status open_shard(trib_server_shard *shard)
{
    const trib_roster *roster = shard->core->engine->roster;
    const trib_summation_config config = {
        .reactor = shard->core->reactor,
        .kernels = shard->core->engine->env.kernels,
        .order = roster->sum_order,
        .contributor_count = roster->worker_count / shard->core->shard_count,
        .weight = shard->core->shard_count,
        .chunk_bytes = roster->chunk_bytes,
        .buffer_alloc = shard_buffer_alloc,
        .buffer_free = shard_buffer_free,
        .sum_ready = shard_sum_ready,
        .refused = shard_refused,
        .user = shard,
    };
    return trib_summation_create(&config, &shard->summation);
}

trib_status trib_server_find_summation(trib_link *link, const trib_frame *frame, trib_summation **out,
                                       trib_error *error)
{
    trib_core *core = link->core;
    if ((frame->collective & TRIB_COLLECTIVE_PARTIAL) != 0) {
        *out = core->host_sums;
        return trib_host_sum_check(link, frame, error);
    }
    *out = core->summation;
    if (!trib_collective_is_sharded(frame->collective)) {
        return core->engine->roster->local_size > 0 ? trib_relay_check(link, frame, error) : TRIB_OK;
    }
    const trib_roster *roster = core->engine->roster;
    const uint32_t local_size = trib_device_root_local_size(frame->root);
    if (local_size == 0 || local_size > TRIB_LOCAL_SIZE_MAX || roster->worker_count % local_size != 0 ||
        (core->shards != NULL && core->shard_count != local_size)) {
        return trib_error_set(error, TRIB_PROTOCOL,
                              "%s says that machines have %u local ranks each, others say %u: local_size must be the "
                              "same everywhere and divide worker_count (%u)",
                              trib_roster_name(roster, link->peer), local_size, core->shard_count,
                              roster->worker_count);
    }
    if (core->shards == NULL) {
        core->shards = trib_core_zalloc(core, local_size * sizeof *core->shards);
        if (core->shards == NULL) {
            return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for the server");
        }
        core->shard_count = local_size;
    }
    trib_server_shard *shard = &core->shards[link->peer % local_size];
    shard->core = core;
    shard->local_rank = link->peer % local_size;
    trib_status status = shard->summation != NULL ? TRIB_OK : open_shard(shard);
    *out = shard->summation;
    return status == TRIB_OK ? TRIB_OK : trib_error_set(error, status, "out of memory for the server");
}

bool trib_server_shards_owe(const trib_core *core)
{
    for (uint32_t i = 0; i < core->shard_count; i++) {
        const trib_summation *summation = core->shards[i].summation;
        if (summation != NULL &&
            trib_summation_owes(summation, core->engine->member_id / core->shard_count, shard_is_gone)) {
            return true;
        }
    }
    return false;
}

void trib_server_shards_tick(trib_core *core)
{
    for (uint32_t i = 0; i < core->shard_count; i++) {
        if (core->shards[i].summation != NULL) {
            trib_server_scan_summation(core, core->shards[i].summation, shard_is_gone, shard_stalled);
        }
    }
}

void trib_server_shards_close(trib_core *core)
{
    for (uint32_t i = 0; i < core->shard_count; i++) {
        trib_summation_destroy(core->shards[i].summation);
    }
    free(core->shards);
    core->shards = NULL;
    core->shard_count = 0;
}

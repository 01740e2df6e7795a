/* server_sum.c - opens the aggregators of a core, finds the one for a frame, and answers their upcalls
 * (server_sum.h). */
#include "engine/server/server_sum.h"

#include <stdlib.h>
#include <string.h>

#include "engine/aggregate/summation.h"
#include "engine/base/assert.h"
#include "engine/server/relay.h"

#define STALL_NOTICES_MAX 256u
#define SUMS_MAX (TRIB_SUM_SHARD + TRIB_LOCAL_SIZE_MAX)

/* ---- Contributors and ranks ---- */

uint32_t trib_server_sum_contributor(const trib_server_sum *sum, uint32_t rank, const trib_frame *frame)
{
    switch (sum->level) {
    case TRIB_SUM_PAIR:
        return trib_pair_sender(trib_relay_frame_owner(frame)) == rank ? 0 : 1;
    case TRIB_SUM_GROUP:
        return trib_rank_set_index(sum->ranks, rank);
    default:
        return (rank - sum->rank_first) / sum->rank_step;
    }
}

uint32_t trib_server_sum_rank(const trib_server_sum *sum, uint32_t contributor, const trib_contribution *what)
{
    if (sum->level == TRIB_SUM_PAIR) {
        return contributor == 0 ? trib_pair_sender(what->owner) : trib_pair_receiver(what->owner);
    }
    if (sum->level == TRIB_SUM_GROUP) {
        return sum->ranks->ranks[contributor];
    }
    const trib_engine *engine = sum->core->engine;
    const uint32_t place = sum->level == TRIB_SUM_HOST
                               ? trib_relay_local_rank(engine->roster, engine->member_id, what->partition)
                               : sum->place;
    return sum->rank_first + contributor * sum->rank_step + place;
}

/* Returns a number that no contributor has if this process is none of them. The giver of a pair is done only when the
 * taker has everything; the taker may have its bytes earlier. */
static uint32_t own_contributor(const trib_server_sum *sum)
{
    const uint32_t me = sum->core->engine->member_id;
    switch (sum->level) {
    case TRIB_SUM_PAIR:
        return 1;
    case TRIB_SUM_GROUP:
        return trib_rank_set_index(sum->ranks, me);
    case TRIB_SUM_SHARD:
        if (me < sum->core->engine->roster->worker_count && me % sum->rank_step != sum->place) {
            return TRIB_SUM_FOR_OTHERS;
        }
        return me / sum->rank_step;
    default:
        return (me - sum->rank_first) / sum->rank_step;
    }
}

static uint32_t rank_of(void *user, const trib_contribution *what, uint32_t contributor)
{
    return trib_server_sum_rank(user, contributor, what);
}

/* ---- Upcalls of aggregators ---- */

/* A worker joins when it waits for nothing. The relay of a machine whose workers have all joined may still wait for
 * rounds that they have given up. */
static bool is_deaf(const trib_server_sum *sum, uint32_t receiver, const trib_contribution *what)
{
    return sum->level != TRIB_SUM_HOST && trib_server_has_joined(sum, receiver, what);
}

static void sum_ready(void *user, uint32_t receiver, const trib_contribution *what, trib_sum_buffer *buffer)
{
    trib_server_sum *sum = user;
    if (is_deaf(sum, receiver, what)) {
        sum->aggregator->ops->sent(sum->aggregator, buffer);
        return;
    }
    trib_server_hand_out(sum, trib_server_sum_rank(sum, receiver, what), what, buffer);
}

static trib_frame notice_of(const trib_server_sum *sum, trib_frame_type type, uint32_t aux)
{
    return (trib_frame){
        .type = type, .aux = aux, .collective = sum->level == TRIB_SUM_HOST ? TRIB_COLLECTIVE_PARTIAL : 0};
}

static void round_refused(void *user, uint32_t receiver, const trib_contribution *what, trib_status status,
                          const char *text)
{
    const trib_server_sum *sum = user;
    trib_assert(receiver < sum->count && status != TRIB_OK);
    const uint32_t rank = trib_server_sum_rank(sum, receiver, what);
    if (is_deaf(sum, receiver, what)) {
        return;
    }
    const trib_frame extra = notice_of(sum, TRIB_FRAME_REFUSED, (uint32_t)status);
    trib_server_trace_chunk(sum, TRIB_TRACE_SUM_REFUSED, what, rank, (uint32_t)status);
    trib_server_notice(sum->core, &extra, rank, what, text);
}

/* Turns missing contributors into ranks, a machine into all of its own. Returns NULL for a single rank, which the
 * notice names. */
static const unsigned char *list_ranks(const trib_server_sum *sum, const trib_contribution *what,
                                       const trib_missing *missing, unsigned char ranks[TRIB_RANK_BITS_BYTES])
{
    memset(ranks, 0, TRIB_RANK_BITS_BYTES);
    const uint32_t each = sum->level == TRIB_SUM_HOST ? sum->rank_step : 1;
    const bool are_several = missing->count * each > 1;
    for (uint32_t i = 0; i < sum->count && are_several; i++) {
        const uint32_t first = each > 1 ? sum->rank_first + i * each : trib_server_sum_rank(sum, i, what);
        for (uint32_t place = 0; place < each && trib_rank_bits_has(missing->bits, i); place++) {
            trib_rank_bits_put(ranks, first + place, true);
        }
    }
    return are_several ? ranks : NULL;
}

/* The missing contributor of TRIB_SUM_HOST is a whole machine, any of whose workers may be the missing one. The
 * notice's root says so. */
static void round_stalled(void *user, uint32_t receiver, const trib_contribution *what, const trib_missing *missing)
{
    const trib_server_sum *sum = user;
    trib_assert(receiver < sum->count && missing->lowest < sum->count);
    unsigned char ranks[TRIB_RANK_BITS_BYTES];
    const unsigned char *list = list_ranks(sum, what, missing, ranks);
    const uint32_t missing_rank = trib_server_sum_rank(sum, missing->lowest, what);
    trib_frame extra = notice_of(sum, TRIB_FRAME_STALL, missing_rank);
    extra.root = sum->level == TRIB_SUM_HOST;
    extra.chunk = trib_server_stall_chunk(sum->core, missing_rank);
    trib_server_notice_stall(sum->core, &extra, trib_server_sum_rank(sum, receiver, what), what, list);
    if (trib_server_sum_is_near(sum)) {
        trib_relay_stalled(sum->core, what, &extra, list);
    }
}

/* A machine contributes only through its relay. While the relay has a link, another of its frames may come, so the
 * machine is not gone. */
static bool is_gone(void *user, const trib_contribution *what, char *text, size_t size)
{
    const trib_server_sum *sum = user;
    const uint32_t rank = trib_server_sum_rank(sum, what->contributor, what);
    return (sum->level != TRIB_SUM_HOST || sum->core->worker_links[rank] == NULL) &&
           trib_server_is_gone(sum->core, rank, what->round, text, size);
}

/* True if no worker of the contributor can hear anything any more. A relay keeps its link while a worker is owed
 * something. This core's link to itself ends only when all links close, and other members wait for this one. So a
 * machine whose workers have all left counts too. */
static bool has_left(void *user, const trib_contribution *what, char *text, size_t size)
{
    const trib_server_sum *sum = user;
    trib_assert(what->contributor < sum->count);
    const uint32_t first = sum->rank_first + what->contributor * sum->rank_step;
    bool all_left = sum->level == TRIB_SUM_HOST;
    for (uint32_t i = 0; i < sum->rank_step && all_left; i++) {
        all_left = trib_server_is_gone(sum->core, first + i, what->round, text, size);
    }
    return all_left || is_gone(user, what, text, size);
}

static void *buffer_alloc(void *user, size_t size)
{
    const trib_server_sum *sum = user;
    trib_counter_add(&sum->core->stats.allocations, 1);
    return sum->core->engine->env.memory_alloc(sum->core->engine->env.memory, size);
}

static void buffer_free(void *user, void *buffer, size_t size)
{
    (void)size;
    const trib_server_sum *sum = user;
    sum->core->engine->env.memory_free(sum->core->engine->env.memory, buffer);
}

/* ---- All aggregators of a core ---- */

trib_server_sum *trib_server_sums_next(const trib_core *core, const trib_server_sum *sum)
{
    if (core->sums == NULL) {
        return NULL;
    }
    if (sum != NULL && sum->level == TRIB_SUM_GROUP) {
        return sum->next;
    }
    const size_t index = sum == NULL ? 0 : (size_t)(sum - core->sums) + 1;
    return index < core->sum_count ? &core->sums[index] : core->group_sum_list;
}

void trib_server_sum_refuse_gone(trib_server_sum *sum)
{
    if (trib_departed_any(&sum->core->engine->departed)) {
        sum->aggregator->ops->refuse_gone(sum->aggregator, is_gone);
    }
}

void trib_server_sums_scan(trib_core *core)
{
    for (trib_server_sum *sum = NULL; (sum = trib_server_sums_next(core, sum)) != NULL;) {
        trib_aggregator *aggregator = sum->aggregator;
        if (aggregator != NULL) {
            trib_server_sum_refuse_gone(sum);
            aggregator->ops->scan(aggregator, TRIB_STALL_NOTICE_NS, STALL_NOTICES_MAX, round_stalled);
        }
    }
}

bool trib_server_sums_owe(const trib_core *core)
{
    for (const trib_server_sum *sum = NULL; (sum = trib_server_sums_next(core, sum)) != NULL;) {
        const trib_aggregator *aggregator = sum->aggregator;
        if (aggregator != NULL && aggregator->ops->owes(aggregator, own_contributor(sum), has_left)) {
            return true;
        }
    }
    return false;
}

typedef struct stall_note {
    const trib_server_sum *sum;
    uint32_t missing_rank, chunk;
    const unsigned char *list; /* as of trib_server_notice_stall */
} stall_note;

static void pass_on_stall(void *user, uint32_t machine, const trib_contribution *what)
{
    const stall_note *note = user;
    trib_frame extra = notice_of(note->sum, TRIB_FRAME_STALL, note->missing_rank);
    extra.chunk = note->chunk;
    if (machine != note->missing_rank / note->sum->rank_step) {
        const uint32_t rank = trib_server_sum_rank(note->sum, machine, what);
        trib_server_notice_stall(note->sum->core, &extra, rank, what, note->list);
    }
}

void trib_server_sum_take_stall(trib_server_sum *sum, const trib_contribution *what, const trib_frame *report,
                                const void *payload)
{
    stall_note note = {.sum = sum,
                       .missing_rank = report->aux,
                       .chunk = report->chunk,
                       .list = report->payload_size > 0 ? payload : NULL};
    sum->aggregator->ops->each_waiting(sum->aggregator, what, pass_on_stall, &note);
}

/* ---- The aggregator of a frame ---- */

trib_status trib_server_open_sum(trib_server_sum *sum)
{
    trib_assert(sum->aggregator == NULL && sum->count > 0 && sum->count <= TRIB_CONTRIBUTORS_MAX);
    const trib_core *core = sum->core;
    const trib_roster *roster = core->engine->roster;
    const bool is_near = trib_server_sum_is_near(sum), is_host = sum->level == TRIB_SUM_HOST;
    const uint32_t me = core->engine->member_id;
    trib_summation_config config = {
        .reactor = core->reactor,
        .kernels = core->engine->env.kernels,
        .order = roster->sum_order,
        .contributor_count = sum->count,
        .weight = sum->rank_step,
        .chunk_bytes = roster->chunk_bytes,
        .buffer_alloc = buffer_alloc,
        .buffer_free = buffer_free,
        .sum_ready = sum_ready,
        .encode = trib_server_codec_encode,
        .refused = round_refused,
        .user = sum,
        .takes_partials = is_host,
    };
    if (is_near || is_host) { /* a root is a rank of the job at this level, and a machine at the level of shards */
        config.rank_first = sum->rank_first;
        config.rank_step = sum->rank_step;
        config.rank_limit = roster->worker_count;
    }
    if (is_near) {
        config.partial_ready = trib_relay_partial_ready;
        config.round_refused = trib_relay_round_refused;
    }
    if (sum->level == TRIB_SUM_PAIR || sum->level == TRIB_SUM_GROUP) {
        config.rank_of = rank_of;
    }
    config.fills_absent = sum->level == TRIB_SUM_RANK || is_host;
    if (sum->level == TRIB_SUM_RANK) {
        config.may_jump = roster->follows || is_near; /* of a machine whose workers have joined, nothing comes */
        /* The worker in this process receives last, because its sums need no network. */
        config.receiver_last = me < roster->worker_count ? own_contributor(sum) + 1 : 0;
    }
    trib_summation *summation = NULL;
    const trib_status status = trib_summation_create(&config, &summation);
    sum->aggregator = status == TRIB_OK ? trib_sum_aggregator(summation) : NULL;
    return status;
}

static trib_status find_shard(const trib_link *link, const trib_frame *frame, trib_server_sum **sum_out,
                              trib_error *error)
{
    trib_core *core = link->core;
    const trib_roster *roster = core->engine->roster;
    const uint32_t local_size = trib_device_root_local_size(frame->root), known = core->sum_count - TRIB_SUM_SHARD;
    if (local_size == 0 || local_size > TRIB_LOCAL_SIZE_MAX || roster->worker_count % local_size != 0 ||
        (known > 0 && known != local_size)) {
        return trib_error_set(error, TRIB_PROTOCOL,
                              "%s says that machines have %u local ranks each, others say %u: local_size must be the "
                              "same everywhere and divide worker_count (%u)",
                              trib_roster_name(roster, link->peer), local_size, known, roster->worker_count);
    }
    for (uint32_t i = known; i < local_size; i++) {
        trib_assert(core->sum_count < SUMS_MAX);
        core->sums[core->sum_count++] = (trib_server_sum){.core = core,
                                                          .level = TRIB_SUM_SHARD,
                                                          .rank_step = local_size,
                                                          .count = roster->worker_count / local_size,
                                                          .place = i};
    }
    trib_server_sum *sum = &core->sums[TRIB_SUM_SHARD + link->peer % local_size];
    *sum_out = sum;
    return sum->aggregator != NULL || trib_server_open_sum(sum) == TRIB_OK
               ? TRIB_OK
               : trib_error_set(error, TRIB_NO_MEMORY, "out of memory for the server");
}

static trib_status find_pair(const trib_link *link, trib_server_sum **sum_out, trib_error *error)
{
    trib_server_sum *sum = &link->core->sums[TRIB_SUM_PAIR];
    *sum_out = sum;
    return sum->aggregator != NULL || trib_server_open_sum(sum) == TRIB_OK
               ? TRIB_OK
               : trib_error_set(error, TRIB_NO_MEMORY, "out of memory for the server");
}

static trib_status check_host(const trib_link *link, const trib_frame *frame, trib_error *error)
{
    const trib_core *core = link->core;
    const trib_roster *roster = core->engine->roster;
    if (core->sums[TRIB_SUM_HOST].aggregator == NULL ||
        trib_relay_rank(roster, link->peer, core->engine->member_id, frame->partition) != link->peer) {
        return trib_error_set(error, TRIB_PROTOCOL, "%s from %s, which does not speak for its machine here",
                              trib_frame_name(frame->type), trib_roster_name(roster, link->peer));
    }
    return TRIB_OK;
}

trib_status trib_server_find_sum(const trib_link *link, const trib_frame *frame, trib_server_sum **sum_out,
                                 trib_error *error)
{
    const trib_core *core = link->core;
    if (trib_frame_is_partial(frame)) {
        *sum_out = &core->sums[TRIB_SUM_HOST];
        return check_host(link, frame, error);
    }
    if (trib_collective_is_sharded(frame->collective)) {
        return find_shard(link, frame, sum_out, error);
    }
    if (frame->group > 0) {
        return trib_server_find_group(link, frame, sum_out, error);
    }
    if (frame->collective == TRIB_COLLECTIVE_PAIR) {
        return find_pair(link, sum_out, error);
    }
    *sum_out = &core->sums[TRIB_SUM_RANK];
    return core->engine->roster->local_size > 0 ? trib_relay_check(link, frame, error) : TRIB_OK;
}

/* ---- Opening and closing ---- */

trib_status trib_server_sums_open(trib_core *core)
{
    const trib_roster *roster = core->engine->roster;
    const uint32_t me = core->engine->member_id, local_size = roster->local_size;
    const bool relays = local_size > 0 && me < roster->worker_count;
    trib_assert(core->sums == NULL && core->sum_count == 0 && core->group_sum_list == NULL);
    trib_assert(local_size == 0 || roster->worker_count % local_size == 0);
    if (relays && trib_relay_open(core) != TRIB_OK) {
        return TRIB_NO_MEMORY;
    }
    core->sums = trib_core_zalloc(core, SUMS_MAX * sizeof *core->sums);
    if (core->sums == NULL) {
        return TRIB_NO_MEMORY;
    }
    core->sum_count = TRIB_SUM_SHARD;
    core->sums[TRIB_SUM_RANK] = (trib_server_sum){.core = core,
                                                  .level = TRIB_SUM_RANK,
                                                  .rank_first = relays ? me / local_size * local_size : 0,
                                                  .rank_step = 1,
                                                  .count = relays ? local_size : roster->worker_count};
    core->sums[TRIB_SUM_HOST] = (trib_server_sum){.core = core, .level = TRIB_SUM_HOST, .rank_step = 1};
    core->sums[TRIB_SUM_PAIR] = (trib_server_sum){.core = core, .level = TRIB_SUM_PAIR, .rank_step = 1, .count = 2};
    trib_status status = trib_server_open_sum(&core->sums[TRIB_SUM_RANK]);
    if (status == TRIB_OK && local_size > 0 && roster->members[me].sums) {
        core->sums[TRIB_SUM_HOST].rank_step = local_size;
        core->sums[TRIB_SUM_HOST].count = roster->worker_count / local_size;
        status = trib_server_open_sum(&core->sums[TRIB_SUM_HOST]);
    }
    if (status != TRIB_OK) {
        trib_server_sums_close(core);
    }
    return status;
}

void trib_server_sums_close(trib_core *core)
{
    for (trib_server_sum *sum = NULL; (sum = trib_server_sums_next(core, sum)) != NULL;) {
        if (sum->aggregator != NULL) {
            sum->aggregator->ops->destroy(sum->aggregator);
        }
    }
    trib_assert(core->group_sums != NULL || core->group_sum_list == NULL);
    while (core->group_sum_list != NULL) {
        trib_server_sum *sum = core->group_sum_list;
        core->group_sum_list = sum->next;
        trib_rank_set_unref(sum->ranks);
        free(sum);
    }
    free(core->group_sums);
    core->group_sums = NULL;
    free(core->sums);
    core->sums = NULL;
    core->sum_count = 0;
    trib_relay_close(core);
}

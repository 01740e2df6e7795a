/* host_sum.c - see host_sum.h. */
#include "engine/server/host_sum.h"

#include "engine/server/relay.h"
#include "engine/server/server_shard.h"
#include "engine/core/core_trace.h"

static uint32_t relay_of(const trib_core *core, uint32_t machine, const trib_contribution *what)
{
    const trib_roster *roster = core->engine->roster;
    return trib_relay_rank(roster, machine * roster->local_size, core->engine->member_id, what->partition);
}

static void sum_ready(void *user, uint32_t machine, const trib_contribution *what, trib_sum_buffer *sum)
{
    trib_core *core = user;
    trib_server_hand_out(core, core->host_sums, relay_of(core, machine, what), what, sum);
}

static void refused(void *user, uint32_t machine, const trib_contribution *what, trib_status status, const char *text)
{
    trib_core *core = user;
    const uint32_t rank = relay_of(core, machine, what);
    const trib_frame extra = {
        .type = TRIB_FRAME_REFUSED, .aux = (uint32_t)status, .collective = TRIB_COLLECTIVE_PARTIAL};
    trib_trace_sum(core, TRIB_TRACE_SUM_REFUSED, what, rank, (uint32_t)status);
    trib_server_notice(core, &extra, rank, what, text);
}

/* root says that any worker of that machine may be meant. */
static void stalled(void *user, uint32_t machine, const trib_contribution *what, uint32_t missing,
                    uint32_t missing_count)
{
    (void)missing_count;
    trib_core *core = user;
    const uint32_t relay = relay_of(core, missing, what);
    const trib_frame extra = {.type = TRIB_FRAME_STALL,
                              .aux = relay,
                              .root = 1,
                              .chunk = trib_server_stall_chunk(core, relay),
                              .collective = TRIB_COLLECTIVE_PARTIAL};
    trib_server_notice(core, &extra, relay_of(core, machine, what), what, NULL);
}

/* Without its relay a machine has no say. */
static bool is_gone(void *user, const trib_contribution *what, char *text, size_t size)
{
    const trib_core *core = user;
    const uint32_t relay = relay_of(core, what->contributor, what);
    return core->worker_links[relay] == NULL && trib_server_is_gone(core, relay, what->round, text, size);
}

/* Nobody of that machine will hear anything any more. Its relay's link stays for as long as somebody is owed something: one
 * that this core has to itself goes when links are closed, and others wait for it in turn. */
static bool has_left(void *user, const trib_contribution *what, char *text, size_t size)
{
    const trib_core *core = user;
    const uint32_t local_size = core->engine->roster->local_size, first = what->contributor * local_size;
    bool all_left = true;
    for (uint32_t i = 0; i < local_size && all_left; i++) {
        all_left = trib_server_is_gone(core, first + i, what->round, text, size);
    }
    return all_left || is_gone(user, what, text, size);
}

typedef struct stall_note {
    trib_core *core;
    uint32_t missing_rank, chunk;
} stall_note;

static void pass_on_stall(void *user, uint32_t machine, const trib_contribution *what)
{
    const stall_note *note = user;
    const uint32_t rank = relay_of(note->core, machine, what);
    const trib_frame extra = {.type = TRIB_FRAME_STALL,
                              .aux = note->missing_rank,
                              .chunk = note->chunk,
                              .collective = TRIB_COLLECTIVE_PARTIAL};
    if (machine != note->missing_rank / note->core->engine->roster->local_size) {
        trib_server_notice(note->core, &extra, rank, what, NULL);
    }
}

void trib_host_sum_take_stall(trib_core *core, const trib_contribution *what, const trib_frame *report)
{
    stall_note note = {.core = core, .missing_rank = report->aux, .chunk = report->chunk};
    trib_summation_each_waiting(core->host_sums, what, pass_on_stall, &note);
}

void trib_host_sum_tick(trib_core *core)
{
    if (core->host_sums != NULL) {
        trib_server_scan_summation(core, core->host_sums, is_gone, stalled);
    }
}

bool trib_host_sum_owes(const trib_core *core)
{
    return core->host_sums != NULL &&
           trib_summation_owes(core->host_sums, core->engine->member_id / core->engine->roster->local_size, has_left);
}

trib_status trib_host_sum_check(const trib_link *link, const trib_frame *frame, trib_error *error)
{
    const trib_core *core = link->core;
    const trib_roster *roster = core->engine->roster;
    if (core->host_sums == NULL ||
        trib_relay_rank(roster, link->peer, core->engine->member_id, frame->partition) != link->peer) {
        return trib_error_set(error, TRIB_PROTOCOL, "%s from %s, which does not speak for its machine here",
                              trib_frame_name(frame->type), trib_roster_name(roster, link->peer));
    }
    return TRIB_OK;
}

trib_status trib_host_sum_open(trib_core *core)
{
    const trib_roster *roster = core->engine->roster;
    const trib_summation_config config = {
        .reactor = core->reactor,
        .kernels = core->engine->env.kernels,
        .order = roster->sum_order,
        .contributor_count = roster->worker_count / roster->local_size,
        .weight = roster->local_size,
        .chunk_bytes = roster->chunk_bytes,
        .buffer_alloc = trib_server_buffer_alloc,
        .buffer_free = trib_server_buffer_free,
        .sum_ready = sum_ready,
        .refused = refused,
        .user = core,
        .rank_step = roster->local_size,
        .rank_limit = roster->worker_count,
        .takes_partials = true,
    };
    return trib_summation_create(&config, &core->host_sums);
}

void trib_host_sum_close(trib_core *core)
{
    trib_summation_destroy(core->host_sums);
    core->host_sums = NULL;
}

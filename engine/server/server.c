/*
 * server.c - the server's side of one core: contributions arrive on links from workers, sums wait in their outboxes.
 *
 * The frames' lengths are checked here; what they mean is checked by summation.c.
 */
#include <stdlib.h>

#include "engine/base/assert.h"
#include "engine/link/link_cause.h"
#include "engine/core/wireup.h"
#include "engine/core/core.h"
#include "engine/server/relay.h"
#include "engine/server/server_shard.h"
#include "engine/server/host_sum.h"
#include "engine/core/core_trace.h"

/* Also what travels as the context of its send. */
struct trib_sum_entry {
    trib_send_request request; /* first */
    trib_core *core;
    trib_contribution what;
    trib_summation *summation; /* that the sum belongs to */
    trib_sum_buffer *sum;
    trib_sum_entry *next;
};

/* Does it sum for the workers of this machine first? */
static bool is_near(const trib_core *core, const trib_summation *summation)
{
    return core->relay != NULL && summation == core->summation;
}

static void trace_chunk(trib_core *core, const trib_summation *summation, trib_trace_kind kind,
                        const trib_contribution *what, uint32_t peer, uint32_t value)
{
    trib_trace_sum(core, is_near(core, summation) ? (trib_trace_kind)(kind + TRIB_TRACE_NEAR) : kind, what, peer,
                   value);
}

static void push_abandoned(trib_link *link, const trib_recv_claim *recv_claim)
{
    if (link->core->summation != NULL) {
        trib_summation_abandon(recv_claim->owner, recv_claim->what);
    }
}

static trib_status server_header(trib_link *link, const trib_frame *frame, trib_recv_target *target, trib_error *error)
{
    trib_core *core = link->core;
    if (core->summation == NULL) {
        return TRIB_AGAIN; /* the roster has not reached this process yet: trib_server_open resumes */
    }
    if (core->relay != NULL && !core->joined) {
        return TRIB_AGAIN; /* it cannot reach all owners yet: trib_server_resume */
    }
    if (frame->type == TRIB_FRAME_WITHDRAW || (frame->type == TRIB_FRAME_STALL && trib_frame_is_partial(frame))) {
        return TRIB_OK; /* the text of a withdrawal lands in the link's memory */
    }
    if (frame->type != TRIB_FRAME_PUSH) {
        return trib_error_set(error, TRIB_PROTOCOL, "unexpected %s frame from a worker", trib_frame_name(frame->type));
    }
    trib_status status = trib_server_check_push(link, frame, error);
    if (status != TRIB_OK || frame->payload_size == 0) {
        return status;
    }
    trib_summation *summation = NULL;
    status = trib_server_find_summation(link, frame, &summation, error);
    if (status != TRIB_OK) {
        return status;
    }
    trib_contribution what = trib_server_contribution(link, frame);
    what.is_ahead = link->arrival_count > 0;
    status = trib_summation_recv_target(summation, &what, &target->buffer, error);
    trib_server_note_memory(core, status, what.size);
    if (status == TRIB_OK) {
        link->recv_claim = (trib_recv_claim){.abandon = push_abandoned, .what = target->buffer, .owner = summation};
        target->in_place = true;
    }
    return status;
}

static trib_status take_withdraw(trib_link *link, const trib_frame *frame, const void *payload, trib_error *error)
{
    trib_summation *summation = NULL;
    trib_status found = trib_server_find_summation(link, frame, &summation, error);
    if (found != TRIB_OK) {
        return found;
    }
    trib_cause cause;
    const trib_status status = trib_cause_decode(frame, payload, &cause, error);
    if (status != TRIB_OK) {
        return status;
    }
    char text[TRIB_ERROR_TEXT_SIZE];
    trib_job_render_for_others(link->core->engine, &cause, text);
    trib_contribution what = trib_server_contribution(link, frame);
    return trib_summation_withdraw(summation, &what, trib_frame_withdraw_reason(cause.status), text);
}

static trib_status take_stall(trib_link *link, const trib_frame *frame, trib_error *error)
{
    trib_status status = trib_host_sum_check(link, frame, error);
    if (status == TRIB_OK && trib_frame_is_partial(frame) && frame->aux < link->core->engine->roster->worker_count) {
        const trib_contribution what = trib_server_contribution(link, frame);
        trib_host_sum_take_stall(link->core, &what, frame);
    }
    return status;
}

static trib_status take_push(trib_link *link, trib_summation *summation, const trib_contribution *what,
                             uint32_t payload_size, const void *payload, bool in_place, trib_error *error)
{
    if (in_place) {
        return payload_size > 0
                   ? trib_summation_arrived_in_place(summation, what, payload, &link->core->host.leases.conn, error)
                   : trib_summation_arrived(summation, what, NULL, error);
    }
    void *buffer = link->recv_claim.what;
    trib_assert((buffer != NULL) == (payload_size > 0));
    return buffer == NULL ? trib_summation_arrived(summation, what, NULL, error)
                          : trib_summation_presented(summation, what, buffer, payload, link->conn, error);
}

trib_status trib_server_received(trib_link *link, const trib_frame *frame, const void *payload, bool in_place,
                                 trib_error *error)
{
    trib_core *core = link->core;
    if (frame->type == TRIB_FRAME_WITHDRAW) {
        return take_withdraw(link, frame, payload, error);
    }
    if (frame->type == TRIB_FRAME_STALL) {
        return take_stall(link, frame, error);
    }
    core->reactor->got_payload = true;
    trib_counter_add(&core->stats.bytes_summed, frame->payload_size);
    trib_summation *summation = NULL;
    trib_status status = in_place ? trib_server_check_push(link, frame, error) : TRIB_OK;
    if (status == TRIB_OK) {
        status = trib_server_find_summation(link, frame, &summation, error);
    }
    if (status != TRIB_OK) {
        return status;
    }
    trib_contribution what = trib_server_contribution(link, frame);
    core->traced_sum = NULL;
    trace_chunk(core, summation, TRIB_TRACE_SUM_ARRIVE, &what, link->peer, frame->payload_size);
    status = take_push(link, summation, &what, frame->payload_size, payload, in_place, error);
    if (status == TRIB_OK && is_near(core, summation) && core->owner_links[what.owner] == NULL) {
        trib_relay_refuse_left(core, summation, &what);
    }
    return status;
}

/* ---- Sums on their way out ---- */

static void entry_recycle(trib_sum_entry *entry)
{
    trib_core *core = entry->core;
    if (core->summation != NULL) {
        trib_summation_sent(entry->summation, entry->sum);
    }
    core->entries_waiting--;
    entry->next = core->free_entries;
    core->free_entries = entry;
}

static void sum_sent(trib_send_record *out, trib_status status)
{
    trib_sum_entry *entry = out->context;
    if (status == TRIB_OK && out->link->conn != NULL) {
        trace_chunk(entry->core, entry->summation, TRIB_TRACE_SUM_SENT, &entry->what, out->link->peer,
                    out->send.payload_size);
    }
    entry_recycle(entry);
}

static bool sum_send_chunk(trib_link *link, trib_send_request *request)
{
    trib_sum_entry *entry = (trib_sum_entry *)request;
    trib_frame frame = {
        .type = TRIB_FRAME_SUM,
        .payload_size = entry->sum->data == NULL ? 0 : entry->sum->size,
        .tensor = entry->what.tensor,
        .partition = entry->what.partition,
        .round = entry->what.round,
        .chunk = entry->what.chunk,
        .chunk_count = entry->what.chunk_count,
        .size = entry->what.size,
        .priority = entry->what.priority,
        .collective = (uint8_t)((unsigned)entry->what.collective |
                                (entry->summation == link->core->host_sums ? TRIB_COLLECTIVE_PARTIAL : 0)),
        .dtype = (uint8_t)entry->what.dtype,
        .reduce = (uint8_t)entry->what.reduce,
        .root = entry->what.root,
    };
    if (trib_link_send(link, &frame, entry->sum->data, sum_sent, entry) != TRIB_OK) {
        entry_recycle(entry);
        trib_link_close(link, false, TRIB_NO_MEMORY, "out of memory for a sum");
        return false;
    }
    if (link->waits) {
        trace_chunk(link->core, entry->summation, TRIB_TRACE_SUM_START, &entry->what, link->peer, frame.payload_size);
    }
    trib_counter_add(&link->core->stats.bytes_sum_sent, frame.payload_size);
    return false;
}

static void sum_on_drop(trib_send_request *request)
{
    entry_recycle((trib_sum_entry *)request);
}

void trib_server_hand_out(trib_core *core, trib_summation *summation, uint32_t receiver, const trib_contribution *what,
                          trib_sum_buffer *sum)
{
    trib_link *link = core->worker_links[receiver];
    trib_sum_entry *entry = core->free_entries;
    if (sum != core->traced_sum && !is_near(core, summation)) { /* once of all receivers, which come in a row */
        core->traced_sum = sum;
        trib_trace_sum(core, TRIB_TRACE_SUM_COMPLETE, what, TRIB_NO_MEMBER, sum->data == NULL ? 0 : sum->size);
    }
    if (entry != NULL) {
        core->free_entries = entry->next;
    } else if (link != NULL) {
        entry = trib_core_zalloc(core, sizeof *entry);
    }
    if (entry == NULL || link == NULL) {
        if (entry != NULL) {
            entry->next = core->free_entries;
            core->free_entries = entry;
        }
        trib_summation_sent(summation, sum); /* the receiver is gone, or will be */
        if (link != NULL) {
            trib_link_close(link, false, TRIB_NO_MEMORY, "out of memory for a sum");
        }
        return;
    }
    entry->core = core;
    entry->what = *what;
    entry->summation = summation;
    entry->sum = sum;
    entry->next = NULL;
    entry->request = (trib_send_request){
        .priority = what->priority,
        .sequence = core->host.sequence++,
        .route = summation != core->host_sums && trib_link_priority_fits(sum->size) ? TRIB_ROUTE_ANY : TRIB_ROUTE_MAIN,
        .heap_index = TRIB_SEND_IDLE,
        .send_chunk = sum_send_chunk,
        .on_drop = sum_on_drop};
    core->entries_waiting++;
    const trib_status status = trib_link_enqueue(link, &entry->request, entry->sum->size);
    if (status != TRIB_OK) {
        entry_recycle(entry);
    }
    if (status == TRIB_NO_MEMORY) {
        /* Its receiver would wait for ever. One whose link is closing waits for nothing, but may have sent what others wait for. */
        trib_link_close(link, false, TRIB_NO_MEMORY, "out of memory for a sum");
    }
}

static void sum_ready(void *user, uint32_t receiver, const trib_contribution *what, trib_sum_buffer *sum)
{
    trib_core *core = user;
    trib_server_hand_out(core, core->summation, core->first_rank + receiver, what, sum);
}

void trib_server_notice(trib_core *core, const trib_frame *extra, uint32_t receiver, const trib_contribution *what,
                        const char *text)
{
    trib_link *link = core->worker_links[receiver];
    if (link != NULL) {
        trib_frame frame = {.type = extra->type,
                            .tensor = what->tensor,
                            .partition = what->partition,
                            .round = what->round,
                            .chunk = extra->chunk,
                            .chunk_count = what->chunk_count,
                            .collective = extra->collective,
                            .root = extra->root,
                            .aux = extra->aux};
        if (text == NULL) {
            trib_link_send_copy(link, frame, NULL, 0);
        } else {
            const trib_cause cause = trib_cause_note((trib_status)(int32_t)extra->aux, TRIB_NO_MEMBER, text);
            trib_link_send_cause(link, frame, &cause);
        }
    }
}

static void refused(void *user, uint32_t receiver, const trib_contribution *what, trib_status status, const char *text)
{
    trib_core *core = user;
    const trib_frame extra = {.type = TRIB_FRAME_REFUSED, .aux = (uint32_t)status};
    trace_chunk(core, core->summation, TRIB_TRACE_SUM_REFUSED, what, core->first_rank + receiver, (uint32_t)status);
    trib_server_notice(core, &extra, core->first_rank + receiver, what, text);
}

static void stalled(void *user, uint32_t receiver, const trib_contribution *what, uint32_t missing_rank,
                    uint32_t missing_count)
{
    (void)missing_count;
    trib_core *core = user;
    const uint32_t missing = core->first_rank + missing_rank;
    const trib_frame extra = {
        .type = TRIB_FRAME_STALL, .aux = missing, .chunk = trib_server_stall_chunk(core, missing)};
    trib_server_notice(core, &extra, core->first_rank + receiver, what, NULL);
    if (core->relay != NULL) {
        trib_relay_stalled(core, what, &extra);
    }
}

static bool is_gone(void *user, const trib_contribution *what, char *text, size_t size)
{
    const trib_core *core = user;
    return trib_server_is_gone(core, core->first_rank + what->contributor, what->round, text, size);
}

void trib_server_scan_summation(const trib_core *core, trib_summation *summation,
                                bool (*gone)(void *user, const trib_contribution *what, char *text, size_t size),
                                void (*notify)(void *user, uint32_t receiver, const trib_contribution *what,
                                               uint32_t missing_rank, uint32_t missing_count))
{
    if (trib_departed_any(&core->engine->departed)) {
        trib_summation_refuse_gone(summation, TRIB_STALL_NOTICE_NS, gone);
    }
    trib_summation_stalls(summation, TRIB_STALL_NOTICE_NS, TRIB_STALL_NOTICES_MAX, notify);
}

void trib_server_scan_stalls(trib_core *core)
{
    if (core->summation != NULL) {
        trib_server_scan_summation(core, core->summation, is_gone, stalled);
        trib_server_shards_tick(core);
        trib_host_sum_tick(core);
    }
}

void trib_server_tick(trib_core *core)
{
    if (core->summation != NULL && !core->ended) {
        trib_server_scan_stalls(core);
        trib_server_resume(core); /* one that was out of memory asks again */
        trib_server_check_memory(core);
    }
}

void trib_server_resume(trib_core *core)
{
    for (uint32_t i = 0; core->summation != NULL && i < core->engine->roster->worker_count; i++) {
        if (core->worker_links[i] != NULL) {
            trib_link_resume(core->worker_links[i]);
        }
    }
}

/* ---- Links from workers ---- */

static void server_ready(trib_link *link)
{
    (void)link; /* trib_server_adopt has been called by the accepting side */
}

void trib_server_adopt(trib_link *link)
{
    trib_core *core = link->core;
    link->upcalls = &trib_server_upcalls;
    link->role = TRIB_LINK_ROLE_SERVER;
    trib_counter_add(&core->stats.connections, 1);
    const trib_roster *roster = core->engine->roster;
    if (core->worker_links == NULL) {
        return; /* trib_server_open finds it in the core's list */
    }
    if (link->peer >= roster->worker_count || core->worker_links[link->peer] != NULL) {
        trib_link_close(link, false, TRIB_PROTOCOL, "a second connection for the same worker, or an unknown rank");
        return;
    }
    core->worker_links[link->peer] = link;
    trib_wireup_note_peer(core, link->peer);
}

static void server_closed(trib_link *link, trib_status status, const char *reason)
{
    (void)reason;
    trib_core *core = link->core;
    trib_counter_sub(&core->stats.connections, 1);
    if (core->worker_links != NULL && link->peer < core->engine->roster->worker_count &&
        core->worker_links[link->peer] == link) {
        core->worker_links[link->peer] = NULL;
    }
    if (core->ended || (link->bye && status == TRIB_PEER_LEFT)) {
        return; /* trib_server_scan_stalls refuses the rounds that miss its contribution */
    }
    trib_cause cause;
    trib_link_end_cause(link, &cause);
    trib_job_member_lost(core->engine, &cause);
}

void *trib_server_buffer_alloc(void *user, size_t size)
{
    trib_core *core = user;
    trib_counter_add(&core->stats.allocations, 1);
    return core->engine->env.memory_alloc(core->engine->env.memory, size);
}

void trib_server_buffer_free(void *user, void *buffer, size_t size)
{
    (void)size;
    trib_core *core = user;
    core->engine->env.memory_free(core->engine->env.memory, buffer);
}

trib_status trib_server_open(trib_core *core, trib_error *error)
{
    const trib_roster *roster = core->engine->roster;
    trib_summation_config config = {
        .reactor = core->reactor,
        .kernels = core->engine->env.kernels,
        .order = roster->sum_order,
        .contributor_count = roster->worker_count,
        .chunk_bytes = roster->chunk_bytes,
        .may_jump = roster->follows,
        .buffer_alloc = trib_server_buffer_alloc,
        .buffer_free = trib_server_buffer_free,
        .sum_ready = sum_ready,
        .refused = refused,
        .user = core,
    };
    const uint32_t me = core->engine->member_id;
    trib_status status = TRIB_OK;
    if (roster->local_size > 0 && me < roster->worker_count) {
        core->first_rank = me / roster->local_size * roster->local_size;
        config.contributor_count = roster->local_size;
        config.rank_first = core->first_rank;
        config.rank_limit = roster->worker_count;
        config.partial_ready = trib_relay_partial_ready;
        config.round_refused = trib_relay_round_refused;
        status = trib_relay_open(core);
    }
    if (me < roster->worker_count) { /* this process's own worker comes last: what it is handed need not travel */
        config.receiver_last = me - core->first_rank + 1;
    }
    if (status == TRIB_OK && roster->local_size > 0 && roster->members[me].sums) {
        status = trib_host_sum_open(core);
    }
    core->worker_links = trib_core_zalloc(core, roster->worker_count * sizeof(trib_link *));
    if (status != TRIB_OK || core->worker_links == NULL ||
        trib_summation_create(&config, &core->summation) != TRIB_OK) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for the server");
    }
    trib_link *next;
    for (trib_link *link = core->host.links; link != NULL; link = next) {
        next = link->next;
        if (link->role != TRIB_LINK_ROLE_SERVER || link->state != TRIB_LINK_READY) {
            continue;
        }
        if (link->peer >= roster->worker_count || core->worker_links[link->peer] != NULL) {
            trib_link_close(link, false, TRIB_PROTOCOL, "a second connection for the same worker, or an unknown rank");
        } else {
            core->worker_links[link->peer] = link;
            trib_link_resume(link);
        }
    }
    trib_wireup_expect_peers(core);
    return TRIB_OK;
}

bool trib_server_is_idle(const trib_core *core)
{
    const uint32_t me = core->engine->member_id;
    if (core->entries_waiting > 0 || !trib_relay_is_idle(core)) {
        return false;
    }
    if (trib_host_sum_owes(core) || trib_server_shards_owe(core)) {
        return false;
    }
    return core->summation == NULL || !trib_summation_owes(core->summation, me - core->first_rank, is_gone);
}

void trib_server_close(trib_core *core)
{
    trib_summation_destroy(core->summation);
    core->summation = NULL;
    trib_server_shards_close(core);
    trib_host_sum_close(core);
    trib_relay_close(core);
    while (core->free_entries != NULL) {
        trib_sum_entry *entry = core->free_entries;
        core->free_entries = entry->next;
        free(entry);
    }
    free(core->worker_links);
    core->worker_links = NULL;
}

const trib_link_upcalls trib_server_upcalls = {
    .ready = server_ready,
    .header = server_header,
    .received = trib_server_received,
    .closed = server_closed,
};

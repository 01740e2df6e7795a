/*
 * server.c - the server's side of one core: contributions arrive on links from workers, sums wait in their outboxes.
 *
 * The frames' lengths are checked here; what they mean is checked by summation.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/assert.h"
#include "engine/core.h"
#include "engine/server_lane.h"
#include "engine/trace.h"

/* Also what travels as the context of its send. */
struct trib_sum_entry {
    trib_waiter waiter; /* first */
    trib_core *core;
    trib_contribution what;
    trib_summation *summation; /* that the sum belongs to */
    trib_sum_buffer *sum;
    trib_sum_entry *next;
};

static trib_contribution contribution_of(const trib_link *link, const trib_frame *frame)
{
    /* A share of a device tensor is summed as any other tensor; who contributes to it are the machines. */
    const bool shared = frame->exchange == TRIB_EXCHANGE_DEVICE;
    return (trib_contribution){
        .tensor = frame->tensor,
        .partition = frame->partition,
        .round = frame->round,
        .chunk = frame->chunk,
        .chunk_count = frame->chunk_count,
        .size = frame->size,
        .contributor = shared ? link->peer / frame->root : link->peer,
        .priority = frame->priority,
        .exchange = shared ? TRIB_EXCHANGE_PUSH_PULL : (trib_exchange)frame->exchange,
        .dtype = (trib_dtype)frame->dtype,
        .reduce = (trib_reduce)frame->reduce,
        .root = shared ? 0 : frame->root,
    };
}

static bool carries_payload(const trib_link *link, const trib_frame *frame)
{
    return frame->exchange != TRIB_EXCHANGE_BROADCAST || frame->root == link->peer;
}

static trib_status check_push(const trib_link *link, const trib_frame *frame, trib_error *error)
{
    const trib_roster *roster = link->core->engine->roster;
    size_t element = trib_dtype_size((trib_dtype)frame->dtype);
    if (frame->exchange > TRIB_EXCHANGE_DEVICE || element == 0 || frame->reduce >= TRIB_REDUCE_COUNT ||
        (frame->exchange != TRIB_EXCHANGE_DEVICE && frame->root >= roster->worker_count) ||
        frame->size > roster->chunk_bytes || frame->size % element != 0) {
        return trib_error_set(error, TRIB_PROTOCOL, "malformed PUSH from %s", trib_roster_name(roster, link->peer));
    }
    uint32_t expected = carries_payload(link, frame) ? frame->size : 0;
    if (frame->payload_size != expected) {
        return trib_error_set(error, TRIB_PROTOCOL, "PUSH from %s carries %u bytes, expected %u",
                              trib_roster_name(roster, link->peer), frame->payload_size, expected);
    }
    return TRIB_OK;
}

static trib_status server_header(trib_link *link, const trib_frame *frame, trib_landing *landing, trib_error *error)
{
    trib_core *core = link->core;
    if (core->summation == NULL) {
        return TRIB_AGAIN; /* the roster has not reached this process yet: trib_server_open resumes */
    }
    landing->buffer = core->discard;
    if (frame->type == TRIB_FRAME_WITHDRAW) {
        return TRIB_OK;
    }
    if (frame->type != TRIB_FRAME_PUSH) {
        return trib_error_set(error, TRIB_PROTOCOL, "unexpected %s frame from a worker", trib_frame_name(frame->type));
    }
    trib_status status = check_push(link, frame, error);
    if (status != TRIB_OK || frame->payload_size == 0) {
        return status;
    }
    trib_summation *summation = NULL;
    status = trib_server_find_summation(link, frame, &summation, error);
    if (status != TRIB_OK) {
        return status;
    }
    trib_contribution what = contribution_of(link, frame);
    status = trib_summation_landing(summation, &what, &landing->buffer, error);
    if (status == TRIB_OK) {
        link->landed = landing->buffer;
        link->user = summation;
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
    char text[TRIB_ERROR_TEXT_SIZE];
    snprintf(text, sizeof text, "%.*s", (int)frame->payload_size, payload == NULL ? "" : (const char *)payload);
    trib_contribution what = contribution_of(link, frame);
    const trib_status reason = trib_frame_withdraw_reason((trib_status)(int32_t)frame->aux);
    return trib_summation_withdraw(summation, &what, reason, text);
}

trib_status trib_server_received(trib_link *link, const trib_frame *frame, const void *payload, bool lent,
                                 trib_error *error)
{
    trib_core *core = link->core;
    if (frame->type == TRIB_FRAME_WITHDRAW) {
        return take_withdraw(link, frame, payload, error);
    }
    trib_counter_add(&core->stats.bytes_summed, frame->payload_size);
    trib_summation *summation = NULL;
    trib_status status = lent ? check_push(link, frame, error) : TRIB_OK;
    if (status == TRIB_OK) {
        status = trib_server_find_summation(link, frame, &summation, error);
    }
    if (status != TRIB_OK) {
        return status;
    }
    trib_contribution what = contribution_of(link, frame);
    core->traced_sum = NULL;
    trib_trace_sum(core, TRIB_TRACE_SUM_ARRIVE, &what, link->peer, frame->payload_size);
    if (lent) {
        return frame->payload_size > 0 ? trib_summation_lent(summation, &what, payload, error)
                                       : trib_summation_arrived(summation, &what, NULL, error);
    }
    void *buffer = frame->payload_size > 0 ? link->landed : NULL;
    link->landed = NULL;
    if (buffer != NULL && buffer != payload) {
        core->engine->env.kernels->copy(buffer, payload, frame->payload_size); /* it was presented in place */
    }
    return trib_summation_arrived(summation, &what, buffer, error);
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

static void sum_sent(trib_out *out, trib_status status)
{
    trib_sum_entry *entry = out->context;
    if (status == TRIB_OK) {
        trib_trace_sum(entry->core, TRIB_TRACE_SUM_SENT, &entry->what, out->link->peer, out->send.payload_size);
    }
    entry_recycle(entry);
}

static bool sum_emit(trib_link *link, trib_waiter *waiter)
{
    trib_sum_entry *entry = (trib_sum_entry *)waiter;
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
        .exchange = (uint8_t)entry->what.exchange,
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
        trib_trace_sum(link->core, TRIB_TRACE_SUM_START, &entry->what, link->peer, frame.payload_size);
    }
    trib_counter_add(&link->core->stats.bytes_sum_sent, frame.payload_size);
    return false;
}

static void sum_dropped(trib_waiter *waiter)
{
    entry_recycle((trib_sum_entry *)waiter);
}

void trib_server_hand_out(trib_core *core, trib_summation *summation, uint32_t receiver, const trib_contribution *what,
                          trib_sum_buffer *sum)
{
    trib_link *link = core->worker_links[receiver];
    trib_sum_entry *entry = core->free_entries;
    if (sum != core->traced_sum) { /* told once of all receivers, which come one after the other */
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
    *entry = (trib_sum_entry){.core = core, .what = *what, .summation = summation, .sum = sum};
    entry->waiter = (trib_waiter){.priority = what->priority,
                                  .sequence = core->sequence++,
                                  .heap_index = UINT32_MAX,
                                  .emit = sum_emit,
                                  .dropped = sum_dropped};
    core->entries_waiting++;
    if (trib_link_enqueue(link, &entry->waiter, entry->sum->size) != TRIB_OK) {
        entry_recycle(entry);
    }
}

static void sum_ready(void *user, uint32_t receiver, const trib_contribution *what, trib_sum_buffer *sum)
{
    trib_core *core = user;
    trib_server_hand_out(core, core->summation, receiver, what, sum);
}

void trib_server_notice(trib_core *core, trib_frame_type type, uint32_t receiver, const trib_contribution *what,
                        uint32_t aux, const char *text)
{
    trib_link *link = core->worker_links[receiver];
    if (link != NULL) {
        trib_frame frame = {.type = type,
                            .tensor = what->tensor,
                            .partition = what->partition,
                            .round = what->round,
                            .chunk_count = what->chunk_count,
                            .aux = aux};
        trib_link_send_copy(link, frame, text, text == NULL ? 0 : strlen(text));
    }
}

static void refused(void *user, uint32_t receiver, const trib_contribution *what, trib_status status, const char *text)
{
    trib_core *core = user;
    trib_trace_sum(core, TRIB_TRACE_SUM_REFUSED, what, receiver, (uint32_t)status);
    trib_server_notice(core, TRIB_FRAME_REFUSED, receiver, what, (uint32_t)status, text);
}

static void stalled(void *user, uint32_t receiver, const trib_contribution *what, uint32_t missing_rank,
                    uint32_t missing_count)
{
    (void)missing_count;
    trib_server_notice(user, TRIB_FRAME_STALL, receiver, what, missing_rank, NULL);
}

void trib_server_tick(trib_core *core)
{
    if (core->summation != NULL && !core->ended) {
        trib_summation_stalls(core->summation, TRIB_STALL_NOTICE_NS, TRIB_STALL_NOTICES_MAX, stalled);
        trib_server_lanes_tick(core);
        for (uint32_t i = 0; i < core->engine->roster->worker_count; i++) {
            if (core->worker_links[i] != NULL) {
                trib_link_resume(core->worker_links[i]); /* one that was out of memory asks again */
            }
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
}

static void server_closed(trib_link *link, trib_status status, const char *reason)
{
    trib_core *core = link->core;
    trib_counter_sub(&core->stats.connections, 1);
    if (core->worker_links != NULL && link->peer < core->engine->roster->worker_count &&
        core->worker_links[link->peer] == link) {
        core->worker_links[link->peer] = NULL;
    }
    if (link->landed != NULL && core->summation != NULL) {
        trib_summation_abandon(link->user, link->landed);
    }
    if (core->ended || status == TRIB_PEER_LEFT) {
        return; /* who lacks its contribution is told by stall notices */
    }
    char text[TRIB_ERROR_TEXT_SIZE];
    snprintf(text, sizeof text, "lost the connection from %s: %.200s",
             trib_roster_name(core->engine->roster, link->peer), reason);
    trib_engine_end(core->engine, TRIB_PEER_LOST, text);
}

void *trib_server_buffer_alloc(trib_core *core, size_t size)
{
    trib_counter_add(&core->stats.allocations, 1);
    return core->engine->env.memory_alloc(core->engine->env.memory, size);
}

static void *buffer_alloc(void *user, size_t size)
{
    return trib_server_buffer_alloc(user, size);
}

static void buffer_free(void *user, void *buffer, size_t size)
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
        .buffer_alloc = buffer_alloc,
        .buffer_free = buffer_free,
        .sum_ready = sum_ready,
        .refused = refused,
        .user = core,
    };
    core->worker_links = trib_core_zalloc(core, roster->worker_count * sizeof(trib_link *));
    if (core->worker_links == NULL || trib_summation_create(&config, &core->summation) != TRIB_OK) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for the server");
    }
    trib_link *next;
    for (trib_link *link = core->links; link != NULL; link = next) {
        next = link->next;
        if (link->upcalls != &trib_server_upcalls || link->state != TRIB_LINK_READY) {
            continue;
        }
        if (link->peer >= roster->worker_count || core->worker_links[link->peer] != NULL) {
            trib_link_close(link, false, TRIB_PROTOCOL, "a second connection for the same worker, or an unknown rank");
        } else {
            core->worker_links[link->peer] = link;
            trib_link_resume(link);
        }
    }
    return TRIB_OK;
}

bool trib_server_is_idle(const trib_core *core)
{
    const bool owes = core->summation != NULL && trib_summation_owes(core->summation, core->engine->member_id);
    return core->entries_waiting == 0 && !owes;
}

void trib_server_close(trib_core *core)
{
    trib_summation_destroy(core->summation);
    core->summation = NULL;
    trib_server_lanes_close(core);
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

/*
 * server_plan.c - the steps of a chunk through a server.
 *
 *     RECEIVE    the header goes to the aggregator, which names the buffer for the payload
 *     DECODE     a codec's bytes become a contribution; without a codec the payload is the contribution
 *     AGGREGATE  the aggregator takes the contribution in, and hands out each complete sum
 *     ENCODE     a sum becomes a codec's bytes; without a codec the sum is the payload
 *     SEND       the sum waits in the outbox of its receiver's link, and is sent
 *
 * RECEIVE begins with the header. The link keeps its result (link->recv_claim) until the payload has arrived. This file
 * checks the lengths in frames, and the aggregator checks the rest.
 */
#include <stdlib.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/core/core_trace.h"
#include "engine/link/link_cause.h"
#include "engine/server/keeper.h"
#include "engine/server/quorum.h"
#include "engine/server/relay.h"
#include "engine/server/server_sum.h"
#include "engine/server/server_tensor.h"
#include "engine/server/takeover.h"

/* A contribution that is being received. */
typedef struct server_chunk {
    trib_link *link;
    const trib_frame *frame;
    trib_server_sum *sum;
    trib_contribution what;
    trib_lender lender;
    trib_arrived arrived;
} server_chunk;

void trib_server_trace_chunk(const trib_server_sum *sum, trib_trace_kind kind, const trib_contribution *what,
                             uint32_t peer, uint32_t value)
{
    const bool is_near = trib_server_sum_is_near(sum);
    trib_trace_sum(sum->core, is_near ? (trib_trace_kind)(kind + TRIB_TRACE_NEAR) : kind, what, peer, value);
}

/* ---- RECEIVE ---- */

static void push_abandoned(trib_link *link, const trib_recv_claim *recv_claim)
{
    const trib_server_sum *sum = recv_claim->owner;
    if (link->core->sums != NULL) {
        sum->aggregator->ops->abandon(sum->aggregator, recv_claim->what);
    }
}

static trib_status classify_frame(const trib_link *link, const trib_frame *frame, trib_server_sum **sum_out,
                                  trib_error *error)
{
    const bool is_stall = frame->type == TRIB_FRAME_STALL && trib_frame_is_partial(frame);
    trib_status status = TRIB_OK;
    if (frame->type == TRIB_FRAME_PUSH) {
        status = trib_server_check_push(link, frame, error);
    } else if (frame->type == TRIB_FRAME_WITHDRAW) {
        status = trib_server_check_operation(link, frame, error);
    } else if (frame->type == TRIB_FRAME_REPORT || frame->type == TRIB_FRAME_KEPT) {
        *sum_out = &link->core->sums[TRIB_SUM_RANK]; /* takeover.c and keeper.c check it */
        return TRIB_OK;
    } else if (!is_stall) {
        status =
            trib_error_set(error, TRIB_PROTOCOL, "unexpected %s frame from a worker", trib_frame_name(frame->type));
    }
    if (status == TRIB_OK && !is_stall) {
        status = trib_server_check_tensor(link, frame, error);
    }
    return status == TRIB_OK ? trib_server_find_sum(link, frame, sum_out, error) : status;
}

/* A late frame may name a group that has ended with its tensor, or another one that has its number now. Only a PUSH
 * holds its round from the header on, so its tensor cannot end before its payload. Nobody waits for a late withdrawal,
 * whose tensor may. */
static bool is_of_ended(const trib_link *link, const trib_frame *frame)
{
    const bool is_push = frame->type == TRIB_FRAME_PUSH && frame->group > 0;
    return (is_push || frame->type == TRIB_FRAME_WITHDRAW) && trib_server_is_late(link, frame);
}

trib_status trib_server_header(trib_link *link, const trib_frame *frame, trib_recv_target *target, trib_error *error)
{
    trib_core *core = link->core;
    if (core->sums == NULL) {
        return TRIB_AGAIN; /* the roster has not reached this process yet: trib_server_open resumes the link */
    }
    if (core->relay != NULL && !core->joined) {
        return TRIB_AGAIN; /* this relay cannot reach all owners yet: trib_server_resume resumes the link */
    }
    trib_server_sum *sum = NULL;
    if (is_of_ended(link, frame)) {
        return TRIB_OK; /* the link's own memory receives the unneeded payload */
    }
    trib_status status = classify_frame(link, frame, &sum, error);
    if (status != TRIB_OK) {
        return status;
    }
    if (core->quorums != NULL && trib_quorum_holds(sum, link, frame)) {
        return TRIB_AGAIN;
    }
    link->recv_claim.owner = sum;
    if (frame->type != TRIB_FRAME_PUSH || frame->payload_size == 0) {
        return TRIB_OK; /* the link's own memory receives the text of a withdrawal */
    }
    if (frame->codec != 0) {
        status = trib_server_codec_land(link, frame, target);
        trib_server_note_memory(core, status, frame->payload_size);
        return status;
    }
    trib_contribution what = trib_server_contribution(sum, link, frame);
    what.is_ahead = link->arrival_count > 0;
    status = sum->aggregator->ops->recv_target(sum->aggregator, &what, &target->buffer, error);
    trib_server_note_memory(core, status, what.size);
    if (status == TRIB_AGAIN) {
        trib_keepers_release(core); /* waiting sums hold memory */
    }
    if (status == TRIB_OK) {
        link->recv_claim.abandon = push_abandoned;
        link->recv_claim.what = target->buffer;
        target->in_place = true;
    }
    return status;
}

static void receive_payload(server_chunk *chunk, bool in_place)
{
    const trib_frame *frame = chunk->frame;
    trib_core *core = chunk->link->core;
    trib_assert((chunk->link->recv_claim.what != NULL) == (!in_place && frame->payload_size > 0));
    core->reactor->got_payload = true;
    core->traced_sum = NULL;
    trib_counter_add(&core->stats.bytes_summed, frame->payload_size);
    trib_server_trace_chunk(chunk->sum, TRIB_TRACE_SUM_ARRIVE, &chunk->what, chunk->link->peer, frame->payload_size);
}

/* ---- DECODE ---- */

static trib_status decode_payload(server_chunk *chunk, const void *payload, bool in_place, trib_error *error)
{
    const trib_frame *frame = chunk->frame;
    trib_core *core = chunk->link->core;
    if (frame->codec != 0) {
        const trib_status status =
            trib_server_codec_decode(chunk->sum, chunk->link, frame, payload, &chunk->what, &chunk->arrived, error);
        trib_server_codec_give(core, chunk->link->recv_claim.what);
        return status;
    }
    chunk->lender = trib_conn_lender(in_place ? &core->host.leases.conn : chunk->link->conn);
    chunk->arrived = (trib_arrived){.buffer = chunk->link->recv_claim.what,
                                    .payload = frame->payload_size > 0 ? payload : NULL,
                                    .lender = &chunk->lender};
    return TRIB_OK;
}

/* ---- AGGREGATE ---- */

static trib_status aggregate_chunk(server_chunk *chunk, trib_error *error)
{
    const trib_core *core = chunk->link->core;
    trib_aggregator *aggregator = chunk->sum->aggregator;
    trib_status status = aggregator->ops->arrived(aggregator, &chunk->what, &chunk->arrived, error);
    if (status == TRIB_OK && trib_server_sum_is_near(chunk->sum) && core->owner_links[chunk->what.owner] == NULL) {
        trib_relay_refuse_left(core, &chunk->what);
    }
    if (status == TRIB_OK) {
        trib_server_sum_refuse_gone(chunk->sum);
        trib_server_sum_fill(chunk->sum, &chunk->what);
    }
    return status;
}

static trib_status withdraw_contributor(const server_chunk *chunk, const void *payload, trib_error *error)
{
    trib_cause cause;
    const trib_status status = trib_cause_decode(chunk->frame, payload, &cause, error);
    if (status != TRIB_OK) {
        return status;
    }
    char text[TRIB_ERROR_TEXT_SIZE];
    trib_job_render_for_others(chunk->link->core->engine, &cause, text);
    const trib_status why = trib_frame_withdraw_reason(cause.status);
    const trib_status taken = chunk->sum->aggregator->ops->withdraw(chunk->sum->aggregator, &chunk->what, why, text);
    if (taken == TRIB_OK) {
        trib_server_sum_fill(chunk->sum, &chunk->what);
        trib_quorum_came(chunk->sum, chunk->frame);
    }
    return taken == TRIB_OK ? TRIB_OK
                            : trib_error_set(error, taken, "WITHDRAW from %s: %s",
                                             trib_roster_name(chunk->link->core->engine->roster, chunk->link->peer),
                                             taken == TRIB_PROTOCOL ? "its round cannot be" : trib_status_text(taken));
}

/* ---- All steps of a received frame ---- */

trib_status trib_server_received(trib_link *link, const trib_frame *frame, const void *payload, bool in_place,
                                 trib_error *error)
{
    server_chunk chunk = {.link = link, .frame = frame, .sum = link->recv_claim.owner};
    if (!in_place && chunk.sum == NULL) {
        return TRIB_OK; /* it was late at its header; since then its number may have gone to a new tensor */
    }
    if ((in_place || frame->type == TRIB_FRAME_WITHDRAW) && is_of_ended(link, frame)) {
        return TRIB_OK;
    }
    trib_assert(in_place == (chunk.sum == NULL)); /* a process announces no header for frames to itself */
    trib_status status = in_place ? classify_frame(link, frame, &chunk.sum, error) : TRIB_OK;
    if (status != TRIB_OK) {
        return status;
    }
    if (in_place && link->core->quorums != NULL && trib_quorum_holds(chunk.sum, link, frame)) {
        return TRIB_AGAIN;
    }
    if (frame->type == TRIB_FRAME_REPORT) {
        return trib_takeover_report(link, frame, payload, error);
    }
    if (frame->type == TRIB_FRAME_KEPT) {
        return trib_keeper_has(link, frame, error);
    }
    chunk.what = trib_server_contribution(chunk.sum, link, frame);
    if (frame->type == TRIB_FRAME_WITHDRAW) {
        return withdraw_contributor(&chunk, payload, error);
    }
    if (frame->type == TRIB_FRAME_STALL) {
        status = trib_server_check_stall(link->core, frame, error);
        if (status == TRIB_OK) {
            trib_server_sum_take_stall(chunk.sum, &chunk.what, frame, payload);
        }
        return status;
    }
    trib_keeper_pushes(chunk.sum, link, frame);
    receive_payload(&chunk, in_place);
    status = decode_payload(&chunk, payload, in_place, error);
    status = status == TRIB_OK ? aggregate_chunk(&chunk, error) : status;
    if (status == TRIB_OK) {
        trib_quorum_came(chunk.sum, frame);
    }
    return status;
}

/* ---- ENCODE and SEND ---- */

static void entry_recycle(trib_sum_entry *entry)
{
    trib_core *core = entry->sum->core;
    trib_assert(core->entries_waiting > 0);
    trib_assert(!trib_send_request_waits(&entry->request));
    if (core->sums != NULL) {
        entry->sum->aggregator->ops->sent(entry->sum->aggregator, entry->buffer);
    }
    core->entries_waiting--;
    entry->next = core->free_entries;
    core->free_entries = entry;
}

static void sum_sent(trib_send_record *out, trib_status status)
{
    trib_sum_entry *entry = out->context;
    if (status == TRIB_OK && !out->link->is_self && trib_trace_on(entry->sum->core)) {
        /* The time at which it left: this is the acknowledgement, which may come for many sums at once. */
        const bool is_near = trib_server_sum_is_near(entry->sum);
        trib_trace_sum_put(entry->sum->core, is_near ? TRIB_TRACE_SUM_SENT + TRIB_TRACE_NEAR : TRIB_TRACE_SUM_SENT,
                           &entry->what, out->link->peer, out->send.payload_size, out->sent_ns);
    }
    entry_recycle(entry);
}

static trib_frame encode_sum(const trib_sum_entry *entry)
{
    const trib_contribution *what = &entry->what;
    const unsigned partial = entry->sum->level == TRIB_SUM_HOST ? TRIB_COLLECTIVE_PARTIAL : 0;
    return (trib_frame){
        .type = TRIB_FRAME_SUM,
        .payload_size = entry->buffer->data == NULL ? 0 : entry->buffer->size,
        .tensor = what->tensor,
        .partition = what->partition,
        .round = what->round,
        .chunk = what->chunk,
        .chunk_count = what->chunk_count,
        .size = what->size,
        .codec = entry->buffer->codec,
        .priority = what->priority,
        .collective = (uint8_t)((unsigned)what->collective | partial),
        .dtype = (uint8_t)what->dtype,
        .reduce = (uint8_t)what->reduce,
        .root = what->root,
        .step = what->step,
        .scale = what->scale,
        .aux = entry->is_kept ? TRIB_SUM_IS_KEPT : 0,
    };
}

static bool sum_send_chunk(trib_link *link, trib_send_request *request)
{
    trib_sum_entry *entry = trib_container_of(request, trib_sum_entry, request);
    const trib_frame frame = encode_sum(entry);
    if (trib_link_send(link, &frame, entry->buffer->data, sum_sent, entry) != TRIB_OK) {
        entry_recycle(entry);
        trib_link_close(link, false, TRIB_NO_MEMORY, "out of memory for a sum");
        return false;
    }
    if (link->waits) {
        trib_server_trace_chunk(entry->sum, TRIB_TRACE_SUM_START, &entry->what, link->peer, frame.payload_size);
    }
    trib_counter_add(&link->core->stats.bytes_sum_sent, frame.payload_size);
    return false;
}

static void sum_on_drop(trib_send_request *request)
{
    entry_recycle(trib_container_of(request, trib_sum_entry, request));
}

/* Returns NULL when out of memory. */
static trib_sum_entry *entry_take(trib_core *core)
{
    trib_sum_entry *entry = core->free_entries;
    if (entry == NULL) {
        return trib_core_zalloc(core, sizeof *entry);
    }
    core->free_entries = entry->next;
    return entry;
}

void trib_server_hand_out(trib_server_sum *sum, uint32_t rank, const trib_contribution *what, trib_sum_buffer *buffer)
{
    trib_core *core = sum->core;
    trib_link *link = core->worker_links[rank];
    /* traced once per sum: its receivers come in a row */
    if (buffer != core->traced_sum && !trib_server_sum_is_near(sum)) {
        core->traced_sum = buffer;
        trib_trace_sum(core, TRIB_TRACE_SUM_COMPLETE, what, TRIB_NO_MEMBER, buffer->data == NULL ? 0 : buffer->size);
    }
    trib_sum_entry *entry = link == NULL ? NULL : entry_take(core);
    if (entry == NULL) {
        sum->aggregator->ops->sent(sum->aggregator, buffer); /* the receiver's link is closed, or closes now */
        if (link != NULL) {
            trib_link_close(link, false, TRIB_NO_MEMORY, "out of memory for a sum");
        }
        return;
    }
    const bool follows = trib_quorum_tell(sum, rank, what);
    const bool is_small = sum->level != TRIB_SUM_HOST && trib_link_priority_fits(buffer->size) && !follows;
    trib_assert(!trib_send_request_waits(&entry->request) && buffer->references > 0);
    entry->what = *what;
    entry->what.late = NULL; /* valid in this call only */
    entry->sum = sum;
    entry->buffer = buffer;
    entry->rank = rank;
    entry->is_kept = false;
    entry->next = NULL;
    entry->request = (trib_send_request){.priority = what->priority,
                                         .age = trib_scheduler_take_age(&core->host.scheduler),
                                         .route = is_small ? TRIB_ROUTE_ANY : TRIB_ROUTE_MAIN,
                                         .is_single = true,
                                         .send_chunk = sum_send_chunk,
                                         .on_drop = sum_on_drop};
    core->entries_waiting++;
    if (!trib_keeper_awaits(core, entry)) {
        trib_server_send_sum(entry);
    }
}

void trib_server_send_sum(trib_sum_entry *entry)
{
    trib_assert(entry->rank < entry->sum->core->engine->roster->worker_count);
    trib_link *link = entry->sum->core->worker_links[entry->rank];
    const trib_status status =
        link == NULL ? TRIB_CLOSED : trib_scheduler_submit(link, &entry->request, entry->buffer->size);
    if (status != TRIB_OK) {
        entry_recycle(entry);
    }
    if (status == TRIB_NO_MEMORY) {
        /* Without its sum the receiver would wait for ever, so its link closes. A link that is closing already is
         * left alone: its receiver waits for nothing, but others may wait for the frames it has sent. */
        trib_link_close(link, false, TRIB_NO_MEMORY, "out of memory for a sum");
    }
}

void trib_server_free_entries(trib_core *core)
{
    trib_assert(core->entries_waiting == 0);
    while (core->free_entries != NULL) {
        trib_sum_entry *entry = core->free_entries;
        core->free_entries = entry->next;
        free(entry);
    }
}

static trib_frame notice_frame(const trib_frame *extra, const trib_contribution *what)
{
    return (trib_frame){.type = extra->type,
                        .tensor = what->tensor,
                        .partition = what->partition,
                        .round = what->round,
                        .chunk = extra->chunk,
                        .chunk_count = what->chunk_count,
                        .collective = extra->collective,
                        .root = extra->root,
                        .aux = extra->aux};
}

void trib_server_notice(const trib_core *core, const trib_frame *extra, uint32_t rank, const trib_contribution *what,
                        const char *text)
{
    trib_assert(rank < core->engine->roster->worker_count);
    trib_link *link = core->worker_links[rank];
    if (link != NULL) {
        const trib_cause cause = trib_cause_note((trib_status)(int32_t)extra->aux, TRIB_NO_MEMBER, text);
        trib_link_send_cause(link, notice_frame(extra, what), &cause);
    }
}

void trib_server_notice_stall(const trib_core *core, const trib_frame *extra, uint32_t rank,
                              const trib_contribution *what, const unsigned char *list)
{
    const uint32_t workers = core->engine->roster->worker_count;
    trib_assert(rank < workers);
    trib_link *link = core->worker_links[rank];
    if (link != NULL) {
        trib_link_send_copy(link, notice_frame(extra, what), list, list == NULL ? 0 : trib_rank_bits_bytes(workers));
    }
}

trib_status trib_server_check_stall(const trib_core *core, const trib_frame *frame, trib_error *error)
{
    const uint32_t workers = core->engine->roster->worker_count;
    if (frame->aux >= workers || (frame->payload_size > 0 && frame->payload_size != trib_rank_bits_bytes(workers))) {
        return trib_error_set(error, TRIB_PROTOCOL, "STALL of rank %u with a list of %u bytes, of %u workers",
                              frame->aux, frame->payload_size, workers);
    }
    return TRIB_OK;
}

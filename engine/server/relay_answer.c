/* relay_answer.c - takes what owners send to a relay: finished sums, refusals, and reports of who is missing
 * (relay.h). */
#include "engine/server/relay_internal.h"

#include "engine/base/assert.h"
#include "engine/core/core_trace.h"
#include "engine/link/link_cause.h"

static trib_contribution key_of(const trib_frame *frame)
{
    return (trib_contribution){
        .tensor = frame->tensor, .partition = frame->partition, .round = frame->round, .chunk = frame->chunk};
}

/* Accepts a frame only on a relay, and only from the round's owner. The summation keeps no owner of a round that is
 * over, so its late frames pass. */
static trib_status check_owner(const trib_link *link, const trib_frame *frame, trib_error *error)
{
    const trib_core *core = link->core;
    const trib_contribution key = key_of(frame);
    uint32_t owner = 0;
    if (core->relay == NULL || core->sums == NULL) {
        return trib_error_set(error, TRIB_PROTOCOL, "%s frame for a machine, to one that does not relay",
                              trib_frame_name(frame->type));
    }
    if (trib_summation_find_owner(trib_relay_summation(core), &key, &owner) &&
        owner != trib_relay_owner(link->peer, link->peer_reactor)) {
        return trib_error_set(error, TRIB_PROTOCOL, "%s for partition %u of tensor %u, which is not pushed to it",
                              trib_frame_name(frame->type), frame->partition, frame->tensor);
    }
    return TRIB_OK;
}

/* A broadcast's payload goes to all machines but the root's, and that of a reduce to the root's alone. */
static bool gets_payload(const trib_core *core, const trib_contribution *what)
{
    return what->collective == TRIB_COLLECTIVE_ALL_REDUCE ||
           trib_relay_has_root(core, what) == (what->collective == TRIB_COLLECTIVE_REDUCE);
}

/* The waiting partial sum that the frame completes goes to *sum_out. NULL means that nothing waits for the frame any
 * more. */
static trib_status find_sum(trib_link *link, const trib_frame *frame, trib_sum_buffer **sum_out, trib_error *error)
{
    trib_core *core = link->core;
    const trib_contribution key = key_of(frame);
    *sum_out = trib_summation_awaited(trib_relay_summation(core), &key);
    if (*sum_out == NULL) {
        return TRIB_OK;
    }
    trib_contribution what;
    trib_summation_hold(*sum_out, &what);
    trib_summation_sent(trib_relay_summation(core), *sum_out);
    const uint32_t expected = gets_payload(core, &what) ? what.size : 0;
    if (frame->payload_size != expected || trib_link_is_receiving(link, *sum_out, frame->chunk)) {
        return trib_error_set(error, TRIB_PROTOCOL,
                              "sum of tensor %u, partition %u, chunk %u came twice, or has %u bytes, expected %u",
                              frame->tensor, frame->partition, frame->chunk, frame->payload_size, expected);
    }
    return TRIB_OK;
}

static void partial_abandoned(trib_link *link, const trib_recv_claim *recv_claim)
{
    if (link->core->sums != NULL) {
        trib_summation_sent(trib_relay_summation(link->core), recv_claim->what);
    }
}

trib_status trib_relay_header(trib_link *link, const trib_frame *frame, trib_recv_target *target, trib_error *error)
{
    trib_core *core = link->core;
    trib_status status = check_owner(link, frame, error);
    if (status != TRIB_OK || frame->type != TRIB_FRAME_SUM) {
        return status; /* the link's own memory receives the text of a refusal */
    }
    target->buffer = core->discard;
    target->in_place = true; /* the discard buffer is never read */
    trib_sum_buffer *sum = NULL;
    status = find_sum(link, frame, &sum, error);
    if (status == TRIB_OK && sum != NULL && frame->payload_size > 0) {
        trib_contribution what;
        trib_summation_hold(sum, &what);
        link->recv_claim =
            (trib_recv_claim){.abandon = partial_abandoned, .what = sum, .owner = trib_relay_summation(core)};
        target->buffer = sum->data;
    }
    return status;
}

static trib_status take_sum(trib_link *link, const trib_frame *frame, const void *payload, bool in_place,
                            trib_error *error)
{
    trib_core *core = link->core;
    trib_assert(core->relay != NULL && core->sums != NULL);
    trib_sum_buffer *held = link->recv_claim.what, *sum = NULL;
    trib_status status = find_sum(link, frame, &sum, error);
    if (status == TRIB_OK && sum != NULL && (in_place || frame->payload_size == 0 || sum == held)) {
        if (frame->payload_size > 0 && payload != sum->data) {
            status =
                trib_link_copy(link, core->engine->env.kernels->copy, sum->data, payload, frame->payload_size, error);
        }
        if (status == TRIB_OK) {
            const trib_contribution key = key_of(frame);
            trib_trace_sum(core, TRIB_TRACE_PARTIAL_SUM, &key, link->peer, frame->payload_size);
            trib_summation_complete(trib_relay_summation(core), &key);
        }
    }
    if (held != NULL) {
        trib_summation_sent(trib_relay_summation(core), held);
    }
    return status;
}

typedef struct stall_note {
    trib_core *core;
    uint32_t missing, is_vague, chunk;
    const unsigned char *list; /* as of trib_server_notice_stall */
} stall_note;

static void pass_on_stall(void *user, uint32_t receiver, const trib_contribution *what)
{
    const stall_note *note = user;
    trib_core *core = note->core;
    trib_assert(receiver < core->sums[TRIB_SUM_RANK].count);
    const trib_frame extra = {
        .type = TRIB_FRAME_STALL, .aux = note->missing, .root = note->is_vague, .chunk = note->chunk};
    trib_server_notice_stall(core, &extra, core->sums[TRIB_SUM_RANK].rank_first + receiver, what, note->list);
}

/* The owner cannot name the missing worker of another machine for certain: a worker that left may have contributed
 * before. Only the relay of that machine knows. */
static trib_status take_stall(trib_core *core, const trib_frame *frame, const void *payload, trib_error *error)
{
    const trib_status status = trib_server_check_stall(core, frame, error);
    if (status != TRIB_OK) {
        return status;
    }
    stall_note note = {.core = core,
                       .missing = frame->aux,
                       .is_vague = frame->root,
                       .chunk = frame->chunk,
                       .list = frame->payload_size > 0 ? payload : NULL};
    const trib_contribution key = key_of(frame);
    trib_summation_each_waiting(trib_relay_summation(core), &key, pass_on_stall, &note);
    return TRIB_OK;
}

trib_status trib_relay_received(trib_link *link, const trib_frame *frame, const void *payload, bool in_place,
                                trib_error *error)
{
    trib_core *core = link->core;
    trib_status status = check_owner(link, frame, error);
    if (status == TRIB_OK && frame->type == TRIB_FRAME_SUM) {
        return take_sum(link, frame, payload, in_place, error);
    }
    if (status == TRIB_OK && frame->type == TRIB_FRAME_STALL) {
        return take_stall(core, frame, payload, error);
    }
    trib_cause cause;
    status = status == TRIB_OK ? trib_cause_decode(frame, payload, &cause, error) : status;
    if (status == TRIB_OK) {
        char text[TRIB_ERROR_TEXT_SIZE];
        trib_job_render_for_others(core->engine, &cause, text);
        const trib_contribution key = key_of(frame);
        trib_relay_drop_pushes(core, &key);
        trib_summation_refuse(trib_relay_summation(core), &key, cause.status, text);
    }
    return status;
}

void trib_relay_detach(trib_link *link, const char *text)
{
    trib_core *core = link->core;
    if (core->relay == NULL || core->sums == NULL) {
        return;
    }
    if (link->bye) { /* a link that ends without a BYE ends the job, which reports the cause */
        trib_summation_refuse_owner(trib_relay_summation(core), trib_relay_owner(link->peer, link->peer_reactor),
                                    TRIB_PEER_LEFT, text);
    }
}

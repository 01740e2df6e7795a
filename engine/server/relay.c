/* relay.c - sends a machine's partial sums and refusals to their owners, and takes the owners' answers (relay.h). */
#include "engine/server/relay.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "engine/aggregate/summation.h"
#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/core/core_trace.h"
#include "engine/link/link_cause.h"
#include "engine/server/server_sum.h"

/* A partial sum on its way to its owner, or a refusal queued behind the partial sums of older rounds. */
typedef struct relay_push {
    trib_send_request request;
    trib_core *core;
    trib_contribution what;
    trib_sum_buffer *sum; /* NULL for a refusal */
    trib_status status;
    char *text;
    struct relay_push *next, *previous; /* neighbours in its list of waiting pushes; the free list uses next alone */
} relay_push;

struct trib_relay {
    /* Waiting pushes, the newest first. Partial sums are few, because they hold memory. Refusals may be as many as the
     * operations that a worker gives up, so no list of them is walked beyond the newest one of a key. */
    relay_push *sums, *refusals, *unused;
    trib_contribution stalled; /* the round of the last stall notice to an owner */
};

static uint32_t machine_of(const trib_core *core, uint32_t rank)
{
    return rank / core->engine->roster->local_size;
}

/* The summation of the machine's workers. */
static trib_summation *summation_of(const trib_core *core)
{
    return trib_sum_aggregator_summation(core->sums[TRIB_SUM_RANK].aggregator);
}

static bool is_of_key(const trib_contribution *what, const trib_contribution *other)
{
    return what->tensor == other->tensor && what->partition == other->partition;
}

/* ---- Partial sums on their way ---- */

static relay_push *push_take(trib_core *core)
{
    relay_push *push = core->relay->unused;
    if (push != NULL) {
        core->relay->unused = push->next;
        return push;
    }
    return trib_core_zalloc(core, sizeof *push);
}

static void push_give(relay_push *push)
{
    trib_core *core = push->core;
    if (push->sum != NULL && core->sums != NULL) {
        trib_summation_sent(summation_of(core), push->sum);
    }
    free(push->text);
    push->text = NULL;
    push->sum = NULL;
    push->next = core->relay->unused;
    core->relay->unused = push;
}

static relay_push **list_of(const relay_push *push)
{
    trib_assert(push->core != NULL);
    return push->sum != NULL ? &push->core->relay->sums : &push->core->relay->refusals;
}

static void list_remove(relay_push *push)
{
    DL_DELETE2(*list_of(push), push, previous, next);
}

static void list_add(relay_push *push)
{
    DL_PREPEND2(*list_of(push), push, previous, next);
}

/* The newest waiting push of the key in that list; NULL: none. */
static const relay_push *newest_of_key(const relay_push *list, const trib_contribution *key)
{
    while (list != NULL && !is_of_key(&list->what, key)) {
        list = list->next;
    }
    return list;
}

static trib_frame frame_of(trib_frame_type type, const trib_contribution *what)
{
    return (trib_frame){
        .type = type,
        .tensor = what->tensor,
        .partition = what->partition,
        .round = what->round,
        .chunk_count = what->chunk_count,
        .priority = what->priority,
        .collective = (uint8_t)((unsigned)what->collective | TRIB_COLLECTIVE_PARTIAL),
        .dtype = (uint8_t)what->dtype,
        .reduce = (uint8_t)what->reduce,
        .root = what->root,
        .step = what->step,
    };
}

static void push_sent(trib_send_record *out, trib_status status)
{
    (void)status; /* the link closes after a failed send, and reports it */
    push_give(out->context);
}

static void send_refusal(trib_link *link, const trib_contribution *what, trib_status status, const char *text)
{
    const trib_cause cause = trib_cause_note(trib_frame_withdraw_reason(status), TRIB_NO_MEMBER, text);
    trib_link_send_cause(link, frame_of(TRIB_FRAME_WITHDRAW, what), &cause);
}

static bool has_root(const trib_core *core, const trib_contribution *what)
{
    return machine_of(core, what->root) == machine_of(core, core->engine->member_id);
}

static bool brings_payload(const trib_core *core, const trib_contribution *what)
{
    return what->size > 0 && (trib_collective_is_sum(what->collective) || has_root(core, what));
}

static bool push_send_chunk(trib_link *link, trib_send_request *request)
{
    relay_push *push = trib_container_of(request, relay_push, request);
    trib_core *core = push->core;
    list_remove(push);
    if (push->sum == NULL) {
        send_refusal(link, &push->what, push->status, push->text);
        push_give(push);
        return false;
    }
    const bool carries = brings_payload(core, &push->what);
    trib_frame frame = frame_of(TRIB_FRAME_PUSH, &push->what);
    frame.chunk = push->what.chunk;
    frame.size = push->what.size;
    frame.payload_size = carries ? trib_sum_partial_bytes(&push->what) : 0;
    if (trib_link_send(link, &frame, carries ? push->sum->data : NULL, push_sent, push) != TRIB_OK) {
        push_give(push);
        trib_link_close(link, false, TRIB_NO_MEMORY, "out of memory for a partial sum");
        return false;
    }
    if (link->flow.egress != NULL ? link->flow.egress->waits : link->waits) {
        trib_trace_sum(core, TRIB_TRACE_PARTIAL_START, &push->what, link->peer, frame.payload_size);
    }
    trib_counter_add(&core->stats.bytes_relayed, !link->is_self ? frame.payload_size : 0);
    return false;
}

static void push_on_drop(trib_send_request *request)
{
    relay_push *push = trib_container_of(request, relay_push, request);
    list_remove(push);
    push_give(push);
}

/* The owner expects a machine's rounds of a key in order. So a push gets no higher priority than an older waiting
 * one of its key. The newest one has the lowest priority of them, for the same reason. */
static void push_enqueue(trib_link *link, relay_push *push, bool check_older)
{
    trib_core *core = push->core;
    const relay_push *const older[] = {check_older ? newest_of_key(core->relay->sums, &push->what) : NULL,
                                       newest_of_key(core->relay->refusals, &push->what)};
    push->request = (trib_send_request){.priority = push->what.priority,
                                        .age = trib_scheduler_take_age(&core->host.scheduler),
                                        .is_single = true,
                                        .send_chunk = push_send_chunk,
                                        .on_drop = push_on_drop};
    for (size_t i = 0; i < sizeof older / sizeof older[0]; i++) {
        if (older[i] != NULL && older[i]->request.priority < push->request.priority) {
            push->request.priority = older[i]->request.priority;
        }
    }
    list_add(push);
    const uint64_t bytes = push->sum == NULL ? 0 : trib_sum_partial_bytes(&push->what);
    const trib_status status = trib_scheduler_submit(link, &push->request, bytes);
    if (status != TRIB_OK) {
        push_on_drop(&push->request);
    }
    if (status == TRIB_NO_MEMORY) {
        trib_link_close(link, false, TRIB_NO_MEMORY, "out of memory for a partial sum");
    }
}

/* Takes the round's partial sums out of the outboxes where they still wait. */
static void drop_pushes(trib_core *core, const trib_contribution *what)
{
    relay_push *next;
    for (relay_push *push = core->relay->sums; push != NULL; push = next) {
        next = push->next;
        if (is_of_key(&push->what, what) && push->what.round == what->round) {
            trib_link *link = core->owner_links[push->what.owner];
            trib_assert(link != NULL); /* the end of a link drops the pushes that wait on it */
            trib_scheduler_withdraw(link, &push->request);
            list_remove(push);
            push->next = NULL;
            push_give(push);
            next = core->relay->sums; /* the reference given back can end a round, but adds no push */
        }
    }
}

/* ---- Upcalls of the machine's summation ---- */

void trib_relay_refuse_left(const trib_core *core, const trib_contribution *what)
{
    char text[TRIB_ERROR_TEXT_SIZE];
    snprintf(text, sizeof text, "%s, which sums partition %u, has left the job",
             trib_roster_name(core->engine->roster, what->owner / TRIB_REACTORS_MAX), what->partition);
    trib_summation_refuse(summation_of(core), what, TRIB_PEER_LEFT, text);
}

void trib_relay_partial_ready(void *user, const trib_contribution *what, trib_sum_buffer *sum)
{
    trib_core *core = ((const trib_server_sum *)user)->core;
    trib_link *link = core->owner_links[what->owner];
    relay_push *push = link == NULL ? NULL : push_take(core);
    if (push == NULL) {
        if (link == NULL) {
            trib_relay_refuse_left(core, what);
        } else {
            trib_link_close(link, false, TRIB_NO_MEMORY, "out of memory for a partial sum");
            trib_summation_refuse(summation_of(core), what, TRIB_NO_MEMORY, "out of memory for a partial sum");
        }
        trib_summation_sent(summation_of(core), sum);
        return;
    }
    *push = (relay_push){.core = core, .what = *what, .sum = sum};
    trib_trace_sum(core, TRIB_TRACE_NEAR_COMPLETE, what, what->owner / TRIB_REACTORS_MAX,
                   brings_payload(core, what) ? trib_sum_partial_bytes(what) : 0);
    push_enqueue(link, push, trib_summation_is_behind(summation_of(core), what));
}

void trib_relay_round_refused(void *user, const trib_contribution *what, trib_status status, const char *text)
{
    trib_core *core = ((const trib_server_sum *)user)->core;
    trib_link *link = core->owner_links[what->owner];
    drop_pushes(core, what);
    if (link == NULL) {
        return;
    }
    if (newest_of_key(core->relay->sums, what) == NULL && newest_of_key(core->relay->refusals, what) == NULL) {
        send_refusal(link, what, status, text);
        return;
    }
    relay_push *push = push_take(core);
    char *copy = push == NULL ? NULL : strdup(text);
    if (copy == NULL) {
        if (push != NULL) {
            *push = (relay_push){.core = core};
            push_give(push);
        }
        trib_link_close(link, false, TRIB_NO_MEMORY, "out of memory for a refusal");
        return;
    }
    *push = (relay_push){.core = core, .what = *what, .status = status, .text = copy};
    push_enqueue(link, push, true);
}

void trib_relay_stalled(trib_core *core, const trib_contribution *what, const trib_frame *notice)
{
    struct trib_relay *relay = core->relay;
    trib_link *link = core->owner_links[what->owner];
    const bool is_same = is_of_key(what, &relay->stalled) && what->round == relay->stalled.round;
    /* the waiting workers of a round are reported in ascending order */
    const bool is_reported = is_same && what->contributor > relay->stalled.contributor;
    relay->stalled = *what;
    if (link != NULL && !is_reported) {
        trib_frame frame = frame_of(TRIB_FRAME_STALL, what);
        frame.root = 0;
        frame.aux = notice->aux;
        frame.chunk = notice->chunk;
        trib_link_send_copy(link, frame, NULL, 0);
    }
}

bool trib_relay_is_report(const trib_core *core, const trib_frame *frame)
{
    return frame->type == TRIB_FRAME_STALL && trib_frame_is_partial(frame) && frame->root == 0 &&
           machine_of(core, frame->aux) == machine_of(core, core->engine->member_id);
}

/* ---- Frames from owners ---- */

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
    if (trib_summation_find_owner(summation_of(core), &key, &owner) &&
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
           has_root(core, what) == (what->collective == TRIB_COLLECTIVE_REDUCE);
}

/* The waiting partial sum that the frame completes goes to *sum_out. NULL means that nothing waits for the frame any
 * more. */
static trib_status find_sum(trib_link *link, const trib_frame *frame, trib_sum_buffer **sum_out, trib_error *error)
{
    trib_core *core = link->core;
    const trib_contribution key = key_of(frame);
    *sum_out = trib_summation_awaited(summation_of(core), &key);
    if (*sum_out == NULL) {
        return TRIB_OK;
    }
    trib_contribution what;
    trib_summation_hold(*sum_out, &what);
    trib_summation_sent(summation_of(core), *sum_out);
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
        trib_summation_sent(summation_of(link->core), recv_claim->what);
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
        link->recv_claim = (trib_recv_claim){.abandon = partial_abandoned, .what = sum, .owner = summation_of(core)};
        target->buffer = sum->data;
    }
    return status;
}

static trib_status take_sum(trib_link *link, const trib_frame *frame, const void *payload, bool in_place,
                            trib_error *error)
{
    trib_core *core = link->core;
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
            trib_summation_complete(summation_of(core), &key);
        }
    }
    if (held != NULL) {
        trib_summation_sent(summation_of(core), held);
    }
    return status;
}

typedef struct stall_note {
    trib_core *core;
    uint32_t missing, is_vague, chunk;
} stall_note;

static void pass_on_stall(void *user, uint32_t receiver, const trib_contribution *what)
{
    const stall_note *note = user;
    trib_core *core = note->core;
    const trib_frame extra = {
        .type = TRIB_FRAME_STALL, .aux = note->missing, .root = note->is_vague, .chunk = note->chunk};
    trib_server_notice(core, &extra, core->sums[TRIB_SUM_RANK].rank_first + receiver, what, NULL);
}

/* The owner cannot name the missing worker of another machine for certain: a worker that left may have contributed
 * before. Only the relay of that machine knows. */
static void take_stall(trib_core *core, const trib_frame *frame)
{
    stall_note note = {.core = core, .missing = frame->aux, .is_vague = frame->root, .chunk = frame->chunk};
    const trib_contribution key = key_of(frame);
    trib_summation_each_waiting(summation_of(core), &key, pass_on_stall, &note);
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
        take_stall(core, frame);
        return TRIB_OK;
    }
    trib_cause cause;
    status = status == TRIB_OK ? trib_cause_decode(frame, payload, &cause, error) : status;
    if (status == TRIB_OK) {
        char text[TRIB_ERROR_TEXT_SIZE];
        trib_job_render_for_others(core->engine, &cause, text);
        const trib_contribution key = key_of(frame);
        drop_pushes(core, &key);
        trib_summation_refuse(summation_of(core), &key, cause.status, text);
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
        trib_summation_refuse_owner(summation_of(core), trib_relay_owner(link->peer, link->peer_reactor),
                                    TRIB_PEER_LEFT, text);
    }
}

/* ---- Opening and closing ---- */

trib_status trib_relay_open(trib_core *core)
{
    core->relay = trib_core_zalloc(core, sizeof *core->relay);
    return core->relay == NULL ? TRIB_NO_MEMORY : TRIB_OK;
}

bool trib_relay_is_idle(const trib_core *core)
{
    return core->relay == NULL || (core->relay->sums == NULL && core->relay->refusals == NULL);
}

void trib_relay_close(trib_core *core)
{
    if (core->relay == NULL) {
        return;
    }
    trib_assert(core->relay->sums == NULL && core->relay->refusals == NULL);
    while (core->relay->unused != NULL) {
        relay_push *push = core->relay->unused;
        core->relay->unused = push->next;
        free(push);
    }
    free(core->relay);
    core->relay = NULL;
}

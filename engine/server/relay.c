/* relay.c - sends a machine's partial sums and refusals to their owners (relay.h). */
#include "engine/server/relay_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/core/core_trace.h"
#include "engine/link/link_cause.h"

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
    trib_assert(!trib_send_request_waits(&push->request));
    if (push->sum != NULL && core->sums != NULL) {
        trib_summation_sent(trib_relay_summation(core), push->sum);
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
        .scale = what->scale,
        .prescale = what->prescale,
        .joins = (uint8_t)what->joins,
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

static bool brings_payload(const trib_core *core, const trib_contribution *what)
{
    return what->size > 0 && (trib_collective_is_sum(what->collective) || trib_relay_has_root(core, what));
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
    trib_assert(link->main == NULL && link == core->owner_links[push->what.owner]);
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

void trib_relay_drop_pushes(trib_core *core, const trib_contribution *what)
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
    trib_summation_refuse(trib_relay_summation(core), what, TRIB_PEER_LEFT, text);
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
            trib_summation_refuse(trib_relay_summation(core), what, TRIB_NO_MEMORY, "out of memory for a partial sum");
        }
        trib_summation_sent(trib_relay_summation(core), sum);
        return;
    }
    *push = (relay_push){.core = core, .what = *what, .sum = sum};
    trib_trace_sum(core, TRIB_TRACE_NEAR_COMPLETE, what, what->owner / TRIB_REACTORS_MAX,
                   brings_payload(core, what) ? trib_sum_partial_bytes(what) : 0);
    push_enqueue(link, push, trib_summation_is_behind(trib_relay_summation(core), what));
}

void trib_relay_round_refused(void *user, const trib_contribution *what, trib_status status, const char *text)
{
    trib_core *core = ((const trib_server_sum *)user)->core;
    trib_link *link = core->owner_links[what->owner];
    trib_assert(status != TRIB_OK);
    trib_relay_drop_pushes(core, what);
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

void trib_relay_stalled(trib_core *core, const trib_contribution *what, const trib_frame *notice,
                        const unsigned char *list)
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
        const uint32_t size = list == NULL ? 0 : trib_rank_bits_bytes(core->engine->roster->worker_count);
        trib_link_send_copy(link, frame, list, size);
    }
}

bool trib_relay_is_report(const trib_core *core, const trib_frame *frame)
{
    return frame->type == TRIB_FRAME_STALL && trib_frame_is_partial(frame) && frame->root == 0 &&
           trib_relay_machine(core, frame->aux) == trib_relay_machine(core, core->engine->member_id);
}

/* ---- Opening and closing ---- */

trib_status trib_relay_open(trib_core *core)
{
    trib_assert(core->relay == NULL);
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

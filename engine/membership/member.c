/*
 * member.c - a member's control link: watches the coordinator, answers its heartbeats, takes its frames, and leaves.
 * The end of the control link is the end of the job, once the roster has arrived.
 */
#include "engine/membership/member_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/link/link_cause.h"
#include "engine/membership/election.h"
#include "engine/membership/server_drain.h"
#include "engine/membership/server_loss.h"
#include "engine/server/quorum.h"
#include "engine/server/server_sum.h"
#include "engine/server/server_tensor.h"
#include "engine/tracer/tracer.h"
#include "engine/wire/address_list.h"
#include "engine/worker/op_commit.h"
#include "engine/worker/op_join.h"
#include "engine/worker/worker.h"

/* ---- The way to the coordinator ---- */

void trib_member_lose_coordinator(trib_member *member, const trib_cause *cause)
{
    trib_engine *engine = member->core->engine;
    if (!trib_election_begin(engine, cause)) {
        trib_job_end(engine, cause);
        return;
    }
    trib_timer_stop(member->core->reactor, &member->retry);
    trib_timer_stop(member->core->reactor, &member->join_deadline);
    trib_timer_stop(member->core->reactor, &member->watch);
    if (member->link != NULL) { /* nothing that the coordinator of that link says counts any more */
        trib_link_close(member->link, false, TRIB_PEER_LOST, "it has become silent");
    }
}

bool trib_member_note_coordinator(trib_engine *engine, const char *address)
{
    trib_noted_address *noted = engine->coordinators;
    while (noted != NULL && strcmp(noted->text, address) != 0) {
        noted = noted->next;
    }
    if (noted == NULL) {
        const size_t size = strlen(address) + 1;
        noted = malloc(sizeof *noted + size);
        if (noted == NULL) {
            return false;
        }
        memcpy(noted->text, address, size);
        noted->next = engine->coordinators;
        engine->coordinators = noted;
    }
    pthread_mutex_lock(&engine->mutex);
    engine->coordinator_address = noted->text;
    engine->config.coordinator = noted->text;
    pthread_mutex_unlock(&engine->mutex);
    return true;
}

void trib_member_redirect(trib_engine *engine, const trib_address *coordinator, bool joins)
{
    trib_member *member = engine->member;
    trib_address at = *coordinator;
    trib_address_list_strip_offers(at.text);
    if (!trib_member_note_coordinator(engine, at.text)) {
        trib_job_fail(engine, TRIB_NO_MEMORY, "out of memory for the coordinator's address");
        return;
    }
    member->coordinator = at;
    if (joins && member->link == NULL && !member->leaving) {
        const int64_t now_ns = trib_now(member->core->reactor);
        member->away_since_ns = now_ns;
        trib_timer_arm(member->core->reactor, &member->retry, now_ns);
        trib_timer_arm(member->core->reactor, &member->join_deadline,
                       now_ns + trib_join_first_ns(engine->config.join_timeout_ns));
    }
}

int64_t trib_member_coordinator_silence(const trib_member *member)
{
    const int64_t now_ns = trib_now(member->core->reactor);
    /* a process that stands still may take a connection, and never prove anything on it */
    const int64_t heard_ns = member->away_since_ns != 0 ? member->away_since_ns
                             : member->link != NULL     ? member->link->last_received_ns
                                                        : now_ns;
    return now_ns - heard_ns;
}

void trib_member_watch_coordinator(trib_reactor *reactor, trib_timer *timer)
{
    trib_member *member = timer->user;
    const trib_roster *roster = member->core->engine->roster;
    int64_t now_ns = trib_now(reactor);
    if (member->link == NULL || member->leaving) {
        return;
    }
    trib_assert(roster != NULL); /* the watch begins with it */
    const bool stalled_locally = trib_timer_stalled_locally(reactor, timer, roster->peer_timeout_ns / 8);
    const bool judges = !stalled_locally || member->stalled_locally;
    member->stalled_locally = stalled_locally;
    if (stalled_locally) {
        trib_link_extend_grace(member->link, now_ns - timer->due_ns, now_ns);
    }
    if (member->link->state == TRIB_LINK_RECONNECTING) {
        trib_member_resolve_coordinator(member);
    }
    const int64_t silence_ns = trib_member_coordinator_silence(member);
    if (silence_ns >= roster->peer_timeout_ns && judges) {
        trib_engine *engine = member->core->engine;
        trib_cause cause =
            trib_cause_about(TRIB_PEER_LOST, TRIB_CAUSE_SILENT, TRIB_SUBJECT_COORDINATOR, 0, engine->member_id, "");
        cause.silence_ns = silence_ns;
        trib_member_lose_coordinator(member, &cause);
        return;
    }
    const int64_t doubt_ns = roster->peer_timeout_ns / TRIB_ELECTION_DOUBT_SHARE;
    if (silence_ns >= doubt_ns && judges) {
        trib_election_doubt(member->core->engine);
    }
    const int64_t latest_ns = now_ns + (silence_ns < doubt_ns ? doubt_ns - silence_ns : doubt_ns);
    trib_timer_arm(reactor, timer,
                   trib_silence_next_ns(now_ns, latest_ns, now_ns - silence_ns, roster->peer_timeout_ns));
}

trib_link *trib_member_link(const trib_member *member)
{
    const bool is_there = member != NULL && member->joined && !member->leaving && member->link != NULL;
    return is_there && trib_link_is_up(member->link) ? member->link : NULL;
}

bool trib_member_ask_time(trib_engine *engine)
{
    const trib_member *member = engine->member;
    if (trib_member_link(member) == NULL) {
        return false;
    }
    atomic_fetch_add(&member->core->engine->questions, 1);
    trib_link_send_copy(member->link, trib_clock_question(trib_now(member->core->reactor)), NULL, 0);
    return true;
}

void trib_member_send(const trib_member *member, const trib_frame *frame, const void *payload, size_t size)
{
    if (trib_member_link(member) != NULL) {
        trib_link_send_copy(member->link, *frame, payload, size);
    }
}

void trib_member_tell(trib_engine *engine, const trib_frame *frame, const void *payload, size_t size)
{
    const trib_member *member = engine->member;
    if (member != NULL && member->link != NULL &&
        (frame->type == TRIB_FRAME_JOIN_HEARD || frame->type == TRIB_FRAME_QUORUM_CALL ||
         frame->type == TRIB_FRAME_QUORUM_BEGUN)) {
        trib_link_send_copy(member->link, *frame, payload, size); /* a member that leaves answers, too */
    } else if (member != NULL) {
        trib_member_send(member, frame, payload, size);
    }
}

/* ---- Another epoch ---- */

void trib_member_send_advance(const trib_member *member)
{
    trib_engine *engine = member->core->engine;
    pthread_mutex_lock(&engine->mutex);
    /* A program that waits for its engine to be ready for the first time has nothing to advance from. */
    const bool advances = engine->formation.advances || (engine->config.roles & TRIB_ROLE_WORKER) == 0 ||
                          engine->config.rank < 0 || (!engine->joined && atomic_load(&engine->changing)) ||
                          atomic_load(&engine->formation.continues);
    pthread_mutex_unlock(&engine->mutex);
    if (advances && !member->leaving && member->link != NULL && trib_link_is_up(member->link)) {
        trib_link_send_copy(member->link, (trib_frame){.type = TRIB_FRAME_ADVANCE}, NULL, 0);
    }
}

void trib_member_advance(trib_reactor *reactor, trib_post *post)
{
    (void)post;
    trib_engine *engine = ((trib_core *)reactor->owner)->engine;
    pthread_mutex_lock(&engine->mutex);
    engine->formation.advance_posted = false;
    pthread_mutex_unlock(&engine->mutex);
    if (engine->member != NULL) { /* else it is about to be opened again */
        trib_member_send_advance(engine->member);
    }
}

/* ---- Frames from the coordinator ---- */

static trib_status member_header(trib_link *link, const trib_frame *frame, trib_recv_target *target, trib_error *error)
{
    trib_member *member = link->user;
    member->has_begun = member->has_begun || frame->type == TRIB_FRAME_ROSTER;
    if (link->host->epoch == 0) { /* from now on this process belongs to that incarnation of the job, and to no other */
        link->host->epoch = trib_epoch_make(trib_epoch_incarnation(frame->epoch), 0);
    }
    (void)target; /* the payload lands in the link's memory */
    (void)error;
    return TRIB_OK;
}

static trib_status take_ended(trib_member *member, const trib_frame *frame, const void *payload, trib_error *error)
{
    trib_engine *engine = member->core->engine;
    trib_cause cause;
    const trib_status status = trib_cause_decode(frame, payload, &cause, error);
    if (status == TRIB_OK && trib_member_looks_elsewhere(member, &cause)) {
        return TRIB_OK;
    }
    if (status == TRIB_OK && !atomic_load(&engine->job_over)) {
        engine->verdict = cause;
        atomic_store(&engine->job_over, true);
    }
    if (status == TRIB_OK && frame->root == TRIB_ENDED_CHANGES && atomic_load(&engine->shrinks)) {
        engine->formation.is_settled = true; /* all successes were announced before */
        engine->formation.at_boundary = cause.status == TRIB_EPOCH_CHANGED;
        engine->formation.lost_last = cause.subject_kind == TRIB_SUBJECT_MEMBER ? cause.subject + 1 : 0;
        trib_job_change(engine, &cause);
    } else if (status == TRIB_OK) {
        trib_job_end(engine, &cause);
    }
    return status;
}

static void take_left(const trib_member *member, const trib_frame *frame)
{
    trib_core *core = member->core;
    trib_engine *engine = core->engine;
    /* A member without a roster hears of nobody else. */
    if (member->leaving && (!member->joined || frame->aux == engine->member_id)) {
        atomic_store(&engine->leave_settled, true);
    }
    if (member->joined) {
        trib_departed_add(&engine->departed, frame->aux, frame->size, trib_now(core->reactor));
        if (engine->formation.gone != NULL && frame->aux < engine->roster->member_count) {
            engine->formation.gone[frame->aux] = true;
        }
        engine->hooks->member_left(core);
    }
}

static void take_known(trib_member *member)
{
    trib_engine *engine = member->core->engine;
    if (!member->joined || member->knows_begun) {
        return;
    }
    member->knows_begun = engine->formation.is_known = true;
    if (engine->roster->ticket != 0) {
        engine->formation.confirmed = engine->roster->ticket;
        trib_engine_core_joined(engine);
    }
}

/* A member that leaves answers, too, because it still sums for others. */
static void send_serving(trib_engine *engine, bool lacks_codec)
{
    const trib_member *member = engine->member;
    const trib_frame answer = {.type = TRIB_FRAME_SERVING, .aux = lacks_codec ? TRIB_SERVING_LACKS_CODEC : 0};
    trib_assert(trib_core_is_here(&engine->cores[0]));
    if (member != NULL && member->link != NULL && trib_link_is_up(member->link)) {
        trib_link_send_copy(member->link, answer, NULL, 0);
    }
}

/* The frame is about tensors, groups or members of a job that this member does not know before its roster. */
static bool needs_roster(uint8_t type)
{
    switch (type) {
    case TRIB_FRAME_DECLARED:
    case TRIB_FRAME_MOVE:
    case TRIB_FRAME_MOVE_DECIDED:
    case TRIB_FRAME_RELEASED:
    case TRIB_FRAME_FORGET:
    case TRIB_FRAME_SERVE:
    case TRIB_FRAME_GROUP_RANKS:
    case TRIB_FRAME_SERVER_LOST:
    case TRIB_FRAME_COMMIT:
    case TRIB_FRAME_JOINED:
    case TRIB_FRAME_JOIN_OVER:
    case TRIB_FRAME_QUORUM_ASK:
    case TRIB_FRAME_QUORUM_SET:
    case TRIB_FRAME_WAITED_FOR:
        return true;
    default:
        return false;
    }
}

static trib_status take_tensor_frame(trib_engine *engine, const trib_frame *frame, const void *payload,
                                     trib_error *error)
{
    switch (frame->type) {
    case TRIB_FRAME_DECLARED:
        return trib_member_take_declared(engine, frame, payload, error);
    case TRIB_FRAME_MOVE:
        return trib_member_take_move(engine, frame, payload, error);
    case TRIB_FRAME_MOVE_DECIDED:
        return trib_member_take_decided(engine, frame, error);
    case TRIB_FRAME_RELEASED:
        return trib_member_take_released(engine, frame, error);
    case TRIB_FRAME_FORGET:
        return trib_member_take_forget(engine, frame, error);
    case TRIB_FRAME_TENSOR_BAD:
        return trib_member_take_tensor_bad(engine, frame, payload, error);
    default:
        return trib_error_set(error, TRIB_PROTOCOL, "unexpected %s frame from the coordinator",
                              trib_frame_name(frame->type));
    }
}

static trib_status member_received(trib_link *link, const trib_frame *frame, const void *payload, bool in_place,
                                   trib_error *error)
{
    (void)in_place;
    trib_member *member = link->user;
    if (!member->joined && needs_roster(frame->type)) {
        return trib_error_set(error, TRIB_PROTOCOL, "%s before the roster", trib_frame_name(frame->type));
    }
    switch (frame->type) {
    case TRIB_FRAME_ROSTER:
        return trib_member_take_roster(member, frame, payload, error);
    case TRIB_FRAME_PING:
        atomic_store(&member->core->engine->coordinator_heard_ns, link->last_received_ns);
        trib_link_send_copy(link, (trib_frame){.type = TRIB_FRAME_PONG}, NULL, 0);
        trib_member_note_waits(member, frame->root == TRIB_PING_WAITS);
        return TRIB_OK;
    case TRIB_FRAME_PROBE:
        trib_link_send_copy(link, (trib_frame){.type = TRIB_FRAME_PROBED}, NULL, 0);
        return TRIB_OK;
    case TRIB_FRAME_PONG:
        atomic_fetch_add(&member->core->engine->answers, 1);
        trib_tracer_clock_answer(member->core->engine, frame, link->last_received_ns);
        return TRIB_OK;
    case TRIB_FRAME_ENDED:
        return take_ended(member, frame, payload, error);
    case TRIB_FRAME_SERVE:
        return trib_server_take_serve(member->core->engine, frame, payload, send_serving, error);
    case TRIB_FRAME_GROUP_RANKS:
        return trib_member_take_group_ranks(member->core->engine, frame, payload, error);
    case TRIB_FRAME_GROUP_MADE:
        return trib_member_take_group_made(member->core->engine, frame, error);
    case TRIB_FRAME_GROUP_BAD:
        return trib_member_take_group_bad(member->core->engine, frame, payload, error);
    case TRIB_FRAME_GROUP_FORGET:
        return trib_member_take_group_forget(member->core->engine, frame, error);
    case TRIB_FRAME_SERVER_LOST:
        return trib_server_loss_take(member->core->engine, frame, payload, error);
    case TRIB_FRAME_DRAIN:
        return trib_server_drain_refused(member->core->engine, error);
    case TRIB_FRAME_COMMIT:
        return trib_commit_take(member->core, frame, payload, error);
    case TRIB_FRAME_JOINED:
        return trib_server_take_joined(member->core->engine, frame, payload, error);
    case TRIB_FRAME_JOIN_OVER:
        return trib_op_join_take_over(member->core->engine, frame, payload, error);
    case TRIB_FRAME_QUORUM_ASK:
    case TRIB_FRAME_QUORUM_SET:
        return trib_quorum_take(member->core->engine, frame, payload, error);
    case TRIB_FRAME_WAITED_FOR:
        return trib_worker_take_waited_for(member->core->engine, frame, payload, error);
    case TRIB_FRAME_LEFT:
        take_left(member, frame);
        return TRIB_OK;
    case TRIB_FRAME_ROSTER_KNOWN:
        take_known(member);
        return TRIB_OK;
    default:
        return take_tensor_frame(member->core->engine, frame, payload, error);
    }
}

static void member_closed(trib_link *link, trib_status status, const char *reason)
{
    (void)reason;
    trib_member *member = link->user;
    trib_core *core = member->core;
    trib_assert(member->link == link);
    member->link = NULL;
    atomic_store(&core->engine->job_over, member->joined);
    if (trib_election_is_open(core->engine) && !core->ended) {
        return;
    }
    if (member->leaving || core->ended) {
        atomic_store(&core->engine->leave_settled, true);
        return;
    }
    char why[TRIB_ERROR_TEXT_SIZE];
    trib_cause cause;
    /* Another process has taken the coordinator's address. */
    const bool is_replaced =
        status == TRIB_PROTOCOL && core->engine->roster != NULL && atomic_load(&core->engine->changing);
    trib_job_render(core->engine, &link->end, why);
    if (member->joined) {
        trib_link_control_cause(link, TRIB_SUBJECT_COORDINATOR, 0, &cause);
        if (cause.origin == TRIB_NO_MEMBER) {
            cause.origin = core->engine->member_id;
        }
        trib_member_lose_coordinator(member, &cause);
    } else if (is_replaced || trib_member_is_away_too_long(member, link)) {
        cause = trib_cause_about(TRIB_PEER_LOST, TRIB_CAUSE_MEMBER_LOST, TRIB_SUBJECT_COORDINATOR, 0,
                                 core->engine->member_id, why);
        trib_member_lose_coordinator(member, &cause);
    } else if (status == TRIB_UNAUTHORIZED || status == TRIB_PROTOCOL ||
               (member->has_begun && !atomic_load(&core->engine->changing) && !trib_member_is_joiner(core->engine))) {
        trib_member_fail_to_join(member, status, why);
    } else {
        snprintf(member->last_problem, sizeof member->last_problem, "%.380s", why);
        trib_member_note_awaited(core->engine);
        trib_timer_arm(core->reactor, &member->retry, trib_now(core->reactor) + TRIB_MEMBER_RETRY_NS);
        if (member->waits && link->session.is_established) {
            trib_member_search_anew(member); /* the others elect another coordinator */
        }
    }
}

const trib_link_upcalls trib_member_upcalls = {
    .ready = trib_member_link_ready,
    .header = member_header,
    .received = member_received,
    .closed = member_closed,
};

/* ---- Life ---- */

trib_status trib_member_open(trib_core *core, trib_error *error)
{
    trib_member *member = trib_core_zalloc(core, sizeof *member);
    if (member == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for the connection to the coordinator");
    }
    trib_assert(core->engine->member == NULL && core->reactor->index == 0);
    member->core = core;
    core->engine->member = member;
    if (core->engine->roster == NULL) {
        core->reactor->ops->random(core->reactor, (unsigned char *)&core->engine->start, sizeof core->engine->start);
    }
    snprintf(member->last_problem, sizeof member->last_problem, "no answer");
    snprintf(member->coordinator.text, sizeof member->coordinator.text, "%s", core->engine->coordinator_address);
    member->retry.fired = trib_member_try_to_connect;
    member->join_deadline.fired = trib_member_join_deadline_passed;
    member->retry.user = member->join_deadline.user = member;
    int64_t now_ns = trib_now(core->reactor);
    member->away_since_ns = now_ns;
    trib_timer_arm(core->reactor, &member->retry, now_ns);
    trib_timer_arm(core->reactor, &member->join_deadline,
                   now_ns + trib_join_first_ns(core->engine->config.join_timeout_ns));
    trib_member_note_awaited(core->engine);
    return TRIB_OK;
}

void trib_member_leave(trib_member *member, const trib_cause *cause)
{
    if (member == NULL || member->leaving) {
        return;
    }
    trib_assert(trib_core_is_here(member->core));
    member->leaving = true;
    trib_election_stop(member->core->engine);
    trib_reactor *reactor = member->core->reactor;
    trib_timer_stop(reactor, &member->retry);
    trib_timer_stop(reactor, &member->join_deadline);
    trib_timer_stop(reactor, &member->watch);
    trib_link *link = member->link;
    if (link == NULL || !trib_link_is_up(link) || atomic_load(&member->core->engine->changing)) {
        atomic_store(&member->core->engine->leave_settled, true);
        return;
    }
    if (trib_status_is_orderly(cause->status)) {
        const uint32_t carried_out = member->core->engine->hooks->carried_out(member->core);
        trib_link_send_copy(link, (trib_frame){.type = TRIB_FRAME_LEAVE, .size = carried_out}, NULL, 0);
        return;
    }
    trib_link_send_cause(link, (trib_frame){.type = TRIB_FRAME_LOST}, cause);
}

bool trib_member_is_leaving(const trib_member *member)
{
    return member == NULL || member->leaving;
}

void trib_member_close(trib_member *member)
{
    if (member != NULL) {
        trib_assert(member->link == NULL);
        trib_timer_stop(member->core->reactor, &member->retry);
        trib_timer_stop(member->core->reactor, &member->join_deadline);
        trib_timer_stop(member->core->reactor, &member->watch);
        free(member);
    }
}

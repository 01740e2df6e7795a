/*
 * coordinator.c - the state machine of the membership: gathering -> running -> over.
 *
 * Gathering (coordinator_join.c) ends when all workers and servers have joined. If the join deadline passes first,
 * every member gets an error. Running ends when all workers have left, which the servers are told, or when a member is
 * lost, whose cause all members are told.
 */
#include "engine/membership/codec_choice.h"
#include "engine/membership/coordinator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/link/link_cause.h"
#include "engine/link/link_handshake.h"
#include "engine/wire/clock.h"
#include "engine/membership/commits.h"
#include "engine/membership/election.h"
#include "engine/membership/formation.h"
#include "engine/membership/member.h"
#include "engine/membership/quorums.h"
#include "engine/membership/rebalance.h"
#include "engine/membership/server_drain.h"
#include "engine/membership/server_loss.h"
#include "engine/membership/tenure.h"
#include "engine/membership/uneven_inputs.h"
#include "engine/membership/verdict.h"
#include "engine/membership/waits.h"

#define LEFT_EARLY "left the job before its workers"

void trib_coordinator_notify_end(trib_link *link, const trib_cause *cause)
{
    trib_link_send_cause(link, (trib_frame){.type = TRIB_FRAME_ENDED}, cause);
}

void trib_coordinator_end_job(trib_coordinator *self, const trib_cause *cause)
{
    if (self->over) {
        return;
    }
    self->over = true;
    trib_tenure_forgo(self->core->engine);
    trib_timer_stop(self->core->reactor, &self->join_deadline);
    trib_timer_stop(self->core->reactor, &self->heartbeat);
    for (uint32_t i = 0; i < trib_coordinator_slots(self); i++) {
        if (self->slots[i].link != NULL) { /* one that has left may wait for others, or for the verdict on its report */
            trib_coordinator_notify_end(self->slots[i].link, cause);
        }
    }
    if ((self->core->engine->config.roles & (TRIB_ROLE_WORKER | TRIB_ROLE_SERVER)) == 0) {
        trib_job_end(self->core->engine, cause); /* no member in this process would end the job */
    }
}

void trib_coordinator_take_loss(trib_coordinator *self, const trib_cause *cause)
{
    if (trib_server_loss_decide(self, cause)) {
        return;
    }
    if (trib_formation_survives(self, cause)) {
        trib_formation_end_epoch(self, cause);
    } else {
        trib_assert(!trib_status_is_orderly(cause->status));
        trib_coordinator_end_job(self, cause);
    }
}

/* The job ends in good order only if the servers stayed as long as the workers. */
static void end_with_workers(trib_coordinator *self)
{
    if (!self->over) { /* else the others may go on, and those that wait look for them */
        trib_formation_dismiss_waiting(self);
    }
    if (self->early_leaver == TRIB_NO_MEMBER) {
        const trib_cause orderly = trib_cause_note(TRIB_OK, TRIB_NO_MEMBER, "all workers have left");
        trib_coordinator_end_job(self, &orderly);
        return;
    }
    const trib_cause cause = trib_cause_about(TRIB_PEER_LEFT, TRIB_CAUSE_LEFT, TRIB_SUBJECT_MEMBER, self->early_leaver,
                                              TRIB_NO_MEMBER, LEFT_EARLY);
    trib_coordinator_end_job(self, &cause);
}

/* ---- Links ---- */

static void announce_left(trib_coordinator *self, uint32_t member, uint32_t carried_out)
{
    /* Members that have left are told, too, because their servers may still work for others. */
    const trib_frame left = {.type = TRIB_FRAME_LEFT, .aux = member, .size = carried_out};
    for (uint32_t i = 0; i < trib_coordinator_slots(self); i++) {
        if (self->slots[i].link != NULL) {
            trib_link_send_copy(self->slots[i].link, left, NULL, 0);
        }
    }
}

/* The member may come back until the join deadline. */
static void free_place(trib_coordinator *self, uint32_t member, const char *why)
{
    trib_coordinator_slot *at = &self->slots[member];
    trib_assert(at->link != NULL && self->joined > 0);
    snprintf(at->gone, sizeof at->gone, "%.*s: %.150s", TRIB_MEMBER_NAME_MAX, at->info.name, why);
    if (!self->core->ended) {
        trib_log(self->core->reactor->logger, TRIB_LOG_WARN,
                 "a member that had joined is gone before the job has begun: %s", at->gone);
    }
    at->link->peer = TRIB_NO_MEMBER;
    at->link = NULL;
    at->joined = false;
    self->joined--;
    trib_member_note_awaited(self->core->engine);
}

static void member_left(trib_coordinator *self, uint32_t member, uint32_t carried_out)
{
    trib_coordinator_slot *at = &self->slots[member];
    if (!self->running && !self->over) {
        trib_link *link = at->link;
        free_place(self, member, "it has left");
        trib_formation_member_gone(self, member, at->gone);
        trib_link_send_copy(link, (trib_frame){.type = TRIB_FRAME_LEFT, .aux = member}, NULL, 0);
        return;
    }
    if (at->left || self->over) {
        trib_formation_member_gone(self, member, "a member has left");
        trib_link_send_copy(at->link, (trib_frame){.type = TRIB_FRAME_LEFT, .aux = member}, NULL, 0);
        return;
    }
    if (trib_drain_may_end_epoch(self, member)) {
        trib_link_send_copy(at->link, (trib_frame){.type = TRIB_FRAME_LEFT, .aux = member}, NULL, 0);
        trib_drain_end_epoch(self, member);
        return;
    }
    at->left = true;
    trib_rebalance_stop(self);
    if (member < self->worker_count) {
        trib_assert(self->workers_left < self->worker_count);
        self->workers_left++;
    } else if (self->workers_left < self->worker_count && self->early_leaver == TRIB_NO_MEMBER) {
        self->early_leaver = member;
        trib_log(self->core->reactor->logger, TRIB_LOG_WARN,
                 "%s has left while workers are at work: operations that it had a part in fail",
                 trib_roster_name(self->roster, member));
    }
    announce_left(self, member, carried_out);
    trib_commits_worker_left(self);
    trib_registry_worker_left(self, member);
    trib_registry_member_left(self);
    trib_groups_member_left(self);
    trib_uneven_inputs_check(self);
    trib_drain_check(self);
    if (self->workers_left == self->worker_count) {
        end_with_workers(self);
    } else {
        trib_formation_check_boundary(self); /* the others may have asked for one already */
    }
}

static trib_status coordinator_header(trib_link *link, const trib_frame *frame, trib_recv_target *target,
                                      trib_error *error)
{
    (void)error;
    const trib_coordinator *self = link->core->engine->coordinator;
    if (frame->type == TRIB_FRAME_LOADS && self != NULL && self->running && link->peer < trib_coordinator_slots(self) &&
        link->arrival_count == 0) {
        /* LOADS frames come all the time, so they have a buffer. All other frames land in the link's memory. */
        target->buffer = self->slots[link->peer].loads_buffer;
    }
    return TRIB_OK;
}

static trib_status take_lost(trib_coordinator *self, uint32_t member, const trib_frame *frame, const void *payload,
                             trib_error *error)
{
    trib_cause cause;
    const trib_status status = trib_cause_decode(frame, payload, &cause, error);
    if (status != TRIB_OK) {
        return status;
    }
    trib_cause_set_sender(&cause, member);
    if (trib_formation_goes_on_without(self, member, &cause)) {
        return TRIB_OK;
    }
    self->slots[member].left = true;
    if (self->running && cause.status == TRIB_PEER_LOST) {
        trib_verdict_judge(self, member, &cause);
    }
    trib_coordinator_end_job(self, &cause); /* the member that reports the end has ended itself */
    return TRIB_OK;
}

/* A member has lost its way to a server, and goes on if the job does. */
static trib_status take_server_lost(trib_coordinator *self, uint32_t member, const trib_frame *frame,
                                    const void *payload, trib_error *error)
{
    trib_cause cause;
    const trib_status status = trib_cause_decode(frame, payload, &cause, error);
    if (status == TRIB_OK) {
        trib_cause_set_sender(&cause, member);
        if (frame->root != TRIB_SERVER_LOST_STOPS) { /* else it passes on what the coordinator has told */
            cause.origin = member;
        }
        if (frame->root == TRIB_SERVER_LOST_DOUBTS) {
            trib_verdict_doubt(self, &cause);
        } else if (!trib_formation_judge(self, member, frame, &cause) && !trib_verdict_waits(self, &cause)) {
            trib_coordinator_take_loss(self, &cause);
        }
    }
    return status;
}

static trib_status take_member_frame(trib_coordinator *self, trib_link *link, const trib_frame *frame,
                                     const void *payload, trib_error *error)
{
    const uint32_t member = link->peer;
    switch (frame->type) {
    case TRIB_FRAME_DECLARE:
        return self->running ? trib_registry_take_declare(self, member, frame, payload, error)
                             : trib_error_set(error, TRIB_PROTOCOL, "DECLARE before the roster");
    case TRIB_FRAME_RELEASE:
        return trib_registry_take_release(self, member, frame, error);
    case TRIB_FRAME_FORGOTTEN:
        return trib_registry_take_forgotten(self, member, error);
    case TRIB_FRAME_SERVING:
        return trib_serve_take_serving(self, member, frame, error);
    case TRIB_FRAME_QUORUM_CALL:
    case TRIB_FRAME_QUORUM_BEGUN:
        return trib_quorums_take(self, member, frame, payload, error);
    case TRIB_FRAME_PROBED:
        return trib_codec_choice_take_probed(self, member, error);
    case TRIB_FRAME_GROUP_CREATE:
        return self->running ? trib_groups_take_create(self, member, frame, payload, error)
                             : trib_error_set(error, TRIB_PROTOCOL, "GROUP_CREATE before the roster");
    case TRIB_FRAME_GROUP_KNOWN:
        return trib_groups_take_known(self, member, frame, error);
    case TRIB_FRAME_GROUP_RELEASE:
        return trib_groups_take_release(self, member, frame, error);
    case TRIB_FRAME_GROUP_FORGOTTEN:
        return trib_groups_take_forgotten(self, member, frame, error);
    case TRIB_FRAME_PING:
        trib_link_send_copy(link, trib_clock_answer(frame, link->last_received_ns, trib_now(self->core->reactor)), NULL,
                            0);
        return TRIB_OK;
    case TRIB_FRAME_PONG:
        self->slots[member].asked_ns = 0;
        return TRIB_OK;
    case TRIB_FRAME_LEAVE:
        member_left(self, member, frame->size);
        return TRIB_OK;
    case TRIB_FRAME_LOADS:
        return trib_rebalance_take_loads(self, member, frame, payload, error);
    case TRIB_FRAME_MOVE_READY:
        return trib_rebalance_take_ready(self, member, frame, error);
    case TRIB_FRAME_SERVER_LOST:
        return take_server_lost(self, member, frame, payload, error);
    case TRIB_FRAME_SETTLED:
        return trib_commits_take_settled(self, member, frame, payload, error);
    case TRIB_FRAME_ADVANCE:
        trib_formation_take_advance(self, member);
        return TRIB_OK;
    case TRIB_FRAME_ROSTER_TAKEN:
        trib_formation_take_losses_taken(self, member);
        return TRIB_OK;
    case TRIB_FRAME_DRAIN:
        return trib_drain_take(self, member, error);
    case TRIB_FRAME_LOSSES_TAKEN:
        return trib_drain_take_losses_taken(self, member, frame, error);
    case TRIB_FRAME_WAITING:
        return trib_waits_take(self, member, frame, error);
    case TRIB_FRAME_LOST:
        return take_lost(self, member, frame, payload, error);
    default:
        return trib_uneven_inputs_take(self, member, frame, payload, error);
    }
}

static trib_status coordinator_received(trib_link *link, const trib_frame *frame, const void *payload, bool in_place,
                                        trib_error *error)
{
    (void)in_place;
    trib_coordinator *self = link->core->engine->coordinator;
    if (self == NULL) {
        return TRIB_CLOSED;
    }
    const bool known = link->peer < trib_coordinator_slots(self) && self->slots[link->peer].link == link;
    if (frame->type == TRIB_FRAME_JOIN && !known && link->peer != TRIB_PEER_PARKED) {
        return trib_coordinator_take_join(self, link, frame, payload, error);
    }
    if (frame->type == TRIB_FRAME_VOTE && !known) {
        trib_election_answer(link, frame);
        return TRIB_OK;
    }
    if (frame->type == TRIB_FRAME_LEAVE && !known && link->peer != TRIB_PEER_PARKED) {
        trib_link_close(link, true, TRIB_CLOSED, "a voter leaves"); /* with what it has been told before */
        return TRIB_OK;
    }
    if (link->peer == TRIB_PEER_PARKED) {
        return trib_formation_take_parked(link, frame, error);
    }
    if (!known || frame->type == TRIB_FRAME_JOIN) {
        return trib_error_set(error, TRIB_PROTOCOL, "unexpected %s frame", trib_frame_name(frame->type));
    }
    return take_member_frame(self, link, frame, payload, error);
}

static void coordinator_link_closed(trib_link *link, trib_status status, const char *reason)
{
    trib_coordinator *self = link->core->engine->coordinator;
    if (self != NULL && link->peer == TRIB_PEER_PARKED) {
        trib_assert(self->parked > 0);
        self->parked--;
    }
    if (self == NULL || link->peer >= trib_coordinator_slots(self) || self->slots[link->peer].link != link) {
        if (status == TRIB_PROTOCOL) {
            trib_link_note_refused(link->host, TRIB_REFUSAL_MEMBER, trib_link_remote(link), reason);
        }
        return;
    }
    trib_coordinator_slot *at = &self->slots[link->peer];
    if (!self->running && !self->over) {
        free_place(self, link->peer, reason);
        if (trib_formation_gathers(self)) { /* only its connection may have ended */
            at->away_since_ns = trib_now(self->core->reactor);
            trib_formation_await_absent(self);
            trib_formation_check(self);
        }
        return;
    }
    at->link = NULL;
    if (!self->over && !at->left) {
        trib_cause cause;
        trib_link_control_cause(link, TRIB_SUBJECT_MEMBER, link->peer, &cause);
        trib_coordinator_take_loss(self, &cause);
    }
    /* Nothing waits for its answers any more. A job that goes on without a server may have asked for some. */
    trib_serves_check(self);
    trib_quorums_member_gone(self);
    trib_uneven_inputs_check(self);
}

static void coordinator_ready(trib_link *link)
{
    (void)link;
}

static const trib_link_upcalls coordinator_upcalls = {
    .ready = coordinator_ready,
    .header = coordinator_header,
    .received = coordinator_received,
    .closed = coordinator_link_closed,
};

/* A process that has proved the token and does not join holds a descriptor for nothing. */
static void join_is_overdue(trib_link *link)
{
    trib_link_close(link, false, TRIB_PROTOCOL, "it has proved the token, and has not joined within 10 s");
}

void trib_coordinator_adopt(trib_link *link)
{
    link->upcalls = &coordinator_upcalls;
    link->peer = TRIB_NO_MEMBER;
    trib_link_handshake_limit(link, join_is_overdue);
}

/* ---- Life ---- */

static uint32_t draw_incarnation(trib_reactor *reactor)
{
    uint32_t drawn = 0;
    reactor->ops->random(reactor, (unsigned char *)&drawn, sizeof drawn);
    return trib_epoch_incarnation(drawn) | 1u; /* 0 means that none is known */
}

trib_status trib_coordinator_open(trib_core *core, trib_address *bound_out, trib_error *error)
{
    trib_engine *engine = core->engine;
    trib_coordinator *self = trib_core_zalloc(core, sizeof *self);
    if (self == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for the coordinator");
    }
    engine->coordinator = self;
    self->core = core;
    self->opened_ns = trib_now(core->reactor);
    core->host.epoch = trib_epoch_make(draw_incarnation(core->reactor), 0);
    self->join_deadline.fired = trib_coordinator_join_deadline_passed;
    self->join_deadline.user = self;
    self->worker_count = (uint32_t)engine->config.worker_count;
    self->early_leaver = TRIB_NO_MEMBER;
    self->server_count = (uint32_t)engine->config.server_count;
    const bool is_first = !trib_formation_begin(self);
    self->slots = trib_core_zalloc(core, trib_coordinator_slots(self) * sizeof *self->slots);
    if (self->slots == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for %u members", trib_coordinator_slots(self));
    }
    const trib_status status = trib_coordinator_listen(self, bound_out, error);
    if (status != TRIB_OK) {
        return status;
    }
    if (trib_tenure_is_used(engine)) {
        trib_tenure_begin(self, bound_out);
    }
    if (is_first) {
        trib_timer_arm(core->reactor, &self->join_deadline,
                       trib_now(core->reactor) + trib_join_first_ns(engine->config.join_timeout_ns));
    } else {
        trib_formation_probe_begin(self);
    }
    trib_member_note_awaited(engine);
    return TRIB_OK;
}

bool trib_coordinator_is_alone(const trib_coordinator *self)
{
    const trib_config *config = &self->core->engine->config;
    /* The worker of this process is leaving itself, so it does not count as staying. */
    bool stays = (config->roles & TRIB_ROLE_WORKER) != 0 && !self->slots[self->core->engine->member_id].left;
    return self->over || !self->running || self->workers_left + (stays ? 1 : 0) >= self->worker_count;
}

/* The worker of this process has left in good order, and the others go on: they elect another coordinator when this
 * address refuses. Returns false if the job ends with this process. */
static bool leave_to_others(trib_coordinator *self)
{
    const trib_engine *engine = self->core->engine;
    const uint32_t me = engine->member_id;
    if (!self->running || self->over || !self->roster->shrinks || (engine->config.roles & TRIB_ROLE_WORKER) == 0 ||
        !self->slots[me].left) {
        return false;
    }
    const trib_cause cause =
        trib_cause_about(TRIB_PEER_LEFT, TRIB_CAUSE_LEFT, TRIB_SUBJECT_MEMBER, me, TRIB_NO_MEMBER, "has left the job");
    trib_formation_end_epoch(self, &cause);
    return true;
}

void trib_coordinator_end(trib_coordinator *self, const trib_cause *cause)
{
    trib_cause told = *cause;
    const bool is_orderly = trib_status_is_orderly(cause->status);
    if (is_orderly && self->running && trib_coordinator_is_alone(self)) {
        end_with_workers(self);
        return;
    }
    if (is_orderly && leave_to_others(self)) {
        return;
    }
    if (is_orderly) {
        char text[TRIB_ERROR_TEXT_SIZE] = LEFT_EARLY;
        const trib_config *config = &self->core->engine->config;
        if ((config->roles & TRIB_ROLE_WORKER) != 0) {
            snprintf(text, sizeof text,
                     "%s: it waits for them for %.3g s (TRIB_CLOSE_TIMEOUT), so let all of them end at about the same "
                     "time, with trib_barrier before the end, or set more",
                     LEFT_EARLY, (double)config->close_timeout_ns / 1e9);
        }
        told = trib_cause_about(TRIB_PEER_LEFT, TRIB_CAUSE_LEFT, TRIB_SUBJECT_COORDINATOR, 0, TRIB_NO_MEMBER, text);
    } else if (told.subject_kind == TRIB_SUBJECT_MEMBER && told.subject == TRIB_NO_MEMBER) {
        told.subject_kind = TRIB_SUBJECT_COORDINATOR; /* a dedicated coordinator reports its own end */
    }
    trib_coordinator_end_job(self, &told);
}

void trib_coordinator_close(trib_coordinator *self)
{
    if (self == NULL) {
        return;
    }
    trib_tenure_forgo(self->core->engine);
    trib_timer_stop(self->core->reactor, &self->join_deadline);
    trib_timer_stop(self->core->reactor, &self->heartbeat);
    trib_timer_stop(self->core->reactor, &self->knocking);
    trib_formation_probe_end(self);
    trib_verdict_close(self);
    trib_quorums_clear(self);
    trib_registry_clear(self);
    trib_groups_clear(self);
    trib_commits_close(self);
    trib_rebalance_close(self);
    trib_codec_choice_close(self);
    trib_dealer_destroy(self->dealer);
    for (uint32_t i = 0; self->slots != NULL && i < trib_coordinator_slots(self); i++) {
        free(self->slots[i].loads_buffer);
        free(self->slots[i].tensors);
    }
    if (self->roster != self->core->engine->formation.kept) {
        free(self->roster);
    }
    free(self->slots);
    free(self);
}

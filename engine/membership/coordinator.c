/*
 * coordinator.c - the membership's state machine: gathering -> running -> over.
 *
 * Joining (coordinator_join.c) ends when all workers and servers have joined, or with an error to everybody when the
 * join deadline passes. Running ends when all workers have left (servers are told that the job is over) or when somebody
 * is lost (everybody is told who).
 */
#include "engine/membership/coordinator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/core/blame.h"
#include "engine/wire/clock.h"
#include "engine/membership/member.h"
#include "engine/membership/rebalance.h"

void trib_coordinator_notify_end(trib_link *link, trib_status status, const char *text)
{
    unsigned char payload[TRIB_ERROR_TEXT_SIZE + 2];
    trib_writer writer = {.data = payload, .capacity = sizeof payload};
    trib_put_text(&writer, text);
    trib_link_send_copy(link, (trib_frame){.type = TRIB_FRAME_ENDED, .aux = (uint32_t)status}, payload, writer.size);
}

void trib_coordinator_end_job(trib_coordinator *self, trib_status status, const char *text)
{
    if (self->over) {
        return;
    }
    self->over = true;
    trib_timer_stop(self->core->reactor, &self->join_deadline);
    trib_timer_stop(self->core->reactor, &self->heartbeat);
    for (uint32_t i = 0; i < trib_coordinator_slots(self); i++) {
        if (self->slots[i].link != NULL && !self->slots[i].left) {
            trib_coordinator_notify_end(self->slots[i].link, status, text);
        }
    }
    if ((self->core->engine->config.roles & (TRIB_ROLE_WORKER | TRIB_ROLE_SERVER)) == 0) {
        trib_engine_end(self->core->engine, status, text); /* a coordinator of its own has no member to tell it */
    }
}

/* In good order only if the servers stayed as long. */
static void end_with_workers(trib_coordinator *self)
{
    if (self->early_leaver == TRIB_NO_MEMBER) {
        trib_coordinator_end_job(self, TRIB_OK, "all workers have left");
        return;
    }
    char text[TRIB_ERROR_TEXT_SIZE];
    snprintf(text, sizeof text, "%s left the job before its workers",
             trib_roster_name(self->roster, self->early_leaver));
    trib_coordinator_end_job(self, TRIB_PEER_LEFT, text);
}

static void heartbeat(trib_reactor *reactor, trib_timer *timer)
{
    trib_coordinator *self = timer->user;
    int64_t now_ns = trib_now(reactor), timeout_ns = self->roster->peer_timeout_ns;
    const bool stalled_locally = trib_timer_stalled_locally(reactor, timer, timeout_ns / 8);
    const bool judges = !stalled_locally || self->stalled_locally;
    self->stalled_locally = stalled_locally;
    for (uint32_t i = 0; i < trib_coordinator_slots(self) && !self->over; i++) {
        trib_coordinator_slot *at = &self->slots[i];
        if (at->link == NULL || at->left) {
            continue;
        }
        if (stalled_locally) {
            trib_link_extend_grace(at->link, now_ns - timer->due_ns, now_ns);
        }
        if (now_ns - at->link->last_received_ns > timeout_ns && judges) {
            char reason[TRIB_REASON_MAX], text[TRIB_ERROR_TEXT_SIZE];
            snprintf(text, sizeof text, "lost %s: %s", trib_roster_name(self->roster, i),
                     trib_blame_silence(now_ns - at->link->last_received_ns, reason));
            trib_coordinator_end_job(self, TRIB_PEER_LOST, text);
            return;
        }
        trib_link_send_copy(at->link, (trib_frame){.type = TRIB_FRAME_PING}, NULL, 0);
    }
    int64_t period_ns = timeout_ns / 4 < INT64_C(1000000000) ? timeout_ns / 4 : INT64_C(1000000000);
    trib_timer_arm(reactor, timer, now_ns + period_ns);
}

void trib_coordinator_run(trib_coordinator *self)
{
    self->running = true;
    trib_log(self->core->reactor->logger, TRIB_LOG_INFO, "job has come together: %u workers, %u servers",
             self->worker_count, self->server_count);
    self->heartbeat.fired = heartbeat;
    self->heartbeat.user = self;
    const int64_t now_ns = trib_now(self->core->reactor);
    for (uint32_t i = 0; i < trib_coordinator_slots(self); i++) {
        trib_link *link = self->slots[i].link;
        link->last_received_ns = now_ns; /* it had nothing to say while others were awaited */
        if (link->conn != NULL) {
            link->conn->survives_path_loss = true;
        }
    }
    self->heartbeat.due_ns = now_ns;
    heartbeat(self->core->reactor, &self->heartbeat);
}

/* ---- Links ---- */

static void member_left(trib_coordinator *self, uint32_t member, uint32_t carried_out)
{
    trib_coordinator_slot *at = &self->slots[member];
    if (at->left || !self->running) {
        return; /* before the job has begun its place becomes free when its link ends */
    }
    at->left = true;
    trib_rebalance_stop(self);
    if (member < self->worker_count) {
        self->workers_left++;
    } else if (self->workers_left < self->worker_count && self->early_leaver == TRIB_NO_MEMBER) {
        self->early_leaver = member;
        trib_log(self->core->reactor->logger, TRIB_LOG_WARN,
                 "%s has left while workers are at work: operations that it had a part in fail",
                 trib_roster_name(self->roster, member));
    }
    /* Those that have left themselves too: their servers may still be at work for others. */
    for (uint32_t i = 0; i < trib_coordinator_slots(self); i++) {
        if (self->slots[i].link != NULL) {
            trib_link_send_copy(self->slots[i].link,
                                (trib_frame){.type = TRIB_FRAME_LEFT, .aux = member, .size = carried_out}, NULL, 0);
        }
    }
    if (self->workers_left == self->worker_count) {
        end_with_workers(self);
    }
}

static trib_status coordinator_header(trib_link *link, const trib_frame *frame, trib_recv_target *target,
                                      trib_error *error)
{
    (void)error;
    const trib_coordinator *self = link->core->engine->coordinator;
    if (frame->type == TRIB_FRAME_LOADS && self != NULL && self->running && link->peer < trib_coordinator_slots(self) &&
        link->arrival_count == 0) {
        target->buffer =
            self->slots[link->peer].loads_buffer; /* these come all the time; all else in the link's memory */
    }
    return TRIB_OK;
}

static trib_status take_lost(trib_coordinator *self, uint32_t member, const trib_frame *frame, const void *payload,
                             trib_error *error)
{
    char reported[TRIB_ERROR_TEXT_SIZE], text[TRIB_ERROR_TEXT_SIZE];
    trib_reader reader = {.data = payload, .left = frame->payload_size};
    trib_get_text(&reader, reported, sizeof reported);
    trib_status reason = TRIB_OK, status = trib_get_end(&reader, "LOST", error);
    if (status == TRIB_OK) {
        status = trib_frame_take_error(frame, &reason, error);
    }
    if (status != TRIB_OK) {
        return status;
    }
    self->slots[member].left = true;
    trib_blame_member(self->slots[member].info.name, reason, reported, text);
    trib_coordinator_end_job(self, reason, text);
    return TRIB_OK;
}

static trib_status take_frame(trib_coordinator *self, trib_link *link, const trib_frame *frame, const void *payload,
                              trib_error *error)
{
    uint32_t member = link->peer;
    bool known = member < trib_coordinator_slots(self) && self->slots[member].link == link;
    if (frame->type == TRIB_FRAME_JOIN && !known) {
        return trib_coordinator_take_join(self, link, frame, payload, error);
    }
    if (!known || frame->type == TRIB_FRAME_JOIN) {
        return trib_error_set(error, TRIB_PROTOCOL, "unexpected %s frame", trib_frame_name(frame->type));
    }
    switch (frame->type) {
    case TRIB_FRAME_DECLARE:
        return self->running ? trib_registry_take_declare(self, member, frame, payload, error)
                             : trib_error_set(error, TRIB_PROTOCOL, "DECLARE before the roster");
    case TRIB_FRAME_PING:
        trib_link_send_copy(link, trib_clock_answer(frame, link->last_received_ns, trib_now(self->core->reactor)), NULL,
                            0);
        return TRIB_OK;
    case TRIB_FRAME_PONG:
        return TRIB_OK;
    case TRIB_FRAME_LEAVE:
        member_left(self, member, frame->size);
        return TRIB_OK;
    case TRIB_FRAME_LOADS:
        return trib_rebalance_take_loads(self, member, frame, payload, error);
    case TRIB_FRAME_MOVE_READY:
        return trib_rebalance_take_ready(self, member, frame, error);
    case TRIB_FRAME_LOST:
        return take_lost(self, member, frame, payload, error);
    default:
        return trib_error_set(error, TRIB_PROTOCOL, "unexpected %s frame from a member", trib_frame_name(frame->type));
    }
}

static trib_status coordinator_received(trib_link *link, const trib_frame *frame, const void *payload, bool in_place,
                                        trib_error *error)
{
    (void)in_place;
    trib_coordinator *self = link->core->engine->coordinator;
    return self == NULL ? TRIB_CLOSED : take_frame(self, link, frame, payload, error);
}

static void coordinator_link_closed(trib_link *link, trib_status status, const char *reason)
{
    trib_coordinator *self = link->core->engine->coordinator;
    if (self == NULL || link->peer >= trib_coordinator_slots(self) || self->slots[link->peer].link != link) {
        if (status == TRIB_PROTOCOL) {
            trib_log(link->core->reactor->logger, TRIB_LOG_WARN, "turned away a member that wanted to join: %s",
                     reason);
        }
        return;
    }
    trib_coordinator_slot *at = &self->slots[link->peer];
    at->link = NULL;
    if (self->over || at->left) {
        return;
    }
    if (!self->running) {
        /* It may come back until the deadline. */
        at->joined = false;
        self->joined--;
        trib_member_note_awaited(self->core->engine);
        return;
    }
    char why[TRIB_REASON_MAX], text[TRIB_ERROR_TEXT_SIZE];
    snprintf(text, sizeof text, "lost %s: %s", trib_roster_name(self->roster, link->peer),
             trib_blame_control(link, reason, why));
    trib_coordinator_end_job(self, TRIB_PEER_LOST, text);
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

void trib_coordinator_adopt(trib_link *link)
{
    link->upcalls = &coordinator_upcalls;
    link->peer = TRIB_NO_MEMBER;
}

/* ---- Life ---- */

trib_status trib_coordinator_open(trib_core *core, trib_address *bound_out, trib_error *error)
{
    trib_engine *engine = core->engine;
    trib_coordinator *self = trib_core_zalloc(core, sizeof *self);
    if (self == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory");
    }
    engine->coordinator = self;
    self->core = core;
    self->worker_count = (uint32_t)engine->config.worker_count;
    self->early_leaver = TRIB_NO_MEMBER;
    self->server_count = (uint32_t)engine->config.server_count;
    self->slots = trib_core_zalloc(core, trib_coordinator_slots(self) * sizeof *self->slots);
    if (self->slots == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for %u members", trib_coordinator_slots(self));
    }
    trib_address at;
    snprintf(at.text, sizeof at.text, "%s", engine->coordinator_address);
    trib_status status =
        core->host.transport->ops->listen(core->host.transport, &at, &core->host, &self->listener, bound_out, error);
    if (status != TRIB_OK) {
        if (error != NULL) {
            const size_t used = strnlen(error->text, sizeof error->text - 1);
            const bool is_rank_0 = !(engine->config.roles & TRIB_ROLE_COORDINATOR);
            snprintf(error->text + used, sizeof error->text - used,
                     " (TRIB_COORDINATOR must be an address of this machine with a port that is free, the same on all "
                     "members%s)",
                     is_rank_0 ? "; rank 0 keeps the membership there: where a tributary coordinator does, set "
                                 "TRIB_EXTERNAL_COORDINATOR=yes"
                               : "");
        }
        return status;
    }
    /* People pass it on, and control needs no more than the plain address: what else is offered there is left out. */
    for (char *offer; (offer = strchr(bound_out->text, '+')) != NULL;) {
        const size_t size = strcspn(offer, ",");
        memmove(offer, offer + size, strlen(offer + size) + 1);
    }
    self->join_deadline.fired = trib_coordinator_join_deadline_passed;
    self->join_deadline.user = self;
    trib_timer_arm(core->reactor, &self->join_deadline,
                   trib_now(core->reactor) + trib_join_first_ns(engine->config.join_timeout_ns));
    trib_member_note_awaited(engine);
    return TRIB_OK;
}

bool trib_coordinator_is_alone(const trib_coordinator *self)
{
    const trib_config *config = &self->core->engine->config;
    /* The worker of this process does not count as one that stays, whether its own farewell has come yet or not. */
    bool stays = (config->roles & TRIB_ROLE_WORKER) != 0 && !self->slots[config->rank].left;
    return self->over || !self->running || self->workers_left + (stays ? 1 : 0) >= self->worker_count;
}

void trib_coordinator_stop_listening(trib_coordinator *self)
{
    if (self->listener != NULL) {
        self->core->host.transport->ops->listener_close(self->listener);
        self->listener = NULL;
    }
}

void trib_coordinator_end(trib_coordinator *self, trib_status status, const char *text)
{
    const bool orderly = trib_status_is_orderly(status);
    const trib_engine *engine = self->core->engine;
    const bool is_rank = (engine->config.roles & TRIB_ROLE_WORKER) != 0;
    char name[TRIB_MEMBER_NAME_MAX], reported[TRIB_ERROR_TEXT_SIZE];
    snprintf(name, sizeof name, "%s (%s)", is_rank ? "rank 0" : "the coordinator", engine->env.place);
    if (orderly && self->running && trib_coordinator_is_alone(self)) {
        end_with_workers(self);
    } else if (orderly) {
        snprintf(reported, sizeof reported, "%s, which keeps the membership, left the job before its workers", name);
        trib_coordinator_end_job(self, TRIB_PEER_LEFT, reported);
    } else {
        trib_blame_member(name, status, text, reported);
        trib_coordinator_end_job(self, status, reported);
    }
}

void trib_coordinator_close(trib_coordinator *self)
{
    if (self == NULL) {
        return;
    }
    trib_timer_stop(self->core->reactor, &self->join_deadline);
    trib_timer_stop(self->core->reactor, &self->heartbeat);
    trib_coordinator_stop_listening(self);
    trib_registry_clear(self);
    trib_rebalance_close(self);
    trib_dealer_destroy(self->dealer);
    for (uint32_t i = 0; self->slots != NULL && i < trib_coordinator_slots(self); i++) {
        free(self->slots[i].loads_buffer);
    }
    free(self->roster);
    free(self->slots);
    free(self);
}

/* server_drain.c - see server_drain.h. */
#include "engine/membership/server_drain.h"

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/link/link_cause.h"
#include "engine/membership/election.h"
#include "engine/membership/formation.h"
#include "engine/membership/member_internal.h"
#include "engine/membership/rebalance.h"
#include "engine/membership/server_loss.h"

/* ---- The server ---- */

static void leave_anyway(trib_engine *engine, const char *why)
{
    atomic_store(&engine->losses.drains, false);
    const trib_cause cause = trib_cause_note(TRIB_CLOSED, engine->member_id, why);
    trib_job_end(engine, &cause);
}

static void ask_to_go(trib_reactor *reactor, trib_post *post)
{
    (void)post;
    trib_engine *engine = ((trib_core *)reactor->owner)->engine;
    trib_link *link = trib_member_link(engine->member);
    if (atomic_load(&engine->phase) == TRIB_PHASE_ENDED || engine->member == NULL || !engine->member->joined) {
        return; /* between epochs: it asks when the next one begins (trib_server_drain_again) */
    }
    if (trib_election_is_open(engine)) {
        return; /* it asks the next coordinator */
    }
    if (link == NULL) {
        leave_anyway(engine, "this server has left the job without its coordinator, which it has lost");
        return;
    }
    trib_link_send_copy(link, (trib_frame){.type = TRIB_FRAME_DRAIN}, NULL, 0);
}

trib_status trib_server_drain(trib_engine *engine, trib_error *error)
{
    trib_losses *losses = &engine->losses;
    if (engine->config.roles != TRIB_ROLE_SERVER) {
        return trib_error_set(error, TRIB_STATE, "only a server in a process of its own can be drained");
    }
    pthread_mutex_lock(&engine->mutex); /* a change of the membership frees the roster */
    const trib_roster *roster = engine->roster;
    const bool survives = roster != NULL && roster->survives;
    pthread_mutex_unlock(&engine->mutex);
    const bool is_open = atomic_load(&engine->phase) == TRIB_PHASE_READY || atomic_load(&engine->changing);
    if (!survives || !is_open) {
        return trib_error_set(error, TRIB_STATE,
                              "the job has not come together, is over, or does not go on without a server "
                              "(TRIB_SURVIVE=servers)");
    }
    atomic_store(&losses->drains, true);
    if (!atomic_exchange(&losses->drain_posted, true)) {
        losses->drain_post.run = ask_to_go;
        trib_reactor_post(engine->reactors[0].reactor, &losses->drain_post); /* its core may be closed for a moment */
    }
    return TRIB_OK;
}

void trib_server_drain_again(trib_engine *engine)
{
    if (atomic_load(&engine->losses.drains)) {
        ask_to_go(engine->cores[0].reactor, NULL);
    }
}

trib_status trib_server_drain_refused(trib_engine *engine, trib_error *error)
{
    if (!atomic_load(&engine->losses.drains)) {
        return trib_error_set(error, TRIB_PROTOCOL, "DRAIN to a server that has not asked to go");
    }
    leave_anyway(engine, "this server has left the job, though it could not be drained: nobody else can sum its share "
                         "(docs/failure.md says when), so operations that need it fail");
    return TRIB_OK;
}

/* ---- A worker ---- */

static void say_taken(trib_reactor *reactor, trib_post *post)
{
    (void)post;
    trib_engine *engine = ((trib_core *)reactor->owner)->engine;
    atomic_store(&engine->losses.taken_posted, false);
    const trib_frame frame = {.type = TRIB_FRAME_LOSSES_TAKEN,
                              .aux = trib_losses_taken(&engine->losses, engine->core_count)};
    trib_member_send(engine->member, &frame, NULL, 0);
}

void trib_server_losses_taken(trib_engine *engine)
{
    trib_losses *losses = &engine->losses;
    if (!atomic_exchange(&losses->taken_posted, true)) {
        losses->taken_post.run = say_taken;
        trib_reactor_post(engine->cores[0].reactor, &losses->taken_post);
    }
}

/* ---- The coordinator ---- */

static bool is_awaited(const trib_coordinator *self, const trib_coordinator_slot *server)
{
    bool awaited = false;
    for (uint32_t i = 0; i < self->worker_count; i++) {
        const trib_coordinator_slot *worker = &self->slots[i];
        awaited = awaited || (!worker->left && worker->losses_taken < server->loss_number);
    }
    return awaited;
}

void trib_drain_end(trib_coordinator_slot *server)
{
    trib_assert(server->left && server->is_let_go);
    server->drains = false;
    if (server->link != NULL) {
        const trib_cause cause =
            trib_cause_note(TRIB_OK, TRIB_NO_MEMBER, "the server was drained: others sum its share");
        trib_coordinator_notify_end(server->link, &cause);
    }
}

/* Some worker has yet to hear of a server that leaves, or is lost. Workers that have heard do not count the vote of one
 * that leaves, and those that have not do. With one such server either majority has a member of the other one; with
 * more each side could go on alone. */
static bool some_are_awaited(const trib_coordinator *self)
{
    bool some = false;
    for (uint32_t i = self->worker_count; i < trib_coordinator_slots(self); i++) {
        some = some || (self->slots[i].loss_number > 0 && is_awaited(self, &self->slots[i]));
    }
    return some;
}

/* Some member may still vote about the epoch before, in whose majority a server that leaves now would be missing. */
static bool some_lack_roster(const trib_coordinator *self)
{
    bool some = false;
    for (uint32_t i = 0; i < trib_coordinator_slots(self); i++) {
        some = some || (!self->slots[i].has_roster && !self->slots[i].left);
    }
    return some && self->roster->shrinks;
}

static void let_go(trib_coordinator *self, uint32_t member)
{
    trib_coordinator_slot *slot = &self->slots[member];
    slot->asks_to_go = false;
    if (trib_server_loss_let_go(self, member)) {
        return;
    }
    if (trib_drain_may_end_epoch(self, member)) {
        slot->drains = true;
        trib_drain_end_epoch(self, member);
    } else {
        trib_link_send_copy(slot->link, (trib_frame){.type = TRIB_FRAME_DRAIN}, NULL, 0);
    }
}

void trib_drain_check(trib_coordinator *self)
{
    for (uint32_t i = self->worker_count; i < trib_coordinator_slots(self) && !self->over; i++) {
        trib_coordinator_slot *slot = &self->slots[i];
        if (slot->drains && !is_awaited(self, slot)) {
            trib_assert(slot->left && slot->is_let_go && slot->loss_number > 0 && slot->loss_number <= self->losses);
            trib_drain_end(slot);
        }
    }
    for (uint32_t i = self->worker_count; i < trib_coordinator_slots(self) && !self->over; i++) {
        trib_coordinator_slot *slot = &self->slots[i];
        const bool may_go = slot->asks_to_go && !slot->left && slot->link != NULL;
        if (may_go && !some_are_awaited(self) && !some_lack_roster(self)) {
            let_go(self, i);
        }
    }
}

bool trib_drain_may_end_epoch(const trib_coordinator *self, uint32_t member)
{
    return self->running && !self->over && self->roster->shrinks && member >= self->worker_count &&
           !self->slots[member].left && self->workers_left < self->worker_count;
}

void trib_drain_end_epoch(trib_coordinator *self, uint32_t member)
{
    trib_assert(trib_drain_may_end_epoch(self, member));
    trib_rebalance_stop(self);
    /* It has a vote while it drains. One that has sent LEAVE takes part in no election. */
    self->slots[member].left = self->slots[member].is_let_go = true;
    const trib_cause cause = trib_cause_about(TRIB_PEER_LEFT, TRIB_CAUSE_LEFT, TRIB_SUBJECT_MEMBER, member,
                                              TRIB_NO_MEMBER, "has left the job");
    trib_formation_end_epoch(self, &cause);
}

trib_status trib_drain_take(trib_coordinator *self, uint32_t member, trib_error *error)
{
    if (trib_formation_gathers(self) || self->over) {
        return TRIB_OK; /* it is told of the end, or asks again in the next epoch */
    }
    if (!self->running || member < self->worker_count) {
        return trib_error_set(error, TRIB_PROTOCOL, "DRAIN from a worker, or before the roster");
    }
    trib_coordinator_slot *slot = &self->slots[member];
    slot->asks_to_go = !slot->left;
    trib_drain_check(self);
    return TRIB_OK;
}

trib_status trib_drain_take_losses_taken(trib_coordinator *self, uint32_t member, const trib_frame *frame,
                                         trib_error *error)
{
    trib_coordinator_slot *slot = &self->slots[member];
    if (member >= self->worker_count || frame->aux < slot->losses_taken || frame->aux > self->losses) {
        return trib_error_set(error, TRIB_PROTOCOL, "LOSSES_TAKEN says %u of %u", frame->aux, self->losses);
    }
    trib_assert(frame->aux >= slot->losses_taken);
    slot->losses_taken = frame->aux;
    trib_drain_check(self);
    return TRIB_OK;
}

/* server_loss.c - see server_loss.h. */
#include "engine/membership/server_loss.h"

#include <stdlib.h>

#include "engine/base/assert.h"
#include "engine/base/container_of.h"
#include "engine/cluster/succession.h"
#include "engine/link/link_cause.h"
#include "engine/membership/member_internal.h"
#include "engine/membership/rebalance.h"
#include "engine/worker/worker_orphan.h"

/* ---- A member ---- */

static void report(trib_engine *engine, trib_link *link, uint32_t member, uint32_t doubts)
{
    const trib_cause cause = trib_cause_about(TRIB_PEER_LOST, TRIB_CAUSE_CONNECTION_LOST, TRIB_SUBJECT_MEMBER, member,
                                              engine->member_id, "the connection ended and could not be made again");
    trib_link_send_cause(link, (trib_frame){.type = TRIB_FRAME_SERVER_LOST, .root = doubts}, &cause);
}

static void ask(trib_reactor *reactor, trib_post *post)
{
    (void)post;
    trib_core *core = reactor->owner;
    trib_engine *engine = core->engine;
    trib_losses *losses = &engine->losses;
    trib_link *link = trib_member_link(engine->member);
    atomic_store(&losses->ask_posted, false);
    for (uint32_t i = 0; i < losses->capacity && link != NULL; i++) {
        if (atomic_exchange(&losses->suspected[i], false) && !trib_losses_has(losses, i)) {
            report(engine, link, i, 0);
        } else if (atomic_exchange(&losses->doubted[i], false) && !trib_losses_has(losses, i)) {
            report(engine, link, i, TRIB_SERVER_LOST_DOUBTS);
        }
    }
}

static void tell(trib_engine *engine, atomic_bool *what)
{
    trib_losses *losses = &engine->losses;
    atomic_store(what, true);
    if (!atomic_exchange(&losses->ask_posted, true)) {
        losses->ask_post.run = ask;
        trib_reactor_post(engine->cores[0].reactor, &losses->ask_post);
    }
}

void trib_loss_suspected(trib_engine *engine, uint32_t member)
{
    if (member < atomic_load(&engine->losses.capacity)) {
        tell(engine, &engine->losses.suspected[member]);
    } /* else the roster has yet to come, and the coordinator sees for itself who does not */
}

void trib_loss_doubted(trib_engine *engine, uint32_t member)
{
    if (member < atomic_load(&engine->losses.capacity) && atomic_load(&engine->shrinks)) {
        tell(engine, &engine->losses.doubted[member]);
    }
}

/* A core takes a loss as soon as it sees it in the list, also without the post: its last link to the server may end at
 * any moment. It gives its tasks the owners that stand in the tensors then, so these are written first. The list's
 * counter is stored with release order and loaded with acquire order, so whoever sees the loss sees these owners. */
static void take_loss(trib_engine *engine, uint32_t member)
{
    const bool works = (engine->config.roles & TRIB_ROLE_WORKER) != 0;
    if (works && !trib_worker_replace_owners(engine, member)) {
        trib_job_fail(engine, TRIB_PEER_LOST, "nobody is left to sum the partitions of a lost server");
        return;
    }
    trib_losses_add(&engine->losses, member);
    if (works) {
        trib_worker_post_losses(engine);
    }
}

trib_status trib_server_loss_take(trib_engine *engine, const trib_frame *frame, const void *payload, trib_error *error)
{
    trib_cause cause;
    const trib_roster *roster = engine->roster;
    const trib_status status = trib_cause_decode(frame, payload, &cause, error);
    if (status != TRIB_OK) {
        return status;
    }
    if (!roster->survives || cause.subject_kind != TRIB_SUBJECT_MEMBER || cause.subject < roster->worker_count ||
        cause.subject >= roster->member_count || trib_losses_has(&engine->losses, cause.subject)) {
        return trib_error_set(error, TRIB_PROTOCOL, "SERVER_LOST about member %u", cause.subject);
    }
    const bool drains = cause.status == TRIB_PEER_LEFT; /* that server answers until nobody needs it */
    if (!drains && !trib_job_survives(engine, &cause) && atomic_load(&engine->shrinks)) {
        const trib_frame stops = {.type = TRIB_FRAME_SERVER_LOST, .root = TRIB_SERVER_LOST_STOPS};
        trib_link_send_cause(engine->member->link, stops, &cause);
        return TRIB_OK;
    }
    if (!drains && !trib_job_survives(engine, &cause)) {
        trib_job_end(engine, &cause); /* this process has not reached all servers yet, or is that server */
        return TRIB_OK;
    }
    char text[TRIB_ERROR_TEXT_SIZE];
    trib_job_render(engine, &cause, text);
    trib_log(engine->cores[0].reactor->logger, drains ? TRIB_LOG_INFO : TRIB_LOG_WARN,
             "the job goes on without a server%s: %s", drains ? ", which leaves in good order" : "", text);
    engine->formation.gone[cause.subject] = drains;
    take_loss(engine, cause.subject);
    return TRIB_OK;
}

/* ---- The coordinator ---- */

typedef struct survivors {
    const trib_coordinator *self;
    uint32_t lost;
} survivors;

static bool is_gone(const void *user, uint32_t member)
{
    const survivors *at = user;
    return member == at->lost || at->self->slots[member].left;
}

/* Finds new owners for the tensor's partitions on that server, and assigns them if `takes`. Returns false if the tensor
 * cannot go on without the server. */
static bool deal_anew(const survivors *at, trib_registry_entry *entry, bool takes)
{
    const bool is_covered = entry->local_size == 0 && entry->layout == TRIB_WHOLE && entry->group == NULL;
    for (uint32_t i = 0; entry->cut != NULL && i < entry->partition_count; i++) {
        trib_place_owner owner = entry->owners[i];
        if (owner.member != at->lost) {
            continue;
        }
        if (!is_covered || !trib_succession_find(at->self->roster, is_gone, at, entry->id, i, &owner)) {
            return false;
        }
        trib_assert(!is_gone(at, owner.member) && at->self->roster->members[owner.member].sums);
        entry->owners[i] = takes ? owner : entry->owners[i];
    }
    return true;
}

static void limit_to_survivors(const void *user, uint32_t member, trib_place_member *place)
{
    place->can_sum = place->can_sum && !is_gone(user, member);
}

static void tell_members(const trib_coordinator *self, const trib_cause *cause)
{
    for (uint32_t i = 0; i < trib_coordinator_slots(self); i++) {
        if (self->slots[i].link != NULL && i != cause->subject) {
            trib_link_send_cause(self->slots[i].link, (trib_frame){.type = TRIB_FRAME_SERVER_LOST}, cause);
        }
    }
}

/* The server of that place is no part of the job any more. */
static void expel(trib_coordinator_slot *slot, const trib_cause *cause)
{
    trib_assert(slot->left && slot->lost && slot->loss_number > 0);
    slot->drains = slot->is_let_go = false; /* it has not been told to go, and may vote */
    if (slot->link != NULL) {
        trib_coordinator_notify_end(slot->link, cause);
        trib_link_close_for(slot->link, true, cause);
    }
}

static bool is_about_server(const trib_coordinator *self, const trib_cause *cause)
{
    return self->running && !self->over && self->roster->survives && cause->subject_kind == TRIB_SUBJECT_MEMBER &&
           cause->subject >= self->worker_count && cause->subject < trib_coordinator_slots(self);
}

/* Deals the server's partitions to others, and tells all. Returns false if that would cost something. */
static bool go_on_without(trib_coordinator *self, const trib_cause *cause)
{
    const survivors at = {.self = self, .lost = cause->subject};
    trib_coordinator_slot *slot = &self->slots[cause->subject];
    bool goes_on = self->groups == NULL;
    for (trib_registry_entry *entry = self->tensors_first; entry != NULL && goes_on; entry = entry->newer) {
        goes_on = deal_anew(&at, entry, false);
    }
    trib_dealer *dealer = goes_on ? trib_registry_make_dealer(self, limit_to_survivors, &at) : NULL;
    if (dealer == NULL) {
        return false;
    }
    trib_dealer_destroy(self->dealer);
    self->dealer = dealer;
    for (trib_registry_entry *entry = self->tensors_first; entry != NULL; entry = entry->newer) {
        (void)deal_anew(&at, entry, true);
    }
    trib_assert(!slot->left && !slot->lost && slot->loss_number == 0);
    slot->left = slot->lost = true;
    slot->loss_number = ++self->losses;
    tell_members(self, cause);
    return true;
}

bool trib_server_loss_decide(trib_coordinator *self, const trib_cause *cause)
{
    if (!is_about_server(self, cause) || cause->status != TRIB_PEER_LOST) {
        return false;
    }
    trib_coordinator_slot *slot = &self->slots[cause->subject];
    if (slot->left) {
        if (slot->drains && cause->kind == TRIB_CAUSE_SILENT && cause->origin == TRIB_NO_MEMBER) {
            expel(slot, cause); /* it was lost while it was about to go */
        }
        return slot->lost;
    }
    if (!go_on_without(self, cause)) {
        if (!self->roster->shrinks) {
            trib_log(self->core->reactor->logger, TRIB_LOG_WARN,
                     "nobody else can sum the share of %s (docs/failure.md says when): with TRIB_SURVIVE=workers or "
                     "continue on all members the workers would go on without it",
                     trib_roster_name(self->roster, cause->subject));
        }
        return false;
    }
    expel(slot, cause);
    trib_registry_member_left(self);
    return true;
}

bool trib_server_loss_let_go(trib_coordinator *self, uint32_t member)
{
    const trib_cause cause = trib_cause_about(TRIB_PEER_LEFT, TRIB_CAUSE_LEFT, TRIB_SUBJECT_MEMBER, member,
                                              TRIB_NO_MEMBER, "has asked to leave the job");
    if (!is_about_server(self, &cause) || self->slots[member].left || !go_on_without(self, &cause)) {
        return false;
    }
    self->slots[member].drains = self->slots[member].is_let_go = true;
    trib_registry_member_left(self);
    trib_serves_check(self);
    return true;
}

/* formation.c - see formation.h. */
#include "engine/membership/formation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/link/link_cause.h"
#include "engine/membership/ballot.h"
#include "engine/membership/commits.h"
#include "engine/membership/member.h"
#include "engine/membership/server_drain.h"
#include "engine/membership/tenure.h"
#include "engine/membership/verdict.h"

#define JOINERS_MORE 8u /* further places of each kind, for processes that come while the membership changes */

static trib_formation *formation_of(const trib_coordinator *self)
{
    return &self->core->engine->formation;
}

static void note_lost(trib_coordinator *self, uint32_t member, const char *why)
{
    trib_formation *formation = formation_of(self);
    if (formation->expected[member]) {
        formation->expected[member] = false;
        formation->lost++;
        snprintf(formation->lost_text, sizeof formation->lost_text, "%s", why);
    }
}

/* ---- The end of an epoch ---- */

bool trib_formation_survives(const trib_coordinator *self, const trib_cause *cause)
{
    return self->running && !self->over && self->roster->shrinks && cause->subject_kind == TRIB_SUBJECT_MEMBER &&
           cause->subject < trib_coordinator_slots(self) && cause->subject != self->core->engine->member_id;
}

bool trib_formation_reserve(trib_formation *formation, uint32_t members)
{
    bool *expected = realloc(formation->expected, members * sizeof *expected);
    formation->expected = expected != NULL ? expected : formation->expected;
    bool *gone = realloc(formation->gone, members * sizeof *gone);
    formation->gone = gone != NULL ? gone : formation->gone;
    if (expected == NULL || gone == NULL) {
        return false;
    }
    memset(gone, 0, members * sizeof *gone);
    return true;
}

/* Notes which members are expected in the next epoch. Returns false if memory runs out. */
static bool expect(trib_coordinator *self, bool at_boundary)
{
    trib_formation *formation = formation_of(self);
    const uint32_t count = trib_coordinator_slots(self);
    bool *expected = realloc(formation->expected, count * sizeof *expected);
    if (expected == NULL) {
        return false;
    }
    trib_assert(self->roster != NULL && self->roster->shrinks);
    formation->expected = expected;
    formation->ballot = 0;
    formation->electors_before = self->roster->electors_before;
    formation->newcomers = self->roster->newcomers;
    formation->new_servers = self->roster->new_servers;
    formation->electors = 0;
    formation->worker_count = self->worker_count;
    formation->server_count = self->server_count;
    formation->epoch = self->roster->epoch;
    formation->ranks_used = self->roster->ranks_used;
    formation->admits = at_boundary || !self->roster->continues;
    formation->joiners = formation->admits ? self->parked : 0;
    formation->lost = 0;
    formation->lost_text[0] = '\0';
    for (uint32_t i = 0; i < count; i++) {
        expected[i] = !self->slots[i].left;
        /* A server that is lost may be cut off, and vote elsewhere. So may one that has not been told yet to go, also
         * where it ends the epoch. */
        const bool may_vote = self->slots[i].drains || (self->slots[i].lost && !self->slots[i].is_let_go);
        formation->electors += expected[i] || may_vote;
    }
    return true;
}

static void tell(trib_coordinator *self, const trib_cause *cause)
{
    for (uint32_t i = 0; i < trib_coordinator_slots(self); i++) {
        const uint32_t goes_on = formation_of(self)->expected[i] ? TRIB_ENDED_CHANGES : 0;
        if (self->slots[i].drains) {
            trib_drain_end(&self->slots[i]); /* no member needs that server any more */
        } else if (self->slots[i].link != NULL) {
            trib_link_send_cause(self->slots[i].link, (trib_frame){.type = TRIB_FRAME_ENDED, .root = goes_on}, cause);
        }
    }
    if ((self->core->engine->config.roles & (TRIB_ROLE_WORKER | TRIB_ROLE_SERVER)) == 0) {
        /* a dedicated coordinator has no member that would end its epoch */
        formation_of(self)->is_settled = true;
        formation_of(self)->at_boundary = cause->status == TRIB_EPOCH_CHANGED;
        trib_job_change(self->core->engine, cause);
    }
}

void trib_formation_end_epoch(trib_coordinator *self, const trib_cause *cause)
{
    if (self->over) {
        return;
    }
    if (!expect(self, cause->status == TRIB_EPOCH_CHANGED)) {
        const trib_cause shortage = trib_cause_note(TRIB_NO_MEMORY, TRIB_NO_MEMBER, "out of memory for the next epoch");
        trib_coordinator_end_job(self, &shortage);
        return;
    }
    if (cause->subject_kind == TRIB_SUBJECT_MEMBER) {
        char text[TRIB_ERROR_TEXT_SIZE];
        trib_job_render_for_others(self->core->engine, cause, text);
        note_lost(self, cause->subject, text);
        /* it may have left */
        snprintf(formation_of(self)->lost_text, sizeof formation_of(self)->lost_text, "%s", text);
        self->slots[cause->subject].left = true;
        trib_commits_worker_left(self); /* what the others are through with has succeeded */
    }
    self->over = true;
    trib_tenure_forgo(self->core->engine);
    trib_timer_stop(self->core->reactor, &self->heartbeat);
    tell(self, cause);
}

/* True from the end of an epoch to the roster of the next one. */
static bool is_between(const trib_coordinator *self)
{
    const trib_formation *formation = formation_of(self);
    return trib_formation_gathers(self) ||
           (self->over && self->roster != NULL && formation->epoch == self->roster->epoch);
}

void trib_formation_member_gone(trib_coordinator *self, uint32_t member, const char *why)
{
    if (is_between(self)) {
        note_lost(self, member, why);
        trib_formation_check(self);
    }
}

bool trib_formation_goes_on_without(trib_coordinator *self, uint32_t member, const trib_cause *cause)
{
    if (is_between(self)) {
        char text[TRIB_ERROR_TEXT_SIZE];
        trib_job_render_for_others(self->core->engine, cause, text);
        trib_formation_member_gone(self, member, text);
        return true;
    }
    if (self->over || !self->running || !self->roster->shrinks || member == self->core->engine->member_id) {
        return false;
    }
    trib_cause told = *cause;
    if (cause->subject_kind != TRIB_SUBJECT_MEMBER || cause->subject != member) {
        char text[TRIB_ERROR_TEXT_SIZE];
        trib_job_render_for_others(self->core->engine, cause, text);
        told = trib_cause_about(TRIB_PEER_LOST, TRIB_CAUSE_TROUBLE, TRIB_SUBJECT_MEMBER, member, member, text);
    }
    trib_formation_end_epoch(self, &told);
    return true;
}

bool trib_formation_judge(trib_coordinator *self, uint32_t reporter, const trib_frame *frame, trib_cause *cause)
{
    if (!self->running || self->over || !self->roster->shrinks) {
        return false;
    }
    if (frame->root == TRIB_SERVER_LOST_STOPS && trib_formation_survives(self, cause)) {
        trib_formation_end_epoch(self, cause);
        return true;
    }
    trib_verdict_judge(self, reporter, cause);
    if (cause->subject_kind == TRIB_SUBJECT_MEMBER && cause->subject == self->core->engine->member_id) {
        *cause = trib_cause_about(TRIB_PEER_LOST, TRIB_CAUSE_LEFT, TRIB_SUBJECT_MEMBER, reporter, TRIB_NO_MEMBER,
                                  "has lost its connections to the coordinator's process");
    }
    return false;
}

/* ---- Gathering ---- */

bool trib_formation_gathers(const trib_coordinator *self)
{
    return !self->running && !self->over && formation_of(self)->epoch != 0;
}

bool trib_formation_expects(const trib_coordinator *self, uint32_t member)
{
    return formation_of(self)->expected[member];
}

uint32_t trib_formation_next_epoch(const trib_coordinator *self)
{
    const uint32_t most = (1u << TRIB_EPOCH_NUMBER_BITS) - 1;
    const uint32_t before = trib_epoch_number(formation_of(self)->epoch);
    const uint32_t after = before + 1 + formation_of(self)->ballot; /* no other coordinator gives that number */
    return trib_epoch_make(trib_epoch_incarnation(self->core->host.epoch), after > most ? after - most : after);
}

/* Places for members that join: for workers between the former workers and the servers, for servers behind those. */
static void add_places(trib_formation *formation)
{
    const uint32_t workers = formation->worker_count, servers = formation->server_count;
    const uint32_t more = formation->admits ? formation->joiners + JOINERS_MORE : 0;
    bool *expected = realloc(formation->expected, (workers + servers + 2 * (size_t)more) * sizeof *expected);
    formation->first_joiner = workers;
    formation->first_new_server = workers + servers;
    if (expected == NULL) {
        formation->joiners = 0;
        return;
    }
    memmove(expected + workers + more, expected + workers, servers * sizeof *expected);
    memset(expected + workers, 0, more * sizeof *expected);
    memset(expected + workers + more + servers, 0, more * sizeof *expected);
    formation->expected = expected;
    formation->worker_count += more;
    formation->first_new_server += more;
    formation->server_count += more;
}

/* True if the place is for a process that was no member of the last epoch. */
static bool is_new_place(const trib_coordinator *self, uint32_t place)
{
    const trib_formation *formation = formation_of(self);
    return place >= formation->first_joiner && (place < self->worker_count || place >= formation->first_new_server);
}

/* Members are asked for life signs while they wait for each other's programs. One that has become silent is lost. */
static void watch(trib_reactor *reactor, trib_timer *timer)
{
    trib_coordinator *self = timer->user;
    const int64_t now_ns = trib_now(reactor), timeout_ns = self->core->engine->config.peer_timeout_ns;
    const bool stalled_locally = trib_timer_stalled_locally(reactor, timer, timeout_ns / 8);
    const bool judges = !stalled_locally || self->stalled_locally;
    self->stalled_locally = stalled_locally;
    for (uint32_t i = 0; trib_formation_gathers(self) && i < trib_coordinator_slots(self); i++) {
        trib_link *link = self->slots[i].link;
        if (link == NULL) {
            continue;
        }
        if (judges && now_ns - link->last_received_ns >= timeout_ns) {
            note_lost(self, i, "it has become silent while the membership changes");
            trib_link_close(link, false, TRIB_PEER_LOST, "it has become silent while the membership changes");
        } else {
            trib_link_send_copy(link, (trib_frame){.type = TRIB_FRAME_PING}, NULL, 0);
        }
    }
    if (trib_formation_gathers(self)) { /* else the last one awaited is gone, and the next epoch has begun */
        trib_coordinator_check_stall(self);
        trib_timer_arm(reactor, timer, now_ns + trib_heartbeat_period_ns(timeout_ns));
    }
}

bool trib_formation_begin(trib_coordinator *self)
{
    trib_formation *formation = formation_of(self);
    if (formation->epoch == 0) {
        return false;
    }
    const trib_engine *engine = self->core->engine;
    add_places(formation);
    self->core->host.epoch = trib_epoch_make(trib_epoch_incarnation(formation->epoch), 0);
    self->worker_count = formation->worker_count;
    self->server_count = formation->server_count;
    self->heartbeat.fired = watch;
    self->heartbeat.user = self;
    trib_timer_arm(self->core->reactor, &self->heartbeat,
                   trib_now(self->core->reactor) + trib_heartbeat_period_ns(engine->config.peer_timeout_ns));
    return true;
}

void trib_formation_lose_absent(trib_coordinator *self, uint32_t place, const char *why)
{
    char text[TRIB_ERROR_TEXT_SIZE];
    const bool is_worker = place < self->worker_count;
    trib_assert(!self->slots[place].joined && trib_formation_expects(self, place));
    snprintf(text, sizeof text, "%s %u did not come back when the membership changed%s", is_worker ? "rank" : "server",
             is_worker ? place : place - self->worker_count, why);
    trib_log(self->core->reactor->logger, TRIB_LOG_WARN, "%s", text);
    note_lost(self, place, text);
}

void trib_formation_deadline_passed(trib_coordinator *self)
{
    for (uint32_t i = 0; i < trib_coordinator_slots(self); i++) {
        if (trib_formation_absent_until(self, i) <= trib_now(self->core->reactor)) {
            trib_formation_lose_absent(self, i, "");
        }
    }
    trib_formation_await_absent(self);
    trib_formation_check(self);
}

/* Counts the members that are there and were not in the last epoch, in places from first on and below end. */
static uint32_t count_newcomers(const trib_coordinator *self, uint32_t first, uint32_t end)
{
    uint32_t count = 0;
    for (uint32_t i = first; i < end; i++) {
        count += self->slots[i].joined && is_new_place(self, i);
    }
    return count;
}

/* True if that member of the last epoch is there, and was to stay. A coordinator that was elected awaits the voters of
 * its epoch, and one of them may have been let go, which it has heard as a member. */
static bool has_vote(const trib_coordinator *self, uint32_t place)
{
    const bool *gone = formation_of(self)->gone; /* NULL: members alone keep it, and this process is none */
    return self->slots[place].joined && !is_new_place(self, place) &&
           (gone == NULL || !gone[trib_formation_former_id(self, place)]);
}

static uint32_t count_votes(const trib_coordinator *self)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < trib_coordinator_slots(self); i++) {
        count += has_vote(self, i);
    }
    return count;
}

uint32_t trib_formation_former_id(const trib_coordinator *self, uint32_t place)
{
    const trib_formation *formation = formation_of(self);
    return is_new_place(self, place)         ? TRIB_NO_MEMBER
           : place < formation->first_joiner ? place
                                             : place - self->worker_count + formation->first_joiner;
}

/* True if the members that are there may go on: no others can then. */
static bool has_majority(const trib_coordinator *self)
{
    const trib_formation *formation = formation_of(self);
    const uint32_t servers_end = formation->first_new_server; /* of the former ones */
    trib_majority majority = {.votes = count_votes(self),
                              .electors = formation->electors,
                              .before = formation->electors_before,
                              .knows_roster = formation->is_known};
    for (uint32_t i = 0; i < trib_coordinator_slots(self); i++) {
        majority.former += has_vote(self, i) &&
                           !trib_ballot_is_newcomer(formation->first_joiner, formation->newcomers, i) &&
                           !trib_ballot_is_newcomer(servers_end, formation->new_servers, i);
    }
    return trib_ballot_is_majority(&majority, formation->ballot == 0);
}

static void end_as_minority(trib_coordinator *self)
{
    const trib_formation *formation = formation_of(self);
    char text[TRIB_ERROR_TEXT_SIZE];
    snprintf(text, sizeof text,
             "%.200s; %u of the last epoch's %u members are here, which is no majority, so others may go on: start the "
             "job again",
             formation->lost_text, count_votes(self), formation->electors);
    const trib_cause cause = trib_cause_note(TRIB_PEER_LOST, TRIB_NO_MEMBER, text);
    trib_coordinator_end_job(self, &cause);
}

/* Ranks are ids, or stay as they were; then a worker that joins gets the next rank that nobody has had. */
static uint32_t deal_rank(trib_formation *formation, const trib_member_info *info, uint32_t id, bool continues)
{
    return !continues ? id : info->former == TRIB_NO_MEMBER ? formation->ranks_used++ : info->rank;
}

/* Gives the members that are there new places without gaps. Returns false if memory runs out. */
static bool deal_places(trib_coordinator *self)
{
    uint32_t workers = 0, count = 0;
    for (uint32_t i = 0; i < trib_coordinator_slots(self); i++) {
        workers += self->slots[i].joined && i < self->worker_count;
        count += self->slots[i].joined;
    }
    trib_coordinator_slot *slots = trib_core_zalloc(self->core, count * sizeof *slots);
    if (slots == NULL) {
        return false;
    }
    const bool continues = self->core->engine->config.survive == TRIB_SURVIVE_CONTINUE;
    formation_of(self)->joined_last = count_newcomers(self, 0, self->worker_count);
    formation_of(self)->servers_joined_last = count_newcomers(self, self->worker_count, trib_coordinator_slots(self));
    uint32_t next = 0;
    for (uint32_t i = 0; i < trib_coordinator_slots(self); i++) {
        if (!self->slots[i].joined) {
            continue;
        }
        trib_coordinator_slot *at = &slots[next];
        *at = self->slots[i];
        at->advances = at->has_roster = false;
        at->info.former = trib_formation_former_id(self, i);
        at->link->peer = next;
        if (next < workers) {
            at->info.rank = deal_rank(formation_of(self), &at->info, next, continues);
        }
        const char *place = strchr(at->info.name, '('); /* the name has the former number, and who it is */
        char name[TRIB_MEMBER_NAME_MAX];
        snprintf(name, sizeof name, "%s %u %.*s", next < workers ? "rank" : "server",
                 next < workers ? at->info.rank : next - workers, TRIB_MEMBER_NAME_MAX - 24,
                 place != NULL ? place : "");
        memcpy(at->info.name, name, sizeof name);
        next++;
    }
    trib_assert(next == count && workers <= count && count <= TRIB_MEMBERS_MAX);
    free(self->slots);
    self->slots = slots;
    self->worker_count = workers;
    self->server_count = count - workers;
    self->joined = count;
    return true;
}

void trib_formation_check(trib_coordinator *self)
{
    if (!trib_formation_gathers(self) || self->core->ended) {
        return;
    }
    for (uint32_t i = 0; i < trib_coordinator_slots(self); i++) {
        const bool is_missing = !self->slots[i].joined && trib_formation_expects(self, i);
        if (is_missing || (self->slots[i].joined && !self->slots[i].advances)) {
            return;
        }
    }
    if (count_newcomers(self, 0, trib_coordinator_slots(self)) < formation_of(self)->joiners) {
        return;
    }
    bool any = false;
    for (uint32_t i = 0; i < self->worker_count; i++) {
        any = any || self->slots[i].joined;
    }
    if (any && !trib_tenure_is_used(self->core->engine) && !has_majority(self)) {
        end_as_minority(self);
        return;
    }
    if (!any || !deal_places(self)) {
        const trib_cause cause = trib_cause_note(any ? TRIB_NO_MEMORY : TRIB_PEER_LOST, TRIB_NO_MEMBER,
                                                 any ? "out of memory for the next epoch" : "no worker is left");
        trib_coordinator_end_job(self, &cause);
        return;
    }
    trib_coordinator_start_running(self);
}

void trib_formation_take_losses_taken(trib_coordinator *self, uint32_t member)
{
    bool all_have = !self->slots[member].has_roster && self->running && !self->over;
    self->slots[member].has_roster = true;
    for (uint32_t i = 0; i < trib_coordinator_slots(self); i++) {
        all_have = all_have && self->slots[i].has_roster;
    }
    if (all_have && self->roster->ticket != 0) {
        trib_tenure_claim(self);
    } else if (all_have) {
        trib_formation_begun(self);
    }
    if (self->running) {
        trib_drain_check(self); /* a server that has asked to leave may have waited for this */
    }
}

void trib_formation_begun(trib_coordinator *self)
{
    formation_of(self)->is_known = true;
    for (uint32_t i = 0; i < trib_coordinator_slots(self); i++) {
        if (self->slots[i].link != NULL) {
            trib_link_send_copy(self->slots[i].link, (trib_frame){.type = TRIB_FRAME_ROSTER_KNOWN}, NULL, 0);
        }
    }
}

void trib_formation_check_boundary(trib_coordinator *self)
{
    bool all_ask = self->running && !self->over;
    for (uint32_t i = 0; i < self->worker_count; i++) {
        all_ask = all_ask && (self->slots[i].left || self->slots[i].advances);
    }
    if (all_ask && !trib_formation_holds_boundary(self)) {
        const trib_cause cause = trib_cause_note(TRIB_EPOCH_CHANGED, TRIB_NO_MEMBER, "all workers have asked for it");
        trib_formation_end_epoch(self, &cause);
    }
}

void trib_formation_take_advance(trib_coordinator *self, uint32_t member)
{
    trib_assert(member < trib_coordinator_slots(self) && self->slots[member].joined);
    self->slots[member].advances = true;
    if (self->running) {
        trib_formation_check_boundary(self);
    } else {
        trib_formation_check(self);
    }
}

/* election.c - an election: its voters, and its life (election.h). */
#include "engine/membership/election_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/link/link_cause.h"
#include "engine/membership/member_internal.h"
#include "engine/worker/op_commit.h"

#define TURN_NS (50 * INT64_C(1000000))
#define TOLD_AT_ONCE 512u /* tensors in a frame */

trib_election *trib_election_get(trib_engine *engine)
{
    const trib_roster *roster = engine->roster;
    if (engine->election == NULL && roster != NULL && atomic_load(&engine->shrinks)) {
        trib_election *self =
            trib_core_zalloc(&engine->cores[0], sizeof *self + roster->member_count * sizeof(trib_vote));
        if (self != NULL) {
            self->core = &engine->cores[0];
            self->roster = roster;
            engine->election = self;
        }
    }
    return engine->election;
}

void trib_election_stop(trib_engine *engine)
{
    trib_election *self = engine->election;
    if (self != NULL) {
        trib_timer_stop(self->core->reactor, &self->timer);
        trib_election_leave_former(self);
        trib_election_end_asking(self);
        for (uint32_t i = 0; i < self->roster->member_count; i++) {
            free(self->votes[i].rounds);
        }
        free(self->decided.rounds);
        trib_election_free_copy(self);
        free(self);
        engine->election = NULL;
    }
}

int64_t trib_election_time(const trib_election *self)
{
    const int64_t timeout_ns = self->roster->peer_timeout_ns;
    return timeout_ns + timeout_ns / 4 + TRIB_ELECTION_REOPEN_NS * (1 + (int64_t)self->candidate);
}

trib_formation *trib_election_formation(const trib_election *self)
{
    return &self->core->engine->formation;
}

uint32_t trib_election_place(const trib_election *self)
{
    return trib_election_formation(self)->place;
}

uint32_t trib_election_ballot(const trib_election *self, uint32_t candidate)
{
    return candidate + ((self->roster->members[0].roles & TRIB_ROLE_COORDINATOR) != 0 ? 0 : 1);
}

bool trib_election_counts(const trib_election *self, uint32_t member)
{
    return !trib_election_formation(self)->gone[member];
}

void trib_election_fail(trib_election *self, const char *why)
{
    char text[TRIB_ERROR_TEXT_SIZE], lost[TRIB_ERROR_TEXT_SIZE];
    trib_engine *engine = self->core->engine;
    trib_job_render(engine, &self->cause, lost);
    snprintf(text, sizeof text, "%.180s; %.190s", lost, why);
    const trib_cause cause =
        trib_cause_about(TRIB_PEER_LOST, TRIB_CAUSE_NOTE, TRIB_SUBJECT_COORDINATOR, 0, engine->member_id, text);
    trib_election_stop(engine);
    trib_job_end(engine, &cause);
}

void trib_election_fail_alone(trib_election *self, const char *why)
{
    char text[TRIB_ERROR_TEXT_SIZE];
    snprintf(text, sizeof text,
             "%s has decided otherwise which operations succeeded: start this process anew, as one that joins "
             "(TRIB_RANK=-1)",
             self->outvoted_by != NULL ? self->outvoted_by : "");
    trib_election_fail(self, self->outvoted_by != NULL ? text : why);
}

/* ---- What is decided ---- */

void trib_election_put_rounds(trib_link *link, const trib_frame *head, const trib_vote *vote)
{
    unsigned char payload[TOLD_AT_ONCE * TRIB_VOTE_BYTES];
    trib_writer writer = {.data = payload, .capacity = sizeof payload};
    trib_frame frame = *head;
    for (uint32_t i = 0; i < vote->count; i++) {
        if (vote->rounds[i] == 0) {
            continue;
        }
        if (writer.size == writer.capacity) {
            frame.root = 0; /* more follows */
            trib_link_send_copy(link, frame, payload, writer.size);
            writer.size = 0;
        }
        trib_put_u32(&writer, i);
        trib_put_u32(&writer, vote->rounds[i]);
    }
    frame.root = 1;
    trib_link_send_copy(link, frame, payload, writer.size);
}

trib_status trib_election_get_rounds(trib_vote *vote, const trib_frame *frame, const void *payload, trib_error *error)
{
    trib_reader reader = {.data = payload, .left = frame->payload_size};
    while (reader.left > 0 && !reader.failed) {
        const uint32_t tensor = trib_get_u32(&reader), round = trib_get_u32(&reader);
        if (!reader.failed && tensor >= TRIB_TENSORS_MAX) {
            return trib_error_set(error, TRIB_PROTOCOL, "%s about tensor %u", trib_frame_name(frame->type), tensor);
        }
        if (!reader.failed && !trib_vote_note_round(vote, tensor, round)) {
            return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for a vote");
        }
    }
    return trib_get_end(&reader, trib_frame_name(frame->type), error);
}

trib_vote trib_election_own_vote(const trib_election *self)
{
    const trib_formation *formation = trib_election_formation(self);
    return (trib_vote){.has_voted = true,
                       .is_settled = formation->is_settled && trib_election_place(self) < self->roster->worker_count,
                       .at_boundary = formation->at_boundary,
                       .knows_roster = formation->is_known,
                       .settled_ballot = formation->settled_ballot,
                       .rounds = formation->committed,
                       .count = formation->committed_count};
}

bool trib_election_can_share(const trib_election *self, const trib_vote *decided)
{
    const trib_vote own = trib_election_own_vote(self);
    return trib_ballot_fits(&own, decided);
}

void trib_election_settle(trib_election *self, const trib_vote *decided, uint32_t ballot)
{
    trib_formation *formation = trib_election_formation(self);
    trib_assert(trib_election_can_share(self, decided));
    trib_assert(!formation->coordinates); /* a process that keeps the membership takes part in no election */
    for (uint32_t i = 0; i < decided->count; i++) {
        trib_commit_settle(self->core, i, decided->rounds[i]);
    }
    formation->at_boundary = decided->at_boundary;
    formation->is_settled = true;
    formation->settled_ballot = ballot;
}

void trib_election_go_on(trib_election *self, const trib_address *coordinator)
{
    trib_engine *engine = self->core->engine;
    const trib_cause cause = self->cause;
    const bool was_between = !engine->member->joined;
    trib_election_stop(engine);
    if (!was_between) {
        trib_job_change(engine, &cause);
    }
    trib_member_redirect(engine, coordinator, was_between);
}

/* ---- A voter ---- */

static const trib_address *address_of(const trib_election *self, uint32_t member)
{
    return &self->roster->members[member].addresses[0];
}

void trib_election_vote(const trib_election *self, trib_link *link, uint32_t ballot)
{
    const trib_vote vote = trib_election_own_vote(self);
    const trib_frame frame = {.type = TRIB_FRAME_VOTE,
                              .tensor = self->roster->epoch,
                              .round = ballot,
                              .partition = vote.knows_roster,
                              .chunk = vote.is_settled && vote.at_boundary ? TRIB_VOTE_AT_BOUNDARY : vote.is_settled,
                              .size = vote.settled_ballot,
                              .aux = trib_election_place(self)};
    trib_election_put_rounds(link, &frame, &vote);
}

static void vote(trib_link *link)
{
    const trib_election *self = link->core->engine->election;
    if (self != NULL && self->link == link) {
        trib_election_vote(self, link, trib_election_ballot(self, self->candidate));
    }
}

/* This member cannot go on with the others. */
static trib_status take_refusal(trib_election *self, const trib_frame *frame, const void *payload, trib_error *error)
{
    trib_cause cause;
    const trib_status status = trib_cause_decode(frame, payload, &cause, error);
    if (status == TRIB_OK) {
        char why[TRIB_ERROR_TEXT_SIZE];
        trib_job_render(self->core->engine, &cause, why);
        trib_election_fail(self, why);
    }
    return status;
}

static trib_status voter_received(trib_link *link, const trib_frame *frame, const void *payload, bool in_place,
                                  trib_error *error)
{
    (void)in_place;
    trib_election *self = link->core->engine->election;
    if (frame->type == TRIB_FRAME_PONG || self == NULL || self->link != link) {
        return TRIB_OK;
    }
    if (frame->type == TRIB_FRAME_ROSTER) {
        const trib_status status = trib_election_take_roster(self, frame, payload, error);
        trib_link_close(link, true, TRIB_CLOSED, "the vote is about another epoch now");
        return status;
    }
    if (frame->type == TRIB_FRAME_ROSTER_TAKEN) { /* the candidate has sent all that it knows */
        if (trib_election_pass_on(self, link, frame->tensor, frame->aux)) {
            vote(link);
        }
        return TRIB_OK;
    }
    if (frame->type == TRIB_FRAME_ENDED) {
        return take_refusal(self, frame, payload, error);
    }
    if (frame->type != TRIB_FRAME_ELECTED) {
        return trib_error_set(error, TRIB_PROTOCOL, "unexpected %s frame from a candidate",
                              trib_frame_name(frame->type));
    }
    const trib_status status = trib_election_get_rounds(&self->decided, frame, payload, error);
    if (status == TRIB_OK && frame->root == 1) {
        self->decided.at_boundary = frame->chunk != 0;
        if (trib_election_can_share(self, &self->decided)) {
            trib_election_settle(self, &self->decided, frame->round);
            trib_election_formation(self)->moved = true;
            const trib_address address = *address_of(self, self->candidate);
            trib_election_go_on(self, &address);
        } else { /* it has counted this member's vote, which has taken another decision since */
            self->outvoted_by = "another member was elected, and";
        }
        trib_link_close(link, true, TRIB_CLOSED, "the candidate is elected");
    }
    return status;
}

static void voter_closed(trib_link *link, trib_status status, const char *reason)
{
    (void)status;
    (void)reason;
    trib_election *self = link->core->engine->election;
    if (self == NULL || self->link != link) {
        return;
    }
    self->link = NULL;
    self->has_failed = !link->session.is_established;
    self->is_refused = trib_election_refuses(&self->refused_since_ns, link->redial.is_refused,
                                             trib_now(link->core->reactor), TRIB_ELECTION_REFUSED_NS);
    trib_election_let_go(self); /* what has arrived of the decision stays: the candidate would tell the same again */
}

static const trib_link_upcalls voter_upcalls = {
    .ready = vote,
    .header = trib_election_header,
    .received = voter_received,
    .closed = voter_closed,
};

static void leave_candidate(trib_election *self)
{
    trib_link *link = self->link;
    self->link = NULL;
    trib_vote_clear(&self->decided);
    if (link != NULL) {
        trib_link_close(link, false, TRIB_CLOSED, "another candidate has its turn");
    }
}

void trib_election_release(trib_election *self)
{
    leave_candidate(self);
    trib_election_drop_votes(self);
}

static void next_candidate(trib_election *self)
{
    leave_candidate(self);
    do {
        self->candidate++;
    } while (self->candidate < self->roster->worker_count && !trib_election_counts(self, self->candidate));
    self->turn_began_ns = trib_now(self->core->reactor);
    self->has_failed = self->is_refused = false;
    self->refused_since_ns = 0;
    trib_log(self->core->reactor->logger, TRIB_LOG_DEBUG, "the candidate is rank %u", self->candidate);
}

/* Makes sure that the vote reaches a candidate that lives. */
static void follow(trib_election *self)
{
    const int64_t now_ns = trib_now(self->core->reactor), passed_ns = now_ns - self->turn_began_ns;
    const bool is_up = self->link != NULL && trib_link_is_up(self->link);
    const int64_t timeout_ns = self->roster->peer_timeout_ns;
    const bool is_silent = is_up && now_ns - self->link->last_received_ns >= timeout_ns;
    const int64_t patience_ns = self->has_failed ? TRIB_ELECTION_REOPEN_NS : timeout_ns;
    const bool is_lost = self->is_refused || trib_election_is_silent(self, self->candidate);
    if (is_silent || (!is_up && (is_lost || passed_ns >= patience_ns))) {
        next_candidate(self);
    } else if (is_up) {
        self->turn_began_ns = now_ns;
        trib_link_send_copy(self->link, (trib_frame){.type = TRIB_FRAME_PING}, NULL, 0);
    } else if (self->link == NULL) {
        self->asks_to_leave = false;
        self->has_failed = trib_link_connect(&self->core->host, address_of(self, self->candidate), TRIB_PURPOSE_CONTROL,
                                             TRIB_NO_MEMBER, 0, &voter_upcalls, NULL, &self->link) != TRIB_OK;
    }
}

/* The time for all candidates has passed. The coordinator may have answered, while the candidate held this member. */
static void run_out(trib_election *self)
{
    const trib_engine *engine = self->core->engine;
    trib_election_let_go(self);
    if (engine->election == self) {
        trib_election_fail_alone(self,
                                 "no other member has been elected in time: this one may be cut off from the majority");
    }
}

static void turn(trib_reactor *reactor, trib_timer *timer)
{
    trib_election *self = timer->user;
    trib_engine *engine = self->core->engine;
    const int64_t most_ns = 3 * trib_election_time(self), timeout_ns = self->roster->peer_timeout_ns;
    trib_election_ask_members(self, trib_timer_stalled_locally(reactor, timer, timeout_ns / 8));
    if (!self->is_open) {
        if (trib_member_coordinator_silence(engine->member) >= timeout_ns / TRIB_ELECTION_DOUBT_SHARE) {
            trib_timer_arm(reactor, timer, trib_now(reactor) + TURN_NS);
        } else {
            trib_election_end_asking(self);
        }
        return;
    }
    if (self->former.has_answered && self->link == NULL) {
        trib_election_let_go(self); /* another candidate has its turn */
        if (engine->election != self) {
            return;
        }
    }
    trib_election_ask_former(self);
    if (self->candidate >= self->roster->worker_count) {
        trib_election_fail_alone(self, "no worker is left that could take its place");
    } else if (self->candidate == trib_election_place(self)) {
        trib_election_stand(self);
    } else if (trib_now(reactor) - self->began_ns >= most_ns) {
        run_out(self);
    } else {
        follow(self);
    }
    if (engine->election == self) {
        trib_timer_arm(reactor, timer, trib_now(reactor) + TURN_NS);
    }
}

/* Returns the first candidate. It is not the lost coordinator, nor a member that an election in this epoch has passed
 * over. */
static uint32_t first_candidate(const trib_election *self)
{
    const uint32_t settled = trib_election_formation(self)->settled_ballot, least = settled > 0 ? settled : 1;
    uint32_t candidate = 0;
    while (candidate < self->roster->worker_count &&
           (trib_election_ballot(self, candidate) < least || !trib_election_counts(self, candidate))) {
        candidate++;
    }
    return candidate;
}

/* The election of this process, if it may take part in one; else NULL. */
static trib_election *get_own(trib_engine *engine)
{
    trib_election *self = engine->coordinator == NULL ? trib_election_get(engine) : NULL;
    return self == NULL || self->core->ended || engine->formation.gone == NULL ? NULL : self;
}

static void arm_turn(trib_election *self)
{
    self->timer.fired = turn;
    self->timer.user = self;
    trib_timer_arm(self->core->reactor, &self->timer, trib_now(self->core->reactor));
}

void trib_election_doubt(trib_engine *engine)
{
    trib_election *self = get_own(engine);
    if (self != NULL && !self->is_open && !self->timer.armed) {
        self->candidate = first_candidate(self);
        arm_turn(self);
    }
}

bool trib_election_begin(trib_engine *engine, const trib_cause *cause)
{
    trib_election *self = get_own(engine);
    if (self != NULL && !self->is_open) {
        const trib_core *core = self->core;
        self->is_open = true;
        self->cause = *cause;
        self->began_ns = self->turn_began_ns = trib_now(core->reactor);
        self->candidate = first_candidate(self);
        trib_log(core->reactor->logger, TRIB_LOG_WARN, "the coordinator is lost: the members elect another one");
        arm_turn(self);
    }
    return self != NULL;
}

bool trib_election_is_open(const trib_engine *engine)
{
    return engine->election != NULL && engine->election->is_open;
}

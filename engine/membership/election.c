/* election.c - see election.h. */
#include "engine/membership/election.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/link/link_cause.h"
#include "engine/membership/ballot.h"
#include "engine/membership/coordinator.h"
#include "engine/membership/formation.h"
#include "engine/membership/member_internal.h"
#include "engine/worker/op_commit.h"

#define TURN_NS (50 * INT64_C(1000000))
#define REOPEN_NS (2 * INT64_C(1000000000)) /* for so long a member's address may refuse while it closes its links */
#define TOLD_AT_ONCE 512u                   /* tensors in a frame */

struct trib_election {
    trib_core *core;
    const trib_roster *roster; /* of the last epoch */
    bool is_open;              /* this member has lost the coordinator, too; until then votes only wait */
    trib_cause cause;
    uint32_t candidate;
    int64_t began_ns, turn_began_ns; /* of the election, and of the candidate's turn */
    trib_link *link;                 /* to the candidate; NULL: none, or this process is the candidate */
    bool is_refused;                 /* the last attempt to reach the candidate was */
    trib_paper decided;              /* as far as it has arrived */
    trib_timer timer;
    trib_paper papers[]; /* by member, of those that vote for this process */
};

static const trib_link_upcalls voter_upcalls, candidate_upcalls;

static trib_election *get(trib_engine *engine)
{
    const trib_roster *roster = engine->roster;
    if (engine->election == NULL && roster != NULL && atomic_load(&engine->shrinks)) {
        trib_election *self =
            trib_core_zalloc(&engine->cores[0], sizeof *self + roster->member_count * sizeof(trib_paper));
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
        for (uint32_t i = 0; i < self->roster->member_count; i++) {
            free(self->papers[i].rounds);
        }
        free(self->decided.rounds);
        free(self);
        engine->election = NULL;
    }
}

/* Others may find the coordinator away only after its time to close its links, and look for candidates that are lost,
 * too. By then all that live have voted for that candidate. */
static int64_t time_to_vote(const trib_election *self)
{
    const int64_t timeout_ns = self->roster->peer_timeout_ns;
    return timeout_ns + timeout_ns / 4 + REOPEN_NS * (1 + (int64_t)self->candidate);
}

static trib_formation *formation_of(const trib_election *self)
{
    return &self->core->engine->formation;
}

static uint32_t here(const trib_election *self)
{
    return formation_of(self)->place;
}

/* The coordinator of the epoch, a member or a process of its own, has ballot 0. */
static uint32_t ballot_of(const trib_election *self, uint32_t candidate)
{
    return candidate + ((self->roster->members[0].roles & TRIB_ROLE_COORDINATOR) != 0 ? 0 : 1);
}

static bool is_elector(const trib_election *self, uint32_t member)
{
    return !formation_of(self)->gone[member];
}

static void end_job(trib_election *self, const char *why)
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

/* ---- What is decided ---- */

static void put_rounds(trib_link *link, const trib_frame *head, const trib_paper *paper)
{
    unsigned char payload[TOLD_AT_ONCE * TRIB_VOTE_BYTES];
    trib_writer writer = {.data = payload, .capacity = sizeof payload};
    trib_frame frame = *head;
    for (uint32_t i = 0; i < paper->count; i++) {
        if (paper->rounds[i] == 0) {
            continue;
        }
        if (writer.size == writer.capacity) {
            frame.root = 0; /* more follows */
            trib_link_send_copy(link, frame, payload, writer.size);
            writer.size = 0;
        }
        trib_put_u32(&writer, i);
        trib_put_u32(&writer, paper->rounds[i]);
    }
    frame.root = 1;
    trib_link_send_copy(link, frame, payload, writer.size);
}

static trib_status get_rounds(trib_paper *paper, const trib_frame *frame, const void *payload, trib_error *error)
{
    trib_reader reader = {.data = payload, .left = frame->payload_size};
    while (reader.left > 0 && !reader.failed) {
        const uint32_t tensor = trib_get_u32(&reader), round = trib_get_u32(&reader);
        if (!reader.failed && !trib_paper_note(paper, tensor, round)) {
            return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for a vote");
        }
    }
    return trib_get_end(&reader, trib_frame_name(frame->type), error);
}

static trib_paper own_paper(const trib_election *self)
{
    const trib_formation *formation = formation_of(self);
    return (trib_paper){.has_voted = true,
                        .is_settled = formation->is_settled && here(self) < self->roster->worker_count,
                        .knows_roster = formation->is_known,
                        .settled_ballot = formation->settled_ballot,
                        .rounds = formation->committed,
                        .count = formation->committed_count};
}

/* What has succeeded is final here, too. */
static void settle(trib_election *self, const trib_paper *decided, uint32_t ballot)
{
    trib_formation *formation = formation_of(self);
    for (uint32_t i = 0; i < decided->count && !formation->is_settled; i++) {
        trib_commit_settle(self->core, i, decided->rounds[i]);
    }
    formation->is_settled = true;
    formation->settled_ballot = ballot;
}

/* The job goes on in this process, with that coordinator. Ends the election. */
static void go_on(trib_election *self, const trib_address *coordinator)
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

/* ---- A roster that only some have ---- */

/* Passes the roster on to that member of the epoch before. Returns false if it has no place in it. */
static bool pass_on(const trib_election *self, trib_link *link, uint32_t epoch, uint32_t former)
{
    const trib_roster *roster = self->roster;
    uint32_t member = 0;
    while (member < roster->member_count && roster->members[member].former != former) {
        member++;
    }
    unsigned char *payload = malloc(TRIB_PAYLOAD_MAX);
    const bool passes =
        payload != NULL && member < roster->member_count && roster->before != NULL && roster->before->epoch == epoch;
    if (passes) {
        trib_writer writer = {.data = payload, .capacity = TRIB_PAYLOAD_MAX};
        trib_roster_put(&writer, roster);
        trib_assert(!writer.overflow);
        trib_link_send_copy(link, (trib_frame){.type = TRIB_FRAME_ROSTER, .root = member}, payload, writer.size);
    }
    free(payload);
    return passes;
}

/* The coordinator has sent a roster that did not reach this member. The election is one among its members now. */
static trib_status adopt(trib_election *self, const trib_frame *frame, const void *payload, trib_error *error)
{
    trib_engine *engine = self->core->engine;
    const trib_cause cause = self->cause;
    if (!self->is_open || engine->member->joined) {
        return TRIB_OK;
    }
    const trib_status status = trib_member_take_roster(engine->member, frame, payload, error);
    if (status == TRIB_OK) {
        (void)trib_election_begin(engine, &cause);
    }
    return status;
}

/* ---- The candidate ---- */

static const trib_address *address_of(const trib_election *self, uint32_t member)
{
    return &self->roster->members[member].addresses[0];
}

static void refuse(trib_link *link, const char *why)
{
    const trib_cause cause = trib_cause_note(TRIB_JOIN_FAILED, TRIB_NO_MEMBER, why);
    trib_link_note_refused(link->host, TRIB_REFUSAL_MEMBER, trib_link_remote(link), why);
    trib_link_close_for(link, true, &cause);
}

static void take_office(trib_election *self, const bool *elects)
{
    trib_engine *engine = self->core->engine;
    trib_formation *formation = formation_of(self);
    const trib_roster *roster = self->roster;
    formation->coordinates = formation->moved = true;
    formation->ballot = ballot_of(self, here(self));
    formation->worker_count = roster->worker_count;
    formation->server_count = roster->server_count;
    formation->epoch = roster->epoch;
    formation->electors_before = roster->electors_before;
    formation->newcomers = roster->newcomers;
    formation->joiners = formation->lost = formation->electors = 0;
    for (uint32_t i = 0; i < roster->member_count; i++) {
        formation->expected[i] = elects[i];
        formation->electors += is_elector(self, i);
        formation->lost += !elects[i] && is_elector(self, i);
    }
    trib_job_render_for_others(engine, &self->cause, formation->lost_text);
    engine->config.survive = TRIB_SURVIVE_WORKERS;
    engine->config.partition_bytes = roster->partition_bytes;
    engine->config.chunk_bytes = roster->chunk_bytes;
    engine->config.sum_order = roster->sum_order;
    engine->config.peer_timeout_ns = roster->peer_timeout_ns;
    trib_log(self->core->reactor->logger, TRIB_LOG_WARN, "this process keeps the membership from now on: %s",
             formation->lost_text);
}

/* The majority has voted. */
static void win(trib_election *self, const trib_paper *decided, const bool *elects)
{
    trib_engine *engine = self->core->engine;
    trib_core *core = self->core;
    const trib_frame frame = {.type = TRIB_FRAME_ELECTED, .round = ballot_of(self, here(self))};
    const trib_address address = *address_of(self, here(self));
    for (uint32_t i = 0; i < self->roster->member_count; i++) {
        trib_link *link = self->papers[i].link;
        if (link != NULL && elects[i]) {
            put_rounds(link, &frame, decided);
        } else if (link != NULL) {
            refuse(link, "another member has decided which operations succeeded");
        }
    }
    settle(self, decided, frame.round);
    take_office(self, elects);
    const bool was_between = !engine->member->joined;
    go_on(self, &address);
    if (was_between) { /* else it is opened with the next epoch */
        trib_address bound;
        trib_error error = {.status = TRIB_OK};
        if (trib_coordinator_open(core, &bound, &error) != TRIB_OK) {
            trib_job_fail(engine, error.status, error.text);
        }
    }
}

/* Returns true if the votes are a majority. */
static bool count(const trib_election *self, const trib_tally *tally)
{
    const trib_roster *roster = self->roster;
    trib_majority majority = {.knows_roster = tally->knows_roster, .before = roster->electors_before};
    for (uint32_t i = 0; i < roster->member_count; i++) {
        majority.electors += is_elector(self, i);
        majority.votes += tally->elects[i];
        majority.former += tally->elects[i] && !trib_ballot_is_newcomer(roster->worker_count, roster->newcomers, i);
    }
    return trib_ballot_is_majority(&majority, false);
}

/* Counts those that may still vote. *broken_out: those of them whose connections have ended. */
static uint32_t count_awaited(const trib_election *self, uint32_t *broken_out)
{
    const trib_engine *engine = self->core->engine;
    uint32_t awaited = 0;
    *broken_out = 0;
    for (uint32_t i = here(self) + 1; i < self->roster->member_count; i++) {
        const bool is_awaited = !self->papers[i].has_voted && is_elector(self, i);
        awaited += is_awaited;
        *broken_out += is_awaited && i < engine->losses.capacity && atomic_load(&engine->losses.suspected[i]);
    }
    return awaited;
}

static void stand(trib_election *self)
{
    const int64_t passed_ns = trib_now(self->core->reactor) - self->turn_began_ns;
    uint32_t broken;
    const uint32_t awaited = count_awaited(self, &broken);
    const bool is_over = awaited == 0 || passed_ns >= 2 * time_to_vote(self);
    if (!is_over && passed_ns < time_to_vote(self) && (awaited > broken || passed_ns < REOPEN_NS)) {
        return;
    }
    trib_tally tally;
    const uint32_t members = self->roster->member_count;
    self->papers[here(self)] = own_paper(self);
    const bool has_memory = trib_ballot_tally(self->papers, members, &tally);
    self->papers[here(self)] = (trib_paper){.link = NULL}; /* its rounds belong to the formation */
    if (has_memory && count(self, &tally) && tally.elects[here(self)]) {
        win(self, &tally.decided, tally.elects);
    } else if (is_over || !has_memory) {
        char text[200];
        uint32_t votes = 0;
        for (uint32_t i = 0; has_memory && i < members; i++) {
            votes += tally.elects[i];
        }
        snprintf(text, sizeof text,
                 "no majority of the last epoch's %u members is here (%u vote), so others may go on: start the job "
                 "again. Two workers and a server of its own can lose either",
                 members, votes);
        end_job(self, has_memory ? text : "out of memory for an election");
    }
    trib_ballot_free(&tally);
}

static trib_status candidate_header(trib_link *link, const trib_frame *frame, trib_recv_target *target,
                                    trib_error *error)
{
    (void)link;
    (void)frame;
    (void)target;
    (void)error;
    return TRIB_OK;
}

static trib_status take_vote(trib_election *self, trib_link *link, const trib_frame *frame, const void *payload,
                             trib_error *error)
{
    const uint32_t member = frame->aux;
    if (frame->tensor != self->roster->epoch && self->is_open && !self->core->engine->member->joined) {
        /* it may have a roster that this member lacks */
        const trib_frame own = {.type = TRIB_FRAME_ROSTER_TAKEN, .tensor = self->roster->epoch, .aux = here(self)};
        trib_link_send_copy(link, own, NULL, 0);
        return TRIB_OK;
    }
    if (frame->tensor != self->roster->epoch && self->is_open && pass_on(self, link, frame->tensor, member)) {
        return TRIB_OK;
    }
    if (frame->tensor != self->roster->epoch) {
        refuse(link,
               "the membership has changed without this process: start it anew, as one that joins (TRIB_RANK=-1)");
        return TRIB_OK;
    }
    if (member >= self->roster->member_count || member == here(self) || frame->round != ballot_of(self, here(self))) {
        return trib_error_set(error, TRIB_PROTOCOL, "VOTE of member %u with ballot %u", member, frame->round);
    }
    trib_paper *paper = &self->papers[member];
    if (paper->link != link) {
        trib_paper_clear(paper);
        paper->link = link;
        link->peer = member;
    }
    paper->is_settled = frame->chunk != 0;
    paper->settled_ballot = frame->size;
    paper->knows_roster = frame->partition != 0;
    const trib_status status = get_rounds(paper, frame, payload, error);
    paper->has_voted = status == TRIB_OK && frame->root == 1;
    return status;
}

static trib_status candidate_received(trib_link *link, const trib_frame *frame, const void *payload, bool in_place,
                                      trib_error *error)
{
    (void)in_place;
    trib_election *self = link->core->ended ? NULL : get(link->core->engine);
    switch (frame->type) {
    case TRIB_FRAME_VOTE:
        return self != NULL ? take_vote(self, link, frame, payload, error) : TRIB_OK;
    case TRIB_FRAME_ROSTER:
        return self != NULL ? adopt(self, frame, payload, error) : TRIB_OK;
    case TRIB_FRAME_PING:
        trib_link_send_copy(link, (trib_frame){.type = TRIB_FRAME_PONG}, NULL, 0);
        return TRIB_OK;
    case TRIB_FRAME_JOIN:
        trib_link_close(link, true, TRIB_CLOSED, "this member does not keep the membership yet: come again");
        return TRIB_OK;
    default:
        return TRIB_OK;
    }
}

static void candidate_closed(trib_link *link, trib_status status, const char *reason)
{
    (void)status;
    (void)reason;
    trib_election *self = link->core->engine->election;
    for (uint32_t i = 0; self != NULL && i < self->roster->member_count; i++) {
        if (self->papers[i].link == link) {
            trib_paper_clear(&self->papers[i]);
        }
    }
}

static void nothing_is_due(trib_link *link)
{
    (void)link;
}

static const trib_link_upcalls candidate_upcalls = {
    .ready = nothing_is_due,
    .header = candidate_header,
    .received = candidate_received,
    .closed = candidate_closed,
};

void trib_election_adopt(trib_link *link)
{
    link->upcalls = &candidate_upcalls;
    link->peer = TRIB_NO_MEMBER;
}

/* ---- A voter ---- */

static void vote(trib_link *link)
{
    const trib_election *self = link->core->engine->election;
    if (self == NULL || self->link != link) {
        return;
    }
    const trib_paper paper = own_paper(self);
    const trib_frame frame = {.type = TRIB_FRAME_VOTE,
                              .tensor = self->roster->epoch,
                              .round = ballot_of(self, self->candidate),
                              .partition = paper.knows_roster,
                              .chunk = paper.is_settled,
                              .size = paper.settled_ballot,
                              .aux = here(self)};
    put_rounds(link, &frame, &paper);
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
        const trib_status status = adopt(self, frame, payload, error);
        trib_link_close(link, true, TRIB_CLOSED, "the vote is about another epoch now");
        return status;
    }
    if (frame->type == TRIB_FRAME_ROSTER_TAKEN) { /* that is all that the candidate has */
        if (pass_on(self, link, frame->tensor, frame->aux)) {
            vote(link);
        }
        return TRIB_OK;
    }
    if (frame->type != TRIB_FRAME_ELECTED) {
        return trib_error_set(error, TRIB_PROTOCOL, "unexpected %s frame from a candidate",
                              trib_frame_name(frame->type));
    }
    const trib_status status = get_rounds(&self->decided, frame, payload, error);
    if (status == TRIB_OK && frame->root == 1) {
        settle(self, &self->decided, frame->round);
        formation_of(self)->coordinates = false;
        formation_of(self)->moved = true;
        const trib_address address = *address_of(self, self->candidate);
        go_on(self, &address);
        trib_link_close(link, true, TRIB_CLOSED, "the candidate is elected");
    }
    return status;
}

static void voter_closed(trib_link *link, trib_status status, const char *reason)
{
    trib_election *self = link->core->engine->election;
    if (self == NULL || self->link != link) {
        return;
    }
    self->link = NULL;
    self->is_refused = !link->session.is_established;
    trib_paper_clear(&self->decided);
    if (link->end_from_peer && status == TRIB_JOIN_FAILED) {
        end_job(self, reason);
    }
}

static const trib_link_upcalls voter_upcalls = {
    .ready = vote,
    .header = candidate_header,
    .received = voter_received,
    .closed = voter_closed,
};

static void leave_candidate(trib_election *self)
{
    trib_link *link = self->link;
    self->link = NULL;
    trib_paper_clear(&self->decided);
    if (link != NULL) {
        trib_link_close(link, false, TRIB_CLOSED, "another candidate has its turn");
    }
}

static void next_candidate(trib_election *self)
{
    leave_candidate(self);
    do {
        self->candidate++;
    } while (self->candidate < self->roster->worker_count && !is_elector(self, self->candidate));
    self->turn_began_ns = trib_now(self->core->reactor);
    self->is_refused = false;
    trib_log(self->core->reactor->logger, TRIB_LOG_DEBUG, "the candidate is rank %u", self->candidate);
}

/* Sees to it that the vote reaches a candidate that lives. */
static void follow(trib_election *self)
{
    const int64_t now_ns = trib_now(self->core->reactor), passed_ns = now_ns - self->turn_began_ns;
    const bool is_up = self->link != NULL && trib_link_is_up(self->link);
    const int64_t timeout_ns = self->roster->peer_timeout_ns;
    const bool is_silent = is_up && now_ns - self->link->last_received_ns >= timeout_ns;
    if (is_silent || (!is_up && passed_ns >= (self->is_refused ? REOPEN_NS : timeout_ns))) {
        next_candidate(self);
    } else if (is_up) {
        self->turn_began_ns = now_ns;
        trib_link_send_copy(self->link, (trib_frame){.type = TRIB_FRAME_PING}, NULL, 0);
    } else if (self->link == NULL) {
        self->is_refused = trib_link_connect(&self->core->host, address_of(self, self->candidate), TRIB_PURPOSE_CONTROL,
                                             TRIB_NO_MEMBER, 0, &voter_upcalls, NULL, &self->link) != TRIB_OK;
    }
}

static void turn(trib_reactor *reactor, trib_timer *timer)
{
    trib_election *self = timer->user;
    trib_engine *engine = self->core->engine;
    const int64_t most_ns = 3 * time_to_vote(self);
    if (self->candidate >= self->roster->worker_count) {
        end_job(self, "no worker is left that could take its place");
    } else if (self->candidate == here(self)) {
        stand(self);
    } else if (trib_now(reactor) - self->began_ns >= most_ns) {
        end_job(self, "no other member has been elected in time: this one may be cut off from the majority");
    } else {
        follow(self);
    }
    if (engine->election == self) {
        trib_timer_arm(reactor, timer, trib_now(reactor) + TURN_NS);
    }
}

bool trib_election_begin(trib_engine *engine, const trib_cause *cause)
{
    trib_election *self = engine->coordinator == NULL ? get(engine) : NULL;
    const trib_core *core = &engine->cores[0];
    if (self == NULL || core->ended || engine->formation.gone == NULL) {
        return false;
    }
    if (!self->is_open) {
        self->is_open = true;
        self->cause = *cause;
        self->began_ns = self->turn_began_ns = trib_now(core->reactor);
        self->candidate = 0;
        if (ballot_of(self, 0) == 0 || !is_elector(self, 0)) {
            next_candidate(self);
        }
        trib_log(core->reactor->logger, TRIB_LOG_WARN, "the coordinator is lost: the members elect another one");
        self->timer.fired = turn;
        self->timer.user = self;
        trib_timer_arm(core->reactor, &self->timer, self->began_ns);
    }
    return true;
}

bool trib_election_is_open(const trib_engine *engine)
{
    return engine->election != NULL && engine->election->is_open;
}

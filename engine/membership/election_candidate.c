/* election_candidate.c - a candidate: takes votes, counts them, and takes office (election.h). */
#include "engine/membership/election_internal.h"

#include <stdio.h>
#include <string.h>

#include "engine/link/link_cause.h"
#include "engine/link/link_handshake.h"
#include "engine/membership/coordinator.h"
#include "engine/membership/formation.h"
#include "engine/membership/member_internal.h"
#include "engine/membership/tenure.h"

#define LEFT_BEHIND "the membership has changed without this process: start it anew, as one that joins (TRIB_RANK=-1)"

/* Tells a voter that it is no member any more. It ends when it reads why. */
static void refuse(trib_link *link, const char *why)
{
    const trib_cause cause = trib_cause_note(TRIB_JOIN_FAILED, TRIB_NO_MEMBER, why);
    trib_link_note_refused(link->host, TRIB_REFUSAL_MEMBER, trib_link_remote(link), why);
    trib_coordinator_notify_end(link, &cause);
    trib_link_close_for(link, true, &cause);
}

/* Tells a voter, which stays one, that nothing is decided yet. */
static void put_off(trib_link *link)
{
    trib_link_close(link, true, TRIB_CLOSED, "this member does not keep the membership yet: come again");
}

static void take_office(trib_election *self, const bool *elects)
{
    trib_engine *engine = self->core->engine;
    trib_formation *formation = trib_election_formation(self);
    const trib_roster *roster = self->roster;
    formation->coordinates = formation->moved = true;
    formation->ballot = trib_election_ballot(self, trib_election_place(self));
    formation->worker_count = roster->worker_count;
    formation->server_count = roster->server_count;
    formation->epoch = roster->epoch;
    formation->electors_before = roster->electors_before;
    formation->newcomers = roster->newcomers;
    formation->new_servers = roster->new_servers;
    formation->ranks_used = roster->ranks_used;
    formation->admits = formation->at_boundary || !roster->continues;
    formation->joiners = formation->lost = formation->electors = 0;
    for (uint32_t i = 0; i < roster->member_count; i++) {
        formation->expected[i] = elects[i];
        formation->electors += trib_election_counts(self, i);
        formation->lost += !elects[i] && trib_election_counts(self, i);
    }
    trib_job_render_for_others(engine, &self->cause, formation->lost_text);
    engine->config.survive = roster->continues ? TRIB_SURVIVE_CONTINUE : TRIB_SURVIVE_WORKERS;
    engine->config.partition_bytes = roster->partition_bytes;
    engine->config.chunk_bytes = roster->chunk_bytes;
    engine->config.sum_order = roster->sum_order;
    engine->config.peer_timeout_ns = roster->peer_timeout_ns;
    trib_log(self->core->reactor->logger, TRIB_LOG_WARN, "this process keeps the membership from now on: %s",
             formation->lost_text);
}

/* The majority has voted. */
static void win(trib_election *self, const trib_vote *decided, const bool *elects)
{
    trib_engine *engine = self->core->engine;
    trib_core *core = self->core;
    const trib_frame frame = {.type = TRIB_FRAME_ELECTED,
                              .chunk = decided->at_boundary,
                              .round = trib_election_ballot(self, trib_election_place(self))};
    const trib_address address = self->roster->members[trib_election_place(self)].addresses[0];
    for (uint32_t i = 0; i < self->roster->member_count; i++) {
        trib_link *link = self->votes[i].link;
        if (link != NULL && elects[i]) {
            trib_election_put_rounds(link, &frame, decided);
        } else if (link != NULL) {
            refuse(link, "another member has decided which operations succeeded");
        }
    }
    trib_election_settle(self, decided, frame.round);
    take_office(self, elects);
    const bool was_between = !engine->member->joined;
    trib_election_go_on(self, &address);
    if (was_between) { /* else it is opened with the next epoch */
        trib_address bound;
        trib_error error = {.status = TRIB_OK};
        if (trib_coordinator_open(core, &bound, &error) != TRIB_OK) {
            trib_job_fail(engine, error.status, error.text);
        }
    }
}

/* Counts the votes. A server that may go votes, too, until it hears of that. Its vote does not count: the coordinator,
 * which may live, has let it go, and counts without it. All workers know of that by then. */
static trib_majority count(const trib_election *self, const trib_tally *tally)
{
    const trib_roster *roster = self->roster;
    trib_majority majority = {.knows_roster = tally->knows_roster, .before = roster->electors_before};
    for (uint32_t i = 0; i < roster->member_count; i++) {
        const bool is_elector = trib_election_counts(self, i), votes = is_elector && tally->elects[i];
        majority.electors += is_elector;
        majority.votes += votes;
        majority.former += votes && !trib_ballot_is_newcomer(roster->worker_count, roster->newcomers, i) &&
                           !trib_ballot_is_newcomer(roster->member_count, roster->new_servers, i);
    }
    return majority;
}

/* Counts the members that may still vote: not one whose loss has ended the epoch. *silent_out: those of them that have
 * ended, or stand still. */
static uint32_t count_awaited(const trib_election *self, uint32_t *silent_out)
{
    uint32_t awaited = 0;
    *silent_out = 0;
    for (uint32_t i = trib_election_place(self) + 1; i < self->roster->member_count; i++) {
        const bool is_lost = i + 1 == trib_election_formation(self)->lost_last;
        const bool is_awaited = !self->votes[i].has_voted && trib_election_counts(self, i) && !is_lost;
        awaited += is_awaited;
        *silent_out += is_awaited && trib_election_is_silent(self, i);
    }
    return awaited;
}

/* The votes do not suffice, and their time has passed. */
static void fail_short(trib_election *self, const trib_tally *tally)
{
    char text[200];
    const trib_majority counted = count(self, tally);
    snprintf(text, sizeof text,
             "no majority of the last epoch's %u members is here (%u vote), so others may go on: start the job "
             "again. Two workers and a server of its own can lose either",
             counted.electors, counted.votes);
    trib_election_fail_alone(self, text);
}

static void drop_vote(trib_vote *vote)
{
    trib_link *link = vote->link;
    trib_vote_clear(vote);
    if (link != NULL) {
        put_off(link);
    }
}

/* Lets the voters go that the coordinator has answered. Returns how many there were. */
static uint32_t let_go(trib_election *self)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < self->roster->member_count; i++) {
        if (self->votes[i].asks_to_leave) {
            count++;
            drop_vote(&self->votes[i]);
        }
    }
    return count;
}

static bool some_ask_to_leave(const trib_election *self)
{
    bool some = false;
    for (uint32_t i = 0; i < self->roster->member_count; i++) {
        some = some || self->votes[i].asks_to_leave;
    }
    return some;
}

static void decide(trib_election *self, const trib_tally *tally, bool suffices, bool is_over)
{
    const bool is_stored = self->roster->ticket != 0;
    const bool is_elected = tally->elects[trib_election_place(self)];
    if (is_stored && !trib_tenure_is_used(self->core->engine)) {
        trib_election_fail(self, "this process does not know the job's store (TRIB_STORE), which decides who goes on");
    } else if (suffices || (is_stored && is_over && is_elected)) {
        win(self, &tally->decided, tally->elects);
    } else if (is_over) {
        fail_short(self, tally);
    }
}

/* A voter that the coordinator has answered is not let go while the votes suffice: the coordinator answers this
 * process, too, or is too late. So no voter is alone with the coordinator. */
void trib_election_stand(trib_election *self)
{
    const int64_t passed_ns = trib_now(self->core->reactor) - self->turn_began_ns;
    uint32_t silent;
    const uint32_t awaited = count_awaited(self, &silent);
    const bool is_over = awaited == 0 || passed_ns >= 2 * trib_election_time(self);
    const bool is_due = is_over || passed_ns >= trib_election_time(self) || awaited <= silent;
    if (!is_due && !some_ask_to_leave(self)) {
        return;
    }
    trib_tally tally;
    const uint32_t me = trib_election_place(self);
    self->votes[me] = trib_election_own_vote(self);
    const bool has_memory = trib_ballot_tally(self->votes, self->roster->member_count, &tally);
    self->votes[me] = (trib_vote){.link = NULL}; /* its rounds belong to the formation */
    const trib_majority counted = has_memory ? count(self, &tally) : (trib_majority){.votes = 0};
    const bool suffices = has_memory && trib_ballot_is_majority(&counted, false) && tally.elects[me];
    if ((suffices || let_go(self) == 0) && is_due) {
        if (has_memory) {
            decide(self, &tally, suffices, is_over);
        } else {
            trib_election_fail(self, "out of memory for an election");
        }
    }
    trib_ballot_free(&tally);
}

void trib_election_drop_votes(trib_election *self)
{
    for (uint32_t i = 0; i < self->roster->member_count; i++) {
        drop_vote(&self->votes[i]);
    }
}

/* Tells a voter that this process coordinates, and how the epoch has ended. A voter that has taken another decision
 * turns to somebody else. */
static void tell_decision(const trib_coordinator *self, trib_link *link, const trib_frame *vote)
{
    const trib_formation *formation = &self->core->engine->formation;
    const trib_vote decided = {.rounds = formation->committed, .count = formation->committed_count};
    const trib_frame frame = {.type = TRIB_FRAME_ELECTED, .chunk = formation->at_boundary, .round = formation->ballot};
    if (!formation->is_settled) {
        put_off(link);
    } else if (vote->root == 1) {
        trib_election_put_rounds(link, &frame, &decided);
    }
}

void trib_election_answer(trib_link *link, const trib_frame *vote)
{
    trib_coordinator *self = link->core->engine->coordinator;
    if (trib_formation_may_return(self, vote->tensor, vote->aux)) {
        tell_decision(self, link, vote);
    } else if (trib_formation_member_returns(self, vote->tensor, vote->aux) || self->over ||
               trib_formation_awaits(self, vote->tensor, vote->aux)) {
        put_off(link);
    } else {
        refuse(link, LEFT_BEHIND);
    }
}

trib_status trib_election_header(trib_link *link, const trib_frame *frame, trib_recv_target *target, trib_error *error)
{
    (void)link;
    (void)frame;
    (void)target;
    (void)error;
    return TRIB_OK;
}

/* The voter has another roster. While this member has a coordinator, it decides nothing about a voter that its own
 * roster knows, or whose roster is a later one. */
static void take_vote_of_another_epoch(trib_election *self, trib_link *link, const trib_frame *frame)
{
    const bool lacks_some = !self->core->engine->member->joined; /* a roster of which this member has not heard */
    if (!trib_epoch_is_before(frame->tensor, self->roster->epoch)) {
        const trib_frame own = {
            .type = TRIB_FRAME_ROSTER_TAKEN, .tensor = self->roster->epoch, .aux = trib_election_place(self)};
        if (self->is_open && lacks_some) {
            trib_link_send_copy(link, own, NULL, 0);
        } else {
            put_off(link);
        }
    } else if (trib_election_find_former(self, frame->tensor, frame->aux) == TRIB_NO_MEMBER) {
        refuse(link, LEFT_BEHIND);
    } else if (!self->is_open) {
        put_off(link);
    } else {
        trib_election_pass_on(self, link, frame->tensor, frame->aux);
    }
}

static trib_status take_vote(trib_election *self, trib_link *link, const trib_frame *frame, const void *payload,
                             trib_error *error)
{
    const uint32_t member = frame->aux;
    if (frame->tensor != self->roster->epoch) {
        take_vote_of_another_epoch(self, link, frame);
        return TRIB_OK;
    }
    if (!self->is_open && trib_losses_has(&self->core->engine->losses, member)) { /* a server that costs no epoch */
        refuse(link, LEFT_BEHIND);
        return TRIB_OK;
    }
    if (member >= self->roster->member_count || member == trib_election_place(self) ||
        frame->round != trib_election_ballot(self, trib_election_place(self))) {
        return trib_error_set(error, TRIB_PROTOCOL, "VOTE of member %u with ballot %u", member, frame->round);
    }
    trib_vote *vote = &self->votes[member];
    if (vote->link != link) {
        trib_link *before = vote->link;
        trib_vote_clear(vote);
        vote->link = link;
        link->peer = member;
        trib_timer_stop(self->core->reactor, &link->deadline);
        if (before != NULL) {
            put_off(before);
        }
    }
    vote->is_settled = frame->chunk != 0;
    vote->at_boundary = frame->chunk == TRIB_VOTE_AT_BOUNDARY;
    vote->settled_ballot = frame->size;
    vote->knows_roster = frame->partition != 0;
    const trib_status status = trib_election_get_rounds(vote, frame, payload, error);
    vote->has_voted = status == TRIB_OK && frame->root == 1;
    return status;
}

/* A vote about the epoch before does not count any more: the voter has to vote again, and then gets a further
 * answer. */
static void take_ping(const trib_election *self, trib_link *link)
{
    const bool has_vote =
        self != NULL && link->peer < self->roster->member_count && self->votes[link->peer].link == link;
    if (link->core->engine->member != NULL && link->core->engine->member->joined && !has_vote) {
        put_off(link);
    } else {
        trib_link_send_copy(link, (trib_frame){.type = TRIB_FRAME_PONG}, NULL, 0);
    }
}

/* The coordinator has answered this voter. */
static void take_leave(trib_election *self, trib_link *link)
{
    trib_vote *vote = self != NULL && link->peer < self->roster->member_count ? &self->votes[link->peer] : NULL;
    if (vote == NULL || vote->link != link) {
        put_off(link);
    } else if (self->is_open && self->candidate == trib_election_place(self)) {
        vote->asks_to_leave = true; /* the next turn decides */
    } else {
        drop_vote(vote);
    }
}

static trib_status candidate_received(trib_link *link, const trib_frame *frame, const void *payload, bool in_place,
                                      trib_error *error)
{
    (void)in_place;
    trib_engine *engine = link->core->engine;
    trib_election *self = link->core->ended ? NULL : trib_election_get(engine);
    if (!link->core->ended && trib_election_lacks_roster(engine)) {
        if (frame->type == TRIB_FRAME_ROSTER) {
            return trib_election_enter(engine, frame, payload, error);
        }
        put_off(link);
        return TRIB_OK;
    }
    switch (frame->type) {
    case TRIB_FRAME_VOTE:
        return self != NULL ? take_vote(self, link, frame, payload, error) : TRIB_OK;
    case TRIB_FRAME_ROSTER:
        return self != NULL ? trib_election_take_roster(self, frame, payload, error) : TRIB_OK;
    case TRIB_FRAME_PING:
        take_ping(self, link);
        return TRIB_OK;
    case TRIB_FRAME_LEAVE:
        take_leave(self, link);
        return TRIB_OK;
    case TRIB_FRAME_JOIN:
        put_off(link);
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
        if (self->votes[i].link == link) {
            trib_vote_clear(&self->votes[i]);
        }
    }
}

static void nothing_is_due(trib_link *link)
{
    (void)link;
}

static const trib_link_upcalls candidate_upcalls = {
    .ready = nothing_is_due,
    .header = trib_election_header,
    .received = candidate_received,
    .closed = candidate_closed,
};

/* A process that has proved the token and does not vote holds a descriptor for nothing. */
static void vote_is_overdue(trib_link *link)
{
    const char *why = "it has proved the token, and has not voted within 10 s";
    trib_link_note_refused(link->host, TRIB_REFUSAL_MEMBER, trib_link_remote(link), why);
    trib_link_close(link, false, TRIB_PROTOCOL, why);
}

void trib_election_adopt(trib_link *link)
{
    link->upcalls = &candidate_upcalls;
    link->peer = TRIB_NO_MEMBER;
    trib_link_handshake_limit(link, vote_is_overdue);
}

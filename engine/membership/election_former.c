/*
 * election_former.c - a member asks the coordinator that it has lost whether it lives, and awaits it (election.h).
 *
 * A member takes the coordinator for lost when its control connection has ended and its session is gone, or when it has
 * been silent. The coordinator may live all the same: it has ended the epoch while the member was cut off, or has stood
 * still. It answers with its decision then, and the member comes back. The election goes on until there is an answer.
 */
#include "engine/membership/election_internal.h"

#include "engine/base/assert.h"
#include "engine/membership/member_internal.h"

#define LEAST_NS (250 * INT64_C(1000000)) /* for an attempt, and for an answer */

static bool is_current(const trib_link *link)
{
    const trib_election *self = link->core->engine->election;
    return self != NULL && self->former.link == link;
}

static void ask(trib_link *link)
{
    if (is_current(link)) {
        trib_election *self = link->core->engine->election;
        self->former.asked_ns = trib_now(link->core->reactor);
        trib_election_vote(self, link, 0);
    }
}

/* The coordinator counts on this member. What has been decided otherwise holds. */
static void come_back(trib_election *self)
{
    trib_engine *engine = self->core->engine;
    const trib_address address = engine->member->coordinator;
    const uint32_t ballot = self->former.ballot;
    self->former.has_answered = false;
    if (!trib_election_can_share(self, &self->former.decided)) {
        self->former.is_over = true;
        self->outvoted_by = "the coordinator";
        return;
    }
    self->former.link = NULL;
    trib_election_settle(self, &self->former.decided, ballot);
    self->cause = trib_cause_note(TRIB_PEER_LOST, engine->member_id,
                                  "the epoch has ended while this process had no connection to the coordinator");
    trib_election_release(self);
    trib_election_go_on(self, &address);
}

static trib_status received(trib_link *link, const trib_frame *frame, const void *payload, bool in_place,
                            trib_error *error)
{
    (void)in_place;
    trib_election *self = link->core->engine->election;
    if (!is_current(link)) {
        return TRIB_OK;
    }
    if (frame->type == TRIB_FRAME_ENDED) { /* others may go on with this member */
        self->former.is_over = true;
        return TRIB_OK;
    }
    if (frame->type != TRIB_FRAME_ELECTED) {
        return trib_error_set(error, TRIB_PROTOCOL, "unexpected %s frame from the coordinator",
                              trib_frame_name(frame->type));
    }
    const trib_status status = trib_election_get_rounds(&self->former.decided, frame, payload, error);
    if (status == TRIB_OK && frame->root == 1) {
        self->former.decided.at_boundary = frame->chunk != 0;
        self->former.has_answered = true;
        self->former.ballot = frame->round;
        if (self->link == NULL || !trib_link_is_up(self->link)) {
            come_back(self);
        }
        trib_link_close(link, true, TRIB_CLOSED, "the coordinator has answered");
    }
    return status;
}

static void closed(trib_link *link, trib_status status, const char *reason)
{
    (void)status;
    (void)reason;
    if (is_current(link)) {
        trib_former_coordinator *former = &link->core->engine->election->former;
        former->link = NULL;
        if (former->has_answered) {
            return;
        }
        trib_vote_clear(&former->decided);
        former->is_over =
            former->is_over || trib_election_refuses(&former->refused_since_ns, link->redial.is_refused,
                                                     trib_now(link->core->reactor), TRIB_ELECTION_REFUSED_NS);
    }
}

static const trib_link_upcalls upcalls = {
    .ready = ask,
    .header = trib_election_header,
    .received = received,
    .closed = closed,
};

void trib_election_leave_former(trib_election *self)
{
    trib_link *link = self->former.link;
    self->former.link = NULL;
    self->former.has_answered = false;
    trib_vote_clear(&self->former.decided);
    if (link != NULL) {
        trib_link_close(link, false, TRIB_CLOSED, "the coordinator has not answered");
    }
}

void trib_election_let_go(trib_election *self)
{
    if (self->former.has_answered) {
        come_back(self);
    }
}

void trib_election_ask_former(trib_election *self)
{
    trib_former_coordinator *former = &self->former;
    const int64_t now_ns = trib_now(self->core->reactor), share_ns = self->roster->peer_timeout_ns / 8;
    if (former->is_over) {
        return;
    }
    if (former->has_answered) { /* a candidate that has the votes decides, or comes back with all its voters */
        if (self->link != NULL && trib_link_is_up(self->link) && !self->asks_to_leave) {
            self->asks_to_leave = true;
            trib_link_send_copy(self->link, (trib_frame){.type = TRIB_FRAME_LEAVE}, NULL, 0);
        }
        return;
    }
    if (former->link != NULL && now_ns - former->asked_ns >= (share_ns > LEAST_NS ? share_ns : LEAST_NS)) {
        trib_election_leave_former(self);
    }
    if (former->link == NULL) {
        former->asked_ns = now_ns;
        if (trib_link_connect(&self->core->host, &self->core->engine->member->coordinator, TRIB_PURPOSE_CONTROL,
                              TRIB_NO_MEMBER, 0, &upcalls, NULL, &former->link) != TRIB_OK) {
            former->link = NULL;
        }
    }
}

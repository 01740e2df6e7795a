/* election_roster.c - a roster that the coordinator had sent to only some members when it was lost (election.h). */
#include "engine/membership/election_internal.h"

#include <stdlib.h>

#include "engine/base/assert.h"
#include "engine/membership/member_internal.h"

uint32_t trib_election_find_former(const trib_election *self, uint32_t epoch, uint32_t former)
{
    const trib_roster *roster = self->roster;
    uint32_t member = 0;
    while (member < roster->member_count && roster->members[member].former != former) {
        member++;
    }
    const bool is_there = member < roster->member_count && roster->before != NULL && roster->before->epoch == epoch;
    return is_there ? member : TRIB_NO_MEMBER;
}

/* A roster as a payload, which all frames share that carry it. */
struct trib_roster_copy {
    uint32_t users;
    size_t size;
    unsigned char payload[];
};

static void let_copy_go(trib_roster_copy *copy)
{
    if (copy != NULL && --copy->users == 0) {
        free(copy);
    }
}

static void copy_done(trib_send_record *out, trib_status status)
{
    (void)status;
    let_copy_go(out->context);
}

static trib_roster_copy *make_copy(const trib_roster *roster)
{
    trib_roster_copy *copy = malloc(sizeof *copy + TRIB_PAYLOAD_MAX);
    if (copy == NULL) {
        return NULL;
    }
    trib_writer writer = {.data = copy->payload, .capacity = TRIB_PAYLOAD_MAX};
    trib_roster_put(&writer, roster);
    trib_assert(!writer.overflow);
    trib_roster_copy *fitting = realloc(copy, sizeof *copy + writer.size);
    copy = fitting != NULL ? fitting : copy;
    copy->users = 1;
    copy->size = writer.size;
    return copy;
}

void trib_election_free_copy(trib_election *self)
{
    let_copy_go(self->roster_copy);
    self->roster_copy = NULL;
}

static bool send_roster(trib_election *self, trib_link *link, uint32_t member)
{
    self->roster_copy = self->roster_copy != NULL ? self->roster_copy : make_copy(self->roster);
    trib_roster_copy *copy = self->roster_copy;
    if (copy == NULL || !trib_link_is_up(link)) {
        return false;
    }
    const trib_frame frame = {.type = TRIB_FRAME_ROSTER,
                              .root = member,
                              .aux = self->roster->members[member].start,
                              .payload_size = (uint32_t)copy->size};
    copy->users++;
    const trib_status status = trib_link_send(link, &frame, copy->payload, copy_done, copy);
    if (status != TRIB_OK) {
        copy->users--;
        trib_link_close(link, false, status, "could not send the roster");
    }
    return status == TRIB_OK;
}

bool trib_election_pass_on(trib_election *self, trib_link *link, uint32_t epoch, uint32_t former)
{
    const uint32_t member = trib_election_find_former(self, epoch, former);
    return member != TRIB_NO_MEMBER && send_roster(self, link, member);
}

bool trib_election_let_in(trib_election *self, trib_link *link, uint32_t member)
{
    const trib_roster *roster = self->roster;
    const bool is_new = trib_ballot_is_newcomer(roster->worker_count, roster->newcomers, member) ||
                        trib_ballot_is_newcomer(roster->member_count, roster->new_servers, member);
    return self->is_open && is_new && !trib_election_formation(self)->is_known && send_roster(self, link, member);
}

bool trib_election_lacks_roster(const trib_engine *engine)
{
    return engine->roster == NULL && engine->member != NULL && !trib_member_is_leaving(engine->member) &&
           trib_member_is_joiner(engine);
}

trib_status trib_election_enter(trib_engine *engine, const trib_frame *frame, const void *payload, trib_error *error)
{
    trib_member *member = engine->member;
    const bool is_told =
        member->link != NULL && trib_link_is_up(member->link) &&
        trib_member_coordinator_silence(member) < engine->config.peer_timeout_ns / TRIB_ELECTION_DOUBT_SHARE;
    if (frame->aux != engine->start || is_told) {
        return TRIB_OK;
    }
    trib_cause cause = trib_cause_about(TRIB_PEER_LOST, TRIB_CAUSE_MEMBER_LOST, TRIB_SUBJECT_COORDINATOR, 0,
                                        TRIB_NO_MEMBER, "another member sent the roster that lets this process in");
    cause.silence_ns = trib_member_coordinator_silence(member);
    const trib_status status = trib_member_take_roster(member, frame, payload, error);
    if (status == TRIB_NO_MEMORY || (status == TRIB_OK && !trib_election_begin(engine, &cause))) {
        trib_job_fail(engine, TRIB_NO_MEMORY, "out of memory for the election of another coordinator");
    } else if (status == TRIB_OK) {
        trib_member_lose_coordinator(member, &cause);
    }
    return status;
}

trib_status trib_election_take_roster(trib_election *self, const trib_frame *frame, const void *payload,
                                      trib_error *error)
{
    trib_engine *engine = self->core->engine;
    const trib_cause cause = self->cause;
    const uint32_t epoch = trib_roster_peek_epoch(payload, frame->payload_size);
    const bool is_later = epoch != 0 && trib_epoch_is_before(self->roster->epoch, epoch);
    if (!self->is_open || engine->member->joined || !is_later || frame->aux != engine->start) {
        return TRIB_OK; /* a member never goes back: it could vote twice */
    }
    const trib_status status = trib_member_take_roster(engine->member, frame, payload, error);
    if (status == TRIB_NO_MEMORY || (status == TRIB_OK && !trib_election_begin(engine, &cause))) {
        trib_job_fail(engine, TRIB_NO_MEMORY, "out of memory for the election of another coordinator");
    }
    return status;
}

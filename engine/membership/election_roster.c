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

static bool send_roster(const trib_election *self, trib_link *link, uint32_t member)
{
    unsigned char *payload = malloc(TRIB_PAYLOAD_MAX);
    if (payload != NULL) {
        trib_writer writer = {.data = payload, .capacity = TRIB_PAYLOAD_MAX};
        const trib_frame frame = {
            .type = TRIB_FRAME_ROSTER, .root = member, .aux = self->roster->members[member].start};
        trib_roster_put(&writer, self->roster);
        trib_assert(!writer.overflow);
        trib_link_send_copy(link, frame, payload, writer.size);
    }
    free(payload);
    return payload != NULL;
}

bool trib_election_pass_on(const trib_election *self, trib_link *link, uint32_t epoch, uint32_t former)
{
    const uint32_t member = trib_election_find_former(self, epoch, former);
    return member != TRIB_NO_MEMBER && send_roster(self, link, member);
}

void trib_election_let_in(const trib_election *self, trib_link *link, uint32_t member)
{
    const trib_roster *roster = self->roster;
    const bool is_new = trib_ballot_is_newcomer(roster->worker_count, roster->newcomers, member) ||
                        trib_ballot_is_newcomer(roster->member_count, roster->new_servers, member);
    if (self->is_open && is_new && !trib_election_formation(self)->is_known) {
        (void)send_roster(self, link, member);
    }
}

bool trib_election_lacks_roster(const trib_engine *engine)
{
    return engine->roster == NULL && engine->member != NULL && !trib_member_is_leaving(engine->member) &&
           trib_member_is_joiner(engine);
}

trib_status trib_election_enter(trib_engine *engine, const trib_frame *frame, const void *payload, trib_error *error)
{
    trib_member *member = engine->member;
    const bool is_told = member->link != NULL && trib_link_is_up(member->link) &&
                         trib_member_coordinator_silence(member) < engine->config.peer_timeout_ns / 4;
    if (frame->aux != engine->start || is_told) {
        return TRIB_OK;
    }
    trib_cause cause = trib_cause_about(TRIB_PEER_LOST, TRIB_CAUSE_MEMBER_LOST, TRIB_SUBJECT_COORDINATOR, 0,
                                        TRIB_NO_MEMBER, "another member sent the roster that lets this process in");
    cause.silence_ns = trib_member_coordinator_silence(member);
    const trib_status status = trib_member_take_roster(member, frame, payload, error);
    if (status == TRIB_OK) {
        trib_member_lose_coordinator(member, &cause);
    }
    return status;
}

trib_status trib_election_take_roster(trib_election *self, const trib_frame *frame, const void *payload,
                                      trib_error *error)
{
    trib_engine *engine = self->core->engine;
    const trib_cause cause = self->cause;
    if (!self->is_open || engine->member->joined) {
        return TRIB_OK;
    }
    const trib_status status = trib_member_take_roster(engine->member, frame, payload, error);
    if (status == TRIB_NO_MEMORY || (status == TRIB_OK && !trib_election_begin(engine, &cause))) {
        trib_job_fail(engine, TRIB_NO_MEMORY, "out of memory for the election of another coordinator");
    }
    return status;
}

/*
 * formation_join.c - workers and servers that join a job which is under way (formation.h).
 *
 * While the epoch runs they wait on their links. When it ends the coordinator closes these, and they come again while
 * the next epoch gathers. A process that only waits is no member: it has no vote, and operations do not wait for it.
 *
 * A program may ask for one boundary after the other, and each closes all connections. So that a process that has only
 * begun to connect is not cut off by all of them, the coordinator listens for EPOCH_LEAST_NS at least, and a boundary
 * waits for processes that are about to send JOIN.
 */
#include <stdlib.h>

#include "engine/base/assert.h"
#include "engine/membership/formation.h"
#include "engine/wire/clock.h"

#define EPOCH_LEAST_NS (20 * INT64_C(1000000)) /* over a round trip of 13 ms a connection gets to the handshake */
#define KNOCKING_NS INT64_C(1000000000)        /* the longest wait: it may be no joiner */
#define STRANGER_NS (100 * INT64_C(1000000)) /* longest wait for a process without a proof, which may come each time */
#define LOOK_NS (2 * INT64_C(1000000))

/* How long a boundary waits for the process to prove the token, or to say JOIN. Members make no such connections at a
 * boundary. 0: it is none that joins. */
static int64_t patience_with(const trib_link *link)
{
    const bool proves = link->state == TRIB_LINK_AWAIT_PROOF && link->handshake.purpose == TRIB_PURPOSE_CONTROL &&
                        link->handshake.member == TRIB_NO_MEMBER;
    const bool has_proved = link->state == TRIB_LINK_READY && link->purpose == TRIB_PURPOSE_CONTROL && !link->outgoing;
    return has_proved && link->peer == TRIB_NO_MEMBER ? KNOCKING_NS : proves ? STRANGER_NS : 0;
}

static void look_again(trib_reactor *reactor, trib_timer *timer)
{
    (void)reactor;
    trib_formation_check_boundary(timer->user);
}

bool trib_formation_holds_boundary(trib_coordinator *self)
{
    trib_reactor *reactor = self->core->reactor;
    const int64_t now_ns = trib_now(reactor), least_ns = self->opened_ns + EPOCH_LEAST_NS;
    int64_t patience_ns = 0;
    for (const trib_link *link = self->core->host.links; link != NULL; link = link->next) {
        const int64_t with_ns = patience_with(link);
        patience_ns = with_ns > patience_ns ? with_ns : patience_ns;
    }
    self->knocks_since_ns = self->knocks_since_ns == 0 ? now_ns : self->knocks_since_ns;
    const bool waits = now_ns - self->knocks_since_ns < patience_ns;
    if (waits || now_ns < least_ns) {
        self->knocking.fired = look_again;
        self->knocking.user = self;
        trib_timer_arm(reactor, &self->knocking, waits ? now_ns + LOOK_NS : least_ns);
        return true;
    }
    return false;
}

void trib_formation_tell_waits(trib_link *link)
{
    trib_link_send_copy(link, (trib_frame){.type = TRIB_FRAME_PING, .root = TRIB_PING_WAITS}, NULL, 0);
}

static void park(trib_coordinator *self, trib_link *link, bool is_server)
{
    trib_assert(link->peer == TRIB_NO_MEMBER);
    link->peer = TRIB_PEER_PARKED;
    self->parked++;
    trib_timer_stop(self->core->reactor, &link->deadline);
    trib_formation_tell_waits(link);
    trib_log(self->core->reactor->logger, TRIB_LOG_INFO,
             "a %s at %s waits to join: it does when all workers have called trib_membership_advance",
             is_server ? "server" : "worker", trib_link_remote(link));
}

void trib_formation_dismiss_waiting(const trib_coordinator *self)
{
    const trib_cause cause = trib_cause_note(TRIB_JOIN_FAILED, TRIB_NO_MEMBER,
                                             "the job has ended before this process could join: all workers have left");
    for (trib_link *link = self->core->host.links; link != NULL; link = link->next) {
        if (link->peer == TRIB_PEER_PARKED && trib_link_is_up(link)) {
            trib_coordinator_notify_end(link, &cause);
        }
    }
}

bool trib_formation_is_full(const trib_coordinator *self)
{
    uint32_t count = self->parked;
    for (uint32_t i = 0; i < trib_coordinator_slots(self); i++) {
        count += self->running ? !self->slots[i].left : self->slots[i].joined || trib_formation_expects(self, i);
    }
    return count >= TRIB_MEMBERS_MAX;
}

bool trib_formation_puts_off(trib_coordinator *self, trib_link *link, bool is_server, bool lacks_place)
{
    trib_formation *formation = &self->core->engine->formation;
    const bool changes = self->over && self->roster != NULL && self->roster->shrinks;
    const bool holds_place = changes && formation->epoch == self->roster->epoch && formation->admits;
    if (lacks_place && self->running && (!self->over || holds_place)) {
        park(self, link, is_server);
        formation->joiners += holds_place; /* it comes again when its link has closed */
        return true;
    }
    if (changes || lacks_place) {
        trib_link_close(link, true, TRIB_CLOSED, "the membership changes: come again");
    }
    return changes || lacks_place;
}

trib_coordinator_slot *trib_formation_find_place(const trib_coordinator *self, bool is_server)
{
    const trib_formation *formation = &self->core->engine->formation;
    const uint32_t first = is_server ? formation->first_new_server : formation->first_joiner;
    const uint32_t end = is_server ? trib_coordinator_slots(self) : self->worker_count;
    const bool has_room = trib_formation_gathers(self) && !trib_formation_is_full(self);
    for (uint32_t i = first; has_room && i < end; i++) {
        if (!self->slots[i].joined) {
            return &self->slots[i];
        }
    }
    return NULL;
}

trib_status trib_formation_take_parked(trib_link *link, const trib_frame *frame, trib_error *error)
{
    switch (frame->type) {
    case TRIB_FRAME_ADVANCE:
    case TRIB_FRAME_PONG:
    case TRIB_FRAME_LOST:
        return TRIB_OK;
    case TRIB_FRAME_PING:
        trib_link_send_copy(link, trib_clock_answer(frame, link->last_received_ns, trib_now(link->host->reactor)), NULL,
                            0);
        return TRIB_OK;
    case TRIB_FRAME_LEAVE:
        trib_link_send_copy(link, (trib_frame){.type = TRIB_FRAME_LEFT, .aux = TRIB_NO_MEMBER}, NULL, 0);
        return TRIB_OK;
    default:
        return trib_error_set(error, TRIB_PROTOCOL, "unexpected %s frame of a member that waits to join",
                              trib_frame_name(frame->type));
    }
}

void trib_formation_close(trib_formation *formation)
{
    free(formation->expected);
    free(formation->gone);
    free(formation->committed);
    free(formation->kept);
    formation->kept = NULL;
    formation->expected = formation->gone = NULL;
    formation->committed = NULL;
}

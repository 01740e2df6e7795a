/* coordinator_heartbeat.c - the coordinator watches its members: it asks them, and a silent one is lost. */
#include "engine/membership/coordinator_internal.h"

#include "engine/base/assert.h"
#include "engine/base/log.h"
#include "engine/membership/member.h"

static void ping(trib_coordinator *self, int64_t now_ns)
{
    for (uint32_t i = 0; i < trib_coordinator_slots(self); i++) {
        trib_coordinator_slot *at = &self->slots[i];
        if (at->link != NULL) {
            at->asked_ns = at->asked_ns == 0 ? now_ns : at->asked_ns;
            trib_link_send_copy(at->link, (trib_frame){.type = TRIB_FRAME_PING}, NULL, 0);
        }
    }
}

/* Returns the member that has been silent longest, also of those that have left and still serve others, or NULL. */
static trib_coordinator_slot *find_quietest(trib_coordinator *self)
{
    trib_coordinator_slot *quietest = NULL;
    for (uint32_t i = 0; i < trib_coordinator_slots(self); i++) {
        trib_coordinator_slot *at = &self->slots[i];
        if (at->link != NULL && (quietest == NULL || at->link->last_received_ns < quietest->link->last_received_ns)) {
            quietest = at;
        }
    }
    return quietest;
}

/* Fires when it is time to ask the members, and at the very moment from which the quietest one counts as lost. */
static void heartbeat(trib_reactor *reactor, trib_timer *timer)
{
    trib_coordinator *self = timer->user;
    int64_t now_ns = trib_now(reactor), timeout_ns = self->roster->peer_timeout_ns;
    trib_assert(self->running && !self->over); /* the end has stopped the timer */
    const bool stalled_locally = trib_timer_stalled_locally(reactor, timer, timeout_ns / 8);
    const bool judges = !stalled_locally || self->stalled_locally;
    self->stalled_locally = stalled_locally;
    for (uint32_t i = 0; stalled_locally && i < trib_coordinator_slots(self); i++) {
        if (self->slots[i].link != NULL) {
            trib_link_extend_grace(self->slots[i].link, now_ns - timer->due_ns, now_ns);
        }
    }
    const trib_coordinator_slot *quietest = find_quietest(self);
    if (quietest != NULL && judges && now_ns - quietest->link->last_received_ns >= timeout_ns) {
        trib_cause cause = trib_cause_about(TRIB_PEER_LOST, TRIB_CAUSE_SILENT, TRIB_SUBJECT_MEMBER,
                                            (uint32_t)(quietest - self->slots), TRIB_NO_MEMBER, "");
        cause.silence_ns = now_ns - quietest->link->last_received_ns;
        trib_coordinator_take_loss(self, &cause);
        if (self->over) {
            return;
        }
    }
    const int64_t period_ns = trib_heartbeat_period_ns(timeout_ns);
    if (now_ns >= self->next_ping_ns) {
        ping(self, now_ns);
        self->next_ping_ns = now_ns + period_ns;
    }
    trib_timer_arm(reactor, timer,
                   trib_silence_next_ns(now_ns, self->next_ping_ns,
                                        quietest != NULL ? quietest->link->last_received_ns : now_ns, timeout_ns));
}

void trib_coordinator_run(trib_coordinator *self)
{
    trib_assert(!self->running && !self->over && self->roster != NULL && self->workers_left == 0);
    self->running = true;
    trib_log(self->core->reactor->logger, TRIB_LOG_INFO, "job has come together: %u workers, %u servers",
             self->worker_count, self->server_count);
    self->heartbeat.fired = heartbeat;
    self->heartbeat.user = self;
    const int64_t now_ns = trib_now(self->core->reactor);
    for (uint32_t i = 0; i < trib_coordinator_slots(self); i++) {
        trib_link *link = self->slots[i].link;
        link->last_received_ns = now_ns; /* a member has nothing to say while others are still missing */
        link->redial.survives = link->session.is_kept;
    }
    self->heartbeat.due_ns = self->next_ping_ns = now_ns;
    heartbeat(self->core->reactor, &self->heartbeat);
}

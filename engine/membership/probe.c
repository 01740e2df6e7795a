/* probe.c - see probe.h. */
#include "engine/membership/probe.h"

#include <stdlib.h>

#include "engine/base/half_open.h"
#include "engine/link/link_reconnect.h"
#include "engine/membership/election.h"

#define LEAST_NS (1 * INT64_C(1000000000)) /* for an attempt; a packet that was lost is sent again after a second */
#define BEGUN_MAX 64u                      /* attempts in a turn */

static void note_attempt(trib_core *core, trib_probe *probe, bool is_refused)
{
    probe->is_dead =
        trib_election_refuses(&probe->refused_since_ns, is_refused, trib_now(core->reactor), probe->refused_for_ns);
    probe->ended_ns = trib_now(core->reactor);
}

/* When the process sent its last part of the handshake that is under way; 0: it has sent none. */
static int64_t answered_in(const trib_probe *probe, const trib_link *link)
{
    return link->last_received_ns > probe->began_ns ? link->last_received_ns : 0;
}

/* The attempt ends without an answer. It was silent since its last part of the handshake only. */
static void note_unanswered(trib_probe *probe, const trib_link *link)
{
    const int64_t answered_ns = answered_in(probe, link);
    if (answered_ns > 0 && probe->silent_since_ns != 0) {
        probe->silent_since_ns = probe->heard_ns = answered_ns;
    }
}

static void ready(trib_link *link)
{
    trib_probe *probe = link->user;
    if (probe != NULL) {
        probe->silent_since_ns = probe->refused_since_ns = 0;
        probe->is_dead = false;
        probe->heard_ns = trib_now(link->core->reactor);
        if (probe->answered != NULL) {
            probe->answered(link, probe);
        }
    }
    trib_link_close(link, true, TRIB_CLOSED, "the member lives");
}

static trib_status received(trib_link *link, const trib_frame *frame, const void *payload, bool in_place,
                            trib_error *error)
{
    (void)link;
    (void)frame;
    (void)payload;
    (void)in_place;
    (void)error;
    return TRIB_OK;
}

static void closed(trib_link *link, trib_status status, const char *reason)
{
    (void)reason;
    trib_probe *probe = link->user;
    if (probe == NULL) {
        return;
    }
    probe->link = NULL;
    if (status != TRIB_UNAUTHORIZED && status != TRIB_PROTOCOL) { /* else somebody else has its address */
        note_unanswered(probe, link);
    }
    note_attempt(link->core, probe, link->redial.is_refused);
}

static const trib_link_upcalls upcalls = {
    .ready = ready,
    .header = trib_election_header,
    .received = received,
    .closed = closed,
};

/* Returns true if the attempt comes no further. The link goes on with the next address by itself, so an attempt has
 * that time at each. A process that has taken the connection, and is slow, would find the same work in another one. */
static bool is_stuck(trib_core *core, trib_probe *probe)
{
    const trib_link *link = probe->link;
    const int64_t now_ns = trib_now(core->reactor), timeout_ns = core->engine->config.peer_timeout_ns;
    const bool is_connected = link->state == TRIB_LINK_AWAIT_CHALLENGE || link->state == TRIB_LINK_AWAIT_WELCOME;
    const uint32_t step = link->redial.tries << 8 | (uint32_t)link->state;
    if (step != probe->step) {
        probe->step = step;
        probe->stepped_ns = now_ns;
    }
    const int64_t share_ns = is_connected ? timeout_ns / 2 : timeout_ns / 4;
    return now_ns - probe->stepped_ns >= (share_ns > LEAST_NS ? share_ns : LEAST_NS);
}

static void give_up(trib_core *core, trib_probe *probe)
{
    note_unanswered(probe, probe->link);
    note_attempt(core, probe, false);
    trib_probe_end(probe, "the member is asked again");
}

/* The process has answered the attempt, and what was sent to it then is on its way. */
static bool is_sending(const trib_core *core, const trib_probe *probe)
{
    return probe->told_ns != 0 && probe->told_ns >= probe->began_ns &&
           trib_now(core->reactor) - probe->told_ns < core->engine->config.peer_timeout_ns;
}

bool trib_probe_ask(trib_core *core, trib_probe *probe, const trib_address *address)
{
    const bool is_in_row = probe->link != NULL;
    const bool has_answered = probe->silent_since_ns == 0;
    if (is_in_row && (has_answered ? !is_sending(core, probe) : is_stuck(core, probe))) {
        give_up(core, probe);
    }
    if (probe->link != NULL) {
        return false;
    }
    probe->began_ns = probe->stepped_ns = trib_now(core->reactor);
    probe->step = 0;
    if (trib_link_connect(&core->host, address, TRIB_PURPOSE_CONTROL, TRIB_NO_MEMBER, 0, &upcalls, probe,
                          &probe->link) == TRIB_OK) {
        probe->began_ns = probe->link->last_received_ns; /* the link's beginning: time has gone on meanwhile */
        probe->row_began_ns = is_in_row ? probe->row_began_ns : probe->began_ns;
        probe->silent_since_ns = probe->silent_since_ns == 0 ? probe->began_ns : probe->silent_since_ns;
    } else { /* this process lacks something, and does not know about the other one */
        probe->link = NULL;
        probe->silent_since_ns = 0;
        note_attempt(core, probe, false);
    }
    return true;
}

int64_t trib_probe_silent_since(const trib_probe *probe)
{
    const int64_t answered_ns = probe->link != NULL ? answered_in(probe, probe->link) : 0;
    return probe->silent_since_ns != 0 && answered_ns > 0 ? answered_ns : probe->silent_since_ns;
}

int64_t trib_probe_silent_until(const trib_probe *probe, int64_t now_ns)
{
    return probe->link != NULL && now_ns - probe->row_began_ns >= LEAST_NS ? now_ns : probe->ended_ns;
}

void trib_probe_end(trib_probe *probe, const char *why)
{
    trib_link *link = probe->link;
    probe->link = NULL;
    if (link != NULL) {
        link->user = NULL;
        trib_link_close(link, false, TRIB_CLOSED, why);
    }
}

/* ---- Many processes ---- */

void trib_probes_open(trib_probes *self, uint32_t count, int64_t refused_for_ns, int64_t pause_ns,
                      void (*answered)(trib_link *link, trib_probe *probe))
{
    *self = (trib_probes){.each = calloc(count, sizeof *self->each), .pause_ns = pause_ns};
    self->count = self->each != NULL ? count : 0;
    for (uint32_t i = 0; i < self->count; i++) {
        self->each[i].refused_for_ns = refused_for_ns;
        self->each[i].answered = answered;
    }
}

/* Returns how many attempts are under way. Where others wait, those that have had their time end. */
static uint32_t make_room(trib_core *core, trib_probes *self)
{
    const int64_t now_ns = trib_now(core->reactor);
    uint32_t under_way = 0;
    for (uint32_t i = 0; i < self->count; i++) {
        trib_probe *probe = &self->each[i];
        if (probe->link != NULL && self->is_exhausted && now_ns - probe->began_ns >= LEAST_NS &&
            !is_sending(core, probe)) {
            give_up(core, probe);
        }
        under_way += probe->link != NULL;
    }
    return under_way;
}

static bool rests(const trib_probes *self, const trib_probe *probe, int64_t now_ns)
{
    return probe->heard_ns != 0 && probe->heard_ns >= probe->began_ns && now_ns - probe->began_ns < self->pause_ns;
}

/* No attempt is free. One more is for the process that has answered last: whether some process lives is known all the
 * time, however many do not answer. */
static void ask_last_heard(trib_core *core, trib_probes *self, trib_probes_find find, const void *user)
{
    const int64_t now_ns = trib_now(core->reactor);
    uint32_t last = self->count;
    for (uint32_t i = 0; i < self->count; i++) {
        const trib_probe *probe = &self->each[i];
        const bool has_answered = probe->heard_ns != 0 && probe->silent_since_ns == 0 && probe->link == NULL;
        last = has_answered && (last == self->count || probe->heard_ns > self->each[last].heard_ns) ? i : last;
    }
    const trib_address *address = last < self->count ? find(user, last) : NULL;
    if (address != NULL && !rests(self, &self->each[last], now_ns)) {
        (void)trib_probe_ask(core, &self->each[last], address);
    }
}

void trib_probes_ask(trib_core *core, trib_probes *self, trib_probes_find find, const void *user)
{
    const uint32_t first = self->next, most = trib_half_open_most(core->engine->env.half_open_max);
    const int64_t now_ns = trib_now(core->reactor);
    uint32_t begun = 0, under_way = make_room(core, self);
    self->is_exhausted = false;
    for (uint32_t i = 0; i < self->count; i++) {
        const uint32_t index = (first + i) % self->count;
        trib_probe *probe = &self->each[index];
        const trib_address *address = find(user, index);
        if (address == NULL || rests(self, probe, now_ns)) {
            continue;
        }
        self->is_exhausted = probe->link == NULL && under_way >= most;
        if (self->is_exhausted || begun == BEGUN_MAX) {
            self->next = index;
            if (under_way == most) { /* else one more is under way already */
                ask_last_heard(core, self, find, user);
            }
            return;
        }
        under_way -= probe->link != NULL;
        begun += trib_probe_ask(core, probe, address);
        under_way += probe->link != NULL;
    }
}

void trib_probes_close(trib_probes *self, const char *why)
{
    for (uint32_t i = 0; i < self->count; i++) {
        trib_probe_end(&self->each[i], why);
    }
    free(self->each);
    *self = (trib_probes){.each = NULL};
}

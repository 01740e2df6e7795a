/* verdict.c - see verdict.h. */
#include "engine/membership/verdict.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/hash.h"

/* Times, as parts of the peer timeout */
#define WAIT_SHARE 8    /* a report is kept for this part */
#define HEARD_SHARE 32  /* both members have to be heard after this part of the wait's beginning */
#define SILENT_SHARE 4  /* a member that is not heard for this part is the one that is cut off */
#define ENDED_SHARE 32  /* the same, where its connection has ended */
#define DOUBT_EIGHTHS 3 /* a doubt counts for so many eighths; one that lasts is repeated after two */
#define LOOK_NS (20 * INT64_C(1000000))

/* Two members that do not reach each other. */
typedef struct trib_dispute {
    uint64_t pair;    /* both ids, as the key */
    uint32_t ends[2]; /* their ids, the lower one first */
    bool is_doubt;    /* one of them still tries: this decides nothing, and counts */
    int64_t at_ns;    /* when the report came, or the last doubt */
    UT_hash_handle hh;
} trib_dispute;

static bool is_report_of_loss(const trib_cause *cause, uint32_t reporter)
{
    const bool is_loss = cause->kind == TRIB_CAUSE_SILENT || cause->kind == TRIB_CAUSE_CONNECTION_LOST ||
                         cause->kind == TRIB_CAUSE_NOT_CONNECTED;
    return cause->status == TRIB_PEER_LOST && is_loss && cause->origin == reporter;
}

/* True if the member has left questions of the coordinator unanswered for half the time after which it counts as
 * lost. */
static bool is_deaf(const trib_coordinator *self, uint32_t member)
{
    const int64_t asked_ns = self->slots[member].asked_ns;
    return asked_ns != 0 && trib_now(self->core->reactor) - asked_ns > self->roster->peer_timeout_ns / 2;
}

void trib_verdict_judge(const trib_coordinator *self, uint32_t reporter, trib_cause *cause)
{
    if (!is_report_of_loss(cause, reporter) || !is_deaf(self, reporter)) {
        return;
    }
    if (cause->subject_kind == TRIB_SUBJECT_MEMBER && cause->subject < trib_coordinator_slots(self) &&
        self->slots[cause->subject].link == NULL) {
        return; /* the coordinator has lost that member, too */
    }
    trib_cause plain = *cause;
    plain.origin = TRIB_NO_MEMBER;
    char text[TRIB_ERROR_TEXT_SIZE];
    trib_job_render_for_others(self->core->engine, &plain, text);
    const int64_t silence_ns = cause->silence_ns;
    *cause = trib_cause_about(TRIB_PEER_LOST, TRIB_CAUSE_DEAF, TRIB_SUBJECT_MEMBER, reporter, TRIB_NO_MEMBER, text);
    cause->silence_ns = silence_ns;
}

/* ---- Two members that do not reach each other, while the coordinator hears both ---- */

static bool is_there(const trib_coordinator *self, uint32_t member)
{
    return !self->slots[member].left && self->slots[member].link != NULL;
}

static bool is_heard_after(const trib_coordinator *self, uint32_t member, int64_t time_ns)
{
    const trib_link *link = self->slots[member].link;
    return link != NULL && link->state == TRIB_LINK_READY && link->last_received_ns > time_ns;
}

static int64_t silence_of(const trib_coordinator *self, uint32_t member, int64_t now_ns)
{
    return now_ns - self->slots[member].link->last_received_ns;
}

/* True if the report has waited for others. A member that became silent with it may be the one that is cut off, so both
 * have to be heard again. */
static bool is_ripe(const trib_coordinator *self, const trib_dispute *at, int64_t now_ns)
{
    const int64_t timeout_ns = self->roster->peer_timeout_ns, heard_ns = at->at_ns + timeout_ns / HEARD_SHARE;
    return !at->is_doubt && now_ns - at->at_ns >= timeout_ns / WAIT_SHARE &&
           is_heard_after(self, at->ends[0], heard_ns) && is_heard_after(self, at->ends[1], heard_ns);
}

/* A member whose connection has ended is silent for a shorter time: it may be made again at once, or its process has
 * died. */
static bool is_silent(const trib_coordinator *self, uint32_t member, int64_t now_ns)
{
    const bool is_connected = self->slots[member].link->state == TRIB_LINK_READY;
    return silence_of(self, member, now_ns) >
           self->roster->peer_timeout_ns / (is_connected ? SILENT_SHARE : ENDED_SHARE);
}

/* Returns a member that is silent while the other one of a report is heard, or TRIB_NO_MEMBER. */
static uint32_t find_silent(const trib_coordinator *self, int64_t now_ns)
{
    for (const trib_dispute *at = self->disputes; at != NULL; at = at->hh.next) {
        const bool is_second = is_silent(self, at->ends[1], now_ns);
        if (!at->is_doubt && is_silent(self, at->ends[0], now_ns) != is_second) {
            return at->ends[is_second];
        }
    }
    return TRIB_NO_MEMBER;
}

static void lose_silent(trib_coordinator *self, uint32_t member, int64_t now_ns)
{
    const bool is_connected = self->slots[member].link->state == TRIB_LINK_READY;
    trib_cause cause = trib_cause_about(TRIB_PEER_LOST, is_connected ? TRIB_CAUSE_SILENT : TRIB_CAUSE_CONNECTION_LOST,
                                        TRIB_SUBJECT_MEMBER, member, TRIB_NO_MEMBER,
                                        is_connected ? "" : "the connection ended and could not be made again");
    cause.silence_ns = silence_of(self, member, now_ns);
    trib_coordinator_take_loss(self, &cause);
}

/* True if the job loses less with `one` than with `other`. counts: how many others each member does not reach. */
static bool is_cheaper(const trib_coordinator *self, const uint32_t *counts, uint32_t one, uint32_t other)
{
    const bool works = one < self->worker_count, other_works = other < self->worker_count;
    return counts[one] != counts[other] ? counts[one] > counts[other]
           : works != other_works       ? other_works
                                        : one > other;
}

static void lose(trib_coordinator *self, uint32_t loser, uint32_t count)
{
    const trib_dispute *at = self->disputes;
    while (at->ends[0] != loser && at->ends[1] != loser) {
        at = at->hh.next;
    }
    char text[TRIB_REASON_MAX], more[32] = "";
    if (count > 1) {
        snprintf(more, sizeof more, " and %u other%s", count - 1, count > 2 ? "s" : "");
    }
    snprintf(text, sizeof text, "does not reach %s%s, while the coordinator hears both sides",
             trib_roster_name(self->roster, at->ends[at->ends[0] == loser]), more);
    const trib_cause cause =
        trib_cause_about(TRIB_PEER_LOST, TRIB_CAUSE_LEFT, TRIB_SUBJECT_MEMBER, loser, TRIB_NO_MEMBER, text);
    trib_coordinator_take_loss(self, &cause);
}

/* Loses one member of the ripe reports. */
static void decide(trib_coordinator *self, int64_t now_ns)
{
    uint32_t *counts = calloc(trib_coordinator_slots(self), sizeof *counts), loser = TRIB_NO_MEMBER;
    if (counts == NULL) {
        return; /* there may be memory at the next look */
    }
    for (const trib_dispute *at = self->disputes; at != NULL; at = at->hh.next) {
        counts[at->ends[0]]++;
        counts[at->ends[1]]++;
    }
    for (const trib_dispute *at = self->disputes; at != NULL; at = at->hh.next) {
        for (uint32_t k = 0; k < 2 && is_ripe(self, at, now_ns); k++) {
            loser = loser == TRIB_NO_MEMBER || is_cheaper(self, counts, at->ends[k], loser) ? at->ends[k] : loser;
        }
    }
    if (loser != TRIB_NO_MEMBER) {
        lose(self, loser, counts[loser]);
    }
    free(counts);
}

/* Drops what has settled itself. Returns true if reports are left. */
static bool look_through(trib_coordinator *self, int64_t now_ns)
{
    bool any = false;
    trib_dispute *at, *next;
    HASH_ITER(hh, self->disputes, at, next)
    {
        const bool is_old = at->is_doubt && now_ns - at->at_ns > self->roster->peer_timeout_ns / 8 * DOUBT_EIGHTHS;
        if (is_old || !is_there(self, at->ends[0]) || !is_there(self, at->ends[1])) {
            HASH_DEL(self->disputes, at);
            free(at);
        } else {
            any = any || !at->is_doubt;
        }
    }
    return any;
}

static void judge(trib_coordinator *self, int64_t now_ns)
{
    self->looks = look_through(self, now_ns);
    const uint32_t silent = self->looks ? find_silent(self, now_ns) : TRIB_NO_MEMBER;
    if (silent != TRIB_NO_MEMBER) {
        lose_silent(self, silent, now_ns);
    } else if (self->looks) {
        decide(self, now_ns);
    }
}

static void look(trib_reactor *reactor, trib_timer *timer)
{
    trib_coordinator *self = timer->user;
    if (self->over) {
        return;
    }
    /* after a stop of this process others' reports may lie unread */
    const bool stalled = trib_timer_stalled_locally(reactor, timer, self->roster->peer_timeout_ns / WAIT_SHARE);
    const bool judges = !stalled || self->looked_late;
    self->looked_late = stalled;
    if (judges) {
        judge(self, trib_now(reactor));
    }
    if (self->looks && !self->over) {
        trib_timer_arm(reactor, timer, trib_now(reactor) + LOOK_NS);
    }
}

static bool is_dispute(const trib_coordinator *self, const trib_cause *cause)
{
    const uint32_t count = trib_coordinator_slots(self);
    return self->running && !self->over && self->roster->shrinks && cause->subject_kind == TRIB_SUBJECT_MEMBER &&
           cause->subject < count && cause->origin < count && cause->subject != cause->origin &&
           is_there(self, cause->subject);
}

/* Returns false if memory runs out. */
static bool note(trib_coordinator *self, const trib_cause *cause, bool is_doubt)
{
    const bool is_lower = cause->origin < cause->subject;
    const uint32_t ends[2] = {is_lower ? cause->origin : cause->subject, is_lower ? cause->subject : cause->origin};
    trib_dispute *at;
    const uint64_t pair = (uint64_t)ends[0] << 32 | ends[1];
    HASH_FIND(hh, self->disputes, &pair, sizeof pair, at);
    if (at != NULL && !at->is_doubt) {
        return true;
    }
    if (at == NULL) {
        at = calloc(1, sizeof *at);
        if (at == NULL) {
            return false;
        }
        memcpy(at->ends, ends, sizeof ends);
        at->pair = pair;
        HASH_ADD(hh, self->disputes, pair, sizeof at->pair, at);
        if (at->hh.tbl == NULL) {
            free(at);
            return false;
        }
    }
    at->is_doubt = is_doubt;
    at->at_ns = trib_now(self->core->reactor);
    return true;
}

bool trib_verdict_waits(trib_coordinator *self, const trib_cause *cause)
{
    const uint32_t me = self->core->engine->member_id; /* its process decides, so it is the other one that is cut off */
    if (!is_dispute(self, cause) || cause->origin == me || cause->subject == me || !note(self, cause, false)) {
        return false;
    }
    if (!self->looks) {
        self->looks = true;
        self->verdict.fired = look;
        self->verdict.user = self;
        trib_timer_arm(self->core->reactor, &self->verdict, trib_now(self->core->reactor) + LOOK_NS);
    }
    return true;
}

void trib_verdict_doubt(trib_coordinator *self, const trib_cause *cause)
{
    if (is_dispute(self, cause)) {
        (void)note(self, cause, true); /* without memory the others' reports decide */
    }
}

void trib_verdict_close(trib_coordinator *self)
{
    trib_timer_stop(self->core->reactor, &self->verdict);
    trib_dispute *at, *next;
    HASH_ITER(hh, self->disputes, at, next)
    {
        HASH_DEL(self->disputes, at);
        free(at);
    }
}

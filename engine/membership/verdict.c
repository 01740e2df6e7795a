/* verdict.c - see verdict.h. */
#include "engine/membership/verdict.h"

#include <stdio.h>
#include <stdlib.h>

#include "engine/base/assert.h"

#define WAIT_SHARE 8  /* a report is kept for this part of the peer timeout */
#define DOUBT_SHARE 2 /* a doubt that is not repeated counts for this part of it */
#define LOOK_NS (20 * INT64_C(1000000))

/* Two members that do not reach each other. */
typedef struct trib_report {
    uint32_t reporter, subject;
    bool is_doubt; /* the reporter still tries: this decides nothing, and counts */
    int64_t at_ns; /* of a doubt: when it came last */
} trib_report;

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

/* ---- Two members that the coordinator hears, and that do not reach each other ---- */

static bool is_heard(const trib_coordinator *self, uint32_t member)
{
    const trib_coordinator_slot *slot = &self->slots[member];
    return !slot->left && slot->link != NULL && slot->link->state == TRIB_LINK_READY;
}

static bool is_about(const trib_report *report, uint32_t one, uint32_t other)
{
    return (report->reporter == one && report->subject == other) ||
           (report->reporter == other && report->subject == one);
}

/* Returns how many others the member does not reach. */
static uint32_t count_against(const trib_coordinator *self, uint32_t member)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < self->report_count; i++) {
        count += self->reports[i].reporter == member || self->reports[i].subject == member;
    }
    return count;
}

/* True if a loss of this member is worse for the job than a loss of the other one. */
static bool is_dearer(const trib_coordinator *self, uint32_t member, uint32_t other)
{
    const uint32_t count = count_against(self, member), others = count_against(self, other);
    const bool works = member < self->worker_count, other_works = other < self->worker_count;
    return count != others ? count < others : works != other_works ? works : member < other;
}

/* Returns a member of one of the reports that are no doubts. */
static uint32_t find_loser(const trib_coordinator *self)
{
    uint32_t loser = TRIB_NO_MEMBER;
    for (uint32_t i = 0; i < self->report_count; i++) {
        const uint32_t both[] = {self->reports[i].reporter, self->reports[i].subject};
        for (uint32_t k = 0; k < 2 && !self->reports[i].is_doubt; k++) {
            loser = loser == TRIB_NO_MEMBER || is_dearer(self, loser, both[k]) ? both[k] : loser;
        }
    }
    return loser;
}

/* Takes the report out of the list. The order of the others may change. */
static trib_report take_report(trib_coordinator *self, uint32_t index)
{
    const trib_report report = self->reports[index];
    self->reports[index] = self->reports[--self->report_count];
    return report;
}

static void lose(trib_coordinator *self, uint32_t loser)
{
    uint32_t count = 0, other = TRIB_NO_MEMBER;
    for (uint32_t i = self->report_count; i-- > 0;) {
        if (self->reports[i].reporter == loser || self->reports[i].subject == loser) {
            const trib_report report = take_report(self, i);
            other = report.reporter == loser ? report.subject : report.reporter;
            count++;
        }
    }
    trib_assert(count > 0);
    char text[TRIB_REASON_MAX], more[32] = "";
    if (count > 1) {
        snprintf(more, sizeof more, " and %u other%s", count - 1, count > 2 ? "s" : "");
    }
    snprintf(text, sizeof text, "does not reach %s%s, while the coordinator hears both sides",
             trib_roster_name(self->roster, other), more);
    const trib_cause cause =
        trib_cause_about(TRIB_PEER_LOST, TRIB_CAUSE_LEFT, TRIB_SUBJECT_MEMBER, loser, TRIB_NO_MEMBER, text);
    trib_coordinator_take_loss(self, &cause);
}

/* Drops doubts that were not repeated. Where the coordinator has lost a subject, too, that one is lost at once. Returns
 * true if a report is old enough. */
static bool look_through(trib_coordinator *self, int64_t now_ns)
{
    const int64_t timeout_ns = self->roster->peer_timeout_ns;
    bool is_due = false;
    for (uint32_t i = self->report_count; i-- > 0 && !self->over;) {
        const trib_report at = self->reports[i];
        if (self->slots[at.reporter].left || (at.is_doubt && now_ns - at.at_ns > timeout_ns / DOUBT_SHARE)) {
            (void)take_report(self, i);
        } else if (!at.is_doubt && !is_heard(self, at.subject)) {
            (void)take_report(self, i);
            const trib_cause cause =
                trib_cause_about(TRIB_PEER_LOST, TRIB_CAUSE_CONNECTION_LOST, TRIB_SUBJECT_MEMBER, at.subject,
                                 at.reporter, "the connection ended and could not be made again");
            trib_coordinator_take_loss(self, &cause);
        } else {
            is_due = is_due || (!at.is_doubt && now_ns - at.at_ns >= timeout_ns / WAIT_SHARE);
        }
    }
    return is_due && !self->over;
}

static void look(trib_reactor *reactor, trib_timer *timer)
{
    trib_coordinator *self = timer->user;
    if (look_through(self, trib_now(reactor)) && find_loser(self) != TRIB_NO_MEMBER) {
        lose(self, find_loser(self));
    }
    if (!self->over && find_loser(self) != TRIB_NO_MEMBER) {
        trib_timer_arm(reactor, timer, trib_now(reactor) + LOOK_NS);
    }
}

/* True if the coordinator has to decide between two other members. */
static bool is_dispute(const trib_coordinator *self, const trib_cause *cause)
{
    const uint32_t me = self->core->engine->member_id, count = trib_coordinator_slots(self);
    return self->running && !self->over && self->roster->shrinks && cause->subject_kind == TRIB_SUBJECT_MEMBER &&
           cause->subject < count && cause->origin < count && cause->subject != cause->origin && cause->subject != me &&
           cause->origin != me && is_heard(self, cause->subject);
}

/* Returns false if memory runs out. */
static bool note(trib_coordinator *self, const trib_cause *cause, bool is_doubt)
{
    const trib_report report = {.reporter = cause->origin,
                                .subject = cause->subject,
                                .is_doubt = is_doubt,
                                .at_ns = trib_now(self->core->reactor)};
    for (uint32_t i = 0; i < self->report_count; i++) {
        trib_report *at = &self->reports[i];
        if (is_about(at, report.reporter, report.subject)) {
            *at = at->is_doubt ? report : *at;
            return true;
        }
    }
    trib_report *reports = realloc(self->reports, (self->report_count + 1) * sizeof *reports);
    if (reports == NULL) {
        return false;
    }
    self->reports = reports;
    reports[self->report_count++] = report;
    return true;
}

bool trib_verdict_waits(trib_coordinator *self, const trib_cause *cause)
{
    if (!is_dispute(self, cause) || !note(self, cause, false)) {
        return false;
    }
    self->disputes.fired = look;
    self->disputes.user = self;
    trib_timer_arm(self->core->reactor, &self->disputes, trib_now(self->core->reactor) + LOOK_NS);
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
    trib_timer_stop(self->core->reactor, &self->disputes);
    free(self->reports);
    self->reports = NULL;
    self->report_count = 0;
}

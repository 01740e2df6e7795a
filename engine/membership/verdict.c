/* verdict.c - see verdict.h. */
#include "engine/membership/verdict.h"

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

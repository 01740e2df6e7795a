/*
 * verdict.h - the coordinator decides which member is to blame for a loss.
 *
 * A member that loses another one reports that to the coordinator alone, and waits a moment for its verdict before it
 * closes its links. So all members hear one cause. A report is evidence, not a fact: a member that hears nobody reports
 * members that all others hear.
 *
 * Where the coordinator hears both of two members that do not reach each other, and the job goes on without one, the
 * report is kept for an eighth of the peer timeout. Reports count against both members, and so do doubts: a member has
 * not reached another one for the peer timeout, and still tries. The one that fails to reach the most others is lost
 * then; of several a server before a worker, then the higher id. Both must have been heard again by then. If only one
 * of the two is silent for a quarter of the peer timeout, or a 32nd where its connection has ended, that one is lost.
 */
#ifndef TRIB_ENGINE_VERDICT_H
#define TRIB_ENGINE_VERDICT_H

#include "engine/membership/coordinator_internal.h"

/* Turns a member's report into the verdict. The reporter itself is to blame if it has not answered the
 * coordinator for long and yet speaks: it hears nothing. */
void trib_verdict_judge(const trib_coordinator *self, uint32_t reporter, trib_cause *cause);
/* Returns true if the report is kept until others may have come. */
bool trib_verdict_waits(trib_coordinator *self, const trib_cause *cause);
/* The member still tries to reach the subject. That counts when others' reports are decided. */
void trib_verdict_doubt(trib_coordinator *self, const trib_cause *cause);
void trib_verdict_close(trib_coordinator *self);

#endif

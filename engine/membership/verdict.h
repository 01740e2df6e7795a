/*
 * verdict.h - the coordinator decides which member is to blame for a loss.
 *
 * A member that loses another one reports that to the coordinator alone, and waits a moment for its verdict before it
 * closes its links. So all members hear one cause. A report is evidence, not a fact: a member that hears nobody reports
 * members that all others hear.
 */
#ifndef TRIB_ENGINE_VERDICT_H
#define TRIB_ENGINE_VERDICT_H

#include "engine/membership/coordinator_internal.h"

/* Turns a member's report into the verdict. The reporter itself is to blame if it has not answered the
 * coordinator for long and yet speaks: it hears nothing. */
void trib_verdict_judge(const trib_coordinator *self, uint32_t reporter, trib_cause *cause);

#endif

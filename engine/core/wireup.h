/*
 * wireup.h - which members connect to which when the roster has come, and what a member does that cannot accept connections.
 *
 * A worker that nobody accepts gives up in the end, and would report that the process it called does not answer. So that
 * process ends the job first and names the resource that it lacks, but only while workers are missing: other connections are
 * strangers, which may stay outside. Half-open connections hold the same resource, so they are dropped before that.
 *
 * A worker whose connection ends before it stands does not know the reason: the process that it called may have ended for
 * another member's cause, which it can tell only members that it knows. So the worker gives the coordinator a moment to tell it.
 *
 * Everything here belongs to one core.
 */
#ifndef TRIB_ENGINE_WIREUP_H
#define TRIB_ENGINE_WIREUP_H

#include "engine/core/core.h"

/* True if this core connects to that reactor of that member. */
bool trib_wireup_connects_to(const trib_core *core, uint32_t member, uint32_t reactor);
/* On members that sum: true if one of that worker's cores connects to this core. */
bool trib_wireup_expects_worker(const trib_core *core, uint32_t worker);

/* With the roster: workers that have not connected yet are awaited from here on. */
void trib_wireup_expect_peers(trib_core *core);
void trib_wireup_note_peer(trib_core *core, uint32_t worker);
/* Called every tick. */
void trib_wireup_check(trib_core *core);

/* A connection that this core was making has ended: its peer is lost for that cause, if nobody says more before. */
void trib_wireup_defer_failure(trib_core *core, const trib_cause *cause);
/* The job is over. */
void trib_wireup_stop(trib_core *core);

#endif

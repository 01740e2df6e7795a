/*
 * wireup.h - the connections between members once the roster is here, and the failures to make them.
 *
 * A worker that no process accepts gives up, and would report that the process it called does not answer. So a process
 * that cannot accept ends the job earlier and names the resource that it lacks. It does so only while workers are
 * missing: other connections are strangers, which may stay outside. Half-open connections use the same resource, so
 * they are dropped first.
 *
 * A worker whose connection ends during the handshake does not know the cause. The process that it called may have
 * ended for another member's cause, and could not tell an unknown connection. So the worker gives the coordinator a
 * moment to report the cause.
 *
 * Only the reactor of the core touches this state.
 */
#ifndef TRIB_ENGINE_WIREUP_H
#define TRIB_ENGINE_WIREUP_H

#include "engine/core/core.h"

/* True if this core connects to that reactor of that member. */
bool trib_wireup_connects_to(const trib_core *core, uint32_t member, uint32_t reactor);
/* On members that sum: true if one of that worker's cores connects to this core. */
bool trib_wireup_expects_worker(const trib_core *core, uint32_t worker);

/* Called when the roster is here. From then on, this core awaits the workers that have not connected. */
void trib_wireup_expect_peers(trib_core *core);
void trib_wireup_note_peer(trib_core *core, uint32_t worker);
/* Called every tick. */
void trib_wireup_check(trib_core *core);

/* A connection attempt of this core has ended. The peer counts as lost for that cause, unless the coordinator
 * reports another cause first. */
void trib_wireup_defer_failure(trib_core *core, const trib_cause *cause);
/* Called when the job is over: no failure is reported any more. */
void trib_wireup_stop(trib_core *core);

#endif

/*
 * wireup.h - the connections between members once the roster is here, and the failures to make them.
 *
 * A worker that no process accepts gives up, and would report that the process it called does not answer. So a process
 * that cannot accept ends the job earlier and names the resource that it lacks. It does so only while workers are
 * missing: other connections are strangers, which may stay outside. Half-open connections use the same resource, so
 * they are dropped first.
 *
 * A worker whose connection ends during the handshake does not know the cause. The process that it called may have
 * left in good order, or have ended for another member's cause, and could not tell an unknown connection. So the worker
 * asks the coordinator, and gives it a moment. A member that leaves listens until the coordinator has announced that,
 * so the coordinator's answer cannot be older than the announcement. A connection to a member that has left is not
 * needed.
 *
 * A member that leaves waits for the workers that have yet to connect: they may still want sums of it.
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
TRIB_CHECKED trib_status trib_wireup_expect_peers(trib_core *core);
void trib_wireup_note_peer(trib_core *core, uint32_t worker);
/* True if a worker that has not left has yet to connect to this core. */
bool trib_wireup_awaits(const trib_core *core);
/* Called every tick. */
void trib_wireup_check(trib_core *core);

/* True for a link that has ended so before it was made: its peer may have left in good order. */
static inline bool trib_wireup_is_doubtful(const trib_link *link, trib_status status)
{
    return !link->proved && (status == TRIB_PEER_LOST || status == TRIB_TIMEOUT);
}

/* A connection attempt of this core to that member has ended. The member counts as lost for that cause, unless it has
 * left in good order, or the coordinator reports another cause first. */
void trib_wireup_defer_failure(trib_core *core, uint32_t member, const trib_cause *cause);
/* Names a member to which this core has no connection yet; call before the core has joined. */
const char *trib_wireup_missing_name(const trib_core *core);
/* A link that this core was making is not needed any more, because its peer has left. */
void trib_wireup_drop_link(trib_core *core);
/* Called when the job is over: no failure is reported any more. */
void trib_wireup_stop(trib_core *core);
/* Frees what is left. */
void trib_wireup_close(trib_core *core);

#endif

/*
 * wireup.h - who connects to whom when the roster has come, and what a member does that cannot let its callers in.
 *
 * A caller that nobody lets in gives up in the end, and would say of the process that it called that it does not answer.
 * So that process ends the job first, in its own words: it knows what it is short of. It does so only while callers are missing;
 * who else comes to it is a stranger, and may stay outside. Those that it has let in and that have proved nothing all the
 * while hold what it is short of: they go first.
 *
 * A caller whose connection ends before it stands does not know why: the process that it called may have ended because of
 * another's trouble, and could tell that only those whom it knows. So the caller leaves the coordinator a moment to say it.
 *
 * Everything here belongs to one core.
 */
#ifndef TRIB_ENGINE_WIREUP_H
#define TRIB_ENGINE_WIREUP_H

#include "engine/core/core.h"

/* Does this member's core of that index connect to that reactor of that member? */
bool trib_wireup_connects_to(const trib_core *core, uint32_t member, uint32_t reactor);
/* Does one of that worker's cores connect to this one? On members that sum for others. */
bool trib_wireup_expects_worker(const trib_core *core, uint32_t worker);

/* With the roster: who has not come yet is awaited from here on. */
void trib_wireup_expect_peers(trib_core *core);
void trib_wireup_note_peer(trib_core *core, uint32_t worker);
/* Every tick. */
void trib_wireup_check(trib_core *core);

/* A connection that this core was making has ended: so does the job with these words, if nobody says more before. */
void trib_wireup_defer_failure(trib_core *core, trib_status status, const char *text);
/* The job is over. */
void trib_wireup_stop(trib_core *core);

#endif
